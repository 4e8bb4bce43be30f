"""Append to the regions of a table: one writer per region and process, with backpressure when the base lags."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import pyarrow as pa

from lancelsm.common.layout import RegionValues
from lancelsm.common.setsum import Setsum
from lancelsm.common.write_result import Committed, CommittedEntry
from lancelsm.errors import Corrupt, Fenced, Invalid, LsmError, Unavailable
from lancelsm.record.rowsum import setsums_together
from lancelsm.record.schema_history import FIRST_VERSION
from lancelsm.region.catalog import Region, SealedRegion, check_not_dropped
from lancelsm.region.handle import WriteTarget
from lancelsm.region.head import Head, Summary
from lancelsm.region.resharding import newer_target
from lancelsm.region.since import PAUSE_SECONDS
from lancelsm.routing.route import Routed, route
from lancelsm.wal.append import append_after
from lancelsm.wal.claim import claim, claim_held, create_region
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.pipeline import Pipeline
from lancelsm.wal.slot import Appended
from lancelsm.wal.waiting import hold_back


def find_or_create_region(target: WriteTarget, values: RegionValues) -> tuple[Region, Head]:
    """Return the region with these values, and its head; create the region if it does not exist.

    The id follows from the values, so a region that exists costs one read of its head. Only the catalog has the id of a
    region that was adopted from Lance.

    Raises: the same errors as `wal.claim.create_region`, and `Invalid` if the table was dropped.
    """
    region = target.directory.named(values)
    head = region.find_head()
    if head is None:
        known = target.directory.find(values)
        if known is not None:
            if known.id != region.id and (head := known.find_head()) is not None:
                return known, head
            check_not_dropped(target.context)  # its creator crashed, or the table was dropped
        region = create_region(target.context, spec_id=target.regions.spec_id, values=values, owner=target.owner)
        head = region.head()
    return region, head


NextDraft = Callable[[Region, pa.Table], Callable[[Head], Draft | Head | None]]
"""Given a region and its rows: what to append at a head. See `wal.append.append_after`."""


class RegionWriter:
    """Append to one region: one entry at a time or, for an exclusive owner, several in flight. Thread-safe.

    Args:
        previous_owners: the owners from which the first append may take the region. `release` gives it back to the
            last of them. If empty, the region is not claimed.
        depth: the maximum number of entries in flight.
        held: a head that the caller has just read; it saves a read and may be stale.
    """

    def __init__(
        self,
        region: Region,
        target: WriteTarget,
        *,
        owner: str,
        previous_owners: tuple[str, ...],
        depth: int,
        held: Head | None = None,
    ) -> None:
        self.region = region
        self._settings = target.settings
        self._owner = owner
        self._previous_owners = previous_owners
        self._pipeline = (
            Pipeline(region, owner=owner, previous_owners=previous_owners, depth=depth) if depth > 1 else None
        )
        self._held = held
        self._held_at = region.context.clock.monotonic()
        self._unclaimed = bool(previous_owners)
        self._lock = threading.Lock()

    @property
    def schema_version(self) -> int:
        """The version of the table's columns in the newest head that was seen; 1 before the first append."""
        head = self._held if self._pipeline is None else self._pipeline.head
        return FIRST_VERSION if head is None else head.schema_version

    def start(self, rows: pa.Table, then: Callable[[CommittedEntry | BaseException], None]) -> None:
        """Start an append. Return as soon as the next one may start; `then` gets the entry or the error of this one.

        Raises: the same errors as `append`; then `then` is not called.
        """
        if self._pipeline is None:
            then(self.append(rows))
            return
        encoded = draft(rows, at=self.region.context.clock.now())
        self._wait_for_base(self._pipeline.head)
        future = self._pipeline.submit(encoded)
        future.add_done_callback(lambda done: then(done.exception() or self._entry(done.result())))

    def _entry(self, summary: Summary) -> CommittedEntry:
        return CommittedEntry(region=self.region.id, position=summary.position, rows=summary.rows)

    def append(self, rows: pa.Table, *, sum_of_rows: Setsum | None = None) -> CommittedEntry:
        """Append rows as one entry. If the base lags, wait first.

        Args:
            sum_of_rows: see `wal.entry.draft`.

        Raises:
            Unavailable: too many generations wait to be merged.

        Raises also the errors of `wal.append.append` and `wal.claim.claim`.
        """
        encoded = draft(rows, at=self.region.context.clock.now(), sum_of_rows=sum_of_rows)
        entry = self.append_after(lambda _: encoded)
        assert entry is not None
        return entry

    def append_after(self, next_draft: Callable[[Head], Draft | Head | None]) -> CommittedEntry | None:
        """Call `wal.append.append_after`; if the base lags, wait first. Return None if there was nothing to append."""
        with self._lock:
            if self._unclaimed:
                self._held = claim(self.region, owner=self._owner, held_by=(*self._previous_owners, self._owner))
                self._unclaimed = False
            self._held = self._wait_for_base(self._recent())
            try:
                has_note = bool(self._held.waiting)
                if has_note:
                    self._held = hold_back(self.region, self._held)
                outcome = append_after(
                    self.region, next_draft, owner=self._owner, held=self._held, removes_note=has_note
                )
            except BaseException:
                self._held = None
                raise
            self._held = outcome.head if isinstance(outcome, Appended) else outcome
            self._held_at = self.region.context.clock.monotonic()
        return self._entry(outcome.summary) if isinstance(outcome, Appended) else None

    def release(self) -> None:
        """Give the region back to the last previous owner, unless another owner has claimed it meanwhile.

        Raises: the same errors as `wal.claim.claim_held`, without `Fenced` and `Invalid`.
        """
        if self._pipeline is not None:
            self._pipeline.close()
        with self._lock, suppress(Fenced, Invalid):  # claimed by another owner, sealed or dropped meanwhile
            self._held = None
            claim_held(self.region, owner=self._previous_owners[-1], held_by=(self._owner,))  # guard: region release

    def _recent(self) -> Head | None:
        """Return the held head, unless a collection may have deleted the entry of another writer at its next position.

        A put would refill that slot, and afterwards nothing tells whether the entry was ever in the log. After a
        shorter pause, only `log_since` would be wrong: a flush may have emptied the log.
        """
        age = self.region.context.clock.monotonic() - self._held_at
        most = min(self._settings.collect_interval_seconds / 2, PAUSE_SECONDS)
        return self._held if age < most else None

    def _wait_for_base(self, held: Head | None) -> Head:
        """Apply backpressure if the base lags; return a head for the next append."""
        slow, stop = self._settings.pending_generations_slow, self._settings.pending_generations_stop
        if held is None or held.pending_generations >= slow:
            held = self.region.head()
        pending = held.pending_generations
        if pending >= stop:
            raise Unavailable(
                f"{pending} generations wait to be merged",
                remedy=f"Merge them: lancelsm merge {self.region.context.uri}. Or make few of them: lancelsm compact",
                **self.region.where,
            )
        if pending >= slow:
            self.region.context.clock.sleep((pending - slow + 1) / (stop - slow))
        return held


