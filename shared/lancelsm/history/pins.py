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

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Self

from lancelsm.common.layout import (
    Generation,
    Key,
    Nonce,
    Position,
    RegionId,
    TableId,
    Version,
    cursors,
    is_id,
    is_staged_manifest,
    pin_key,
    region_pin_key,
    region_pin_prefix,
    snapshots,
    table_key,
)
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.objects.open import is_absolute
from lancelsm.region.catalog import Region, TableContext, regions
from lancelsm.registry import Fields, Record, SwapApplied, SwapLost, Value, matches, number, text

NEVER = ""  # no expiry
NEXT = "next"  # field of a cursor's record while it is moved: nonce of the new positions
NEXT_EXPIRES = "next_expires"  # when these expire

NO_ENTRY = Position(2**63 - 1)  # greater than every position
UNCONFIRMED_SECONDS = 3600.0  # time to live of an unconfirmed pin

_TRIES = 5
_START = Position(1)
_NO_GENERATION = Generation(0)
_NO_VERSION = Version(0)
_KINDS = {"S": "snapshot", "C": "cursor"}

_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPin:
    """What a pin needs of one region.

    It needs every WAL entry from `first_position` on; none if that is `NO_ENTRY`. A snapshot also needs the generations
    `after` + 1 to `through`, and the manifest at `manifest_key`. The other fields describe the state that a snapshot
    reads: the log through `next_position` - 1. The entries after the manifest's replay point have the setsum
    `entry_setsum` minus that of the manifest.
    """

    first_position: Position
    after: Generation = _NO_GENERATION
    through: Generation = _NO_GENERATION
    manifest_key: str = ""
    manifest_version: Version = _NO_VERSION
    collector_round: int = 0
    next_position: Position = _START
    entry_setsum: Setsum = field(default_factory=Setsum)
    version: int = 0  # version of the record; 0 without record

    def needs(self, generation: Generation) -> bool:
        return self.after < generation <= self.through

    def to_record(self, *, nonce: Nonce) -> dict[str, Value]:
        """Encode as a record; `nonce` is that of the pin."""
        return {
            "version": self.version,
            "nonce": nonce,
            "first_position": self.first_position,
            "after": self.after,
            "through": self.through,
            "manifest_key": self.manifest_key,
            "manifest_version": self.manifest_version,
            "collector_round": self.collector_round,
            "next_position": self.next_position,
            "entry_setsum": self.entry_setsum.hex(),
        }

    @classmethod
    def from_record(cls, record: Record, *, region: RegionId) -> Self:
        """Decode a record; raises `ValueError` or `Corrupt` if a field is wrong or missing."""
        key = text(record, "manifest_key")
        if not is_id(region) or (key and not is_staged_manifest(key, region)):
            what = f"{key!r} is not a staged manifest of the region {region!r}"
            raise Corrupt(what, object=key, field="manifest_key")
        return cls(
            first_position=Position(number(record, "first_position", least=1)),
            after=Generation(number(record, "after")),
            through=Generation(number(record, "through")),
            manifest_key=key,
            manifest_version=Version(number(record, "manifest_version")),
            collector_round=number(record, "collector_round"),
            next_position=Position(number(record, "next_position", least=1)),
            entry_setsum=Setsum.from_hex(text(record, "entry_setsum")),
            version=number(record, "version"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PinIdentity:
    """The identity of a pin. A later pin of the same name has another nonce.

    A pin that is not `confirmed` is being created. A pin with `clone`, the location of a clone, only keeps the version
    of the base that this clone shares.
    """

    kind: str
    name: str
    nonce: Nonce
    confirmed: bool
    clone: str = ""

    def partition(self, table: TableId) -> str:
        """Return the partition of its records."""
        return cursors(table) if self.kind == "cursor" else snapshots(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin(PinIdentity):
    """A snapshot or a cursor as one listing returned it.

    `version` is that of the record; swaps compare it. `expires` is in Unix seconds, None for never. An unconfirmed pin
    counts too; if a floor has passed something that it does not name yet, it won't be confirmed. A cursor needs all
    entries of a region for which it has no record. A snapshot is not `complete` if the listing has fewer records of
    regions than it should: it was created or dropped during the listing, and can't be read.

    A pin that `replaces` another nonce holds the new positions of a cursor that is being moved. Both are in one record,
    so that a listing returns both or none.
    """

    version: int
    created: float
    expires: float | None
    base_version: int | None
    regions: Mapping[RegionId, RegionPin]
    complete: bool = True
    replaces: Nonce | None = None

    def of(self, region: RegionId) -> RegionPin | None:
        """Return what the pin needs of a region; None if nothing."""
        found = self.regions.get(region)
        return (
            RegionPin(first_position=_START)
            if found is None and self.kind == "cursor"  # guard: cursor keeps regions without a record
            else found
        )

    def to_record(self) -> dict[str, Value]:
        return {
            "version": self.version,
            "nonce": self.nonce,
            "created": str(self.created),
            "expires": NEVER if self.expires is None else str(self.expires),
            "confirmed": int(self.confirmed),
            "base_version": self.base_version or 0,
            "regions": len(self.regions),
            "clone": self.clone,
        }


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


def pins_of(records: Iterable[tuple[Key, Record]]) -> list[Pin]:
    """Decode the pins in the records of one partition. Ignores records of regions without a pin: it was dropped."""
    heads: dict[str, tuple[str, Record]] = {}
    parts: dict[tuple[str, str], dict[RegionId, Record]] = {}
    for key, record in records:
        name, *of = key.sort.split("#")
        if of:
            nonce, region = of
            parts.setdefault((name, nonce), {})[RegionId(region)] = record
        else:
            heads[name] = (_KINDS[key.partition[0]], record)
    found = []
    for name, (kind, record) in heads.items():
        found.append(  # guard: old position of a moved cursor counts
            _pin(kind, name, record, parts.get((name, str(record.get("nonce"))), {}))
        )
        if record.get(NEXT):  # guard: new position of a moved cursor counts
            following = {**record, "nonce": record[NEXT], "expires": record.get(NEXT_EXPIRES, 0), "confirmed": 0}
            moving = _pin(kind, name, following, parts.get((name, str(record[NEXT])), {}))
            found.append(replace(moving, replaces=Nonce(str(record["nonce"]))))
    return found


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


def checked_name(name: str) -> str:
    """Return a valid name of a snapshot or cursor; raises `Invalid` for others."""
    if not _NAME.fullmatch(name):
        raise Invalid(f"{name!r} is not a valid name", remedy="Use 1 to 100 letters, digits, - and _", field="name")
    return name


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
        pin.base_version is not None and int(record.get("base_floor", 0)) > pin.base_version
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
            raise Contended(f"the {pin.kind} was changed or removed meanwhile", remedy="Retry", table=context.uri)
    raise Unavailable(f"the {pin.kind}'s record could not be written", remedy="Retry", table=context.uri)


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


def is_of(own: Record | None, key: Key) -> bool:
    """Return whether a record of a region belongs to the pin with this own record, or to its new positions in a move.

    The nonce in the key decides, as it does when pins are read.
    """
    return own is not None and key.sort.split("#")[1] in (own.get("nonce"), own.get(NEXT))


def _pin(kind: str, name: str, record: Record, parts: Mapping[RegionId, Record]) -> Pin:
    try:
        clone = text(record, "clone")
        if clone and not is_absolute(clone):
            raise Corrupt(f"{clone!r} is neither an absolute path nor a URL", field="clone")
        return Pin(
            kind=kind,
            name=name,
            nonce=Nonce(text(record, "nonce")),
            version=number(record, "version"),
            created=float(text(record, "created")),
            expires=float(text(record, "expires")) if record["expires"] != NEVER else None,
            confirmed=bool(number(record, "confirmed")),
            base_version=number(record, "base_version") or None,
            regions={region: RegionPin.from_record(part, region=region) for region, part in parts.items()},
            complete=kind == "cursor" or len(parts) == number(record, "regions"),
            clone=clone,
        )
    except (KeyError, ValueError, Corrupt) as error:  # an invalid setsum raises Corrupt
        unreadable = Corrupt(
            f"the record of {kind} {name!r} is unreadable: {error!r}", remedy=f"Drop the {kind}, then create it again"
        )
        unreadable.where = error.where if isinstance(error, Corrupt) else {}
        raise unreadable from error
