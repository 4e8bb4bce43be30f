"""Records by key with compare-and-swap: the port to the one place that decides what a region is.

A record is a flat map of short fields. A swap names the fields that it relies on and the fields that it changes, and
touches no other: two swaps on different fields of one record do not disturb each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from lancelsm.common.layout import Key
from lancelsm.errors import Corrupt

Value = str | int
Record = Mapping[str, Value]
Fields = Mapping[str, Value | None]  # None: the field is absent

_MOST = 2**63 - 1  # that a number of a record may be

NEVER_DECREASE = ("epoch", "next_position", "first_position", "manifest_version", "current_generation")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapApplied:
    """The swap happened; `record` is the record right after it."""

    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapLost:
    """An expected field differed; nothing changed. `record` is what stood there, None if nothing."""

    record: Record | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapUnknown:
    """No answer: the swap may have been applied, or may still be. Read, then decide by what was written."""

    cause: str


class Registry(Protocol):
    """Strongly consistent records. Every adapter passes tests/conformance/test_registry.py, races included.

    Reads raise `Unavailable` when there is no answer. Safe to use from several threads.
    """

    def read(self, key: Key) -> Record | None:
        """The record as of now, or None."""
        ...

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        """Write the fields of `change` if the record has all fields of `expect`, atomically.

        Args:
            expect: field values that must stand there; None as a value: the field must be absent. None instead of a
            map:
                there must be no record, and it is created from `change`.
            change: fields to write; None as a value removes the field. Other fields keep their values.

        Raises:
            Corrupt: a field of `NEVER_DECREASE` would go back, so the registry or its caller is behind: rebuild it.
        """
        ...

    def delete(self, key: Key, *, expect: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        """Remove the record if it has all fields of `expect`; `SwapApplied` holds what was removed. Heads stay for
        ever.

        A record may be created again under the key, so `expect` names what no later record has: a version or a nonce.
        """
        ...

    def discard(self, key: Key) -> None:
        """Remove a record for good, whatever it says, and all that the adapter keeps to tell it from a later one.

        Only for a key of a nonce whose maker is over, so that nobody relies on a record under it any more. A swap that
        was sent before may still come, and leaves a record that nobody reads.

        Raises:
            Unavailable: no answer; it may be gone, or go later.
        """
        ...

    def list(self, partition: str) -> list[tuple[Key, Record]]:
        """All records of a partition, in order of `sort`, as of now."""
        ...


def swapped(key: Key, record: Record | None, *, expect: Fields | None, change: Fields) -> Record | None:
    """The record after a swap, or None if it is lost. What every adapter decides, as a pure function.

    Raises:
        Corrupt: as `Registry.swap`.
    """
    if expect is None:
        return _without_absent(change) if record is None else None
    if record is None or not holds(record, expect):
        return None
    for field in NEVER_DECREASE:
        old, new = record.get(field), change.get(field, record.get(field))
        if isinstance(old, int) and (not isinstance(new, int) or new < old):
            raise Corrupt(
                f"{field} would go back from {old} to {new}",
                remedy="The registry is older than its table: run `lancelsm registry rebuild` with all writers stopped",
                record=f"{key.partition}/{key.sort}",
                field=field,
            )
    return _without_absent({**record, **change})


def holds(record: Record, expect: Fields) -> bool:
    """Whether a record has all these fields."""
    return all(record.get(field) == value for field, value in expect.items())


def remedy(partition: str) -> str:
    """What to do about a record of this partition that can't be read."""
    if partition.startswith(("S#", "C#")):
        return "Drop the snapshot or cursor that the record is of, by its name; then make it again"
    return "Stop all writers and run `lancelsm registry rebuild`"


def checked(fields: object) -> Record:
    """What an adapter read, if it is a record; raises `TypeError` for anything else."""
    if not isinstance(fields, dict):
        raise TypeError(f"a {type(fields).__name__} is no record")
    for field, value in fields.items():
        if not isinstance(value, str | int):
            raise TypeError(f"{field} is {value!r}")
    return cast("Record", fields)


def number(record: Record, field: str, *, least: int = 0) -> int:
    """A field that holds a number; raises `ValueError` for another or none, or less than `least`."""
    value = record.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
        raise ValueError(f"{field} is {value!r}")
    return value


def text(record: Record, field: str) -> str:
    """A field that holds text; raises `ValueError` for another or none."""
    value = record.get(field)
    if not isinstance(value, str):
        raise ValueError(f"{field} is {value!r}")
    return value


def _without_absent(fields: Fields) -> Record:
    return {field: value for field, value in fields.items() if value is not None}
