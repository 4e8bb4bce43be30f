"""Keep the parts of the last views of an open table, and use them again while nothing has changed.

A strong read reads the catalog, the heads and the number of the newest version of the base, all at once. If each is the
same as when a part was taken, the part is current, and nothing else is read. An eventual read takes a view without any
read, if one was current at most `max_staleness` ago. Model: tests/model/eventual_view.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.layout import NO_GENERATION, RegionId
from lancelsm.common.read_trace import NO_TRACE, Trace
from lancelsm.dataset.base_table import BaseTable, newest_version
from lancelsm.read.followed_log import followed
from lancelsm.read.region_snapshot import find_region_snapshot
from lancelsm.read.tail import held_bytes
from lancelsm.read.view import Known, ReadBase, RegionView, View, mismatch, take_view
from lancelsm.region.catalog import Region, TableContext, head_reads
from lancelsm.region.head import Head

ListRegions = Callable[[], Sequence[Region]]
Select = Callable[[Sequence[Region]], Sequence[Region]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A region in a view, and the base of that view.

    Args:
        head: the head of the region; None if the region had none, or if the part is from a region snapshot.
        view: the rows of the region above the base; None if it had no head.
        taken: when the read began that read the log of the region.
        checked: when the last read began that found the part current.
    """

    head: Head | None
    view: RegionView | None
    base: BaseTable
    taken: float
    checked: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    table: BaseTable
    taken: float
    checked: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    regions: Sequence[Region]
    checked: float


