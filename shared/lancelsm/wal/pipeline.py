"""Append to one region with several puts in flight, for the one writer that holds it alone.

Objects are put at consecutive positions in parallel; the head moves past several at once, in order, and only when every
one of them is known to be ours. When one entry is given up, all later ones fail, and the epoch is abandoned: a fresh
one is claimed before the next put, so that nothing left behind is ever committed after something newer.
Model: tests/model/pipelining.py.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import takewhile

from lancelsm import head as heads
from lancelsm.claim import claim
from lancelsm.errors import Contended, Fenced, Invalid, LsmError, Unavailable
from lancelsm.head import Head, Summary
from lancelsm.layout import Position
from lancelsm.region import Region, admit
from lancelsm.wal.entry import Draft, Encoded, encode
from lancelsm.wal.slot import ambiguous, contended, judge, place


@dataclass(slots=True, eq=False)
class _Flight:
    """An entry on its way: put, then committed behind its elders."""

    entry: Encoded
    done: Future[Summary] = field(default_factory=Future)
    placed: bool = False


class Pipeline:
    """Appends to one region by its sole owner. Thread-safe; entries are committed in the order of `submit`.

    Args:
        owner: a name that no other writer uses.
        depth: how many entries may be on their way at once.
    """

    def __init__(self, region: Region, *, owner: str, depth: int) -> None:
        self._region = region
        self._owner = owner
        self._depth = depth
        self._pool = ThreadPoolExecutor(depth, thread_name_prefix="lancelsm-pipeline")
        self._change = threading.Condition()
        self._committing = threading.Lock()
        self._flights: deque[_Flight] = deque()  # at consecutive positions from the head's on
        self._carried = 0  # flights that a thread still works on, given up or not
        self._head: Head | None = None
        self._abandoned = False
        self._fenced: LsmError | None = None

    @property
    def head(self) -> Head | None:
        """The head as last seen; None before the first entry."""
        return self._head

    def submit(self, draft: Draft) -> Future[Summary]:
        """Put a draft on its way; waits while `depth` others are.

        Returns:
            A future that is done once the entry is committed, or fails as `wal.append.append` does. It fails with
            `Contended` too when an elder was given up; the entry is not in the log then.

        Raises:
            Fenced, Invalid: another owner has taken the region, or it is sealed. So it stays.
            Unavailable, Ambiguous, Contended, Corrupt: the region could not be claimed. Nothing was put.
        """
        with self._change:
            self._change.wait_for(self._has_room)
            if self._fenced is not None:
                raise self._fenced
            head = self._head if self._head is not None and not self._abandoned else self._claim()
            flight = _Flight(
                encode(
                    draft,
                    position=Position(head.next_position + len(self._flights)),
                    epoch=head.epoch,
                    generation=head.current_generation,
                    nonce=self._region.storage.ids.nonce(),
                )
            )
            self._flights.append(flight)
            self._carried += 1
            self._pool.submit(self._carry, flight)
            return flight.done

    def close(self) -> None:
        """Wait for everything that is on its way."""
        self._pool.shutdown(wait=True)

    def _has_room(self) -> bool:
        return not self._carried if self._abandoned else len(self._flights) < self._depth

    def _claim(self) -> Head:
        """A fresh epoch: the first one, or the next after one was abandoned, unless another owner has claimed."""
        self._head = claim(self._region, owner=self._owner, held_by=self._owner if self._abandoned else None)
        self._abandoned = False
        return self._head

    def _carry(self, flight: _Flight) -> None:
        """Put one entry, then commit what is due."""
        try:
            standing = place(self._region, flight.entry, budget=self._region.storage.budget())
            if isinstance(standing, Head):
                self._give_up([flight], self._overtaken(standing, flight))
                return
            with self._change:
                flight.placed = True
            with self._committing:
                while due := self._due():
                    self._commit(due)
        except BaseException as error:
            self._give_up([flight], error)
            if not isinstance(error, LsmError):
                raise
        finally:
            with self._change:
                self._carried -= 1
                self._change.notify_all()

    def _due(self) -> list[_Flight]:
        """The flights that have nothing unplaced before them."""
        with self._change:
            return list(takewhile(lambda flight: flight.placed, self._flights))

    def _commit(self, due: list[_Flight]) -> None:
        """Move the head past these entries at once, and acknowledge them; or give them up."""
        region, head = self._region, self._head
        assert head is not None
        entries = [flight.entry.summary for flight in due]
        cause: LsmError | None = None
        for _ in region.storage.budget().attempts():
            try:
                outcome = region.swap(heads.appended(head, entries, nonce=due[-1].entry.nonce))
                if isinstance(outcome, Head):
                    self._acknowledge(due, outcome)
                    return
                now = region.head_after(outcome)
                if now.next_position > entries[0].position:
                    self._settle(due, now)
                    return
                if now.epoch != head.epoch:
                    self._give_up(due, self._overtaken(now, due[0]))
                    return
                head = now
            except (Unavailable, Invalid) as error:  # neither says what became of the entries
                cause = error
        unanswered = ambiguous(region, entries[0].position, "the registry gave no answer that proves anything")
        unanswered.__cause__ = cause
        self._give_up(due, unanswered)

    def _settle(self, due: list[_Flight], now: Head) -> None:
        """The head is past the first of these, by a swap of ours whose reply was lost, or by another's: judge each."""
        passed = [flight for flight in due if flight.entry.summary.position < now.next_position]
        for i, flight in enumerate(passed):
            try:
                judged = judge(self._region, flight.entry)
            except LsmError as error:
                self._give_up(passed[i:], error)
                return
            if isinstance(judged, Head):  # another's entry is there, so that swap was not ours
                self._give_up([flight], self._overtaken(judged, flight))
                return
            self._acknowledge([flight], judged.head)
        if now.epoch != due[0].entry.summary.epoch:
            self._give_up(due, self._overtaken(now, due[0]))

    def _acknowledge(self, flights: list[_Flight], head: Head) -> None:
        with self._change:
            for _ in flights:
                self._flights.popleft()
            self._head = head
            self._change.notify_all()
        for flight in flights:
            flight.done.set_result(flight.entry.summary)

    def _give_up(self, flights: list[_Flight], error: BaseException) -> None:
        """These fail with this error, all later ones because of it, and the epoch is abandoned."""
        with self._change:
            left = [flight for flight in self._flights if flight in flights]
            if not left:
                return  # they failed with an elder
            doomed: list[_Flight] = []
            while self._flights and (not doomed or doomed[-1] is not left[0]):
                doomed.append(self._flights.pop())
            self._abandoned = True
            if isinstance(error, Fenced | Invalid):
                self._fenced = error
            self._change.notify_all()
        for flight in reversed(doomed):
            flight.done.set_exception(error if flight in left else self._behind(flight))

    def _overtaken(self, head: Head, flight: _Flight) -> LsmError:
        """Why an entry can't be committed under this head any more."""
        try:
            admit(self._region, head, owner=self._owner)
        except LsmError as error:
            return error
        return contended(self._region, flight.entry.summary.position)

    def _behind(self, flight: _Flight) -> Contended:
        return Contended(
            "an earlier entry of this writer was given up, and this one with it",
            remedy="It is not in the log: find out about the earlier one, then write both again in order",
            **self._region.where,
            position=flight.entry.summary.position,
        )
