"""Append to one region with several puts in flight, for the one writer that holds it alone.

Objects are put at consecutive positions in parallel; the head moves past several at once, in order, and only when every
one of them is known to be ours. When one entry is given up, all later ones fail, and the epoch is abandoned: a fresh
one is claimed before the next put, so that nothing left behind is ever committed after something newer.
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
from lancelsm.region.catalog import Region, check_writable
from lancelsm.region.head import Head, Summary
from lancelsm.wal.claim import claim, claim_held
from lancelsm.wal.entry import Draft, Encoded, encode
from lancelsm.wal.slot import Appended, advance_head, ambiguous, contended, put_entry, resolve_outcome


def _running() -> Future[Summary]:
    """A future that can't be cancelled: its entry is on its way already."""
    future: Future[Summary] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(slots=True, eq=False)
class _Flight:
    """An entry on its way: put, then committed behind its elders."""

    position: Position
    epoch: Epoch
    done: Future[Summary] = field(default_factory=_running)
    placed: Encoded | None = None  # once its object stands there


class Pipeline:
    """Appends to one region by its sole owner. Thread-safe; entries are committed in the order of `submit`.

    Args:
        owner: a name that no other writer uses.
        previous_owners: the owners that the region is taken from. Whoever else holds it keeps it.
        depth: how many entries may be on their way at once.
    """

    def __init__(self, region: Region, *, owner: str, previous_owners: tuple[str, ...], depth: int) -> None:
        self._region = region
        self._owner = owner
        self._previous_owners = previous_owners
        self._depth = depth
        self._pool = ThreadPoolExecutor(depth, thread_name_prefix="lancelsm-pipeline")
        self._change = threading.Condition()
        self._committing = threading.Lock()
        self._flights: deque[_Flight] = deque()  # at consecutive positions from the head's on
        self._carried = 0  # flights that a thread still works on, given up or not
        self._head: Head | None = None
        self._abandoned = True  # the next put needs a fresh epoch
        self._closed = False

    @property
    def head(self) -> Head | None:
        """The head as last seen; None before the first entry."""
        return self._head

    def submit(self, draft: Draft) -> Future[Summary]:
        """Put a draft on its way; waits while `depth` others are.

        Returns:
            A future that is done once the entry is committed, or fails as `wal.append.append` does. It fails with
            `Contended` too when an elder was given up; the entry is not in the log then. It can't be cancelled, and
            its callbacks must not wait for this pipeline.

        Raises:
            Fenced: another owner holds the region. Nothing was put.
            Invalid: the region is sealed, or the pipeline is closed. Nothing was put.
            Unavailable, Ambiguous, Contended, Corrupt: the region could not be claimed. Nothing was put.
        """
        with self._change:
            self._change.wait_for(lambda: self._closed or self._has_room())
            if self._closed:
                raise Invalid("the writer is closed", remedy="Open another one", **self._region.where)
            if self._head is None or self._abandoned:
                head = self._head = self._claim()
                self._abandoned = False
            else:
                head = self._head
            flight = _Flight(position=Position(head.next_position + len(self._flights)), epoch=head.epoch)
            self._flights.append(flight)
            self._carried += 1
            self._pool.submit(self._carry, flight, draft)
            return flight.done

    def close(self) -> None:
        """Wait for everything that is on its way. Closing twice is fine."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._pool.shutdown(wait=True)

    def _has_room(self) -> bool:
        return not self._carried if self._abandoned else len(self._flights) < self._depth

    def _claim(self) -> Head:
        """A fresh epoch. Once the region was ours, it is taken from nobody else: who has claimed it since keeps it."""
        if self._head is None:
            return claim(self._region, owner=self._owner, held_by=(*self._previous_owners, self._owner))
        return claim_held(self._region, owner=self._owner, held_by=(self._owner,))

    def _carry(self, flight: _Flight, draft: Draft) -> None:
        """Encode and put one entry, then commit what is due."""
        context = self._region.context
        try:
            entry = encode(draft, position=flight.position, epoch=flight.epoch, nonce=context.ids.nonce())
            standing = put_entry(self._region, entry, budget=context.budget())
            if isinstance(standing, Head):
                raise self._overtaken(standing, flight)
            with self._change:
                flight.placed = entry
            with self._committing:
                while due := self._due():
                    self._commit_or_give_up(due)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the entry has to hear of it
            self._give_up([flight], error)
        finally:
            with self._change:
                self._carried -= 1
                self._change.notify_all()

    def _due(self) -> list[_Flight]:
        """The flights that have nothing unplaced before them."""
        with self._change:
            return list(takewhile(lambda flight: flight.placed is not None, self._flights))

    def _commit_or_give_up(self, due: list[_Flight]) -> None:
        try:
            self._commit(due)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the entries has to hear of it
            self._give_up(due, error)

    def _commit(self, due: list[_Flight]) -> None:
        """Move the head past these entries at once, and acknowledge them; those that are left on return are due again.

        Raises: what became of those that were not acknowledged.
        """
        region, head = self._region, self._head
        assert head is not None
        entries = [flight.placed for flight in due if flight.placed is not None]
        first = entries[0].summary
        if (head.epoch, head.next_position) != (first.epoch, first.position):  # as an elder's lost reply has shown
            raise self._overtaken(head, due[0])
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
            except (Unavailable, Invalid) as error:  # neither says what became of the entries
                cause = error
                continue
            if ours:
                self._acknowledge(ours, now)
                return
            if now.epoch != first.epoch or now.next_position > first.position:
                raise self._overtaken(now, due[0])
        raise ambiguous(region, first.position, "the registry gave no answer that proves anything") from cause

    def _committed(self, entries: Sequence[Encoded], now: Head) -> list[Encoded]:
        """Those that the log holds under a head that some other swap moved, or one of ours whose reply was lost."""
        passed = [entry for entry in entries if entry.summary.position < now.next_position]
        verdicts = [resolve_outcome(self._region, entry) for entry in passed]
        proven = takewhile(lambda pair: isinstance(pair[1], Appended), zip(passed, verdicts, strict=True))
        return [entry for entry, _ in proven]

    def _acknowledge(self, entries: Sequence[Encoded], head: Head) -> None:
        """Tell those who wait for the first flights, whose entries these are."""
        with self._change:
            done = [self._flights.popleft().done for _ in entries]
            self._head = head
            # Committed, but the head was seen in another's epoch: under that one nothing of ours may be put.
            self._abandoned |= head.epoch != entries[0].summary.epoch
            self._change.notify_all()
        for future, entry in zip(done, entries, strict=True):
            future.set_result(entry.summary)

    def _give_up(self, flights: Sequence[_Flight], error: BaseException) -> None:
        """Those of these that are left fail with this error, all later ones because of it; the epoch is abandoned."""
        with self._change:
            self._abandoned = True
            left = [flight for flight in self._flights if flight in flights]
            doomed: list[_Flight] = []
            while left and (not doomed or doomed[-1] is not left[0]):
                doomed.append(self._flights.pop())
            self._change.notify_all()
        for flight in reversed(doomed):
            flight.done.set_exception(error if flight in left else self._behind(flight))

    def _overtaken(self, head: Head, flight: _Flight) -> LsmError:
        """Why an entry can't be committed under this head any more."""
        try:
            check_writable(self._region, head, owner=self._owner)
        except LsmError as error:
            return error
        return contended(self._region, flight.position)

    def _behind(self, flight: _Flight) -> Contended:
        return Contended(
            "an earlier entry of this writer was given up, and this one with it",
            remedy="It is not in the log: find out about the earlier one, then write both again in order",
            **self._region.where,
            position=flight.position,
        )