class _Newest:
    """The newest base and listing that a read found."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.base: _Base | None = None
        self.listing: _Listing | None = None


class ViewCache:
    """The parts of the last views of one open table. Thread-safe.

    Args:
        read_base: opens the newest version of the base.
        kept: bounds the memory; also keeps what reads derive from a view.
        keep_seconds: a part that was taken longer ago is read again.
        skew_seconds: by how much the clocks of two machines may differ.
        trace: collects what is read of the base.
    """

    def __init__(
        self,
        context: TableContext,
        read_base: ReadBase,
        *,
        kept: BoundedCache,
        keep_seconds: float,
        skew_seconds: float,
        trace: Trace = NO_TRACE,
    ) -> None:
        self.kept = kept
        self._context = context
        self._read_base = read_base
        self._skew_seconds = skew_seconds
        self._trace = trace
        self._keep_seconds = keep_seconds
        self._newest = _Newest()

    def traced(self, context: TableContext, read_base: ReadBase, trace: Trace) -> ViewCache:
        """Return a cache that shares these parts and reads with this context. The trace collects what it reads."""
        found = ViewCache(
            context,
            read_base,
            kept=self.kept,
            keep_seconds=self._keep_seconds,
            skew_seconds=self._skew_seconds,
            trace=trace,
        )
        found._newest = self._newest
        if (base := self._newest.base) is not None:
            trace.reads(base.table.dataset)
        return found

    def take(self, list_regions: ListRegions, *, select: Select | None = None) -> View:
        """Take a view that has everything that was acknowledged before the call.

        Args:
            list_regions: lists the regions; those of the whole catalog if `select` is given.
            select: returns the regions to read out of those of the catalog.

        Raises: the same errors as `read.view.take_view`.
        """
        began = self._context.clock.monotonic()
        listing = _Catalog(list_regions, select)
        base = self._newest.base
        if base is None or base.taken < began - self._keep_seconds:
            view = take_view(self._context, listing.read, self._opened)
        else:
            view = self._take_known(listing, base.table, began)
        if not _has_retired(view.base, listing.retired):  # guard: base of a view has the rows of retired regions
            listing = _Catalog(list_regions, select, with_retired=True)
            view = take_view(self._context, listing.read, self._opened)
        self._keep(view, listing, began)
        return view

    def recent(self, list_regions: ListRegions, *, select: Select | None = None, max_staleness: float) -> View | None:
        """Return a view that was current at most this many seconds ago; None if no such view can be had.

        A view of kept parts costs no read. If no base is kept, the region snapshot of the base is read, and the logs
        up to their ends in the snapshot.

        Args: the same as in `take`. Without `select`, the regions are listed.

        Raises: the same errors as `read_base`; `Corrupt` or `Unavailable`, if the manifest of the base can't be read.
        """
        if self._newest.base is None:
            return self._view_of_snapshot(list_regions, select, max_staleness)
        return self._kept_view(list_regions, select, max_staleness)

    def _kept_view(self, list_regions: ListRegions, select: Select | None, max_staleness: float) -> View | None:
        oldest = self._context.clock.monotonic() - max_staleness
        base, listing = self._newest.base, self._newest.listing
        if base is None or base.checked < oldest:  # guard: base of a recent view is recent
            return None
        if select is None:
            found = list_regions()
        elif listing is not None and listing.checked >= oldest:  # guard: catalog of a recent view is recent
            found = select(listing.regions)
        else:
            return None
        listed, retired = _apart(found)
        if not _has_retired(base.table, retired):
            return None
        parts = [self._part(region.id) for region in listed]
        recent = [
            part
            for part in parts
            if part is not None
            and part.checked >= oldest  # guard: recent part of a view
            # A region that was named by its values may have another id, which only a strong read looks up.
            and (part.view is not None or select is not None)
        ]
        if len(recent) < len(parts):
            return None
        return self._joined(base.table, recent)

    def _view_of_snapshot(self, list_regions: ListRegions, select: Select | None, max_staleness: float) -> View | None:
        began = self._context.clock.monotonic()
        base = self._opened()
        snapshot = find_region_snapshot(self._context, base)
        if snapshot is None:
            return None
        age = max(0.0, self._context.clock.now() - snapshot.taken) + self._skew_seconds
        if age > max_staleness:  # guard: old region snapshot is not used
            return None
        every = [one.region for one in snapshot.regions]
        listing = _Catalog(list_regions if select is None else lambda: every, select)
        listed = listing.read()
        if select is None and not {region.id for region in listed} <= {region.id for region in every}:
            return None  # see `_kept_view`
        view = snapshot.view(listed, now=self._context.clock.now())
        if view is not None:
            self._keep(view, listing, began - age, whole=False)
        return view

    def forget(self) -> None:
        """Forget everything: the next view is read as a whole."""
        with self._newest.lock:
            self._newest.base = self._newest.listing = None
            self.kept.clear()

    def _take_known(self, listing: _Catalog, base: BaseTable, began: float) -> View:
        """Read at once what shows whether the parts are current. Then read what is missing or has changed."""
        expected = [self._here(region) for region in listing.expected(self._newest.listing)]
        of_heads = head_reads(self._context, expected)
        reads: list[Callable[[], Any]] = [
            *([listing.read] if listing.costs else []),
            *of_heads,
            lambda: self._newest_version(base),
        ]
        found = self._context.each(lambda read: read(), reads)
        read: Iterable[Head | None] = chain.from_iterable(found[-1 - len(of_heads) : -1])
        heads = dict(zip((region.id for region in expected), read, strict=True))
        self._follow(expected, heads, began)
        parts = {
            region: part
            for region, head in heads.items()
            if (part := self._part(region)) is not None
            and part.view is not None
            and head is not None  # guard: part of a region snapshot has no head
            and part.head == _decisive(head)  # guard: part of a view is used for its head alone
            and part.taken >= began - self._keep_seconds
        }
        listed = listing.listed
        if (
            found[-1] == base.version  # guard: kept base is the newest version
            and all(region.id in parts for region in listed)
            and (view := self._joined(base, [parts[region.id] for region in listed])) is not None
        ):
            return view

        def newest_base() -> BaseTable:
            return base if self._newest_version(base) == base.version else self._opened()

        views = {region: part.view for region, part in parts.items() if part.view is not None}
        return take_view(self._context, listing.again, newest_base, known=Known(heads=heads, parts=views))

    def _follow(self, regions: Sequence[Region], heads: Mapping[RegionId, Head | None], began: float) -> None:
        """Bring the kept parts of these regions up to their heads, if only entries were appended since."""

        def follow(region: Region) -> None:
            head, part = heads[region.id], self._part(region.id)
            if head is None or part is None or part.view is None or part.head is None:
                return
            if part.head == _decisive(head) or part.taken < began - self._keep_seconds:
                return
            view = followed(part.view, region, head, held_bytes=held_bytes(len(regions)))
            if view is not None:
                now = replace(part, head=_decisive(head), view=view, checked=began)
                self.kept.put(("part", region.id), now, size=view.tail.nbytes)

        self._context.each(follow, regions)

    def _here(self, region: Region) -> Region:
        return region if region.context is self._context else replace(region, context=self._context)

    def _newest_version(self, base: BaseTable) -> int:
        with self._trace.apart("base.newest_version", base.dataset):
            return newest_version(base)

    def _opened(self) -> BaseTable:
        base = self._read_base()
        self._trace.opened("base.open", base.dataset)
        return base

    def _joined(self, base: BaseTable, parts: Sequence[_Part]) -> View | None:
        """Return the view of these parts; None if they don't belong to this base."""
        regions = []
        for part in parts:
            if part.view is None:
                continue
            if part.base is base:
                regions.append(part.view)
            elif part.view.tail.schema == base.schema and not mismatch(part.view.manifest, base):
                regions.append(part.view.above(base))
            else:
                return None
        return View(base=base, regions=tuple(regions), now=self._context.clock.now())

    def _part(self, region: RegionId) -> _Part | None:
        found: _Part | None = self.kept.get(("part", region))
        return found

    def _keep(self, view: View, listing: _Catalog, began: float, *, whole: bool = True) -> None:
        """Keep the parts of a view that was current when a read began.

        Args:
            whole: whether the manifests list all generations. Those of a region snapshot don't, so no head is kept
                with them, and the next strong read reads these regions again.
        """
        regions = {one.region: one for one in view.regions}
        for region in listing.listed:
            one, last = regions.get(region.id), self._part(region.id)
            head = _decisive(one.end) if whole and one is not None and isinstance(one.end, Head) else None
            taken = last.taken if last is not None and one is not None and _same_rows(last.view, one) else began
            part = _Part(head=head, view=one, base=view.base, taken=taken, checked=began)
            self.kept.put(("part", region.id), part, size=0 if one is None else one.tail.nbytes)
        with self._newest.lock:
            if listing.whole is not None:
                self._newest.listing = _Listing(regions=listing.whole, checked=began)
            last_base = self._newest.base
            taken = last_base.taken if last_base is not None and last_base.table is view.base else began
            self._newest.base = _Base(table=view.base, taken=taken, checked=began)


