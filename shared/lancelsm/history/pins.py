"""What must not be deleted because somebody still reads it: the records of snapshots and cursors, and what they need.

A pin is one record and, for each region, a record of what it needs there. Whoever makes one writes the records, then
reads the committed floors - `first_position` and `collector_round` of each head, `base_floor` in the catalog - and
confirms only if none has passed what the pin needs. The collector commits floors, then reads all pins, then deletes.
One of the two sees the other, whatever stalls. A floor may pass a confirmed pin: what the pin needs stays all the same.

While it is made a pin expires by itself, even one that is to stay for ever: a maker that crashed keeps nothing.
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
    pin_key,
    region_pin_key,
    region_pin_prefix,
    snapshots,
    table_key,
)
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.region.catalog import Region, TableContext, regions
from lancelsm.registry import Fields, Record, SwapApplied, SwapLost, Value, holds, number, text

NEVER = ""  # no expiry
NEXT = "next"  # field of a cursor's record: the nonce of where it is being moved, which expires then
NEXT_EXPIRES = "next_expires"

NO_ENTRY = Position(2**63 - 1)  # past every log
MAKING_SECONDS = 3600.0  # until one that is being made expires

_TRIES = 5
_START = Position(1)
_NO_GENERATION = Generation(0)
_NO_VERSION = Version(0)
_KINDS = {"S": "snapshot", "C": "cursor"}

_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPin:
    """What a pin needs of one region.

    It needs every WAL entry from `first_position` on, none if that is `NO_ENTRY`; of a snapshot also the generations
    after + 1 .. through, and the manifest at `manifest_key`. The rest is the state that a snapshot reads: the log
    through `next_position` - 1, whose entries after the manifest's replay point sum to `entry_setsum` - the manifest's.
    """

    first_position: Position
    after: Generation = _NO_GENERATION
    through: Generation = _NO_GENERATION
    manifest_key: str = ""
    manifest_version: Version = _NO_VERSION
    collector_round: int = 0
    next_position: Position = _START
    entry_setsum: Setsum = field(default_factory=Setsum)
    version: int = 0  # of the record that says so; 0: there is none

    def needs(self, generation: Generation) -> bool:
        return self.after < generation <= self.through

    def to_record(self, *, nonce: Nonce) -> dict[str, Value]:
        """The region's record; `nonce` is the pin's."""
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
    def from_record(cls, record: Record) -> Self:
        """The inverse of `to_record`; raises `ValueError` or `Corrupt` for a field that is wrong or lacks."""
        return cls(
            first_position=Position(number(record, "first_position", least=1)),
            after=Generation(number(record, "after")),
            through=Generation(number(record, "through")),
            manifest_key=text(record, "manifest_key"),
            manifest_version=Version(number(record, "manifest_version")),
            collector_round=number(record, "collector_round"),
            next_position=Position(number(record, "next_position", least=1)),
            entry_setsum=Setsum.from_hex(text(record, "entry_setsum")),
            version=number(record, "version"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PinIdentity:
    """What tells one pin from another: of the same name there may have been others, with another nonce.

    One that is not `confirmed` is being made. One with `clone` keeps the version of the base that the table at this
    place shares, and nothing else.
    """

    kind: str
    name: str
    nonce: Nonce
    confirmed: bool
    clone: str = ""

    def partition(self, table: TableId) -> str:
        """Where its records are."""
        return cursors(table) if self.kind == "cursor" else snapshots(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin(PinIdentity):
    """A snapshot or a cursor as one listing saw it.

    `version` is the witness of the record; `expires` is in Unix seconds, None for never; `confirmed` is False while it
    is being made: it counts all the same, and what it does not name yet it will find passed when it confirms. A cursor
    needs all of a region that it has no record of. A snapshot is not `complete` if the listing saw fewer regions than
    it has: it was made or dropped meanwhile, and is no view of the table. One that `replaces` another nonce is where
        the
    cursor of its name is being moved: it counts beside it, by the same record, so that no listing misses both.
    """

    version: int
    created: float
    expires: float | None
    base_version: int | None
    regions: Mapping[RegionId, RegionPin]
    complete: bool = True
    replaces: Nonce | None = None

    def of(self, region: RegionId) -> RegionPin | None:
        """What it needs of a region; None if nothing."""
        found = self.regions.get(region)
        return RegionPin(first_position=_START) if found is None and self.kind == "cursor" else found

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
    """Every pin of a table by strong reads, expired ones included: those are deleted before they stop to count.

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
    """The pins in the records of one partition. A region's record without its pin's is left of a dropped one."""
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
        found.append(_pin(kind, name, record, parts.get((name, str(record.get("nonce"))), {})))
        if record.get(NEXT):
            following = {**record, "nonce": record[NEXT], "expires": record.get(NEXT_EXPIRES, 0), "confirmed": 0}
            moving = _pin(kind, name, following, parts.get((name, str(record[NEXT])), {}))
            found.append(replace(moving, replaces=Nonce(str(record["nonce"]))))
    return found


