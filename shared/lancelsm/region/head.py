"""The head of a region: the single compare-and-swapped record that decides what is committed.

Appends change its log half; flush, claim, seal and garbage collection change its manifest half. A swap of one half
never conflicts with a swap of the other. Each function below is one kind of change: a pure function from the head that
was read to the swap to try.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from itertools import takewhile
from typing import Any

from lancelsm.common.formats import check_format
from lancelsm.common.layout import Epoch, Generation, Nonce, Position, Version
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, Invalid
from lancelsm.record.schema_history import FIRST_VERSION
from lancelsm.region import producers as remembered
from lancelsm.region.producers import Producers
from lancelsm.region.since import Since
from lancelsm.registry import Fields, Record, Value, number, text

FORMAT = 4  # of a head with a schema version: earlier releases would read its rows under other columns
_WITH_PRODUCERS = 3  # earlier releases would forget their times
_WITHOUT_PRODUCERS = 2
NO_OWNER = ""  # the owner of a sealed region
_NO_EPOCH = Epoch(0)
_OWNER_MAX_LENGTH = 100
_NOTE_DIGITS = 10
SINCE_UNKNOWN = "0"

# Absent from the record if they are empty.
_OPTIONAL_FIELDS = ("dirty", "stopped", "waiting", "compacted", "log_since", "merge_since", "ordered")
_TEXT_FIELDS = frozenset(
    {"owner", "nonce", "manifest_key", "manifest_nonce", "status", "entry_setsum", *_OPTIONAL_FIELDS}
)
_SCHEMA = "schema_version"  # absent in version 1
_EMPTY: Record = {**dict.fromkeys(_OPTIONAL_FIELDS, ""), _SCHEMA: FIRST_VERSION}
_REASON_MAX_LENGTH = 200  # a head stays below 1 KB
_SPAN = re.compile(r"([0-9]+)-([0-9]+)")
_FROM_ONE = frozenset({"next_position", "first_position", "format"})


def check_owner(owner: str) -> None:
    """Raise `Invalid` unless this is the name of an owner: not empty, which means no owner, and short enough."""
    if not 0 < len(owner) <= _OWNER_MAX_LENGTH:
        raise Invalid(
            f"{owner!r} is not a valid owner name", remedy=f"Use 1 to {_OWNER_MAX_LENGTH} characters", field="owner"
        )


class RegionState(StrEnum):
    OPEN = "open"
    SEALED = "sealed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The facts about a WAL entry that the head needs to commit it."""

    position: Position
    epoch: Epoch
    rows: int
    bytes: int  # without compression
    entry_setsum: Setsum
    applied_sequences: Mapping[str, str] = field(default_factory=dict)  # name of a producer -> its highest sequence
    at: float | None = None  # when the rows were drafted, in Unix seconds
    schema_version: int = FIRST_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTotals:
    """Sums over all entries of a log up to a position, and the epoch of the last one (0: there are no entries)."""

    entry_setsum: Setsum = field(default_factory=Setsum)
    wal_rows: int = 0
    wal_bytes: int = 0
    producers: Producers = field(default_factory=dict)
    epoch: Epoch = _NO_EPOCH

    def after(self, entries: Iterable[Summary]) -> LogTotals:
        """Return the totals after these further entries, in order."""
        totals = self
        for entry in entries:
            totals = LogTotals(
                entry_setsum=totals.entry_setsum + entry.entry_setsum,
                wal_rows=totals.wal_rows + entry.rows,
                wal_bytes=totals.wal_bytes + entry.bytes,
                producers=remembered.after(totals.producers, entry.applied_sequences, entry.at),
                epoch=entry.epoch,
            )
        return totals


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A head as it was read.

    Log half: `next_position` is the first uncommitted position; `entry_setsum`, `wal_rows` and `wal_bytes` are sums
    over all entries ever committed; `producers` has the highest applied sequence of each producer and the time of its
    last append (`region.producers`); `nonce` is the nonce of the last committer; no entry has a newer version of the
    table's columns than `schema_version`, and writers that know an older one read them again. Manifest half:
    `first_position` is the floor, below which WAL objects may be gone; `manifest_key` names the staged manifest;
    `manifest_epoch` < `epoch` means that a claim is unfinished.
    Advisory: `merged` is the newest generation that mergers have reported as merged; `dirty` is the time (Unix seconds
    as text) since which the base has lagged, empty if it does not lag; `stopped` says why the region takes no rows for
    now (`region.drift`), empty if it takes rows; `waiting` is the note of a writer that waits for its turn
    (`wal.waiting`): for how many milliseconds others should hold back, as text; empty without a note; `compacted` has
    the spans of numbers that became one generation each, such as `3-9 10-12`, of those that were not merged then;
    `log_since` and `merge_since` say since when the oldest row waits for a flush or a merge (`region.since`).
    `ordered` is not empty once the region takes change events that a sequence orders: it takes no plain writes then.
    It never becomes empty again.
    """

    epoch: Epoch
    owner: str
    status: RegionState
    next_position: Position
    entry_setsum: Setsum
    wal_rows: int
    wal_bytes: int
    producers: Producers
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
    stopped: str = ""
    waiting: str = ""
    compacted: str = ""
    log_since: str = ""
    merge_since: str = ""
    ordered: str = ""
    schema_version: int = FIRST_VERSION
    format: int = _WITHOUT_PRODUCERS

    @property
    def totals(self) -> LogTotals:
        """The totals of all entries ever committed."""
        return LogTotals(
            entry_setsum=self.entry_setsum,
            wal_rows=self.wal_rows,
            wal_bytes=self.wal_bytes,
            producers=self.producers,
            epoch=self.epoch,
        )

    @property
    def waiting_milliseconds(self) -> int:
        """The number in the note of a waiting writer; 0 without a note."""
        return int(self.waiting) if self.waiting.isdecimal() and len(self.waiting) < _NOTE_DIGITS else 0

    def applied(self, producer: str) -> int:
        """Return the highest sequence of a producer that is in the log; 0 if the head remembers none."""
        found = self.producers.get(remembered.producer_id(producer))
        return 0 if found is None else found.sequence

    @property
    def pending_generations(self) -> int:
        """The number of generations that are not merged yet, as far as mergers have reported."""
        spans = [(int(first), int(last)) for first, last in _SPAN.findall(self.compacted)]
        saved = sum(last - max(first, self.merged + 1) for first, last in spans if last > self.merged)
        return max(0, self.current_generation - 1 - self.merged - saved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A compare-and-swap to try on the record of the head."""

    expect: Fields | None
    change: Fields