class _Catalog:
    """The regions of one read: what was listed, and which of them are read."""

    def __init__(self, list_regions: ListRegions, select: Select | None, *, with_retired: bool = False) -> None:
        self._list = list_regions
        self._select = select
        self._with_retired = with_retired
        self.whole: Sequence[Region] | None = None
        self.listed: Sequence[Region] = ()
        self.retired: Sequence[Region] = ()
        self._fresh = False

    @property
    def costs(self) -> bool:
        """Whether the listing is a request."""
        return self._select is not None

    def expected(self, last: _Listing | None) -> Sequence[Region]:
        """Return the regions whose heads are worth reading beside the listing."""
        if self._select is None:
            self.read()
            return self.listed
        return [] if last is None else _apart(self._select(last.regions))[0]

    def read(self) -> Sequence[Region]:
        found = self._list()
        self._fresh = True
        if self._select is not None:
            self.whole, found = found, self._select(found)
        if self._with_retired:
            self.listed = found
        else:
            self.listed, self.retired = _apart(found)
        return self.listed

    def again(self) -> Sequence[Region]:
        """Return what was just listed; list again at each further call."""
        if not self._fresh:
            self.read()
        self._fresh = False
        return self.listed


def _apart(found: Sequence[Region]) -> tuple[list[Region], list[Region]]:
    """Return the regions to read, and those that are retired: the base has all their rows."""
    return [one for one in found if one.retired is None], [one for one in found if one.retired is not None]


def _has_retired(base: BaseTable, retired: Sequence[Region]) -> bool:
    """Return whether a base has all rows of these regions: it may have been restored to an older version."""
    counters = base.counters if retired else {}
    return all(counters.get(one.id, NO_GENERATION) >= (one.retired or NO_GENERATION) for one in retired)


def _decisive(head: Head | None) -> Head | None:
    """Return a head without its advisory fields, which don't change the rows of a view."""
    return (
        None
        if head is None
        else replace(head, merged=type(head.merged)(0), dirty="", stopped="", waiting="", log_since="", merge_since="")
    )


def _same_rows(last: RegionView | None, now: RegionView) -> bool:
    return last is not None and last.tail is now.tail
