"""The head of a region: the one compare-and-swapped record that decides what is committed.

Its log half is moved by appends, its manifest half by flush, claim, seal and collection; a swap of one half never
disturbs the other. Every change of a head is one of the functions below: a pure step from what was read to the swap
to try.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from lancelsm.common.layout import Epoch, Generation, Nonce, Position, Version
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, Invalid
from lancelsm.registry import Fields, Record, Value, number, text

FORMAT = 1
NOBODY = ""  # the owner of a sealed region
_NONE = Epoch(0)
_OWNER_MAX = 100
_QUEUES = 4
SINCE_UNKNOWN = "0"

_TEXTS = frozenset({"owner", "nonce", "manifest_key", "manifest_nonce", "dirty", "status", "entry_setsum", "source"})
_POSITIONS = frozenset({"next_position", "first_position"})


def check_owner(owner: str) -> None:
    """Raise `Invalid` for what is no owner's name: nothing, which means nobody, or text too long for a record."""
    if not 0 < len(owner) <= _OWNER_MAX:
        raise Invalid(f"{owner!r} is no owner", remedy=f"Give a name of 1 to {_OWNER_MAX} characters", field="owner")


class RegionState(StrEnum):
    OPEN = "open"
    SEALED = "sealed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the head needs to know of one WAL entry to commit it."""

    position: Position
    epoch: Epoch
    rows: int
    bytes: int
    entry_setsum: Setsum
    applied_sequences: Mapping[str, str] = field(default_factory=dict)  # queue id -> highest sequence in the entry


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTotals:
    """Sums over every entry of a region's log up to some position, and the epoch of the last one (0: none)."""

    entry_setsum: Setsum = field(default_factory=Setsum)
    wal_rows: int = 0
    wal_bytes: int = 0
    applied_sequences: Mapping[str, str] = field(default_factory=dict)
    epoch: Epoch = _NONE

    def after(self, entries: Iterable[Summary]) -> LogTotals:
        """The totals with some more entries, in order.

        Four queues are remembered. A fifth displaces the one with the lowest sequence: a queue that was made again
        counts from higher numbers, so that is one of those that are gone.
        """
        totals = self
        for entry in entries:
            applied = dict(totals.applied_sequences)
            for queue, sequence in entry.applied_sequences.items():
                applied[queue] = max(applied.get(queue, sequence), sequence, key=int)
            for _ in range(len(applied) - _QUEUES):
                del applied[min(applied.keys() - entry.applied_sequences.keys(), key=lambda queue: int(applied[queue]))]
            totals = LogTotals(
                entry_setsum=totals.entry_setsum + entry.entry_setsum,
                wal_rows=totals.wal_rows + entry.rows,
                wal_bytes=totals.wal_bytes + entry.bytes,
                applied_sequences=applied,
                epoch=entry.epoch,
            )
        return totals


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """One read of a head.

    Log half: `next_position` is the first uncommitted position; `entry_setsum`, `wal_rows`, `wal_bytes` sum every
    entry ever committed; `applied_sequences` holds the highest sequence applied per queue; `nonce` is the last
    committer's. Manifest half: `first_position` is the floor below which WAL objects may be gone; `manifest_key` names
    the staged manifest; `manifest_epoch` < `epoch` means that a claim is unfinished. Advisory: `merged`, and `dirty`,
    since when (Unix seconds as text) there has been something that the base lacks, empty if nothing.
    """

    epoch: Epoch
    owner: str
    status: RegionState
    next_position: Position
    entry_setsum: Setsum
    wal_rows: int
    wal_bytes: int
    applied_sequences: Mapping[str, str]
    nonce: Nonce
    first_position: Position
    manifest_version: Version
    manifest_key: str
    manifest_epoch: Epoch
    current_generation: Generation
    collector_round: int
    manifest_nonce: Nonce
    merged: Generation
    dirty: str = ""
    format: int = FORMAT

    @property
    def totals(self) -> LogTotals:
        """Of every entry ever committed."""
        return LogTotals(
            entry_setsum=self.entry_setsum,
            wal_rows=self.wal_rows,
            wal_bytes=self.wal_bytes,
            applied_sequences=self.applied_sequences,
            epoch=self.epoch,
        )

    def applied(self, queue: str) -> int:
        """The highest sequence of a queue that the log has; 0 if none of it."""
        return int(self.applied_sequences.get(queue, 0))

    @property
    def pending_generations(self) -> int:
        """Generations that the base does not hold yet, as far as mergers have reported."""
        return self.current_generation - 1 - self.merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """What to try on the head's record."""

    expect: Fields | None
    change: Fields


