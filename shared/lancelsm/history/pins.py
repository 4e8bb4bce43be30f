"""Create, read and remove pins: records of snapshots and cursors that keep objects from being deleted.

A pin is one record, plus one record per region of what it needs there. Its creator writes these records, then reads the
committed floors (`first_position` and `collector_round` of each head, `base_floor` in the catalog), and confirms the
pin only if no floor has passed what it needs. The collector commits floors, then reads all pins, then deletes. Even if
a process stalls, at least one of the two sees the other. A floor may pass a confirmed pin later; what the pin needs
stays even then.

An unconfirmed pin always expires, even if it will never expire once it is confirmed. So after a crash it keeps objects
only for a limited time. Model: tests/model/pins.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from lancelsm.common.layout import (
    Nonce,
    RegionId,
    cursors,
    pin_key,
    region_pin_key,
    region_pin_prefix,
    snapshots,
    table_key,
)
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.history.pin_records import Pin, PinIdentity, RegionPin, checked_name, pins_of
from lancelsm.region.catalog import Region, TableContext, regions
from lancelsm.registry import Fields, Record, SwapApplied, SwapLost, matches, number

UNCONFIRMED_SECONDS = 3600.0  # time to live of an unconfirmed pin

_TRIES = 5


def read_pins(context: TableContext) -> list[Pin]:
    """Read all pins of a table by strong reads. Includes expired pins: they count until their records are deleted.

    Raises:
        Corrupt: a record is unreadable.
        Unavailable: the registry did not answer.
    """
    return [
        pin
        for partition in (snapshots(context.table), cursors(context.table))
        for pin in pins_of(context.registry.list(partition))
    ]


def named(context: TableContext, kind: str, name: str) -> PinIdentity | None:
    """Find the pin of this name in order to drop it, even if it is unconfirmed or its record is damaged.

    If the record can't be read, the nonce is empty. The files of a clone are then still kept by a tag.
    """
    key = pin_key(snapshots(context.table) if kind == "snapshot" else cursors(context.table), name)
    try:
        record = context.registry.read(key)
    except Corrupt:
        record = {}
    if record is None:
        return None
    return PinIdentity(
        kind=kind,
        name=name,
        nonce=_nonce(record),
        confirmed=bool(record.get("confirmed")),
        clone=str(record.get("clone", "")),
    )


def _nonce(record: Record) -> Nonce:
    """Return the nonce in a pin's own record; empty if it has none."""
    nonce = record.get("nonce")
    return Nonce(nonce if isinstance(nonce, str) else "")


def create_pin(
    context: TableContext,
    kind: str,
    name: str,
    *,
    record_needs: Callable[[Pin], Pin | None],
    undo: Callable[[Pin], object],
    ttl_seconds: float | None,
) -> Pin:
    """Create a pin by the protocol of this module.

    Args:
        record_needs: reads the table, writes what the pin needs of it, and returns the pin with its needs; None if
            something that it needs is gone.
        undo: calls `abandon`, and removes what else `record_needs` wrote.
        ttl_seconds: time to live from the confirmation on, unless the pin is renewed; None for no expiry.

    Returns:
        The confirmed pin.

    Raises:
        Invalid: the name is taken or not valid.
        Contended: collections kept overtaking the new pin. The pin does not exist.
        Unavailable: the registry did not answer. The pin may exist.
        LsmError: `record_needs` raised it.

    After a crash at any line the pin either exists, or is unconfirmed and its records expire.
    """
    for _ in range(_TRIES):
        pin = begin(context, kind, name)
        try:
            recorded = record_needs(pin)
            if (
                recorded is not None and not overtaken(context, recorded)  # guard: overtaken pin is not confirmed
            ):
                return confirm(context, recorded, ttl_seconds=ttl_seconds)  # guard: confirmed needs have records
        except BaseException:
            with suppress(LsmError):
                undo(pin)
            raise
        undo(pin)
    raise Contended(f"collections kept overtaking the new {kind}", remedy="Create it again", table=context.uri)


