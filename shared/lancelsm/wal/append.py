"""Append an entry to a region's log, and retry until it is acknowledged."""

from __future__ import annotations

from collections.abc import Callable

from lancelsm.errors import Contended
from lancelsm.region import head as heads
from lancelsm.region import producers
from lancelsm.region.catalog import Region, check_not_stopped, check_takes_plain_writes, check_writable
from lancelsm.region.head import Head
from lancelsm.wal.claim import finish_claim
from lancelsm.wal.entry import Draft
from lancelsm.wal.slot import Appended, contended, try_slot
from lancelsm.wal.waiting import Waiter


def append(region: Region, draft: Draft, *, owner: str, held: Head | None = None) -> Appended:
    """Append a draft as the next entry of the log.

    Args:
        region: the region to append to.
        draft: the rows. All of them become part of the log, or none.
        owner: the name under which this writer shares or holds the region.
        held: a head that the caller kept from an earlier append; it saves a read and may be stale.

    Returns:
        The entry, once it is durable and committed: every read that starts later sees it.

    Raises:
        Fenced: another owner holds the region. The entry is not in the log and never will be.
        Invalid: the region is sealed, or the table was dropped. Or another tool changed the base (`region.drift`). Or
            the region takes only change events.
        Ambiguous: the entry may be in the log, at most once. The log was collected past it, or the store or the
            registry did not answer.
        Contended: other writers were faster until the retry budget was spent. The entry is not in the log.
        Corrupt: no lancelsm writer put the object that is at the next position. The remedy says what to do.
        Unavailable: the store or the registry did not answer. Nothing was written.

    A crash at any line leaves one of three states: the entry is committed; or its object is there and a later append
    of this epoch commits it; or its object is there and a later epoch replaces it. The entry is never partly there.
    """
    appended = append_after(region, lambda _: draft, owner=owner, held=held)
    assert isinstance(appended, Appended)
    return appended


def append_after(
    region: Region,
    next_draft: Callable[[Head], Draft | Head | None],
    *,
    owner: str,
    held: Head | None = None,
    removes_note: bool = False,
) -> Appended | Head:
    """Append a draft that depends on the entries before it.

    Args:
        next_draft: gets a head and returns the draft to append right after the entries that this head has committed,
            None if there is nothing to append, or a newer head to start again from. It is called again for each newer
            head. The committed entry follows exactly the head of the last call.
        removes_note: the append also removes the note of a waiting writer: this writer has held back for it.

    Returns:
        The same as `append`, or the head for which there was nothing to append.

    Raises: the same errors as `append`, and `Contended` before anything is written if the draft is of a producer that
    the region has no room for (`region.producers`).
    """
    budget = region.context.budget()
    head = held or region.head()
    waiter = Waiter(region)
    for _ in budget.attempts():
        again: Head | None = head
        while again is not None:
            head = again
            check_writable(region, head, owner=owner)
            check_not_stopped(region, head)
            if head.manifest_epoch < head.epoch:  # guard: claim is finished before an append
                head = finish_claim(region, head, owner=owner)
            waiter.try_begins()
            draft = next_draft(head)  # guard: draft is made for every new head
            if draft is None:
                return head
            if isinstance(draft, Head):
                again = draft if draft.next_position > head.next_position else None
                head = draft
                continue
            if draft.ordered and not head.ordered:  # guard: region is marked before its first ordered event
                again = _marked(region, head)
                continue
            if draft.rows and not draft.ordered:
                check_takes_plain_writes(region.where, ordered=head.ordered or region.context.ordered)
            _check_room(region, draft, head)  # guard: new producer has room
            outcome = try_slot(region, draft, head, budget=budget, removes_note=removes_note or waiter.noted)
            if isinstance(outcome, Appended):
                return outcome
            head, again = outcome, waiter.head_after_loss(outcome)
    raise contended(region, head.next_position)


def _marked(region: Region, head: Head) -> Head:
    """Mark the region as one with ordered events. Return the newest head."""
    outcome = region.swap(heads.ordered(head))
    return outcome if isinstance(outcome, Head) else region.head_after(outcome)


def _check_room(region: Region, draft: Draft, head: Head) -> None:
    """Raise `Contended` if the head can't remember the producer of a draft without forgetting one too early."""
    for name, sequence in draft.applied_sequences.items():
        if sequence != producers.FORGET and not producers.has_room(head.producers, name, draft.at):
            idle = producers.longest_idle(head.producers)
            raise Contended(
                f"{producers.MOST} producers append to the region, so that it can't remember {name!r}; "
                f"the one that is idle for longest is {producers.described(head.producers, idle)}",
                # An id may begin with a hyphen.
                remedy="Nothing was written. If a producer appends no more: lancelsm region forget "
                f"--region {region.id} -- {region.context.uri} {idle}",
                **region.where,
            )