def from_record(record: Record) -> Head:
    """Read a head from its record.

    Raises:
        Invalid: a newer release wrote it.
        Corrupt: a field is missing or unreadable.
    """
    form = record.get("format")
    if isinstance(form, int) and form > FORMAT:
        raise Invalid(
            f"the head has format {form}, this release reads {FORMAT}",
            remedy="Install a newer lancelsm",
            field="format",
        )
    try:
        values = {f.name: _value({"dirty": "", **record}, _stored_name(f.name)) for f in fields(Head)}
        values["status"] = RegionState(str(record["status"]))
        values["entry_setsum"] = Setsum.from_hex(str(record["entry_setsum"]))
        values["applied_sequences"] = _sequences(str(record["source"]))
    except (ValueError, Corrupt) as error:  # a sum that is none is Corrupt
        raise Corrupt(
            f"the head's record is unreadable: {error!r}",
            remedy="Run `lancelsm registry rebuild` with all writers stopped",
        ) from error
    return Head(**values)


def _stored_name(field: str) -> str:
    return "source" if field == "applied_sequences" else field


def _value(record: Record, name: str) -> Any:
    return text(record, name) if name in _TEXTS else number(record, name, least=int(name in _POSITIONS | {"format"}))


def _sequences(document: str) -> dict[str, str]:
    sequences = json.loads(document)
    if not isinstance(sequences, dict) or not all(
        isinstance(one, str) and one.isdecimal() for one in sequences.values()
    ):
        raise ValueError(f"source is {document!r}")
    return sequences


def to_record(head: Head) -> dict[str, Value]:
    """The record of a head, each field short text or a number."""
    record: dict[str, Value] = {_stored_name(f.name): getattr(head, f.name) for f in fields(Head)}
    record["status"] = head.status.value
    record["entry_setsum"] = head.entry_setsum.hex()
    record["source"] = _sequences_text(head.applied_sequences)
    if not head.dirty:
        del record["dirty"]  # an index holds what is dirty and nothing else
    return record


def created(head: Head) -> Swap:
    """A region's first head."""
    return Swap(expect=None, change=to_record(head))


def appended(head: Head, entries: Sequence[Summary], *, nonce: Nonce, at: float) -> Swap:
    """The next entries of the log become committed, all or none.

    Conditional on epoch and position only, so that manifest commits in between don't disturb it.

    Args:
        at: now, in Unix seconds.

    Raises:
        ValueError: the entries are not the ones that follow in this epoch (a bug of the caller).
    """
    expected = range(head.next_position, head.next_position + len(entries))
    if [e.position for e in entries] != list(expected) or any(e.epoch != head.epoch for e in entries):
        raise ValueError(f"entries {[(e.position, e.epoch) for e in entries]} do not follow {head}")
    totals = head.totals.after(entries)
    return Swap(
        expect={"epoch": head.epoch, "next_position": head.next_position},
        change={
            "next_position": head.next_position + len(entries),
            "entry_setsum": totals.entry_setsum.hex(),
            "wal_rows": totals.wal_rows,
            "wal_bytes": totals.wal_bytes,
            "source": _sequences_text(totals.applied_sequences),
            "nonce": nonce,
            "dirty": head.dirty or str(int(at)),  # always written: `cleaned` may have come in between
        },
    )


def claimed(head: Head, *, owner: str, nonce: Nonce) -> Swap:
    """A fresh epoch for `owner`. Conditional on the epoch alone, else a busy appender would starve it."""
    return Swap(
        expect={"epoch": head.epoch, "status": RegionState.OPEN.value},
        change={"epoch": head.epoch + 1, "owner": owner, "nonce": nonce},
    )


def sealed(head: Head, *, nonce: Nonce) -> Swap:
    """No further append, claim or creation, for ever; what is in flight is fenced by the fresh epoch."""
    return Swap(
        expect={"epoch": head.epoch, "status": RegionState.OPEN.value},
        change={"epoch": head.epoch + 1, "owner": NOBODY, "status": RegionState.SEALED.value, "nonce": nonce},
    )


def manifest_swapped(
    head: Head,
    *,
    version: Version,
    key: str,
    epoch: Epoch,
    first_position: Position,
    current_generation: Generation,
    collector_round: int,
    nonce: Nonce,
) -> Swap:
    """The head names the next manifest. Conditional on the manifest version alone: appends don't disturb it."""
    return Swap(
        expect={"manifest_version": head.manifest_version},
        change={
            "manifest_version": version,
            "manifest_key": key,
            "manifest_epoch": epoch,
            "first_position": first_position,
            "current_generation": current_generation,
            "collector_round": collector_round,
            "manifest_nonce": nonce,
        },
    )


def merged(head: Head, through: Generation) -> Swap | None:
    """Tell appenders how far the base is; None if they know. Advisory: only backpressure looks at it."""
    if through <= head.merged:
        return None
    return Swap(expect={"merged": head.merged}, change={"merged": through})


def cleaned(head: Head) -> Swap:
    """The base holds everything that this head shows. Advisory: only schedules look at it."""
    expect = {"next_position": head.next_position, "manifest_version": head.manifest_version}
    return Swap(expect=expect, change={"dirty": None})


def _sequences_text(sequences: Mapping[str, str]) -> str:
    return json.dumps(dict(sequences), sort_keys=True, separators=(",", ":"))