def begin(context: TableContext, kind: str, name: str) -> Pin:
    """Write the record of a new, unconfirmed pin.

    Raises:
        Invalid: the name is taken or not valid.
        Unavailable: the registry did not answer.
    """
    now = context.clock.now()
    pin = Pin(
        kind=kind,
        name=checked_name(name),
        nonce=context.ids.nonce(),
        version=1,
        created=now,
        expires=now + UNCONFIRMED_SECONDS,
        confirmed=False,
        base_version=None,
        regions={},
    )
    key = pin_key(pin.partition(context.table), name)
    for _ in context.budget().attempts():
        outcome = context.registry.swap(key, expect=None, change=pin.to_record())
        if isinstance(outcome, SwapApplied) or (isinstance(outcome, SwapLost) and outcome.record == pin.to_record()):
            return pin
        if isinstance(outcome, SwapLost) and outcome.record is not None:
            raise _taken(context, pin, outcome.record)
    raise Unavailable(f"the {kind}'s record could not be written", remedy="Create it again", table=context.uri)


def _taken(context: TableContext, pin: Pin, record: Record) -> Invalid:
    problem, remedy = f"a {pin.kind} of this name exists", "Choose another name, or drop it first"
    if not record.get("confirmed"):
        problem, remedy = f"a {pin.kind} of this name is being created", "If its creator has crashed, drop it first"
    return Invalid(problem, remedy=remedy, table=context.uri, **{pin.kind: pin.name})


def pin_regions(context: TableContext, pin: Pin, needs: Mapping[RegionId, RegionPin]) -> dict[RegionId, RegionPin]:
    """Write what an unconfirmed pin needs of each region.

    Returns:
        The needs, with the versions of their records.

    Raises:
        Unavailable: the registry did not answer.
    """
    wanted = {region: replace(needed, version=1) for region, needed in needs.items()}
    context.each(lambda item: _pin_region(context, pin, *item), list(wanted.items()))
    return wanted


def _pin_region(context: TableContext, pin: Pin, region: RegionId, needs: RegionPin) -> None:
    key, record = (
        region_pin_key(pin.partition(context.table), pin.name, pin.nonce, region),
        needs.to_record(nonce=pin.nonce),
    )
    for _ in context.budget().attempts():
        outcome = context.registry.swap(key, expect=None, change=record)
        if isinstance(outcome, SwapApplied | SwapLost):  # before the confirmation no other process writes it
            return
    raise Unavailable(f"the {pin.kind}'s records could not be written", remedy="Create it again", table=context.uri)


def overtaken(context: TableContext, pin: Pin) -> bool:
    """Return whether a committed floor has passed what the pin needs. Call it after its records are written."""
    record = context.registry.read(table_key(context.table)) or {}
    if (  # guard: pin is confirmed against the floor of the base
        pin.base_version is not None and _base_floor(record) > pin.base_version
    ):
        return True

    def passed(region: Region) -> bool:
        needs, head = pin.of(region.id), region.find_head()
        if needs is None or head is None:
            return needs is not None and region.id in pin.regions
        collected = needs.manifest_key and head.collector_round != needs.collector_round
        return (
            head.first_position > needs.first_position  # guard: cursor is confirmed against the floors
            or bool(collected)  # guard: pin is confirmed against the rounds
        )

    return any(context.each(passed, regions(context)))


def _base_floor(record: Record) -> int:
    try:
        return number({"base_floor": 0, **record}, "base_floor")
    except ValueError as error:
        raise Corrupt(f"the record of the table in the catalog is unreadable: {error}") from error


def confirm(context: TableContext, pin: Pin, *, ttl_seconds: float | None) -> Pin:
    """Confirm a pin that was not overtaken, and start its time to live; raises the same errors as `update_pin`."""
    return update_pin(context, replace(pin, confirmed=True, expires=expiry(context, ttl_seconds)))


