"""Create, save, move and drop cursors: named positions in the logs of a table, which keep all entries after them.

A cursor pins every region from its position on. It pins a region without a saved position from the first entry, so it
keeps all rows of regions that are created later. Cursors are created by the protocol of `pins` and stay until they are
dropped. They are saved by compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from lancelsm.common.layout import Nonce, Position, RegionId, cursors, region_pin_key
from lancelsm.errors import Contended, Invalid, LsmError, Unavailable
from lancelsm.history import pin_records, pins
from lancelsm.history.pin_records import Pin, RegionPin, checked_name, pins_of
from lancelsm.region.catalog import Region, TableContext, regions, with_heads
from lancelsm.region.head import Head
from lancelsm.registry import Fields, SwapApplied, SwapUnknown

SAVER = "saver"  # field of a region's record: the consumer that wrote it

_TRIES = 5

PositionAt = Callable[[Region, Head], Position]


def create_cursor(context: TableContext, name: str, *, start: PositionAt) -> Pin:
    """Create a cursor; `start` gives its position in each region.

    Raises:
        Invalid: the name is taken or not valid; or `start` raised it, or returned a position that is collected.
        Contended: collections kept overtaking the new cursor. The cursor does not exist.
        Corrupt: a record of the registry is unreadable.
        Unavailable: the registry did not answer. The cursor may exist.

    After a crash at any line the cursor either exists, or can't be read from and its records expire.
    """

    def record_needs(pin: Pin) -> Pin:
        return replace(pin, regions=pins.pin_regions(context, pin, _starts(context, start)))

    undo = partial(pins.abandon, context)
    return pins.create_pin(context, "cursor", name, record_needs=record_needs, undo=undo, ttl_seconds=None)


def list_cursors(context: TableContext) -> list[Pin]:
    """Return all cursors, ordered by name."""
    return [pin for pin in pins_of(context.registry.list(cursors(context.table))) if pin.confirmed]


def find_cursor(context: TableContext, name: str) -> Pin | None:
    """Find the cursor of this name; None if it does not exist."""
    return next((pin for pin in list_cursors(context) if pin.name == name), None)


def keeps(context: TableContext, pin: Pin, region: RegionId, position: Position) -> bool:
    """Return whether the record of a cursor keeps the log of a region from this position on, as of now."""
    found = find_cursor(context, pin.name)
    needs = found.of(region) if found is not None and found.nonce == pin.nonce else None
    return (  # guard: dropped cursor keeps nothing
        needs is not None and needs.first_position <= position  # guard: cursor keeps from its position on
    )


def save_cursor(
    context: TableContext, pin: Pin, positions: Mapping[RegionId, Position], *, consumer: Nonce | None = None
) -> Pin:
    """Move a cursor forward to the next positions to read.

    Args:
        pin: the cursor as it was found or last saved. The swap fails if it changed since.
        positions: the next positions of some regions.
        consumer: identifies the caller, so that a retry after `Unavailable` recognises its own earlier save.

    Returns:
        The saved cursor.

    Raises:
        Invalid: a position is before the cursor, where the log may be collected.
        Contended: another consumer saved the cursor, or it was set or dropped. Regions are saved one by one, so some
            may have moved.
        Unavailable: the registry did not answer; save again.

    After a crash each region is at its old or at its new position.
    """
    for region, position in positions.items():
        if position < _position(pin, region):  # guard: save never moves a cursor back
            raise Invalid(
                f"position {position} is before the cursor",
                remedy=f"To move it back: lancelsm cursor set {context.uri} --name {pin.name} --start {position} "
                f"--region {region}",
                table=context.uri,
                region=region,
                cursor=pin.name,
            )
    moved = {region: position for region, position in positions.items() if position != _position(pin, region)}
    saver = consumer or context.ids.nonce()
    saved = context.each(lambda item: _move(context, pin, *item, saver=saver), list(moved.items()))
    if moved and not pins.held(context, pin):  # guard: saved cursor is the same
        raise _moved(context, pin)
    return replace(pin, regions={**pin.regions, **dict(zip(moved, saved, strict=True))})


def set_cursor(context: TableContext, name: str, *, start: PositionAt, only: RegionId | None = None) -> Pin:
    """Move a cursor to other positions, also backwards as far as the logs are kept.

    Args:
        only: move an existing cursor in this region only. By default all regions are moved, and a cursor that does not
            exist is created.

    Raises: the same errors as `create_cursor`. After `Invalid` the cursor is unchanged.

    After a crash at any line the cursor is at its old or at its new positions. Consumers that read from it before can't
    save it any more.
    """
    checked_name(name)
    for _ in range(_TRIES):
        before = find_cursor(context, name)
        if before is not None:
            moved = _try_move(context, before, start, only)
            if moved is not None:
                return moved
            continue
        if only is not None:
            raise Invalid(
                "cursor not found; only an existing cursor can be moved in a single region",
                remedy=f"Create it first, for all regions: lancelsm cursor set {context.uri} --name {name}",
                table=context.uri,
                cursor=name,
            )
        left = pins.named(context, "cursor", name)
        if left is not None and (left.confirmed or not pins.abandon(context, left)):
            continue  # the cursor was created meanwhile
        try:
            return create_cursor(context, name, start=start)
        except Invalid:
            if pins.named(context, "cursor", name) is None:  # guard: cursor of another creator is set
                raise
            # Another process created it first.
    raise Contended("a collection or a consumer of the cursor came first", table=context.uri, cursor=name)


def _try_move(context: TableContext, before: Pin, start: PositionAt, only: RegionId | None) -> Pin | None:
    """Try to move the cursor; None if a collection or a save came in between, and the caller must retry."""

    def target(region: Region, head: Head) -> Position:
        return start(region, head) if only in (None, region.id) else _position(before, region.id)

    _starts(context, target, before)  # refuse invalid positions before anything is written
    moving = start_move(context, before)
    try:
        needs = pins.pin_regions(context, moving, _starts(context, target, before))
        moving = replace(moving, regions=needs)
        now = find_cursor(context, before.name)  # guard: old position is read after the new one is announced
        if now is not None and now.nonce == before.nonce and _is_kept(context, moving, now, only):
            if only is not None:
                _block_saves(context, now, except_in=only)  # guard: saves fail while one region is set
            moved = finish_move(context, moving)
            with suppress(LsmError):  # else a collection removes them
                pins.discard_regions(context, before)
            return moved
    except BaseException as error:
        with suppress(LsmError):
            cancel_move(context, moving)
        if isinstance(error, Contended):
            return None
        raise
    cancel_move(context, moving)
    return None


def _is_kept(context: TableContext, moving: Pin, now: Pin, only: RegionId | None) -> bool:
    """Return whether all entries that the new positions need are kept: no floor passed them, or the old ones kept them.

    Args:
        now: the old cursor, read after the new positions were written.
    """

    def is_kept(region: Region) -> bool:
        new, old = _position(moving, region.id), _position(now, region.id)
        if only not in (None, region.id):  # guard: cursor keeps its position where it is not set
            return new == old
        head = region.find_head()
        return head is None or new >= min(head.first_position, old)  # guard: cursor arrives where nothing is collected

    return all(context.each(is_kept, regions(context)))


def _block_saves(context: TableContext, now: Pin, *, except_in: RegionId) -> None:
    """Make later saves by consumers fail in all regions but one, whose positions must stay as they are now.

    Raises:
        Contended: a consumer saved the cursor meanwhile.
        Unavailable: the registry did not answer.
    """
    saver = context.ids.nonce()
    others = [region.id for region in regions(context) if region.id != except_in]
    context.each(lambda region: _move(context, now, region, _position(now, region), saver=saver), others)


def start_move(context: TableContext, cursor: Pin) -> Pin:
    """Start to move a cursor. Old and new positions both count until `finish_move`, `cancel_move` or the expiry.

    Returns:
        The pin for the new positions, without records of regions yet.

    Raises: the same errors as `history.pins.update_pin`.
    """
    moving = replace(
        cursor,
        nonce=context.ids.nonce(),
        version=cursor.version + 1,
        expires=pins.expiry(context, pins.UNCONFIRMED_SECONDS),
        confirmed=False,
        regions={},
        replaces=cursor.nonce,
    )
    change: Fields = {
        "version": moving.version,
        pin_records.NEXT: moving.nonce,
        pin_records.NEXT_EXPIRES: str(moving.expires),
    }
    pins.change_record(context, moving, expect={"version": cursor.version, "nonce": cursor.nonce}, change=change)
    return moving


def finish_move(context: TableContext, moving: Pin) -> Pin:
    """Make the new positions the cursor's. A collection may remove the records of the old ones.

    Raises: the same errors as `history.pins.update_pin`.
    """
    pin = replace(moving, version=moving.version + 1, confirmed=True, expires=None, replaces=None)
    witness: Fields = {  # guard: withdrawn announcement does not arrive
        "version": moving.version,
        "nonce": moving.replaces,
        pin_records.NEXT: moving.nonce,
    }
    change: Fields = {
        "version": pin.version,
        "nonce": pin.nonce,
        pin_records.NEXT: None,
        pin_records.NEXT_EXPIRES: None,
    }
    pins.change_record(context, pin, expect=witness, change=change)
    return pin


def cancel_move(context: TableContext, moving: Pin) -> None:
    """Keep a cursor at its old positions. A collection removes the records of the new ones.

    Raises: the same errors as `history.pins.update_pin`.
    """
    witness: Fields = {  # guard: announcement is not withdrawn after the arrival
        "version": moving.version,
        "nonce": moving.replaces,
        pin_records.NEXT: moving.nonce,
    }
    # The nonce does not change, but it must be compared: all other fields are the same after `finish_move`.
    change: Fields = {
        "version": moving.version + 1,
        "nonce": moving.replaces,
        pin_records.NEXT: None,
        pin_records.NEXT_EXPIRES: None,
    }
    pins.change_record(context, moving, expect=witness, change=change)


def drop_cursor(context: TableContext, name: str) -> None:
    """Drop a cursor, also one that is being created.

    Raises:
        Invalid: cursor not found.
        Contended, Unavailable: the cursor may still exist; drop it again.
    """
    pin = pins.named(context, "cursor", name)
    if pin is None:
        raise _unknown(context, name)
    pins.forget(context, pin)


def _unknown(context: TableContext, name: str) -> Invalid:
    return Invalid("cursor not found", remedy=f"See lancelsm cursor list {context.uri}", table=context.uri, cursor=name)


def _starts(context: TableContext, start: PositionAt, before: Pin | None = None) -> dict[RegionId, RegionPin]:
    """Return the positions that `start` gives. Raise `Invalid` if one is below the floor and before the old one."""
    found = {}
    for region, head in with_heads(context, regions(context)):
        position = start(region, head)
        if (  # guard: cursor does not begin before the log
            position < head.first_position and (before is None or position < _position(before, region.id))
        ):
            raise Invalid(
                f"the log was collected below position {head.first_position}",
                remedy="Start there or later, or at earliest",
                **region.where,
                position=position,
            )
        found[region.id] = RegionPin(first_position=position)
    return found


def _position(pin: Pin, region: RegionId) -> Position:
    needs = pin.of(region)
    assert needs is not None, "a cursor has a position in every region"
    return needs.first_position


def _move(context: TableContext, pin: Pin, region: RegionId, position: Position, *, saver: Nonce) -> RegionPin:
    """Swap the position of one region, if its record is still the one in `pin`, or one that the same saver wrote."""
    key = region_pin_key(cursors(context.table), pin.name, pin.nonce, region)
    before = pin.regions.get(region)
    version = before.version if before else 0
    for _ in context.budget().attempts():
        wanted = RegionPin(first_position=position, version=version + 1)
        change = {**wanted.to_record(nonce=pin.nonce), SAVER: saver}
        outcome = context.registry.swap(
            key,
            expect={"version": version} if version else None,  # guard: cursor is saved under its version
            change=change,
        )
        if isinstance(outcome, SwapApplied):
            return wanted
        if isinstance(outcome, SwapUnknown):
            continue
        if outcome.record == change:
            return wanted
        if (
            outcome.record is None or outcome.record.get(SAVER) != saver  # guard: cursor is saved by its consumer
        ):
            raise _moved(context, pin)
        version = int(outcome.record["version"])
    raise Unavailable("the cursor could not be saved", remedy="Save it again", table=context.uri, cursor=pin.name)


def _moved(context: TableContext, pin: Pin) -> Contended:
    return Contended(
        "another process has moved or dropped the cursor",
        remedy="Read from the cursor again. Give each consumer its own cursor",
        table=context.uri,
        cursor=pin.name,
    )
