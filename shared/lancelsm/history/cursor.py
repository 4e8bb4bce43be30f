"""Cursors: named positions in the logs of a table, saved by compare-and-swap, that keep what was not read yet.

A cursor pins every region from its position on, and a region that it has no position of from the first entry: rows of a
region that is made later are kept too. It is made by the protocol of `pins` and stays until it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from lancelsm.common.layout import Nonce, Position, RegionId, cursors, region_pin_key
from lancelsm.errors import Contended, Invalid, LsmError, Unavailable
from lancelsm.history import pins
from lancelsm.history.pins import Pin, RegionPin, checked_name, pins_of
from lancelsm.region.catalog import Region, TableContext, regions, with_heads
from lancelsm.region.head import Head
from lancelsm.registry import Fields, SwapApplied, SwapUnknown

SAVER = "saver"  # who wrote a region's record

_TRIES = 5

Start = Callable[[Region, Head], Position]


def make_cursor(context: TableContext, name: str, *, start: Start) -> Pin:
    """Make a cursor, every region at the position where `start` puts it.

    Raises:
        Invalid: the name is taken, or no name; or `start` says so, or gives what was collected.
        Contended: the collector overtook it again and again; nothing is kept of it.
        Corrupt, Unavailable: the registry; after `Unavailable` it may be there.

    A crash at any line leaves the cursor, or nothing that can be read from, whose records expire.
    """

    def place(pin: Pin) -> Pin:
        return replace(pin, regions=pins.pin_regions(context, pin, _starts(context, start)))

    return pins.make(context, "cursor", name, place=place, withdraw=partial(pins.abandon, context), ttl_seconds=None)


def list_cursors(context: TableContext) -> list[Pin]:
    """Every cursor, by name."""
    return [pin for pin in pins_of(context.registry.list(cursors(context.table))) if pin.confirmed]


def find_cursor(context: TableContext, name: str) -> Pin | None:
    """The cursor of this name, or None."""
    return next((pin for pin in list_cursors(context) if pin.name == name), None)


def keeps(context: TableContext, pin: Pin, region: RegionId, position: Position) -> bool:
    """Whether a cursor, as it is recorded now, keeps the log of a region from this position on."""
    found = find_cursor(context, pin.name)
    needs = found.of(region) if found is not None and found.nonce == pin.nonce else None
    return needs is not None and needs.first_position <= position


def save_cursor(
    context: TableContext, pin: Pin, positions: Mapping[RegionId, Position], *, consumer: Nonce | None = None
) -> Pin:
    """Move a cursor forward to the next positions to read.

    Args:
        pin: as it was found or last saved; its positions are the witness.
        positions: of some regions.
        consumer: by which one knows what it saved itself in a call that ended with `Unavailable`.

    Returns:
        The cursor as saved.

    Raises:
        Invalid: a position lies before the cursor: what it has passed may be collected.
        Contended: somebody else has moved or dropped the cursor: two consumers share it. Regions are saved one by one,
            so some may have moved.
        Unavailable: the registry gave no answer; save again.

    A crash between two regions leaves each at its old or at its new position.
    """
    for region, position in positions.items():
        if position < _position(pin, region):
            raise Invalid(
                f"position {position} lies before the cursor",
                remedy=f"Set it back: lancelsm cursor set {context.uri} --name {pin.name} --start {position} "
                f"--region {region}",
                table=context.uri,
                region=region,
                cursor=pin.name,
            )
    moved = {region: position for region, position in positions.items() if position != _position(pin, region)}
    saver = consumer or context.ids.nonce()
    saved = context.each(lambda item: _move(context, pin, *item, saver=saver), list(moved.items()))
    if moved and not pins.held(context, pin):
        raise _moved(context, pin)
    return replace(pin, regions={**pin.regions, **dict(zip(moved, saved, strict=True))})


def set_cursor(context: TableContext, name: str, *, start: Start, only: RegionId | None = None) -> Pin:
    """Put a cursor somewhere else, backwards too as far as the logs are kept.

    Args:
        only: in this region; in the others a cursor that is there stays where it is. By default in all regions, and it
            is made if there is none.

    Raises: as `make_cursor`; where it says `Invalid` the cursor is where it was.

    A crash at any line leaves the cursor where it was, or where it is to be. Who read from it before can't save it.
    """
    checked_name(name)
    for _ in range(_TRIES):
        before = find_cursor(context, name)
        if before is not None:
            moved = _moved_to(context, before, start, only)
            if moved is not None:
                return moved
            continue
        if only is not None:
            raise Invalid(
                "there is no such cursor, and only one that is there is moved in one region",
                remedy=f"Make it first, in all regions: lancelsm cursor set {context.uri} --name {name}",
                table=context.uri,
                cursor=name,
            )
        left = pins.named(context, "cursor", name)
        if left is not None and (left.confirmed or not pins.abandon(context, left)):
            continue  # somebody has just made it; else its maker has crashed, or begins anew
        try:
            return make_cursor(context, name, start=start)
        except Invalid:
            if pins.named(context, "cursor", name) is None:
                raise
            # Somebody else was faster.
    raise Contended("the collector or a consumer was faster", remedy="Set it again", table=context.uri, cursor=name)


def _moved_to(context: TableContext, before: Pin, start: Start, only: RegionId | None) -> Pin | None:
    """The cursor at its new place; None if that was collected, or the old one moved, before both were kept."""

    def place(region: Region, head: Head) -> Position:
        return start(region, head) if only in (None, region.id) else _position(before, region.id)

    _starts(context, place, before)  # what is to be refused is, before anything is written
    moving = announce(context, before)
    try:
        needs = pins.pin_regions(context, moving, _starts(context, place, before))
        moving = replace(moving, regions=needs)
        now = find_cursor(context, before.name)
        if now is not None and now.nonce == before.nonce and _is_kept(context, moving, now, only):
            if only is not None:
                _hold(context, now, but=only)
            moved = arrive(context, moving)
            with suppress(LsmError):  # a collection removes them too
                pins.discard_regions(context, before)
            return moved
    except BaseException as error:
        with suppress(LsmError):
            withdraw(context, moving)
        if isinstance(error, Contended):
            return None
        raise
    withdraw(context, moving)
    return None


def _is_kept(context: TableContext, moving: Pin, now: Pin, only: RegionId | None) -> bool:
    """Whether nothing of the new place was collected before it counted: no floor passed it, or the old one held it.

    Args:
        now: the old one as read after the records of the new one were written.
    """

    def holds(region: Region) -> bool:
        place, old = _position(moving, region.id), _position(now, region.id)
        if only not in (None, region.id):
            return place == old
        head = region.find_head()
        return head is None or place >= min(head.first_position, old)

    return all(context.each(holds, regions(context)))


def _hold(context: TableContext, now: Pin, *, but: RegionId) -> None:
    """Keep its consumers from saving a cursor in other regions than this one: it moves on from where it is now.

    Raises:
        Contended: one of them has just saved it.
        Unavailable: the registry gave no answer.
    """
    saver = context.ids.nonce()
    others = [region.id for region in regions(context) if region.id != but]
    context.each(lambda region: _move(context, now, region, _position(now, region), saver=saver), others)


def announce(context: TableContext, cursor: Pin) -> Pin:
    """Begin to move a cursor: it is kept at both places until `arrive` or `withdraw`, or until the new one expires.

    Returns:
        The new place, of which no region has a record yet. Raises as `history.pins.step`.
    """
    moving = replace(
        cursor,
        nonce=context.ids.nonce(),
        version=cursor.version + 1,
        expires=pins.expiry(context, pins.MAKING_SECONDS),
        confirmed=False,
        regions={},
        replaces=cursor.nonce,
    )
    change: Fields = {"version": moving.version, pins.NEXT: moving.nonce, pins.NEXT_EXPIRES: str(moving.expires)}
    pins.change_record(context, moving, expect={"version": cursor.version, "nonce": cursor.nonce}, change=change)
    return moving


def arrive(context: TableContext, moving: Pin) -> Pin:
    """The cursor at the place that was announced; raises as `history.pins.step`. A collection removes the old one's
    records.
    """
    pin = replace(moving, version=moving.version + 1, confirmed=True, expires=None, replaces=None)
    witness: Fields = {"version": moving.version, "nonce": moving.replaces, pins.NEXT: moving.nonce}
    change: Fields = {"version": pin.version, "nonce": pin.nonce, pins.NEXT: None, pins.NEXT_EXPIRES: None}
    pins.change_record(context, pin, expect=witness, change=change)
    return pin


def withdraw(context: TableContext, moving: Pin) -> None:
    """Leave a cursor where it was; raises as `history.pins.step`. A collection removes the records of the announced
    place.
    """
    witness: Fields = {"version": moving.version, "nonce": moving.replaces, pins.NEXT: moving.nonce}
    # The nonce, though it stays: the record of a cursor that has arrived has the rest in common.
    change: Fields = {"version": moving.version + 1, "nonce": moving.replaces, pins.NEXT: None, pins.NEXT_EXPIRES: None}
    pins.change_record(context, moving, expect=witness, change=change)


def drop_cursor(context: TableContext, name: str) -> None:
    """End a cursor, also one that is being made.

    Raises:
        Invalid: there is none of this name.
        Contended, Unavailable: it may still be there; drop it again.
    """
    pin = pins.named(context, "cursor", name)
    if pin is None:
        raise _unknown(context, name)
    pins.forget(context, pin)


def _unknown(context: TableContext, name: str) -> Invalid:
    return Invalid(
        "there is no such cursor", remedy=f"See lancelsm cursor list {context.uri}", table=context.uri, cursor=name
    )


def _starts(context: TableContext, start: Start, before: Pin | None = None) -> dict[RegionId, RegionPin]:
    """Where a cursor begins in each region; raises `Invalid` if that was collected and is not kept by where it was."""
    found = {}
    for region, head in with_heads(context, regions(context)):
        position = start(region, head)
        if position < head.first_position and (before is None or position < _position(before, region.id)):
            raise Invalid(
                f"the log was collected below position {head.first_position}",
                remedy="Start there, or at earliest",
                **region.where,
                position=position,
            )
        found[region.id] = RegionPin(first_position=position)
    return found


def _position(pin: Pin, region: RegionId) -> Position:
    needs = pin.of(region)
    assert needs is not None, "a cursor needs something of every region"
    return needs.first_position


def _move(context: TableContext, pin: Pin, region: RegionId, position: Position, *, saver: Nonce) -> RegionPin:
    """Swap one region's position, from the record that the pin was read with or one that the same saver wrote since."""
    key = region_pin_key(cursors(context.table), pin.name, pin.nonce, region)
    before = pin.regions.get(region)
    version = before.version if before else 0
    for _ in context.budget().attempts():
        wanted = RegionPin(first_position=position, version=version + 1)
        change = {**wanted.to_record(nonce=pin.nonce), SAVER: saver}
        outcome = context.registry.swap(key, expect={"version": version} if version else None, change=change)
        if isinstance(outcome, SwapApplied):
            return wanted
        if isinstance(outcome, SwapUnknown):
            continue
        if outcome.record == change:
            return wanted
        if outcome.record is None or outcome.record.get(SAVER) != saver:
            raise _moved(context, pin)
        version = int(outcome.record["version"])
    raise Unavailable("the cursor could not be saved", remedy="Save it again", table=context.uri, cursor=pin.name)


def _moved(context: TableContext, pin: Pin) -> Contended:
    return Contended(
        "somebody else has moved or dropped the cursor",
        remedy="Read from the cursor again; let one consumer use it, or give each one of its own",
        table=context.uri,
        cursor=pin.name,
    )