def update_pin(context: TableContext, following: Pin) -> Pin:
    """Replace the record of a pin, unless the pin was changed or removed meanwhile.

    Args:
        following: the new content, with the version of the pin that it replaces.

    Returns:
        The pin with its new version.

    Raises:
        Contended: the pin was changed, dropped, or removed after its expiry.
        Unavailable: the registry did not answer.
    """
    pin = replace(following, version=following.version + 1)
    change_record(
        context,
        pin,
        expect={"version": following.version, "nonce": pin.nonce},  # guard: removed pin is not confirmed
        change=pin.to_record(),
    )
    return pin


def change_record(context: TableContext, pin: Pin, *, expect: Fields, change: Fields) -> None:
    """Swap fields of a pin's own record; a lost reply is detected by its content. Raises as `update_pin` does."""
    key = pin_key(pin.partition(context.table), pin.name)
    for _ in context.budget().attempts():
        outcome = context.registry.swap(key, expect=expect, change=change)
        if isinstance(outcome, SwapApplied):
            return
        if isinstance(outcome, SwapLost):
            if outcome.record is not None and matches(outcome.record, change):
                return
            raise Contended(f"the {pin.kind} was changed or removed meanwhile", table=context.uri)
    raise Unavailable(f"the {pin.kind}'s record could not be written", table=context.uri)


def forget(context: TableContext, pin: PinIdentity) -> None:
    """Remove the records of a pin, its own record first, even if it was renewed. Leaves a later pin of its name alone.

    A crash may leave records of regions. They have no effect, and a collection removes them.

    Raises:
        Unavailable, Contended: the pin may still exist.
    """
    _end(context, pin, confirmed=True)


def abandon(context: TableContext, pin: PinIdentity) -> bool:
    """Remove the records of a pin unless it is confirmed: then other processes may already rely on it.

    For a creator that does not know whether its pin was confirmed. Raises: the same errors as `forget`.

    Returns:
        Whether the pin is removed.
    """
    return _end(context, pin, confirmed=False)


def _end(context: TableContext, pin: PinIdentity, *, confirmed: bool) -> bool:
    partition = pin.partition(context.table)
    key = pin_key(partition, pin.name)
    for _ in context.budget().attempts():
        try:
            record = context.registry.read(key)
        except Corrupt:
            if pin.nonce or not confirmed:
                raise
            context.registry.discard(key)  # a damaged record can't be compared, and no pin can be read while it exists
            return True
        if (
            record is None or _nonce(record) != pin.nonce  # guard: later pin of the name stays
        ):
            discard_regions(context, pin)  # guard: own record of a pin is deleted first
            return True
        if record.get("confirmed") and not confirmed:  # guard: confirmed pin stays
            return False
        context.registry.delete(
            key,
            expect={
                "version": record.get("version"),
                "nonce": record.get("nonce"),  # guard: pin is deleted under its nonce
            },
        )
    raise Contended(f"other processes kept changing the {pin.kind}", remedy="Drop it again", table=context.uri)


def discard_regions(context: TableContext, pin: PinIdentity) -> None:
    """Remove the records of regions of a pin that no longer exists. No other pin has keys with its nonce.

    Raises:
        Unavailable: some records may remain; a collection removes them.
    """
    partition, prefix = pin.partition(context.table), region_pin_prefix(pin.name, pin.nonce)
    try:
        keys = [key for key, _ in context.registry.list(partition) if key.sort.startswith(prefix)]
    except Corrupt:  # a record of this pin or of another one is damaged
        keys = [region_pin_key(partition, pin.name, pin.nonce, region.id) for region in regions(context)]
    context.each(context.registry.discard, keys)


def held(context: TableContext, pin: PinIdentity) -> bool:
    """Return whether the pin still exists. If so, nothing that it needs was collected before this call."""
    record = context.registry.read(pin_key(pin.partition(context.table), pin.name))
    return record is not None and _nonce(record) == pin.nonce


def expiry(context: TableContext, ttl_seconds: float | None) -> float | None:
    """Return the expiry of a pin with this time to live from now on; None for never."""
    return None if ttl_seconds is None else context.clock.now() + ttl_seconds
