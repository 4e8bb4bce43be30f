"""Append one entry at one position: put its object, then advance the head past it.

Only the head commits an entry. After a lost reply, a lost race or a crash, the entry is committed once, or never will
be, or the caller gets `Ambiguous`. An object that was read at a position proves something only if a head that is read
later has its floor at or below that position: a late put may refill a slot that was collected. Model:
tests/model/append.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm import registry
from lancelsm.common.clock import Budget
from lancelsm.common.layout import Position, wal_entry
from lancelsm.errors import Ambiguous, Contended, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.objects import ETag, Object, WriteUnknown, Written
from lancelsm.region import head as heads
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head, Summary, Swap
from lancelsm.registry import SwapLost
from lancelsm.wal.entry import Draft, Encoded, Entry, decode, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """An acknowledged entry, and the newest head that was seen; the next append can start from it without a read."""

    summary: Summary
    head: Head


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlotObject:
    """The object at a position as one read saw it; `entry` is None if the object can't be decoded."""

    entry: Entry | None
    object: Object


def try_slot(
    region: Region, draft: Draft, head: Head, *, budget: Budget, fencing: bool = False, removes_note: bool = False
) -> Appended | Head:
    """Try to append a draft at the next position of this head.

    Args:
        head: may be stale.
        fencing: the draft is the fence of an unfinished claim. No writer appends in this epoch before the claim is
            finished, so an object that no lancelsm writer put there may be replaced.
        removes_note: the append also removes the note of a waiting writer from the head.

    Returns:
        The acknowledged entry; or a newer head to start again from, and then the draft is not in the log.

    Raises:
        Ambiguous, Contended, Corrupt, Unavailable, Invalid: for the same reasons as in `wal.append.append`.
    """
    entry = encode(
        draft,
        position=head.next_position,
        epoch=head.epoch,
        nonce=region.context.ids.nonce(),
    )
    outcome = put_entry(region, entry, budget=budget, fencing=fencing)
    return _commit(region, entry, head, budget=budget, removes_note=removes_note) if outcome is None else outcome


def put_entry(region: Region, entry: Encoded, *, budget: Budget, fencing: bool = False) -> Appended | Head | None:
    """Put our object at its position. Return None if it is there, else the same as `try_slot`.

    Arguments and errors are those of `try_slot`.
    """
    objects = region.context.objects
    position = entry.summary.position
    key = wal_entry(region.id, position)
    maybe_written = False  # an attempt had an unknown outcome
    replacing: ETag | None = None
    try:
        for _ in budget.attempts():
            if replacing is None:
                outcome = objects.create(key, entry.body)
            else:
                outcome = objects.replace(key, entry.body, expect=replacing)  # guard: entry is replaced under its ETag
            if isinstance(outcome, Written):
                return None
            maybe_written |= isinstance(outcome, WriteUnknown)  # guard: put without an answer is remembered
            found = read_slot(region, position)
            if found is None:
                if not maybe_written:
                    return region.head()
                replacing = None  # our put has not arrived yet: send the same bytes again, with the same nonce
            elif found.entry is not None and found.entry.nonce == entry.nonce:  # guard: nonce is compared after the put
                _check_ours(region, found.entry, entry)
                return None
            else:
                result = resolve_conflict(region, found, entry, maybe_written=maybe_written, fencing=fencing)
                if result is not None:
                    return result
                replacing = found.object.etag
    except (Unavailable, Invalid) as error:
        if maybe_written:  # guard: refusal proves nothing about an earlier put
            raise ambiguous(region, position, with_cause("the store gave no conclusive answer", error)) from error
        raise
    if maybe_written:
        raise ambiguous(region, position, "the store gave no conclusive answer")
    raise contended(region, position)


def resolve_conflict(
    region: Region, found: _SlotObject, entry: Encoded, *, maybe_written: bool, fencing: bool
) -> Appended | Head | None:
    """Handle an object of another writer at our position. None: replace it. Else the same as `try_slot`.

    An object of an older epoch is replaced. An object of our own epoch is committed on behalf of its writer, which may
    be about to commit it or may have crashed after the put.
    """
    position, epoch = entry.summary.position, entry.summary.epoch
    other = found.entry
    if (
        other is not None and other.summary.epoch < epoch  # guard: only an entry of an older epoch is replaced
    ):
        return None
    fresh = region.head()
    if fresh.next_position > position:  # guard: position is compared before another entry is committed
        return resolve_outcome(region, entry) if maybe_written else fresh
    if fresh.epoch != epoch:  # guard: epoch is compared before another entry is committed
        return fresh  # a concurrent claim: our entry can't be committed here any more
    if other is not None and other.summary.epoch > epoch:  # guard: entry of a higher epoch is foreign
        raise Corrupt(
            f"the log holds an entry of epoch {other.summary.epoch}, but the head is in epoch {epoch}: "
            "a writer does not use the registry",
            remedy=f"Stop that writer, then: lancelsm region adopt {region.context.uri}",
            **region.where,
            position=position,
        )
    if (
        other is None
        or other.nonce is None  # guard: entry without a nonce is left alone
        or not other.sound  # guard: damaged entry is left alone
    ):
        # The object was read before a head whose claim is unfinished, so no append of this epoch wrote it.
        if fencing and fresh.manifest_epoch < epoch:  # guard: only an unfinished claim replaces unknown objects
            return None
        raise Corrupt(
            "the object at the next position of the log is not an entry that this release writes",
            remedy=f"Take the region over: lancelsm region claim {region.context.uri} --region {region.id}",
            **region.where,
            position=position,
            object=wal_entry(region.id, position),
        )
    step = heads.appended(fresh, [other.summary], nonce=other.nonce, at=region.context.clock.now())
    outcome = advance_head(region, step)
    return outcome if isinstance(outcome, Head) else region.head_after(outcome)


