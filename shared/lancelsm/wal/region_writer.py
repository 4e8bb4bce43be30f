"""Writers of regions: one a region in each process, which holds its head and pushes back when the base lags."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

import pyarrow as pa

from lancelsm.common.committed import Committed, CommittedEntry
from lancelsm.common.layout import RegionValues
from lancelsm.errors import Fenced, Invalid, LsmError, Unavailable
from lancelsm.region.catalog import Region, check_there
from lancelsm.region.handle import WriteTarget
from lancelsm.region.head import Head, Summary
from lancelsm.routing.route import Routed
from lancelsm.wal.append import append_after
from lancelsm.wal.claim import claim, claim_held, create_region
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.pipeline import Pipeline
from lancelsm.wal.slot import Appended


def region_of(target: WriteTarget, values: RegionValues) -> Region:
    """The region with these values, created if there is none; raises as `wal.claim.create_region`."""
    region = target.directory.find(values)
    if region is not None and region.find_head() is not None:
        return region
    if region is not None:  # its creator crashed half-way, or the table was dropped
        check_there(target.context)
    return create_region(target.context, spec_id=target.regions.spec_id, values=values, owner=target.owner)


class RegionWriter:
    """Appends to one region: one entry at a time, or, by its sole owner, several in flight. Thread-safe.

    Args:
        previous_owners: whom the region is taken from at the first append, and from nobody else; the last one gets it
            back. Without any, nothing is claimed.
    """

    def __init__(
        self, region: Region, target: WriteTarget, *, owner: str, previous_owners: tuple[str, ...], depth: int
    ) -> None:
        self._region = region
        self._settings = target.settings
        self._owner = owner
        self._previous_owners = previous_owners
        self._pipeline = (
            Pipeline(region, owner=owner, previous_owners=previous_owners, depth=depth) if depth > 1 else None
        )
        self._held: Head | None = None
        self._unclaimed = bool(previous_owners)
        self._lock = threading.Lock()

    def start(self, rows: pa.Table, then: Callable[[CommittedEntry | BaseException], None]) -> None:
        """As `append`, but returns as soon as the next entry may be started; `then` hears what became of this one.

        Raises: as `append`; then `then` is not called.
        """
        if self._pipeline is None:
            then(self.append(rows))
            return
        encoded = draft(rows, at=self._region.context.clock.now())
        self._wait_for_base(self._pipeline.head)
        flight = self._pipeline.submit(encoded)
        flight.add_done_callback(lambda done: then(done.exception() or self._entry(done.result())))

    def _entry(self, summary: Summary) -> CommittedEntry:
        return CommittedEntry(region=self._region.id, position=summary.position, rows=summary.rows)

    def append(self, rows: pa.Table) -> CommittedEntry:
        """As `wal.append.append`, after waiting for the base if it lags.

        Raises:
            Unavailable: too many generations wait to be merged.
        """
        encoded = draft(rows, at=self._region.context.clock.now())
        entry = self.append_after(lambda _: encoded)
        assert entry is not None
        return entry

    def append_after(self, next_draft: Callable[[Head], Draft | None]) -> CommittedEntry | None:
        """As `wal.append.append_after`, after waiting for the base; None if there was nothing to append."""
        with self._lock:
            if self._unclaimed:
                self._held = claim(self._region, owner=self._owner, held_by=(*self._previous_owners, self._owner))
                self._unclaimed = False
            self._held = self._wait_for_base(self._held)
            try:
                outcome = append_after(self._region, next_draft, owner=self._owner, held=self._held)
            except BaseException:
                self._held = None
                raise
            self._held = outcome.head if isinstance(outcome, Appended) else outcome
        return self._entry(outcome.summary) if isinstance(outcome, Appended) else None

    def release(self) -> None:
        """Let the last of the lenders have the region again, if it is still ours. Raises as `wal.claim.claim_held`."""
        if self._pipeline is not None:
            self._pipeline.close()
        with self._lock, suppress(Fenced, Invalid):  # taken over or sealed meanwhile
            self._held = None
            claim_held(self._region, owner=self._previous_owners[-1], held_by=(self._owner,))

    def _wait_for_base(self, held: Head | None) -> Head:
        """Push back while the base lags; returns a head for the next append."""
        slow, stop = self._settings.pending_generations_slow, self._settings.pending_generations_stop
        if held is None or held.pending_generations >= slow:
            held = self._region.head()
        pending = held.pending_generations
        if pending >= stop:
            raise Unavailable(
                f"{pending} generations wait to be merged",
                remedy=f"Merge them: lancelsm merge {self._region.context.uri}",
                **self._region.where,
            )
        if pending >= slow:
            self._region.context.clock.sleep((pending - slow + 1) / (stop - slow))
        return held


class RegionWriters:
    """The region writers of one table in this process, made when their regions are first met. Thread-safe.

    Args:
        owner: the name to write under; regions are taken from the table's owner if it is another.
        previous_owner: who has lent its regions besides, and gets them back.
    """

    def __init__(self, target: WriteTarget, *, owner: str, previous_owner: str | None = None, depth: int = 1) -> None:
        self._target = target
        self._owner = owner
        self._previous_owners = tuple(
            name for name in dict.fromkeys((target.owner, previous_owner or target.owner)) if name != owner
        )
        self._depth = depth
        self._writers: dict[RegionValues, RegionWriter] = {}
        self._lock = threading.Lock()

    def of(self, values: RegionValues) -> RegionWriter:
        """The writer of the region with these values; the region is created if there is none."""
        with self._lock:
            writer = self._writers.get(values)
            if writer is None:
                region = region_of(self._target, values)
                writer = RegionWriter(
                    region, self._target, owner=self._owner, previous_owners=self._previous_owners, depth=self._depth
                )
                self._writers[values] = writer
            return writer

    def release(self) -> None:
        """End exclusive ownership.

        Raises: as `RegionWriter.give_back`, after all were tried. Another call tries those that are left.
        """
        failure: LsmError | None = None
        with self._lock:
            for values, writer in list(self._writers.items()):
                try:
                    writer.release()
                    del self._writers[values]
                except LsmError as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def append_all(self, parts: Iterable[Routed]) -> Committed:
        """Append each region's rows, regions in parallel.

        Raises:
            The first failure, once every region has ended. It says how many rows other regions have acknowledged.
        """
        outcomes = self._target.context.each(self._append, list(parts))
        entries = [outcome for outcome in outcomes if isinstance(outcome, CommittedEntry)]
        for outcome in outcomes:
            if isinstance(outcome, LsmError):
                others = sum(entry.rows for entry in entries)
                outcome.where |= {"rows_in_other_regions": others} if others else {}
                raise outcome
        return committed(entries)

    def _append(self, part: Routed) -> CommittedEntry | LsmError:
        try:
            return self.of(part.values).append(part.rows)
        except LsmError as error:
            return error


def committed(entries: Iterable[CommittedEntry]) -> Committed:
    found = tuple(entries)
    return Committed(rows=sum(entry.rows for entry in found), entries=found)
