"""Cursors: named positions in the logs of a table, saved by compare-and-swap, that keep what was not read yet.

A cursor pins every region from its position on, and a region that it has no position of from the first entry: rows of a
region that is made later are kept too. It is made by the protocol of `pins` and stays until it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from lancelsm import pins
from lancelsm.errors import Contended, Invalid, LsmError, Unavailable
from lancelsm.head import Head
from lancelsm.layout import Nonce, Position, RegionId, cursors, region_pin_key
from lancelsm.pins import Pin, RegionPin, checked_name, pins_of
from lancelsm.region import Region, Storage, regions
from lancelsm.registry import Applied, Unknown

SAVER = "saver"  # who wrote a region's record

_TRIES = 5

Start = Callable[[Region, Head], Position]


def make_cursor(storage: Storage, name: str, *, start: Start) -> Pin:
    """Make a cursor, every region at the position where `start` puts it.

    Raises:
        Invalid: the name is taken, or no name; or `start` says so, or gives what was collected.
        Contended: the collector overtook it again and again; nothing is kept of it.
        Corrupt, Unavailable: the registry.

    A crash at any line leaves nothing that can be read from; its records expire.
    """
    for _ in range(_TRIES):
        pin = pins.begin(storage, "cursor", name)
        try:
            placed = replace(pin, regions=pins.pin_regions(storage, pin, _starts(storage, start)))
            if pins.stands(storage, placed):
                return pins.confirm(storage, placed, ttl_seconds=None)
        except BaseException:
            with suppress(LsmError):
                pins.forget(storage, pin)
            raise
        pins.forget(storage, pin)
    raise Contended("the collector was faster than the cursor", remedy="Make it again", table=storage.uri)


def list_cursors(storage: Storage) -> list[Pin]:
    """Every cursor, by name."""
    return [pin for pin in pins_of(storage.registry.list(cursors(storage.table))) if pin.confirmed]


def find_cursor(storage: Storage, name: str) -> Pin | None:
    """The cursor of this name, or None."""
    return next((pin for pin in list_cursors(storage) if pin.name == name), None)


def keeps(storage: Storage, pin: Pin, region: RegionId, position: Position) -> bool:
    """Whether a cursor, as it is recorded now, keeps the log of a region from this position on."""
    found = find_cursor(storage, pin.name)
    needs = found.of(region) if found is not None and found.nonce == pin.nonce else None
    return needs is not None and needs.first_position <= position


def save_cursor(
    storage: Storage, pin: Pin, positions: Mapping[RegionId, Position], *, consumer: Nonce | None = None
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
                remedy=f"Set it back: lancelsm cursor set {storage.uri} --name {pin.name} --start {position} "
                f"--region {region}",
                table=storage.uri,
                region=region,
                cursor=pin.name,
            )
    moved = {region: position for region, position in positions.items() if position != _position(pin, region)}
    saver = consumer or storage.ids.nonce()
    saved = storage.each(lambda item: _move(storage, pin, *item, saver=saver), list(moved.items()))
    if moved and not pins.held(storage, pin):
        raise _moved(storage, pin)
    return replace(pin, regions={**pin.regions, **dict(zip(moved, saved, strict=True))})


def set_cursor(storage: Storage, name: str, *, start: Start, only: RegionId | None = None) -> Pin:
    """Put a cursor somewhere else, backwards too as far as the logs are kept.

    Args:
        only: in this region; in the others a cursor that is there stays where it is. By default in all regions, and it
            is made if there is none.

    Raises: as `make_cursor`; where it says `Invalid` the cursor is where it was.

    A crash may leave no cursor: set it again.
    """
    checked_name(name)
    before = None if only is None else find_cursor(storage, name)
    if only is not None and before is None:
        raise _unknown(storage, name)

    def place(region: Region, head: Head) -> Position:
        return start(region, head) if before is None or region.id == only else _position(before, region.id)

    _starts(storage, place)
    with suppress(Invalid):
        drop_cursor(storage, name)
    return make_cursor(storage, name, start=place)


def drop_cursor(storage: Storage, name: str) -> None:
    """End a cursor, also one that is being made.

    Raises:
        Invalid: there is none of this name.
        Contended, Unavailable: it may still be there; drop it again.
    """
    pin = pins.named(storage, "cursor", name)
    if pin is None:
        raise _unknown(storage, name)
    pins.forget(storage, pin)


def _unknown(storage: Storage, name: str) -> Invalid:
    return Invalid(
        "there is no such cursor", remedy=f"See lancelsm cursor list {storage.uri}", table=storage.uri, cursor=name
    )


def _starts(storage: Storage, start: Start) -> dict[RegionId, RegionPin]:
    """Where a cursor begins in each region; raises `Invalid` if that was collected."""
    made = [(region, head) for region in regions(storage) if (head := region.find_head()) is not None]
    found = {}
    for region, head in made:
        position = start(region, head)
        if position < head.first_position:
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


def _move(storage: Storage, pin: Pin, region: RegionId, position: Position, *, saver: Nonce) -> RegionPin:
    """Swap one region's position, from the record that the pin was read with or one that the same saver wrote since."""
    key = region_pin_key(cursors(storage.table), pin.name, pin.nonce, region)
    before = pin.regions.get(region)
    version = before.version if before else 0
    for _ in storage.budget().attempts():
        wanted = RegionPin(first_position=position, version=version + 1)
        change = {**wanted.to_record(nonce=pin.nonce), SAVER: saver}
        outcome = storage.registry.swap(key, expect={"version": version} if version else None, change=change)
        if isinstance(outcome, Applied):
            return wanted
        if isinstance(outcome, Unknown):
            continue
        if outcome.record == change:
            return wanted
        if outcome.record is None or outcome.record.get(SAVER) != saver:
            raise _moved(storage, pin)
        version = int(outcome.record["version"])
    raise Unavailable("the cursor could not be saved", remedy="Save it again", table=storage.uri, cursor=pin.name)


def _moved(storage: Storage, pin: Pin) -> Contended:
    return Contended(
        "somebody else has moved or dropped the cursor",
        remedy="Read from the cursor again; let one consumer use it, or give each one of its own",
        table=storage.uri,
        cursor=pin.name,
    )