def from_record(record: Record) -> Head:
    """Decode a head.

    Raises:
        Invalid: a newer release wrote it, or its sums are SHA3-256.
        Corrupt: a field is missing or unreadable.
    """
    stored_format = record.get("format")
    if isinstance(stored_format, int):
        check_format(stored_format, newest=FORMAT, what="head", field="format")
    try:
        full = {**_EMPTY, **record}
        values: dict[str, Any] = {name: text(full, name) for name in _TEXT_FIELDS}
        values |= {name: number(full, name, least=least) for name, least in _numbers()}
        values["status"] = RegionState(str(record["status"]))
        values["entry_setsum"] = Setsum.from_hex(str(record["entry_setsum"]))
        values["producers"] = remembered.from_value(record["source"])
    except (KeyError, ValueError, Corrupt) as error:  # `Setsum.from_hex` raises Corrupt
        raise Corrupt(
            f"the head's record is unreadable: {error!r}",
            remedy="Run `lancelsm registry rebuild` with all writers stopped",
        ) from error
    return Head(**values)


@cache
def _names() -> tuple[str, ...]:
    """Return the fields of a head that have the same names in its record."""
    return tuple(f.name for f in fields(Head) if f.name != "producers")


@cache
def _numbers() -> tuple[tuple[str, int], ...]:
    """Return the number fields of a head, each with its least value."""
    return tuple((name, int(name in _FROM_ONE)) for name in _names() if name not in _TEXT_FIELDS)


