"""One entry at one position: an object put there, and the head moved past it.

Only the head commits. Whatever gets lost on the way - a reply, a race, this process - the entry is committed once, or
never will be, or the caller is told `Ambiguous`. What was read at a position proves something only if a head read
later still has its floor at or below that position, since a late put may refill a slot that was collected. Model:
tests/model/append.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm import registry
from lancelsm.common.clock import Budget
from lancelsm.common.layout import Position, wal_entry
from lancelsm.errors import Ambiguous, Contended, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.objects import ETag, WriteUnknown, Written
from lancelsm.region import head as heads
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head, Summary, Swap
from lancelsm.registry import SwapLost
from lancelsm.wal.entry import Draft, Encoded, Entry, decode, encode

_COUNTED = ("next_position", "entry_setsum", "wal_rows", "wal_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """An acknowledged entry, and the head as last seen: with it the next append needs no read."""

    summary: Summary
    head: Head


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """The object at a position as one read saw it; `entry` is None if it is undecodable."""

    entry: Entry | None
    etag: ETag


def try_slot(region: Region, draft: Draft, head: Head, *, budget: Budget, fencing: bool = False) -> Appended | Head:
    """Try to make a draft the entry at the position that this head names.

    Args:
        head: as read or held; it may be out of date.
        fencing: the draft is the sentinel of an unfinished claim. Nobody appends in this epoch before the claim is
            finished, so an object that no protocol of ours put there may be replaced.

    Returns:
        The acknowledged entry; or a newer head to start afresh from, and then the draft is not in the log.

    Raises:
        Ambiguous, Contended, Corrupt: as `wal.append.append`.
    """
    entry = encode(
        draft,
        position=head.next_position,
        epoch=head.epoch,
        nonce=region.context.ids.nonce(),
    )
    outcome = put_entry(region, entry, budget=budget, fencing=fencing)
    return _commit(region, entry, head, budget=budget) if outcome is None else outcome


def put_entry(region: Region, entry: Encoded, *, budget: Budget, fencing: bool = False) -> Appended | Head | None:
    """Get our object to stand at its position: None once it does, else as `try_slot`, arguments and errors too."""
    objects = region.context.objects
    position = entry.summary.position
    key = wal_entry(region.id, position)
    maybe_written = False  # some attempt got no definite refusal
    replacing: ETag | None = None
    try:
        for _ in budget.attempts():
            if replacing is None:
                outcome = objects.create(key, entry.body)
            else:
                outcome = objects.replace(key, entry.body, expect=replacing)
            if isinstance(outcome, Written):
                return None
            maybe_written |= isinstance(outcome, WriteUnknown)
            standing = read_slot(region, position)
            if standing is None:
                if not maybe_written:
                    return region.head()
                replacing = None  # no trace of our put yet: the same bytes again, under the same nonce
            elif standing.entry is not None and standing.entry.nonce == entry.nonce:
                _check_ours(region, standing.entry, entry)
                return None
            else:
                settled = resolve_conflict(region, standing, entry, maybe_written=maybe_written, fencing=fencing)
                if settled is not None:
                    return settled
                replacing = standing.etag
    except (Unavailable, Invalid) as error:
        if maybe_written:
            raise ambiguous(region, position, "the store gave no answer that proves anything") from error
        raise
    if maybe_written:
        raise ambiguous(region, position, "the store gave no answer that proves anything")
    raise contended(region, position)


def resolve_conflict(
    region: Region, standing: _Standing, entry: Encoded, *, maybe_written: bool, fencing: bool
) -> Appended | Head | None:
    """Another's object stands at our position. None if it is to be replaced, else what `try_slot` returns.

    It is replaced if its epoch is over. One of our own epoch may be about to be committed by its writer, who may also
    have died after the put: it is committed for him.
    """
    position, epoch = entry.summary.position, entry.summary.epoch
    other = standing.entry
    if other is not None and other.summary.epoch < epoch:
        return None
    fresh = region.head()
    if fresh.next_position > position:
        return resolve_outcome(region, entry) if maybe_written else fresh
    if fresh.epoch != epoch:
        return fresh  # a claim came between: nothing of ours can be committed here any more
    if other is not None and other.summary.epoch > epoch:
        raise Corrupt(
            f"the log holds an entry of epoch {other.summary.epoch}, the head is in epoch {epoch}: "
            "a writer works outside the registry",
            remedy=f"Stop it, then: lancelsm region adopt {region.context.uri}",
            **region.where,
            position=position,
        )
    if other is None or other.nonce is None or not other.sound:
        # Seen before a head whose claim is unfinished, so no append of this epoch put it there.
        if fencing and fresh.manifest_epoch < epoch:
            return None
        raise Corrupt(
            "the object at the next position of the log is not one that this release appends",
            remedy=f"Take the region over: lancelsm region claim {region.context.uri} --region {region.id}",
            **region.where,
            position=position,
            object=wal_entry(region.id, position),
        )
    step = heads.appended(fresh, [other.summary], nonce=other.nonce, at=region.context.clock.now())
    outcome = advance_head(region, step)
    return outcome if isinstance(outcome, Head) else region.head_after(outcome)


def _commit(region: Region, entry: Encoded, head: Head, *, budget: Budget) -> Appended | Head:
    """Our object stands at its position: move the head past it, and acknowledge only then."""
    position = entry.summary.position
    cause: LsmError | None = None
    for _ in budget.attempts():
        try:
            step = heads.appended(head, [entry.summary], nonce=entry.nonce, at=region.context.clock.now())
            outcome = advance_head(region, step)
            if isinstance(outcome, Head):
                return Appended(summary=entry.summary, head=outcome)
            now = region.head_after(outcome)
            if now.next_position > position:
                return resolve_outcome(region, entry)
            if now.epoch != entry.summary.epoch:
                return now  # a claim came between: our object can't be committed any more
            head = now
        except (Unavailable, Invalid) as error:  # neither says what became of the entry
            cause = error
    raise ambiguous(region, position, "the registry gave no answer that proves anything") from cause


def advance_head(region: Region, step: Swap) -> Head | SwapLost | registry.SwapUnknown:
    """Try to move the head past entries: the new head if it was applied, and says what it was told.

    Raises:
        Corrupt: it says something else. The entries are committed, and must not be acknowledged.
    """
    outcome = region.swap(step)
    if isinstance(outcome, Head):
        record = heads.to_record(outcome)
        other = [name for name in _COUNTED if record[name] != step.change[name]]
        if other:
            raise Corrupt(
                f"the head counts other entries than were committed: {', '.join(other)} is not what was written",
                remedy=f"Stop all writers, then: lancelsm registry rebuild {region.context.uri}",
                **region.where,
                position=Position(outcome.next_position - 1),
            )
    return outcome


def resolve_outcome(region: Region, entry: Encoded) -> Appended | Head:
    """The head is past our position: was it our entry that was committed there? Else a newer head to start afresh from.

    Raises:
        Ambiguous: the log was collected past it meanwhile.
        Corrupt: a committed entry is gone.
    """
    position = entry.summary.position
    standing = read_slot(region, position)
    # The head is read after the object: a late put may have refilled a collected slot.
    head = region.head()
    if head.first_position > position:
        raise ambiguous(region, position, f"the log was collected below {head.first_position} meanwhile")
    if standing is None:
        raise Corrupt(
            "a committed entry is gone",
            remedy="Put it back from a copy of the bucket; lancelsm scrub names all that is wrong",
            **region.where,
            position=position,
            object=wal_entry(region.id, position),
        )
    if standing.entry is not None and standing.entry.nonce == entry.nonce:
        _check_ours(region, standing.entry, entry)
        return Appended(summary=entry.summary, head=head)
    return head


def _check_ours(region: Region, standing: Entry, entry: Encoded) -> None:
    """Whether what stands under our nonce has the sum that the head is to count; raises `Corrupt` if not."""
    position = entry.summary.position
    if standing.summary.entry_setsum != entry.summary.entry_setsum:
        raise Corrupt(
            "our entry was damaged on its way into the log",
            remedy=f"Take the region over: lancelsm region claim {region.context.uri} --region {region.id}",
            **region.where,
            position=position,
            object=wal_entry(region.id, position),
        )


def read_slot(region: Region, position: Position) -> _Standing | None:
    key = wal_entry(region.id, position)
    found = region.context.objects.get(key)
    if found is None:
        return None
    try:
        return _Standing(entry=decode(found.body, position=position, key=key), etag=found.etag)
    except Corrupt:
        return _Standing(entry=None, etag=found.etag)


def contended(region: Region, position: Position) -> Contended:
    return Contended(
        "others appended faster until the retry budget was spent",
        remedy="Nothing was written: retry, or write fewer and larger batches",
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
