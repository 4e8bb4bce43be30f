"""Append to one region with several puts in flight, for a writer that holds the region exclusively.

Objects are put at consecutive positions in parallel. One swap advances the head past several of them, in order, and
only when all of them are known to be ours. When one entry fails, all later ones fail too, and the epoch is abandoned: a
new epoch is claimed before the next put. So an object that was left behind is never committed after a newer entry.
Model: tests/model/pipelining.py.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import takewhile

from lancelsm.common.layout import Epoch, Position
from lancelsm.errors import Contended, Invalid, LsmError, Unavailable
from lancelsm.region import head as heads
from lancelsm.region.catalog import Region, check_not_stopped, check_takes_plain_writes, check_writable
from lancelsm.region.head import Head, Summary
from lancelsm.region.since import PAUSE_SECONDS
from lancelsm.wal.claim import claim, claim_held
from lancelsm.wal.entry import Draft, Encoded, encode
from lancelsm.wal.slot import Appended, advance_head, ambiguous, contended, put_entry, resolve_outcome, with_cause


def _running() -> Future[Summary]:
    """Return a future that can't be cancelled, since its entry is already in flight."""
    future: Future[Summary] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(slots=True, eq=False)
class _InFlight:
    """An entry in flight: first its object is put, then it is committed after all earlier entries."""

    position: Position
    epoch: Epoch
    done: Future[Summary] = field(default_factory=_running)
    written: Encoded | None = None  # set when the object is at its position