def to_record(head: Head) -> dict[str, Value]:
    """Encode a head. Each field of the record is short text or a number; producers are bytes."""
    record: dict[str, Value] = {name: getattr(head, name) for name in _names()}
    record["status"] = head.status.value
    record["entry_setsum"] = head.entry_setsum.hex()
    record["source"] = remembered.to_value(head.producers)
    record["format"] = max(head.format, _format(has_producers=bool(head.producers), schema=head.schema_version))
    for name in _OPTIONAL_FIELDS:  # a sparse index lists the records that have the field `dirty`
        if not record[name]:
            del record[name]
    if head.schema_version == FIRST_VERSION:
        del record[_SCHEMA]
    return record


def _format(*, has_producers: bool, schema: int) -> int:
    """Return the oldest format that every release which reads it reads correctly."""
    if schema > FIRST_VERSION:
        return FORMAT
    return _WITH_PRODUCERS if has_producers else _WITHOUT_PRODUCERS


def _known_schema(head: Head) -> int | None:
    return None if head.schema_version == FIRST_VERSION else head.schema_version


def created(head: Head) -> Swap:
    """Create the first head of a region."""
    return Swap(expect=None, change=to_record(head))


def appended(head: Head, entries: Sequence[Summary], *, nonce: Nonce, at: float, removes_note: bool = False) -> Swap:
    """Commit the next entries of the log, all or none.

    The swap depends on epoch and position only, so it does not conflict with concurrent manifest commits.

    Args:
        at: the current time in Unix seconds.
        removes_note: remove the note of a waiting writer.

    Raises:
        ValueError: the entries do not follow this head in its epoch (a bug of the caller).
    """
    expected = range(head.next_position, head.next_position + len(entries))
    if (
        [e.position for e in entries] != list(expected)  # guard: entries follow the head
        or any(e.epoch != head.epoch for e in entries)  # guard: entries are of the epoch of the head
    ):
        raise ValueError(f"entries {[(e.position, e.epoch) for e in entries]} do not follow {head}")
    totals = head.totals.after(entries)
    schema = max(head.schema_version, *(entry.schema_version for entry in entries))
    newer = schema > head.schema_version  # guard: head has the schema version of its entries
    form = max(head.format, _format(has_producers=bool(totals.producers), schema=schema))
    return Swap(
        expect={
            "epoch": head.epoch,  # guard: append swaps on the epoch
            "next_position": head.next_position,  # guard: append swaps on the position
            **({_SCHEMA: _known_schema(head)} if newer else {}),
        },
        change={
            "next_position": head.next_position + len(entries),
            "entry_setsum": totals.entry_setsum.hex(),
            "wal_rows": totals.wal_rows,
            "wal_bytes": totals.wal_bytes,
            "source": remembered.to_value(totals.producers),
            "nonce": nonce,
            "dirty": head.dirty or str(int(at)),  # always written: a concurrent `cleaned` may have removed it
            **_log_begins(head, entries, at),
            **({"waiting": None} if removes_note else {}),
            **({_SCHEMA: schema} if newer else {}),
            **({"format": form} if form != head.format else {}),
        },
    )


def _log_begins(head: Head, entries: Sequence[Summary], at: float) -> Fields:
    """Start the time of the log if, as far as this head shows, no row waits for a flush. Fences do not wait."""
    known = Since.parse(head.log_since)
    if known is not None and known.first < head.next_position:
        return {}
    fences = sum(1 for _ in takewhile(lambda entry: not entry.rows, entries))
    return {"log_since": Since(first=head.next_position + fences, at=int(at)).text}


def noted(head: Head, *, milliseconds: int) -> Swap:
    """Ask other writers of the owner to hold back this long before their next append. Advisory: see `wal.waiting`."""
    return Swap(expect={"epoch": head.epoch}, change={"waiting": str(milliseconds)})


def ordered(head: Head) -> Swap:
    """Let the region take change events that a sequence orders, and no plain writes any more.

    It comes before the first such event, so an append that follows an event knows it.
    """
    return Swap(expect={"epoch": head.epoch}, change={"ordered": "1"})


