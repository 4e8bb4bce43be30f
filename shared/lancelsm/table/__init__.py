"""The public table object: upserts, deletes, consistent reads, snapshots, change streams and maintenance steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Annotated

import pyarrow as pa

from lancelsm.common.argument_checks import checked
from lancelsm.common.error_text import shown
from lancelsm.common.row_types import ArrowLike
from lancelsm.common.settings import given_settings
from lancelsm.errors import Invalid, LsmError
from lancelsm.history.at import At
from lancelsm.read.problems import warn_of_problems
from lancelsm.read.status import read_status, status_html
from lancelsm.region.handle import DEFAULT_OWNER, Ports, open_with_base
from lancelsm.region.on_ports import on_ports
from lancelsm.table.administration import TableAdministration
from lancelsm.table.columns import TableColumns
from lancelsm.table.history import TableHistory
from lancelsm.table.maintenance import TableMaintenance
from lancelsm.table.reads import TableReads


class Table(TableColumns, TableReads, TableMaintenance, TableHistory, TableAdministration):
    """A table of rows with a primary key. Thread-safe.

    `lancelsm.create` and `lancelsm.open` return it. A table that is open at a snapshot or a version always reads the
    rows of that state and refuses writes.
    """

    def __repr__(self) -> str:
        key, regions = ", ".join(self._schema.primary_key), self.config.regions
        at = "" if self._at is None else f", at={self.at_version or self._at.name!r}"
        return f"<lancelsm.Table {self.uri!r}, primary_key={key!r}, regions={regions and regions.describe()!r}{at}>"

    def _repr_html_(self) -> str:
        """Show levels and lag in a notebook; of a table at a snapshot, or if they can't be read, only the text."""
        text = f"<code>{escape(repr(self))}</code>"
        if self._at is not None:
            return text
        try:
            return f"{text}{status_html(read_status(self._handle))}"
        except LsmError as error:
            return f"{text}<br>{escape(error.kind)}: {escape(str(error))}"

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Pickle what opens the table again: location, settings, options of the store (which may have credentials)."""
        settings = given_settings(self.settings, table=self.config.settings)
        owner = None if self._owner == self.config.owner else self._owner
        at = None if self._at is None else self.at_version or self._at.name
        return _open_again, (self.uri, settings, self._handle.storage_options, owner, at)


@on_ports
@checked
def create(
    ports: Ports,
    /,
    uri: str | Path,
    data_or_schema: ArrowLike | pa.Schema,
    *,
    primary_key: str | Sequence[str],
    regions: Annotated[str | None, "region spec"] = None,  # annotated: it has a check of its own
    registry: str | None = None,
    owner: str = DEFAULT_OWNER,
    settings: Mapping[str, object] | None = None,
    indexes: Annotated[Mapping[str, str | Mapping[str, object]] | None, "indexes"] = None,
    ttl: str | None = None,
    sequence_by: str | Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    exist_ok: bool = False,
) -> Table:
    """Create a table at a path or URL and open it. Rows, if given, become version 1 of its base.

    Args:
        data_or_schema: an Arrow schema, or the first rows in any form that `Table.upsert` takes.
        primary_key: the key columns, in order.
        regions: the region spec: `bucket(a, 4)`, `multi_bucket(a, b, 8)`, `identity(a)`, `truncate(a, 10)`, `year(t)`,
            `month(t)`, `day(t)`, `hour(t)`, `expr(a % 4)`, or several joined by commas; by default the table has one
            region.
        registry: `sqlite` (default for paths), `object` (default for URLs) or `dynamodb:NAME`.
        owner: the owner name that ordinary writers share.
        settings: values by name, stored in the table's configuration.
        indexes: the indexes to create, by column: a kind, as in `{"vec": "IVF_SQ", "text": "INVERTED"}`, or a mapping
            with `kind` and the other arguments of `Table.create_index`, as in `{"vec": {"kind": "IVF_PQ",
            "num_sub_vectors": 16}}`.
        ttl: how long a row lives, counted from its value in a column: `7d on created_at`, or
            `0s on expires_at` if the column has the end of life. By default rows don't expire.
        sequence_by: the columns of the table that order change events: it takes only `Table.apply_changes` then. By
            default the first call of `apply_changes` that names columns decides.
        storage_options: options of the object store, as Lance takes them.
        exist_ok: if a table with the same columns, key and region spec exists there, open it. It gets no rows, and it
            keeps its registry, owner, settings and indexes. With other columns, key or spec it is `Invalid`.

    Raises:
        Invalid: a table or another dataset exists there, or schema, key, region spec, settings, indexes, ttl or
            sequence_by are not valid. Then nothing was written, unless Lance refuses an index only when it reads rows.
        Contended: another process is creating a table there.
        Unavailable: a store or the registry did not answer.

    After an error or a crash, the same call continues where this one stopped.
    """
    from lancelsm.admin.create import create_table  # noqa: PLC0415

    _check_regions(regions, primary_key)
    return Table(
        create_table(
            uri,
            data_or_schema,
            primary_key=primary_key,
            regions=regions,
            registry=registry,
            owner=owner,
            settings=settings,
            indexes=indexes,
            ttl=ttl,
            sequence_by=sequence_by,
            storage_options=storage_options,
            ports=ports,
            exist_ok=exist_ok,
        )
    )


@on_ports
@checked
def open(  # noqa: A001 - read as lancelsm.open
    ports: Ports,
    /,
    uri: str | Path,
    *,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None = None,
    owner: str | None = None,
    at: At | None = None,
) -> Table:
    """Open a table at a path or URL.

    Args:
        at: the name of a snapshot, a version of the base, or a time such as `2026-11-01T00:00:00Z`, which means
            the newest version that was committed until then. The table is then read-only and always shows the same
            rows.
        settings: values by name for this object only; they override the environment and the table's own settings.
        storage_options: options of the object store, as Lance takes them.
        owner: an owner name for this writer alone; it claims each region at its first write. By default the name that
            ordinary writers of the table share.

    Raises:
        Invalid: there is no table at this location, a newer release created it, a setting is not valid, or the
            snapshot or version is not found or was collected.
        Corrupt: the table's configuration is unreadable or contradicts the base.
        Unavailable: a store or the registry did not answer.

    If another tool changed the table, `open` emits one `LsmWarning`; `Table.status` has the same in `problems`.
    """
    handle, base = open_with_base(uri, settings=settings, storage_options=storage_options, ports=ports)
    table = Table(handle, owner=owner)
    if at is not None:
        return table.at(at)
    warn_of_problems(handle, base=base, commits=True, stacklevel=4)
    return table


def _open_again(
    uri: str,
    settings: Mapping[str, object],
    storage_options: Mapping[str, str] | None,
    owner: str | None,
    at: At | None,
) -> Table:
    return open(uri, settings=settings, storage_options=storage_options, owner=owner, at=at)


def _check_regions(regions: object, primary_key: str | Sequence[str]) -> None:
    if regions is None or isinstance(regions, str):
        return
    key = primary_key if isinstance(primary_key, str) else next(iter(primary_key), "id")
    size = regions if isinstance(regions, int) and regions > 1 else 4
    raise Invalid(
        f"regions is {shown(regions)}",
        remedy=f'Give a region spec: regions="bucket({key}, {size})"',
        field="regions",
    )