class RegionWriters:
    """The region writers of one table in this process. Each is created at the first use of its region. Thread-safe.

    Args:
        owner: the name to write under. If it is not the table's owner, regions are claimed from the table's owner.
        previous_owner: another owner from which regions are claimed; `release` gives them back to it.
        depth: the maximum number of entries of a region in flight.
        finish: see `region.resharding.newer_target`.
    """

    def __init__(
        self,
        target: WriteTarget,
        *,
        owner: str,
        previous_owner: str | None = None,
        depth: int = 1,
        finish: Callable[[], None] | None = None,
    ) -> None:
        self._target = target
        self._finish = finish
        self._owner = owner
        self._previous_owners = tuple(
            name for name in dict.fromkeys((target.owner, previous_owner or target.owner)) if name != owner
        )
        self._depth = depth
        self._writers: dict[tuple[int, RegionValues], RegionWriter] = {}  # by the number of the region spec
        self._lock = threading.Lock()

    @property
    def target(self) -> WriteTarget:
        """The table with the newest region spec that this process has met."""
        return self._target

    def of(self, values: RegionValues, *, target: WriteTarget | None = None) -> RegionWriter:
        """Return the writer of the region with these values. The region is created if it does not exist.

        Args:
            target: the table as it was when its rows were split by region; by default as it is now.
        """
        target = target or self._target
        place = (target.regions.number, values)
        with self._lock:
            writer = self._writers.get(place)
            if writer is None:
                region, head = find_or_create_region(target, values)
                writer = RegionWriter(
                    region,
                    target,
                    owner=self._owner,
                    previous_owners=self._previous_owners,
                    depth=self._depth,
                    held=head,
                )
                self._writers[place] = writer
            return writer

    @property
    def schema_version(self) -> int:
        """The newest version of the table's columns in the heads that were seen."""
        return max((writer.schema_version for writer in list(self._writers.values())), default=FIRST_VERSION)

    def after_reshard(self, target: WriteTarget, sealed: SealedRegion) -> WriteTarget:
        """Return the target with the region spec that a reshard gave the table after `target`; wait for the reshard.

        Raises: the same errors as `region.resharding.newer_target`.
        """
        if self._target.regions.number <= target.regions.number:
            self.follow(newer_target(target, sealed, finish=self._finish))
        return self._target

    def follow(self, target: WriteTarget) -> None:
        """Split rows by the region spec of this target from now on, if it is later than the one so far."""
        with self._lock:
            if target.regions.number > self._target.regions.number:
                self._target = target

    def release(self) -> None:
        """Give all regions back to their previous owner.

        Raises: the first error of `RegionWriter.release`, after all regions were tried. Call it again for the regions
        that are left.
        """
        failure: LsmError | None = None
        with self._lock:
            for place, writer in list(self._writers.items()):
                try:
                    writer.release()
                    del self._writers[place]
                except LsmError as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def append_all(self, rows: pa.Table, *, next_draft: NextDraft | None = None, again: bool = True) -> Committed:
        """Split rows by region, and append those of each region, regions in parallel.

        If a reshard has sealed a region, wait for it, and split the rows of that region by the new region spec.

        Args:
            next_draft: what to append to a region at a head, instead of the rows. See `wal.append.append_after`.
            again: False: raise `SealedRegion` if a reshard has sealed a region.

        Raises: the first error, after all regions are done. Its `rows_in_other_regions` counts the rows that other
        regions acknowledged, and its `regions_done` names these regions.
        """
        target, entries = self._target, list[CommittedEntry]()
        while True:
            parts = route(rows, target.regions)
            sums = setsums_together(part.rows for part in parts) if next_draft is None else [None] * len(parts)
            run = partial(self._append, target=target, next_draft=next_draft)
            outcomes = target.context.each(run, list(zip(parts, sums, strict=True)))
            entries += [outcome for outcome in outcomes if isinstance(outcome, CommittedEntry)]
            failure = _first_failure(outcomes)
            if not (again and isinstance(failure, SealedRegion)):
                break
            try:
                target = self.after_reshard(target, failure)
            except Exception as error:  # noqa: BLE001 - raised below, with what other regions have
                failure = error
                break
            sealed = [part.rows for part, one in zip(parts, outcomes, strict=True) if isinstance(one, SealedRegion)]
            rows = pa.concat_tables(sealed)
        if isinstance(failure, LsmError):
            if entries:
                failure.where["rows_in_other_regions"] = sum(entry.rows for entry in entries)
                failure.where["regions_done"] = ", ".join(entry.region for entry in entries)
            if isinstance(failure, Corrupt):
                check_not_dropped(self._target.context)
        elif failure is not None and entries:
            failure.add_note(f"These regions have their rows: {', '.join(entry.region for entry in entries)}")
        if failure is not None:
            raise failure
        return committed(entries)

    def _append(
        self, summed: tuple[Routed, Setsum | None], *, target: WriteTarget, next_draft: NextDraft | None
    ) -> CommittedEntry | Exception | None:
        part, sum_of_rows = summed
        try:
            writer = self.of(part.values, target=target)
            if next_draft is None:
                return writer.append(part.rows, sum_of_rows=sum_of_rows)
            return writer.append_after(next_draft(writer.region, part.rows))
        except Exception as error:  # noqa: BLE001 - raised after all regions are done; a function of the caller may fail
            return error


def _first_failure(outcomes: Iterable[object]) -> Exception | None:
    """Return the first error; one that is not of a sealed region comes before the others."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    return next((one for one in failures if not isinstance(one, SealedRegion)), failures[0] if failures else None)


def committed(entries: Iterable[CommittedEntry]) -> Committed:
    """Build the result of a write from its entries."""
    found = tuple(entries)
    return Committed(rows=sum(entry.rows for entry in found), entries=found)
