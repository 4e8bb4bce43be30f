"""Take a view of a table: read heads, then the base, and check that they belong together.

Reads are strongly consistent without a server: a view contains everything that was acknowledged before the heads were
read. Model: tests/model/reader_view.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from lancelsm.common.layout import NO_GENERATION, Generation, Position, RegionId, generation_path, wal_entry
from lancelsm.dataset.base_table import BaseTable
from lancelsm.errors import Corrupt
from lancelsm.read.tail import Tail, held_bytes, read_tail
from lancelsm.record.ttl import Expiry
from lancelsm.region.catalog import Region, TableContext, check_not_dropped, find_heads, regions
from lancelsm.region.compare_and_swap import ensure_unused, newest
from lancelsm.region.head import Head
from lancelsm.region.manifest import FlushedGeneration, Manifest, missing_numbers
from lancelsm.registry import ReadsMany
from lancelsm.wal.entry import Entry
from lancelsm.wal.replay import LogCollected, LogEnd, stream_tail, tail

_TRIES = 5
_COLLECTED = "a log was collected while it was read"

ReadBase = Callable[[], BaseTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionView:
    """The part of one region in a view that is newer than the base."""

    region: RegionId
    manifest: Manifest
    counter: Generation  # the newest generation that the base holds
    tail: Tail
    end: LogEnd  # where the tail ends

    @property
    def generations(self) -> list[FlushedGeneration]:
        """The generations that the base doesn't hold, oldest first."""
        return [g for g in self.manifest.generations if g.generation > self.counter]

    def path(self, generation: FlushedGeneration) -> str:
        """Return the path of a generation, relative to the table."""
        return generation_path(self.region, generation.path)

    def above(self, base: BaseTable) -> RegionView:
        """Return the part of the region that is newer than this base, which has the same columns."""
        counter = base.counters.get(self.region, NO_GENERATION)
        return self if counter == self.counter else replace(self, counter=counter)