def _commit(region: Region, entry: Encoded, head: Head, *, budget: Budget, removes_note: bool) -> Appended | Head:
    """Advance the head past our object, then acknowledge it. The object is at its position already."""
    position = entry.summary.position
    cause: LsmError | None = None
    for _ in budget.attempts():
        try:
            now_at = region.context.clock.now()
            step = heads.appended(head, [entry.summary], nonce=entry.nonce, at=now_at, removes_note=removes_note)
            outcome = advance_head(region, step)
            if isinstance(outcome, Head):
                return Appended(summary=entry.summary, head=outcome)
            if isinstance(outcome, registry.SwapUnknown):
                cause = Unavailable(outcome.cause)
            now = region.head_after(outcome)
            if now.next_position > position:  # guard: position is compared after a lost swap
                return resolve_outcome(region, entry)
            if now.epoch != entry.summary.epoch:  # guard: epoch is compared after a lost swap
                return now  # a concurrent claim: our object can't be committed any more
            head = now
        except (Unavailable, Invalid) as error:  # the outcome of the swap is still unknown
            cause = error
    raise ambiguous(region, position, with_cause("the registry gave no conclusive answer", cause)) from cause


def advance_head(region: Region, step: Swap) -> Head | SwapLost | registry.SwapUnknown:
    """Try to advance the head past entries. Return the new head if the swap was applied.

    Raises:
        Corrupt: the swap was applied, but the new head has other values than were written. The entries are committed
            and must not be acknowledged.
    """
    outcome = region.swap(step)
    if isinstance(outcome, Head):
        counted = {
            "next_position": outcome.next_position,
            "entry_setsum": outcome.entry_setsum.hex(),
            "wal_rows": outcome.wal_rows,
            "wal_bytes": outcome.wal_bytes,
        }
        other = [name for name, value in counted.items() if value != step.change[name]]
        if other:
            raise Corrupt(
                f"the head does not have the values that were written to it: {', '.join(other)} differs",
                remedy=region.context.rebuild_remedy,
                **region.where,
                position=Position(outcome.next_position - 1),
            )
    return outcome


def resolve_outcome(region: Region, entry: Encoded) -> Appended | Head:
    """Find out which entry was committed at our position, after the head has passed it.

    Returns:
        Our entry if it was committed, else a newer head to start again from.

    Raises:
        Ambiguous: the log was collected past the position meanwhile.
        Corrupt: a committed entry is missing.
    """
    position = entry.summary.position
    found = read_slot(region, position)
    # The head is read after the object: a late put may have refilled a collected slot.
    head = region.head()  # guard: head is read after the object
    if head.first_position > position:  # guard: floor is compared before the acknowledgement
        raise ambiguous(region, position, f"the log was collected below {head.first_position} meanwhile")
    if found is None:
        raise Corrupt(
            "a committed entry is gone",
            remedy="Restore the object from a copy of the bucket; lancelsm scrub lists all damage",
            **region.where,
            position=position,
            object=wal_entry(region.id, position),
        )
    if (
        found.entry is not None
        and found.entry.nonce == entry.nonce  # guard: nonce is compared before the acknowledgement
    ):
        _check_ours(region, found.entry, entry)
        return Appended(summary=entry.summary, head=head)
    return head


def _check_ours(region: Region, found: Entry, entry: Encoded) -> None:
    """Raise `Corrupt` if the object with our nonce does not have the sum that the head would record."""
    position = entry.summary.position
    if found.summary.entry_setsum != entry.summary.entry_setsum:  # guard: own entry has its sum
        raise Corrupt(
            "the entry was damaged while it was written",
            remedy=f"Take the region over: lancelsm region claim {region.context.uri} --region {region.id}",
            **region.where,
            position=position,
            object=wal_entry(region.id, position),
        )


def read_slot(region: Region, position: Position) -> _SlotObject | None:
    """Read the object at a position; None if there is no object."""
    key = wal_entry(region.id, position)
    found = region.context.objects.get(key)
    if found is None:
        return None
    try:
        return _SlotObject(entry=decode(found.body, position=position, key=key), object=found)
    except Corrupt:
        return _SlotObject(entry=None, object=found)


def with_cause(why: str, cause: LsmError | None) -> str:
    """Return why an outcome is unknown, with the message of the last error."""
    return why if cause is None else f"{why} ({cause.message})"


def contended(region: Region, position: Position) -> Contended:
    return Contended(
        "other writers were faster until the retry budget was spent",
        remedy="Nothing was written: retry, or let fewer writers write at the same time",
        **region.where,
        position=position,
    )


def ambiguous(region: Region, position: Position, why: str) -> Ambiguous:
    return Ambiguous(
        f"the entry may or may not be in the log: {why}",
        remedy="Read the rows back, then decide whether to write them again",
        **region.where,
        position=position,
    )
