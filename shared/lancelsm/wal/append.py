"""Append to a region's log: who may, and the attempts until the entry is acknowledged."""

from __future__ import annotations

from collections.abc import Callable

from lancelsm.region.catalog import Region, check_writable
from lancelsm.region.head import Head
from lancelsm.wal.claim import finish_claim
from lancelsm.wal.entry import Draft
from lancelsm.wal.slot import Appended, contended, try_slot


def append(region: Region, draft: Draft, *, owner: str, held: Head | None = None) -> Appended:
    """Make a draft the next entry of the log.

    Args:
        region: where to.
        draft: the rows; all of them or none become part of the log.
        owner: the name under which this writer shares or holds the region.
        held: a head from an earlier append, to save a read. It may be out of date.

    Returns:
        Once the entry is durable and committed: every read that starts now sees it.

    Raises:
        Fenced: another owner holds the region; the entry is not and will not be in the log.
        Invalid: the region is sealed.
        Ambiguous: the entry may be in the log, once; the log moved on too far, or nobody answered, to tell.
        Contended: others were faster until the budget was spent; the entry is not in the log.
        Corrupt: an object stands in the way that no protocol of ours put there; the message has the remedy.
        Unavailable: the store or the registry gave no answer before anything was written.

    A crash at any line leaves the entry committed, or an object that a later append of this epoch commits, or one
    that a later epoch replaces: each time the whole entry or none of it.
    """
    appended = append_after(region, lambda _: draft, owner=owner, held=held)
    assert isinstance(appended, Appended)
    return appended


def append_after(
    region: Region, next_draft: Callable[[Head], Draft | None], *, owner: str, held: Head | None = None
) -> Appended | Head:
    """As `append`, of what depends on the log before it.

    Args:
        next_draft: what to append right after the entries that this head has committed, or None for nothing any more.
            Asked again for each newer head; what is committed followed exactly the head that it was asked for last.

    Returns:
        As `append`; or the head at which there was nothing to append.
    """
    budget = region.context.budget()
    head = held or region.head()
    for _ in budget.attempts():
        check_writable(region, head, owner=owner)
        if head.manifest_epoch < head.epoch:
            head = finish_claim(region, head, owner=owner)
        draft = next_draft(head)
        if draft is None:
            return head
        outcome = try_slot(region, draft, head, budget=budget)
        if isinstance(outcome, Appended):
            return outcome
        head = outcome
    raise contended(region, head.next_position)
