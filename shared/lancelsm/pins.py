"""What must not be deleted because somebody still reads it: the records of snapshots and cursors, and what they need.

A pin is one record and, for each region, a record of what it needs there. Whoever makes one writes the records, then
reads the committed floors - `first_position` and `collector_round` of each head, `base_floor` in the catalog - and
confirms only if none has passed what the pin needs. The collector commits floors, then reads all pins, then deletes.
One of the two sees the other, whatever stalls (tests/model/pins.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from lancelsm.errors import Contended, Corrupt, Invalid, Unavailable
from lancelsm.layout import (
    Generation,
    Key,
    Nonce,
    Position,
    RegionId,
    TableId,
    Version,
    cursors,
    pin_key,
    snapshots,
    table_key,
)
from lancelsm.region import Region, Storage, regions
from lancelsm.registry import Applied, Fields, Lost, Record, Value
from lancelsm.setsum import Setsum

NEVER = ""  # no expiry

_START = Position(1)
_NO_GENERATION = Generation(0)
_NO_VERSION = Version(0)
_KINDS = {"S": "snapshot", "C": "cursor"}


_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPin:
    """What a pin needs of one region.

    It needs every WAL entry from `first_position` on; of a snapshot also the generations after + 1 .. through, and the
    manifest at `manifest_key`. The rest is the state that a snapshot reads: the log through `next_position` - 1, whose
    entries after the manifest's replay point sum to `entry_setsum` - the manifest's.
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
        """The region's record; `nonce` is the pin's, so that what a dropped pin of the same name left is told apart."""
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
        return cls(
            first_position=Position(int(record["first_position"])),
            after=Generation(int(record["after"])),
            through=Generation(int(record["through"])),
            manifest_key=str(record["manifest_key"]),
            manifest_version=Version(int(record["manifest_version"])),
            collector_round=int(record["collector_round"]),
            next_position=Position(int(record["next_position"])),
            entry_setsum=Setsum.from_hex(str(record["entry_setsum"])),
            version=int(record["version"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A snapshot or a cursor as one listing saw it.

    `version` is the witness of the record; `expires` is in Unix seconds, None for never; `confirmed` is False while it
    is being made: it counts all the same, and what it does not name yet it will find passed when it confirms. A cursor
    needs all of a region that it has no record of.
    """

    kind: str
    name: str
    nonce: Nonce
    version: int
    created: float
    expires: float | None
    confirmed: bool
    base_version: int | None
    regions: Mapping[RegionId, RegionPin]

    def partition(self, table: TableId) -> str:
        """Where its records are."""
        return cursors(table) if self.kind == "cursor" else snapshots(table)

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
        }


def read_pins(storage: Storage) -> list[Pin]:
    """Every pin of a table by strong reads, expired ones included: those are deleted before they stop to count.

    Raises:
        Corrupt: a record is unreadable.
        Unavailable: the registry did not answer.
    """
    return [
        pin
        for partition in (snapshots(storage.table), cursors(storage.table))
        for pin in pins_of(storage.registry.list(partition))
    ]


def pins_of(records: Iterable[tuple[Key, Record]]) -> list[Pin]:
    """The pins in the records of one partition. A region's record without its pin's is left of a dropped one."""
    heads: dict[str, tuple[str, Record]] = {}
    parts: dict[str, dict[RegionId, Record]] = {}
    for key, record in records:
        name, _, region = key.sort.partition("#")
        if region:
            parts.setdefault(name, {})[RegionId(region)] = record
        else:
            heads[name] = (_KINDS[key.partition[0]], record)
    return [_pin(kind, name, record, parts.get(name, {})) for name, (kind, record) in heads.items()]


def checked_name(name: str) -> str:
    """The name of a snapshot or cursor itself; raises `Invalid` for what is none."""
    if not _NAME.fullmatch(name):
        raise Invalid(f"{name!r} is no name", remedy="Use up to 100 letters, digits, - and _", field="name")
    return name


def begin(storage: Storage, pin: Pin) -> None:
    """Write the record of a pin that is being made.

    Raises:
        Invalid: the name is taken.
        Unavailable: the registry gave no answer.
    """
    key = pin_key(pin.partition(storage.table), pin.name)
    for _ in storage.budget().attempts():
        outcome = storage.registry.swap(key, expect=None, change=pin.to_record())
        if isinstance(outcome, Applied) or (isinstance(outcome, Lost) and outcome.record == pin.to_record()):
            return
        if isinstance(outcome, Lost):
            raise Invalid(
                f"a {pin.kind} of this name exists",
                remedy="Take another name, or drop it first",
                table=storage.uri,
                **{pin.kind: pin.name},
            )
    raise Unavailable(f"the {pin.kind}'s record could not be written", remedy="Make it again", table=storage.uri)


def pin_regions(storage: Storage, pin: Pin, needs: Mapping[RegionId, RegionPin]) -> dict[RegionId, RegionPin]:
    """Write what a pin that is being made needs of each region, over what an earlier pin of the name has left.

    Returns:
        What was written, with the version of each record.

    Raises:
        Contended: the registry gave no answer.
    """
    written = storage.each(lambda item: _pin_region(storage, pin, *item), list(needs.items()))
    return dict(zip(needs, written, strict=True))


def _pin_region(storage: Storage, pin: Pin, region: RegionId, needs: RegionPin) -> RegionPin:
    key = pin_key(pin.partition(storage.table), pin.name, region)
    for _ in storage.budget().attempts():
        old = storage.registry.read(key)
        version = int(old["version"]) if old else 0
        wanted = replace(needs, version=version + 1)
        expect: Fields | None = {"version": version} if old else None
        if isinstance(storage.registry.swap(key, expect=expect, change=wanted.to_record(nonce=pin.nonce)), Applied):
            return wanted
    raise Contended(f"the {pin.kind}'s records could not be written", remedy="Make it again", table=storage.uri)


def stands(storage: Storage, pin: Pin) -> bool:
    """Whether no floor that is committed by now has passed what the pin needs. Read after its records were written."""
    record = storage.registry.read(table_key(storage.table)) or {}
    if pin.base_version is not None and int(record.get("base_floor", 0)) > pin.base_version:
        return False

    def holds(region: Region) -> bool:
        needs, head = pin.regions.get(region.id), region.find_head()
        if needs is None:
            return True
        passed = needs.manifest_key and head is not None and head.collector_round != needs.collector_round
        return head is not None and head.first_position <= needs.first_position and not passed

    return all(storage.each(holds, regions(storage)))


def confirm(storage: Storage, pin: Pin) -> Pin:
    """The pin, which stands, as one that may be relied on; raises as `step`."""
    confirmed = replace(pin, version=pin.version + 1, confirmed=True)
    step(storage, pin, confirmed)
    return confirmed


def step(storage: Storage, pin: Pin, following: Pin) -> None:
    """Replace the record of a pin that is being made, so that nobody but the collector touches it.

    Raises:
        Contended: it has expired and was removed.
        Unavailable: the registry gave no answer.
    """
    key, wanted = pin_key(pin.partition(storage.table), pin.name), following.to_record()
    witness: Fields = {"version": pin.version, "nonce": pin.nonce}
    for _ in storage.budget().attempts():
        outcome = storage.registry.swap(key, expect=witness, change=wanted)
        if isinstance(outcome, Applied) or (isinstance(outcome, Lost) and outcome.record == wanted):
            return
        if isinstance(outcome, Lost):
            raise Contended(f"the {pin.kind} expired while it was made", remedy="Make it again", table=storage.uri)
    raise Unavailable(f"the {pin.kind}'s record could not be written", remedy="Make it again", table=storage.uri)


def forget(storage: Storage, pin: Pin) -> bool:
    """Remove the records of a pin, its own first; False if its own has changed since it was read.

    A crash leaves records of regions that nobody counts, which a collection removes.
    """
    partition = pin.partition(storage.table)
    key = pin_key(partition, pin.name)
    record = storage.registry.read(key)
    if record is not None and record["nonce"] == pin.nonce:
        witness: Fields = {"version": record["version"], "nonce": pin.nonce}
        if not isinstance(storage.registry.delete(key, expect=witness), Applied):
            return False
    remains = [pin_key(partition, pin.name, region) for region in pin.regions]
    storage.each(lambda left: storage.registry.delete(left, expect={"nonce": pin.nonce}), remains)
    return True


def _pin(kind: str, name: str, record: Record, parts: Mapping[RegionId, Record]) -> Pin:
    try:
        return Pin(
            kind=kind,
            name=name,
            nonce=Nonce(str(record["nonce"])),
            version=int(record["version"]),
            created=float(record["created"]),
            expires=float(record["expires"]) if record["expires"] != NEVER else None,
            confirmed=bool(record["confirmed"]),
            base_version=int(record["base_version"]) or None,
            regions={
                region: RegionPin.from_record(part)
                for region, part in parts.items()
                if part["nonce"] == record["nonce"]
            },
        )
    except (KeyError, ValueError) as error:
        raise Corrupt(
            f"the record of {kind} {name!r} is unreadable: {error!r}", remedy=f"Drop the {kind}, then make it again"
        ) from error