def named(context: TableContext, kind: str, name: str) -> PinIdentity | None:
    """The pin that has this name now, also one that is being made: for whoever ends it, however broken the rest.

    One whose record can't be read has no nonce. A tag keeps the files of a clone all the same.
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
    """The nonce in a pin's own record; empty if it has none."""
    nonce = record.get("nonce")
    return Nonce(nonce if isinstance(nonce, str) else "")


def checked_name(name: str) -> str:
    """The name of a snapshot or cursor itself; raises `Invalid` for what is none."""
    if not _NAME.fullmatch(name):
        raise Invalid(f"{name!r} is no name", remedy="Use up to 100 letters, digits, - and _", field="name")
    return name


def make(
    context: TableContext,
    kind: str,
    name: str,
    *,
    place: Callable[[Pin], Pin | None],
    withdraw: Callable[[Pin], object],
    ttl_seconds: float | None,
) -> Pin:
    """Make a pin by the protocol of this module.

    Args:
        place: writes what the pin needs of the table as it is now, and returns it with that; None if it is gone.
        withdraw: removes what `place` and this have written, by `abandon`.
        ttl_seconds: for how long from its confirmation on, unless it is renewed; None for ever.

    Returns:
        The confirmed pin.

    Raises:
        Invalid: the name is taken, or no name.
        Contended: the collector overtook it again and again; nothing is kept of it.
        Unavailable: the registry gave no answer; it may be there. Besides, what `place` raises.

    A crash at any line leaves the pin, or nothing that may be relied on, whose records expire, whatever the time to
    live.
    """
    for _ in range(_TRIES):
        pin = begin(context, kind, name)
        try:
            placed = place(pin)
            if placed is not None and not overtaken(context, placed):
                return confirm(context, placed, ttl_seconds=ttl_seconds)
        except BaseException:
            with suppress(LsmError):
                withdraw(pin)
            raise
        withdraw(pin)
    raise Contended(f"the collector was faster than the {kind}", remedy="Make it again", table=context.uri)