class Pipeline:
    """Append to one region as its only owner. Thread-safe; entries are committed in the order of `submit`.

    Args:
        owner: a name that no other writer uses.
        previous_owners: the owners from which the region may be claimed. Any other owner keeps it.
        depth: the maximum number of entries in flight.
    """

    def __init__(self, region: Region, *, owner: str, previous_owners: tuple[str, ...], depth: int) -> None:
        self._region = region
        self._owner = owner
        self._previous_owners = previous_owners
        self._depth = depth
        self._pool = ThreadPoolExecutor(depth, thread_name_prefix="lancelsm-pipeline")
        self._change = threading.Condition()
        self._committing = threading.Lock()
        self._in_flight: deque[_InFlight] = deque()  # at consecutive positions, from the next position of the head
        self._active = 0  # entries that a thread still works on, failed ones included
        self._head: Head | None = None
        self._head_at = 0.0  # when it was seen, by the monotonic clock
        self._abandoned = True  # the next put needs a new epoch
        self._closed = False

    @property
    def head(self) -> Head | None:
        """The newest head that was seen; None before the first entry."""
        return self._head

    def submit(self, draft: Draft) -> Future[Summary]:
        """Start to append a draft. Wait while `depth` entries are in flight.

        Returns:
            A future that is done when the entry is committed, or fails with an error of `wal.append.append`. If an
            earlier entry failed, it fails with `Contended`, and the entry is not in the log. The future can't be
            cancelled, and its callbacks must not wait for this pipeline.

        Raises:
            Fenced: another owner holds the region. Nothing was put.
            Invalid: the region is sealed or takes no rows for now, or the pipeline is closed. Nothing was put.
            Unavailable, Ambiguous, Contended, Corrupt: the region could not be claimed. Nothing was put.
        """
        with self._change:
            self._change.wait_for(lambda: self._closed or self._has_room())
            if self._closed:
                raise Invalid("the writer is closed", remedy="Open a new writer", **self._region.where)
            if self._head is None or self._abandoned:
                head = self._claim()
                self._abandoned = False
            else:
                head = self._after_pause(self._head)
            self._keep(head)
            check_not_stopped(self._region, head)
            check_takes_plain_writes(self._region.where, ordered=head.ordered or self._region.context.ordered)
            item = _InFlight(position=Position(head.next_position + len(self._in_flight)), epoch=head.epoch)
            self._in_flight.append(item)
            self._active += 1
            self._pool.submit(self._put_and_commit, item, draft)
            return item.done

    def close(self) -> None:
        """Wait for all entries in flight. Idempotent."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._pool.shutdown(wait=True)

    def _has_room(self) -> bool:
        return not self._active if self._abandoned else len(self._in_flight) < self._depth

    def _keep(self, head: Head) -> None:
        self._head, self._head_at = head, self._region.context.clock.monotonic()

    def _after_pause(self, head: Head) -> Head:
        """Return the head; after a pause, as it is now: a flush may have emptied the log, which moves `log_since`."""
        if self._active or self._region.context.clock.monotonic() - self._head_at < PAUSE_SECONDS:
            return head
        now = self._region.head()
        return now if (now.epoch, now.next_position) == (head.epoch, head.next_position) else head

    def _claim(self) -> Head:
        """Claim a new epoch. After the first claim, claim the region only from ourselves: another owner keeps it."""
        if self._head is None:
            return claim(self._region, owner=self._owner, held_by=(*self._previous_owners, self._owner))
        return claim_held(self._region, owner=self._owner, held_by=(self._owner,))

    def _put_and_commit(self, item: _InFlight, draft: Draft) -> None:
        """Encode and put one entry, then commit all entries that are ready."""
        context = self._region.context
        try:
            entry = encode(draft, position=item.position, epoch=item.epoch, nonce=context.ids.nonce())
            outcome = put_entry(self._region, entry, budget=context.budget())
            if isinstance(outcome, Head):
                raise self._why_superseded(outcome, item)
            with self._change:
                item.written = entry
            with self._committing:
                while ready := self._committable():
                    self._commit_or_fail(ready)
        except BaseException as error:  # noqa: BLE001 - the future of the entry must fail
            self._fail([item], error)
        finally:
            with self._change:
                self._active -= 1
                self._change.notify_all()

    def _committable(self) -> list[_InFlight]:
        """Return the entries that are written, up to the first one that is not."""
        with self._change:
            return list(takewhile(lambda item: item.written is not None, self._in_flight))  # guard: entries in order

    def _commit_or_fail(self, ready: list[_InFlight]) -> None:
        try:
            self._commit(ready)
        except BaseException as error:  # noqa: BLE001 - the futures of the entries must fail
            self._fail(ready, error)

    def _commit(self, ready: list[_InFlight]) -> None:
        """Advance the head past these entries in one swap, and acknowledge them.

        If only some were committed, the caller tries the others again. Raises: the error of those that failed.
        """
        region, head = self._region, self._head
        assert head is not None
        entries = [item.written for item in ready if item.written is not None]
        first = entries[0].summary
        if (head.epoch, head.next_position) != (first.epoch, first.position):  # found after a lost reply
            raise self._why_superseded(head, ready[0])
        summaries, nonce = [entry.summary for entry in entries], entries[-1].nonce
        swap = heads.appended(head, summaries, nonce=nonce, at=region.context.clock.now())
        cause: LsmError | None = None
        for _ in region.context.budget().attempts():
            try:
                outcome = advance_head(region, swap)
                if isinstance(outcome, Head):
                    self._acknowledge(entries, outcome)
                    return
                now = region.head_after(outcome)
                ours = self._committed(entries, now)
            except (Unavailable, Invalid) as error:  # the outcome of the swap is still unknown
                cause = error
                continue
            if ours:
                self._acknowledge(ours, now)
                return
            if now.epoch != first.epoch or now.next_position > first.position:
                raise self._why_superseded(now, ready[0])
        raise ambiguous(region, first.position, with_cause("the registry gave no conclusive answer", cause)) from cause

    def _committed(self, entries: Sequence[Encoded], now: Head) -> list[Encoded]:
        """Return the leading entries that are committed under this head, for a swap that was lost or got no reply."""
        passed = [entry for entry in entries if entry.summary.position < now.next_position]
        verdicts = [resolve_outcome(self._region, entry) for entry in passed]
        proven = takewhile(lambda pair: isinstance(pair[1], Appended), zip(passed, verdicts, strict=True))
        return [entry for entry, _ in proven]

    def _acknowledge(self, entries: Sequence[Encoded], head: Head) -> None:
        """Complete the futures of these entries, which are the first ones in flight."""
        with self._change:
            done = [self._in_flight.popleft().done for _ in entries]
            self._keep(head)
            # The entries are committed, but the head has the epoch of another owner: no entry may be put under it.
            self._abandoned |= head.epoch != entries[0].summary.epoch
            self._change.notify_all()
        for future, entry in zip(done, entries, strict=True):
            future.set_result(entry.summary)

    def _fail(self, items: Sequence[_InFlight], error: BaseException) -> None:
        """Fail those of these entries that are still in flight, and all later ones; abandon the epoch."""
        with self._change:
            self._abandoned = True
            left = [item for item in self._in_flight if item in items]
            failed: list[_InFlight] = []
            while left and (not failed or failed[-1] is not left[0]):
                failed.append(self._in_flight.pop())  # guard: all later entries fail
            self._change.notify_all()
        for item in reversed(failed):
            item.done.set_exception(error if item in left else self._earlier_entry_failed(item))

    def _why_superseded(self, head: Head, item: _InFlight) -> LsmError:
        """Build the error for an entry that can't be committed under this head any more."""
        try:
            check_writable(self._region, head, owner=self._owner)
        except LsmError as error:
            return error
        return contended(self._region, item.position)

    def _earlier_entry_failed(self, item: _InFlight) -> Contended:
        return Contended(
            "an earlier entry of this writer failed, and this entry with it",
            remedy="It is not in the log: find out what happened to the earlier entry, then write both again in order",
            **self._region.where,
            position=item.position,
        )
