"""Read the status of a table: heads, counters, and what is not flushed or merged yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from lancelsm.common.html import bar_html, table_html
from lancelsm.common.layout import Generation, RegionId
from lancelsm.common.row_types import Value
from lancelsm.dataset.base_table import BaseTable
from lancelsm.objects import ObjectStore
from lancelsm.read.problems import TableProblem, find_problems, promise_problems
from lancelsm.region.catalog import Region, regions, with_heads
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.config import Config
from lancelsm.region.handle import TableHandle
from lancelsm.region.head import Head
from lancelsm.region.manifest import Manifest

if TYPE_CHECKING:
    from lancelsm.read.index_status import IndexStatus

_LEVELS = ("region", "values", "status", "rows to flush", "generations to merge")
_MOST_REGIONS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionStatus:
    """The status of one region, from its head, its manifest and the base.

    Args:
        region: its id.
        values: the values of the region spec that its rows have, by name.
        epoch: rises with each claim.
        owner: the name under which writers write to it.
        status: `open` or `sealed`.
        next_position: the position of the next log entry.
        generations: how many generations wait to be merged; one that replaced others counts once.
        merged_generation: the number of the newest generation that is in the base; 0 if none is.
        newest_generation: the number of the newest generation; 0 if there is none.
        wal_rows: how many rows of the log wait for a flush.
        wal_bytes: their bytes in the log, without compression.
    """

    region: RegionId
    values: Mapping[str, Value | None]
    epoch: int
    owner: str
    status: str
    next_position: int
    generations: int
    merged_generation: int
    newest_generation: int
    wal_rows: int
    wal_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """The status of a table.

    Args:
        table: its location.
        base_version: the newest version of the base.
        regions: the status of each region.
        indexes: the progress of each index.
        ttl: how long rows live; None if they don't expire.
        problems: what other tools did to the table.
    """

    table: str
    base_version: int
    regions: tuple[RegionStatus, ...]
    indexes: tuple[IndexStatus, ...] = ()
    ttl: str | None = None
    problems: tuple[TableProblem, ...] = ()

    def _repr_html_(self) -> str:
        """Show levels and lag in a notebook."""
        return status_html(self)


def read_status(handle: TableHandle) -> TableStatus:
    """Read the status of every region now: heads first, then the base.

    Raises:
        Corrupt: a head or the manifest that it names is missing or unreadable.
        Unavailable: a store or the registry did not answer.
    """
    return _status(handle, *_read(handle))


def full_status(handle: TableHandle) -> TableStatus:
    """Read the status of a table, and what other tools did to it. Raises: the same errors as `read_status`."""
    read, base = _read(handle)
    found = _status(handle, read, base)
    unkept = promise_problems(handle) if found.indexes else []
    heads = [(region, head) for region, head, _ in read]
    return replace(found, problems=(*find_problems(handle, base=base, heads=heads), *unkept))


def _read(handle: TableHandle) -> tuple[list[tuple[Region, Head, Manifest]], BaseTable]:
    context = handle.context
    heads = with_heads(context, regions(context))
    named = context.each(lambda found: newest(*found), heads)
    return [(region, *found) for (region, _), found in zip(heads, named, strict=True)], handle.inspect_base()


def _status(handle: TableHandle, read: list[tuple[Region, Head, Manifest]], base: BaseTable) -> TableStatus:
    context = handle.context
    return TableStatus(
        table=context.uri,
        base_version=base.version,
        regions=tuple(_region_status(region, head, manifest, base, handle.config) for region, head, manifest in read),
        indexes=_indexes(base, [manifest for *_, manifest in read], objects=context.objects),
        ttl=None if base.ttl is None else base.ttl.text,
    )


def _indexes(base: BaseTable, manifests: list[Manifest], *, objects: ObjectStore) -> tuple[IndexStatus, ...]:
    if base.manifest is not None:
        return ()  # a base with indexes is opened with Lance
    from lancelsm.read.index_status import read_index_statuses  # noqa: PLC0415 - loads Lance

    return tuple(read_index_statuses(base, manifests, objects=objects))


def _region_status(region: Region, head: Head, manifest: Manifest, base: BaseTable, config: Config) -> RegionStatus:
    counter = base.counters.get(region.id, Generation(0))
    return RegionStatus(
        region=region.id,
        values=config.region_values(region.values, number=region.number),
        epoch=head.epoch,
        owner=head.owner,
        status=head.status.value,
        next_position=head.next_position,
        generations=sum(one.generation > counter for one in manifest.generations),
        merged_generation=counter,
        newest_generation=manifest.newest,
        wal_rows=head.wal_rows - manifest.wal_rows,
        wal_bytes=head.wal_bytes - manifest.wal_bytes,
    )


def status_html(status: TableStatus) -> str:
    """Return a table with one row per region: bars for the rows to flush and for the generations to merge."""
    rows = max((one.wal_rows for one in status.regions), default=0)
    generations = max((one.generations for one in status.regions), default=0)
    shown = sorted(status.regions, key=lambda one: (one.wal_rows, one.generations), reverse=True)[:_MOST_REGIONS]
    hidden = len(status.regions) - len(shown)
    table = table_html(_LEVELS, [_cells(one, rows=rows, generations=generations) for one in shown])
    more = f"<p>and {hidden:,} more regions, which wait less</p>" if hidden else ""
    return (
        f"<p>base version {status.base_version}, {len(status.regions):,} regions: "
        f"{sum(one.wal_rows for one in status.regions):,} rows to flush, "
        f"{sum(one.generations for one in status.regions):,} generations to merge</p>"
        f"{table}{more}" + "".join(f"<p>Problem: {escape(str(problem))}</p>" for problem in status.problems)
    )


def _cells(one: RegionStatus, *, rows: int, generations: int) -> list[str]:
    """Return the cells of a region for `_LEVELS`; its bars compare it with the region that has most."""
    return [
        f"<code>{escape(one.region[:8])}</code>",
        escape(", ".join(f"{name}={value}" for name, value in one.values.items())),
        escape(one.status),
        bar_html(one.wal_rows, most=rows, colour="#d9822b"),
        bar_html(one.generations, most=generations, colour="#2f6fb5"),
    ]
