"""The records of snapshots and cursors, decoded: what each of them needs of the base and of each region.

A pin is one record, plus one record per region of what it needs there. `history.pins` creates and removes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Self

from lancelsm.common.clock import shown_time
from lancelsm.common.html import records_html
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
    snapshots,
)
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, Invalid
from lancelsm.objects.location import is_absolute
from lancelsm.registry import Record, Value, number, text

NEVER = ""  # no expiry
NEXT = "next"  # field of a cursor's record while it is moved: nonce of the new positions
NEXT_EXPIRES = "next_expires"  # when these expire
NO_ENTRY = Position(2**63 - 1)  # greater than every position
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

    def with_later_log(self) -> RegionPin:
        """Return the same needs, and every entry from the end of the state on."""
        return replace(self, first_position=min(self.first_position, self.next_position))

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
    """A snapshot or a cursor, as one listing returned it.

    Args:
        kind: `snapshot` or `cursor`.
        name: its name.
        confirmed: whether its creation is finished, and nothing that it needs was collected before that. An unconfirmed
            pin keeps objects too, and can't be read.
        clone: the location of the clone whose files it keeps; empty if there is none.
        created: when it was created, in Unix seconds.
        expires: when it ends, in Unix seconds; None for never.
        base_version: the version of the base that a snapshot reads; None for a cursor.
        regions: what it needs of each region; `first_position` of a cursor is the next position that it reads. A cursor
            needs all entries of a region that is not in it.
        complete: False if the listing lacks a part of a snapshot, which was created or dropped meanwhile: it can't be
            read.
        nonce: tells it from an earlier pin of this name.
        version: that of its record; swaps compare it.
        replaces: of a cursor that is being moved, and has its new positions here: the nonce of the old ones. Both are
            in one record, so a listing returns both or none.
    """

    version: int
    created: float
    expires: float | None
    base_version: int | None
    regions: Mapping[RegionId, RegionPin]
    complete: bool = True
    replaces: Nonce | None = None

    def _repr_html_(self) -> str:
        """Show name, times and version in a notebook."""
        facts = {
            "name": self.name,
            "created": _moment(self.created),
            "expires": "never" if self.expires is None else _moment(self.expires),
            "base version": "" if self.base_version is None else self.base_version,
            "regions": len(self.regions),
        }
        return records_html(self.kind, list(facts), [facts])

    @property
    def pinned_version(self) -> int:
        """The version of the base that a snapshot reads. Raises `Corrupt` if its record has none."""
        if self.base_version is None:
            raise Corrupt(
                f"the record of {self.kind} {self.name!r} pins no version of the base",
                remedy=f"Drop the {self.kind}, then create it again",
                field="base_version",
            )
        return self.base_version

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
            created=_seconds(record, "created"),
            expires=_seconds(record, "expires") if record["expires"] != NEVER else None,
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


def _seconds(record: Record, field: str) -> float:
    """Return a field with a time; raise `ValueError` if it is missing, or no time that can be shown."""
    return shown_time(float(text(record, field)))


def is_of(own: Record | None, key: Key) -> bool:
    """Return whether a record of a region belongs to the pin with this own record, or to its new positions in a move.

    The nonce in the key decides, as it does when pins are read.
    """
    return own is not None and key.sort.split("#")[1] in (own.get("nonce"), own.get(NEXT))


def checked_name(name: str) -> str:
    """Return a valid name of a snapshot or cursor; raises `Invalid` for others."""
    if not _NAME.fullmatch(name):
        raise Invalid(f"{name!r} is not a valid name", remedy="Use 1 to 100 letters, digits, - and _", field="name")
    return name


def _moment(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
