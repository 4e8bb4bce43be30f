"""Cursors: named positions in the logs of a table, saved by compare-and-swap, that keep what was not read yet.

A cursor pins every region from its position on, and a region that it has no position of from the first entry: rows of a
region that is made later are kept too. It is made by the protocol of `pins` and stays until it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from lancelsm import pins
from lancelsm.errors import Contended, Invalid, LsmError
from lancelsm.head import Head
from lancelsm.layout import Nonce, Position, RegionId, cursors, pin_key
from lancelsm.pins import Pin, RegionPin, checked_name, pins_of
from lancelsm.region import Region, Storage, regions
from lancelsm.registry import Applied, Fields, Unknown

SAVE = "save"  # the nonce of the save that wrote a region's record

_TRIES = 5

Start = Callable[[Region, Head], Position]


def make_cursor(storage: Storage, name: str, *, start: Start) -> Pin:
    """Make a cursor, every region at the position where `start` puts it.

    Raises:
        Invalid: the name is taken, or no name; or `start` says so.
        Contended: the collector overtook it again and again; nothing is kept of it.
        Corrupt, Unavailable: the registry.
    """
    checked_name(name)
    for _ in range(_TRIES):
        pin = Pin(
            kind="cursor",
            name=name,
            nonce=storage.ids.nonce(),
            version=1,
            created=storage.clock.now(),
            expires=None,
            confirmed=False,
            base_version=None,
            regions={},
        )
        pins.begin(storage, pin)
        try:
            heads = [(region, head) for region in regions(storage) if (head := region.find_head()) is not None]
            placed = {region.id: RegionPin(first_position=start(region, head)) for region, head in heads}
            pin = replace(pin, regions=pins.pin_regions(storage, pin, placed))
            if pins.stands(storage, pin):
                return pins.confirm(storage, pin)
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


def save_cursor(storage: Storage, pin: Pin, positions: Mapping[RegionId, Position]) -> Pin:
    """Move a cursor forward to the next positions to read.

    Args:
        pin: as it was found or last saved; its positions are the witness.
        positions: of some regions.

    Returns:
        The cursor as saved.

    Raises:
        Contended: somebody else has moved or dropped the cursor: two consumers share it. Regions are saved one by one,
            so some may have moved.
        Unavailable: the registry gave no answer; save again.

    A crash between two regions leaves each at its old or at its new position.
    """
    moved = {
        region: position
        for region, position in positions.items()
        if (before := pin.of(region)) is None or position != before.first_position
    }
    saving = storage.ids.nonce()
    saved = storage.each(lambda item: _move(storage, pin, *item, saving=saving), list(moved.items()))
    return replace(pin, regions={**pin.regions, **dict(zip(moved, saved, strict=True))})


def set_cursor(storage: Storage, name: str, *, start: Start) -> Pin:
    """Put a cursor somewhere else, backwards too as far as the logs are kept; raises as `make_cursor`."""
    drop_cursor(storage, name)
    return make_cursor(storage, name, start=start)


def drop_cursor(storage: Storage, name: str) -> None:
    """End a cursor.

    Raises:
        Invalid: there is none of this name.
        Contended, Unavailable: it is still there; drop it again.
    """
    pin = find_cursor(storage, name)
    if pin is None:
        raise Invalid(
            "there is no such cursor", remedy=f"See lancelsm cursor list {storage.uri}", table=storage.uri, cursor=name
        )
    if not pins.forget(storage, pin):
        raise Contended("the cursor was made anew meanwhile", remedy="Drop it again", table=storage.uri, cursor=name)


def _move(storage: Storage, pin: Pin, region: RegionId, position: Position, *, saving: Nonce) -> RegionPin:
    """Swap one region's position, from the record that the pin was read with."""
    key = pin_key(cursors(storage.table), pin.name, region)
    before = pin.regions.get(region)
    expect: Fields | None = {"version": before.version, "nonce": pin.nonce} if before else None
    for _ in storage.budget().attempts():
        version = 1 if expect is None else int(expect["version"] or 0) + 1
        wanted = RegionPin(first_position=position, version=version)
        outcome = storage.registry.swap(key, expect=expect, change={**wanted.to_record(nonce=pin.nonce), SAVE: saving})
        if isinstance(outcome, Applied):
            return wanted
        if isinstance(outcome, Unknown):
            continue
        record = outcome.record
        if record is not None and record.get(SAVE) == saving:  # an earlier try whose reply was lost
            return wanted
        if before is not None or record is None or record["nonce"] == pin.nonce:
            break
        expect = {"version": record["version"]}  # left by a dropped cursor of the name
    raise Contended(
        "somebody else has moved or dropped the cursor, or the registry gave no answer",
        remedy="Read from the cursor again; let one consumer use it, or give each one of its own",
        table=storage.uri,
        region=region,
        cursor=pin.name,
    )