def level_name(region: RegionId, generation: Generation | None) -> str:
    """Return the name of a generation, or of a log, for people: with the start of the id of its region."""
    return f"{region[:8]} log" if generation is None else f"{region[:8]} generation {generation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Base and regions at one moment. Rows that have expired at `now`, in Unix seconds, count as deleted."""

    base: BaseTable
    regions: tuple[RegionView, ...]
    now: float

    @property
    def expiry(self) -> Expiry | None:
        """Which rows have expired; None if none have. Raises: see `BaseTable.expiry`."""
        return self.base.expiry(self.now)

    @property
    def identity(self) -> Hashable:
        """A value that is equal for two views of a table only if they have the same rows, expired ones included."""
        return self.base.version, tuple(
            (one.region, one.manifest.version, one.counter, one.end.next_position) for one in self.regions
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a read has just read when it takes a view: the first try does not read it again.

    Args:
        heads: the heads of regions; None for a region that has none.
        parts: the rows of regions whose heads have not changed since these were read.
    """

    heads: Mapping[RegionId, Head | None] = field(default_factory=dict)
    parts: Mapping[RegionId, RegionView] = field(default_factory=dict)


def take_view(
    context: TableContext,
    regions: Callable[[], Sequence[Region]],
    read_base: ReadBase,
    *,
    known: Known = Known(),
) -> View:
    """Read heads and tails, then the base.

    Args:
        regions: lists the regions. Called at each try, so that the catalog is read before the heads.
        read_base: opens the newest version of the base.
        known: heads and parts that were just read.

    Raises:
        Corrupt: the base and the regions don't belong together: the base was overwritten, or restored too far back.
            Or an object is missing or damaged.
        Unavailable: a store or the registry did not answer.
    """
    problem = ""
    waits = context.budget().attempts()
    for _ in range(_TRIES):
        next(waits, None)  # after the budget, try again without waiting: this process may have stalled
        listed = regions()
        known = _with_heads(context, listed, known)
        read = partial(_read, held_bytes=held_bytes(len(listed)), known=known, catalog=_Catalog(context))
        found = context.each(read, listed)
        base = read_base()  # guard: base is read after the heads
        problem = _problem(found, base, context)
        if not problem:  # guard: base of a view matches its heads
            reads = [one for one in found if isinstance(one, _Read)]
            try:
                regions_read = tuple(_region_view(one, base, of=len(reads)) for one in reads)
                return View(base=base, regions=regions_read, now=context.clock.now())
            except LogCollected:
                problem = _COLLECTED
        known = Known()  # guard: next try of a view reads everything again
    raise Corrupt(
        problem,
        remedy="If the registry is an older copy, stop all writers, then: "
        f"lancelsm registry rebuild {context.uri}. Else restore the base to a version whose next generations exist",
        table=context.uri,
    )


def _with_heads(context: TableContext, listed: Sequence[Region], known: Known) -> Known:
    """Read the heads that are not known, if that takes less time at once than one by one."""
    missing = [region for region in listed if region.id not in known.heads]
    if not missing or not isinstance(context.registry, ReadsMany):
        return known
    read = zip((region.id for region in missing), find_heads(context, missing), strict=True)
    return replace(known, heads={**known.heads, **dict(read)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    region: Region
    manifest: Manifest
    entries: list[Entry] | None  # None: not read, or too large to hold
    end: Head
    part: RegionView | None = None  # taken earlier, with a head that has not changed


class _Absent:
    """A region without a head: nothing was ever acknowledged in it."""


class _Overtaken:
    """A region whose log was collected between the reads."""


def _read(region: Region, *, held_bytes: int, known: Known, catalog: _Catalog) -> _Read | _Absent | _Overtaken:
    head = known.heads[region.id] if region.id in known.heads else region.find_head()
    if head is None:
        found = _without_head(region)
        other = catalog.with_other_id(region) if isinstance(found, _Absent) else None
        if other is None:
            return found
        region, head = other, other.head()
    if (part := known.parts.get(region.id)) is not None:
        return _Read(region=region, manifest=part.manifest, entries=None, end=head, part=part)
    head, manifest = newest(region, head)
    if _tail_bytes(head, manifest) > held_bytes:
        return _Read(region=region, manifest=manifest, entries=None, end=head)
    entries = tail(region, head, manifest)
    if entries is None:
        return _Overtaken()
    return _Read(region=region, manifest=manifest, entries=entries, end=head)


class _Catalog:
    """The catalog, listed once if a region has no head. Thread-safe."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._listed: list[Region] | None = None

    def with_other_id(self, region: Region) -> Region | None:
        """Return the region with the values of this one, but another id: such a region was adopted.

        Raises: `Corrupt` if the registry was lost: then a region without a head is not absent.
        """
        with self._lock:
            if self._listed is None:
                self._listed = regions(self._context)
        same = (one for one in self._listed if (one.spec_id, one.values) == (region.spec_id, region.values))
        return next((one for one in same if one.id != region.id), None)


def _without_head(region: Region) -> _Absent | _Overtaken:
    """Handle a region without head: never created, unfinished, or created meanwhile.

    Raises:
        Corrupt: the head was lost.
        Invalid: the table was dropped.
    """
    written = region.context.objects.get(wal_entry(region.id, Position(1))) is not None
    try:
        ensure_unused(region)
    except Corrupt:
        written = True
    if not written:  # guard: region with a lost head is not empty
        check_not_dropped(region.context)
        return _Absent()
    region.head()  # raises, unless the head was created meanwhile
    return _Overtaken()


def _problem(found: Sequence[_Read | _Absent | _Overtaken], base: BaseTable, context: TableContext) -> str:
    """Return why these reads are not one view; empty if they are. Reading everything again may solve it."""
    if base.facts is None or base.facts.table != context.table:  # guard: base of a view is of the table
        return "the base belongs to another table: another tool has overwritten it"
    for read in found:
        if isinstance(read, _Overtaken):
            return _COLLECTED
        if isinstance(read, _Read) and (problem := mismatch(read.manifest, base)):
            return problem
        if (
            isinstance(read, _Read) and read.end.schema_version > base.schema.version  # guard: base has known columns
        ):
            return (
                f"region {read.region.id} has rows of version {read.end.schema_version} of the table's columns, "
                f"but the base has version {base.schema.version}"
            )
    return ""


def mismatch(manifest: Manifest, base: BaseTable) -> str:
    """Return why a manifest and the base that was read after it don't belong together; empty if they do."""
    counter = base.counters.get(manifest.region, 0)
    missing = missing_numbers((g.numbers for g in manifest.generations), above=counter, newest=manifest.newest)
    if (
        counter <= manifest.newest  # guard: counter is in the heads
        and not missing  # guard: generations that the base lacks are listed
    ):
        return ""
    return (
        f"the base has merged region {manifest.region} through generation {counter}, but its manifest lists "
        f"{sorted(g.generation for g in manifest.generations)} of {manifest.newest} generations"
    )


def _region_view(read: _Read, base: BaseTable, *, of: int) -> RegionView:
    if read.part is not None and read.part.tail.schema == base.schema:
        return read.part.above(base)
    entries: Iterable[Entry] | None = read.entries
    if entries is None:
        entries = stream_tail(read.region, read.end, read.manifest, size=_tail_bytes(read.end, read.manifest))
    return region_view(read.region, read.manifest, entries, base, end=read.end, of=of)


def _tail_bytes(head: Head, manifest: Manifest) -> int:
    return head.wal_bytes - manifest.wal_bytes


def region_view(
    region: Region, manifest: Manifest, entries: Iterable[Entry], base: BaseTable, *, end: LogEnd, of: int
) -> RegionView:
    """Build the part of one region from the entries between the manifest's replay point and the end of the log.

    Args:
        entries: these entries; read once.
        of: the number of regions in the view. Together they hold few rows in memory.

    Raises: the same errors as `read.tail.read_tail`.
    """
    return RegionView(
        region=region.id,
        manifest=manifest,
        counter=base.counters.get(region.id, NO_GENERATION),
        tail=read_tail(region, base.schema, entries, held_bytes=held_bytes(of)),
        end=end,
    )