def claimed(head: Head, *, owner: str, nonce: Nonce) -> Swap:
    """Start a new epoch for `owner`. The swap depends on the epoch only; else a busy appender would starve it."""
    return Swap(
        expect={
            "epoch": head.epoch,  # guard: claim swaps on the epoch
            "status": RegionState.OPEN.value,  # guard: claim swaps on the status
        },
        change={"epoch": head.epoch + 1, "owner": owner, "nonce": nonce},
    )


def evolved(head: Head, schema_version: int) -> Swap | None:
    """Name a newer version of the table's columns; None if the head names it. Appends in flight are not disturbed."""
    if schema_version <= head.schema_version:
        return None
    return Swap(
        expect={_SCHEMA: _known_schema(head)},
        change={_SCHEMA: schema_version, "format": FORMAT},
    )


def sealed(head: Head, *, nonce: Nonce) -> Swap:
    """Refuse appends and claims of the region permanently. The new epoch fences appends in flight."""
    return Swap(
        expect={
            "epoch": head.epoch,  # guard: seal swaps on the epoch
            "status": RegionState.OPEN.value,
        },
        change={"epoch": head.epoch + 1, "owner": NO_OWNER, "status": RegionState.SEALED.value, "nonce": nonce},
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
    compacted: str = "",
    flushed: Since | None = None,
) -> Swap:
    """Name the next manifest. The swap depends on the manifest version only: it does not conflict with appends.

    Args:
        flushed: for a flush: the first position that is not in a generation, and the time of the entry before it.
    """
    return Swap(
        expect={"manifest_version": head.manifest_version},  # guard: manifest commit swaps on the version
        change={
            "manifest_version": version,
            "manifest_key": key,
            "manifest_epoch": epoch,
            "first_position": first_position,
            "current_generation": current_generation,
            "collector_round": collector_round,
            "manifest_nonce": nonce,
            **({"compacted": compacted or None} if compacted != head.compacted else {}),
            **({} if flushed is None else _flushed(head, flushed, generation=Generation(current_generation - 1))),
        },
    )


def _flushed(head: Head, log: Since, *, generation: Generation) -> Fields:
    """Move the time of the log on. Start that of the merge if this is the only generation that is not merged."""
    change: dict[str, Value] = {"log_since": log.text}
    if not head.merge_since or head.merged >= generation - 1:
        before = Since.parse(head.log_since) or log
        change["merge_since"] = Since(first=generation, at=before.at).text
    return change


def merged(head: Head, through: Generation, *, began: Head | None = None) -> Swap | None:
    """Report the newest merged generation; None if the head has it. Advisory: only backpressure uses it.

    Args:
        began: the head as it was when the merge began, if the merge took all generations that it showed. Later ones
            have only rows that were in its log, or newer ones.
    """
    if through <= head.merged:
        return None
    since = None if began is None else Since.parse(began.log_since)
    moved = {} if since is None else {"merge_since": Since(first=through + 1, at=since.at).text}
    return Swap(expect={"merged": head.merged}, change={"merged": through, **moved})


def stopped(head: Head, reason: str, *, nonce: Nonce) -> Swap | None:
    """Say why the region takes no rows for now. None if it takes none already.

    The new epoch fences appends in flight, as that of a claim does. The owner stays, and finishes the claim later.
    """
    if head.stopped or head.status is RegionState.SEALED:
        return None
    return Swap(
        expect={
            "epoch": head.epoch,  # guard: stop swaps on the epoch
            "status": RegionState.OPEN.value,
        },
        change={
            "epoch": head.epoch + 1,  # guard: stop fences appends in flight
            "nonce": nonce,
            "stopped": reason[:_REASON_MAX_LENGTH],
        },
    )


def resumed(head: Head) -> Swap | None:
    """Let a stopped region take rows again; None if it is not stopped."""
    return Swap(expect={"stopped": head.stopped}, change={"stopped": None}) if head.stopped else None


def cleaned(head: Head, through: Generation) -> Swap:
    """Record that the base has all rows that this head shows, through this generation. Advisory, as in `merged`."""
    expect = {"next_position": head.next_position, "manifest_version": head.manifest_version, "merged": head.merged}
    return Swap(expect=expect, change={"dirty": None, "merged": max(head.merged, through)})