def begin(context: TableContext, kind: str, name: str) -> Pin:
    """Write the record of a pin that is to be made.

    Raises:
        Invalid: the name is taken, or no name.
        Unavailable: the registry gave no answer.
    """
    now = context.clock.now()
    pin = Pin(
        kind=kind,
        name=checked_name(name),
        nonce=context.ids.nonce(),
        version=1,
        created=now,
        expires=now + MAKING_SECONDS,
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
    raise Unavailable(f"the {kind}'s record could not be written", remedy="Make it again", table=context.uri)


def _taken(context: TableContext, pin: Pin, record: Record) -> Invalid:
    problem, remedy = f"a {pin.kind} of this name exists", "Take another name, or drop it first"
    if not record.get("confirmed"):
        problem, remedy = f"a {pin.kind} of this name is being made", "If its maker has crashed, drop it first"
    return Invalid(problem, remedy=remedy, table=context.uri, **{pin.kind: pin.name})


def pin_regions(context: TableContext, pin: Pin, needs: Mapping[RegionId, RegionPin]) -> dict[RegionId, RegionPin]:
    """Write what a pin that is being made needs of each region.

    Returns:
        What was written, with the version of each record.

    Raises:
        Unavailable: the registry gave no answer.
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
        if isinstance(outcome, SwapApplied | SwapLost):  # nobody else writes it before the pin is confirmed
            return
    raise Unavailable(f"the {pin.kind}'s records could not be written", remedy="Make it again", table=context.uri)


def overtaken(context: TableContext, pin: Pin) -> bool:
    """Whether a floor that is committed by now has passed what the pin needs. Read after its records were written."""
    record = context.registry.read(table_key(context.table)) or {}
    if pin.base_version is not None and int(record.get("base_floor", 0)) > pin.base_version:
        return True

    def passed(region: Region) -> bool:
        needs, head = pin.of(region.id), region.find_head()
        if needs is None or head is None:
            return needs is not None and region.id in pin.regions
        collected = needs.manifest_key and head.collector_round != needs.collector_round
        return head.first_position > needs.first_position or bool(collected)

    return any(context.each(passed, regions(context)))


def confirm(context: TableContext, pin: Pin, *, ttl_seconds: float | None) -> Pin:
    """The pin, which was not overtaken, as one that may be relied on, for so long or for ever; raises as `step`."""
    return step(context, replace(pin, confirmed=True, expires=expiry(context, ttl_seconds)))


def step(context: TableContext, following: Pin) -> Pin:
    """Replace the record of a pin by what follows from it, unless it was changed or removed.

    Args:
        following: with the version of the pin from which it follows.

    Returns:
        The same with its own version.

    Raises:
        Contended: the pin changed, or has expired and was removed.
        Unavailable: the registry gave no answer.
    """
    pin = replace(following, version=following.version + 1)
    change_record(context, pin, expect={"version": following.version, "nonce": pin.nonce}, change=pin.to_record())
    return pin


def change_record(context: TableContext, pin: Pin, *, expect: Fields, change: Fields) -> None:
    """Change a pin's own record under a witness; a lost reply is recognised by what is there. Raises as `step`."""
    key = pin_key(pin.partition(context.table), pin.name)
    for _ in context.budget().attempts():
        outcome = context.registry.swap(key, expect=expect, change=change)
        if isinstance(outcome, SwapApplied):
            return
        if isinstance(outcome, SwapLost):
            if outcome.record is not None and holds(outcome.record, change):
                return
            raise Contended(f"the {pin.kind} was changed or removed meanwhile", remedy="Try again", table=context.uri)
    raise Unavailable(f"the {pin.kind}'s record could not be written", remedy="Try again", table=context.uri)


def forget(context: TableContext, pin: PinIdentity) -> None:
    """Remove the records of a pin, its own first, however it was renewed; nothing happens to another one of its name.

    A crash leaves records of regions that nobody counts, which a collection removes.

    Raises:
        Unavailable, Contended: it may still be there.
    """
    _end(context, pin, confirmed=True)


def abandon(context: TableContext, pin: PinIdentity) -> bool:
    """As `forget`, by who has made a pin and was not told that it is confirmed: if it is all the same, it stays.

    Somebody may rely on it by then.

    Returns:
        Whether it is gone.
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
            context.registry.discard(key)  # it has no witness, and while it is there no pin can be read
            return True
        if record is None or _nonce(record) != pin.nonce:
            discard_regions(context, pin)
            return True
        if record.get("confirmed") and not confirmed:
            return False
        context.registry.delete(key, expect={"version": record.get("version"), "nonce": record.get("nonce")})
    raise Contended(f"others kept changing the {pin.kind}", remedy="Drop it again", table=context.uri)


def discard_regions(context: TableContext, pin: PinIdentity) -> None:
    """Remove the records of regions of a pin that is over: nobody else's keys carry its nonce.

    Raises:
        Unavailable: some may still be there; a collection removes them.
    """
    partition, prefix = pin.partition(context.table), region_pin_prefix(pin.name, pin.nonce)
    try:
        keys = [key for key, _ in context.registry.list(partition) if key.sort.startswith(prefix)]
    except Corrupt:  # one of them can't be read, or one of another pin
        keys = [region_pin_key(partition, pin.name, pin.nonce, region.id) for region in regions(context)]
    context.each(context.registry.discard, keys)


def held(context: TableContext, pin: PinIdentity) -> bool:
    """Whether the pin's record is still there: what was read before this call was not collected before it."""
    record = context.registry.read(pin_key(pin.partition(context.table), pin.name))
    return record is not None and _nonce(record) == pin.nonce


def expiry(context: TableContext, ttl_seconds: float | None) -> float | None:
    """When a pin expires that lives so long from now on; None for never."""
    return None if ttl_seconds is None else context.clock.now() + ttl_seconds


def is_of(own: Record | None, key: Key) -> bool:
    """Whether a region's record belongs to the pin with its own record, or to where that is being moved.

    The nonce in its key says so, as it does to whoever reads the pin.
    """
    return own is not None and key.sort.split("#")[1] in (own.get("nonce"), own.get(NEXT))


def _pin(kind: str, name: str, record: Record, parts: Mapping[RegionId, Record]) -> Pin:
    try:
        return Pin(
            kind=kind,
            name=name,
            nonce=Nonce(text(record, "nonce")),
            version=number(record, "version"),
            created=float(text(record, "created")),
            expires=float(text(record, "expires")) if record["expires"] != NEVER else None,
            confirmed=bool(number(record, "confirmed")),
            base_version=number(record, "base_version") or None,
            regions={region: RegionPin.from_record(part) for region, part in parts.items()},
            complete=kind == "cursor" or len(parts) == number(record, "regions"),
            clone=text(record, "clone"),
        )
    except (KeyError, ValueError, Corrupt) as error:  # a sum that is none is Corrupt
        raise Corrupt(
            f"the record of {kind} {name!r} is unreadable: {error!r}", remedy=f"Drop the {kind}, then make it again"
        ) from error
