"""What a read sees: heads, then the base, and proof that they belong together.

With the head, a reader is strongly consistent without any server: everything acknowledged before the heads were read
is in the view. Model: tests/model/reader_view.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lancelsm.common.layout import Generation, Position, RegionId, generation_path, wal_entry
from lancelsm.dataset.base_table import BaseTable
from lancelsm.errors import Corrupt, error_context
from lancelsm.record.key import fold
from lancelsm.region.catalog import Region, TableContext
from lancelsm.region.compare_and_swap import ensure_unused, newest
from lancelsm.region.manifest import FlushedGeneration, Manifest
from lancelsm.wal.entry import Entry
from lancelsm.wal.replay import stored_rows, tail

_TRIES = 5

ReadBase = Callable[[], BaseTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionView:
    """One region in a view: what is newer than the base, newest last."""

    region: RegionId
    manifest: Manifest
    counter: Generation  # the newest generation that the base holds
    tail: pa.Table  # folded, in stored form

    @property
    def generations(self) -> list[FlushedGeneration]:
        """The generations that the base doesn't hold, oldest first."""
        return [g for g in self.manifest.generations if g.generation > self.counter]

    def path(self, generation: FlushedGeneration) -> str:
        """Where one of them is, below the table."""
        return generation_path(self.region, generation.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Base and regions as of one moment."""

    base: BaseTable
    regions: tuple[RegionView, ...]


def take_view(context: TableContext, regions: Callable[[], Sequence[Region]], read_base: ReadBase) -> View:
    """Read heads and tails, then the base.

    Args:
        regions: which ones, listed anew at each try: the catalog is read before the heads.
        read_base: opens the newest version of the base.

    Raises:
        Corrupt: the base and the regions don't belong together: it was overwritten, or restored too far back.
        Unavailable: a store or the registry did not answer.
    """
    problem = ""
    waits = context.budget().attempts()
    for _ in range(_TRIES):
        next(waits, None)  # past the budget it waits no more, but tries: it may have stalled between head and base
        found = context.each(_read, regions())
        base = read_base()
        problem = _problem(found, base, context)
        if not problem:
            reads = [read for read in found if isinstance(read, _Read)]
            return View(base=base, regions=tuple(region_view(r.region, r.manifest, r.entries, base) for r in reads))
    raise Corrupt(
        problem,
        remedy="If the registry is an older copy, stop all writers, then: "
        f"lancelsm registry rebuild {context.uri}. Else restore the base to a version whose next generations are kept",
        table=context.uri,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    region: Region
    manifest: Manifest
    entries: list[Entry]


class _Absent:
    """A region in the catalog without a head: nothing was ever acknowledged in it."""


class _Overtaken:
    """A region whose log was collected between the reads."""


def _read(region: Region) -> _Read | _Absent | _Overtaken:
    head = region.find_head()
    if head is None:
        return _without_head(region)
    head, manifest = newest(region, head)
    entries = tail(region, head, manifest)
    if entries is None:
        return _Overtaken()
    return _Read(region=region, manifest=manifest, entries=entries)


def _without_head(region: Region) -> _Absent | _Overtaken:
    """A region that nobody has finished making; raises `Corrupt` if it was written to, so that its head is lost."""
    written = region.context.objects.get(wal_entry(region.id, Position(1))) is not None
    try:
        ensure_unused(region)
    except Corrupt:
        written = True
    if not written:
        return _Absent()
    region.head()  # raises, unless it was made only now
    return _Overtaken()


def _problem(found: Sequence[_Read | _Absent | _Overtaken], base: BaseTable, context: TableContext) -> str:
    """Why these reads don't make a view, empty if they do. All may pass when everything is read anew."""
    if base.facts is None or base.facts.table != context.table:
        return "the base is not this table's: another tool has overwritten it"
    for read in found:
        if isinstance(read, _Overtaken):
            return "a log was collected faster than it could be read"
        if isinstance(read, _Read) and (problem := mismatch(read.manifest, base)):
            return problem
    return ""


def mismatch(manifest: Manifest, base: BaseTable) -> str:
    """Why a manifest and a base, which was read after it, are not one state of the region; empty if they are."""
    counter = base.counters.get(manifest.region, 0)
    kept = {g.generation for g in manifest.generations}
    missing = [g for g in range(counter + 1, manifest.newest + 1) if g not in kept]
    if counter <= manifest.newest and not missing:
        return ""
    return (
        f"the base holds region {manifest.region} through generation {counter}, its manifest has {sorted(kept)} of "
        f"{manifest.newest}"
    )


def region_view(region: Region, manifest: Manifest, entries: Sequence[Entry], base: BaseTable) -> RegionView:
    """One region of a view, from the entries after the manifest's replay point."""
    with error_context(**region.where):
        tables = [stored_rows(entry, base.schema) for entry in entries if entry.summary.rows]
    rows = pa.concat_tables(tables) if tables else base.schema.stored.empty_table()
    return RegionView(
        region=region.id,
        manifest=manifest,
        counter=base.counters.get(region.id, Generation(0)),
        tail=fold(rows, base.schema.primary_key).rows,
    )
