"""The registry interface: records by key with compare-and-swap. The records decide what is committed.

A record is a flat map of short fields. A swap names the fields that it depends on and the fields that it changes. Other
fields are not touched, so two swaps on different fields of one record do not conflict.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

from lancelsm.common.layout import Key
from lancelsm.errors import Corrupt

Value = str | int | bytes
Record = Mapping[str, Value]
Fields = Mapping[str, Value | None]  # None: the field is absent

_MAX_NUMBER = 2**63 - 1  # in a record
_PLAIN = frozenset({str, int})  # the types of values whose JSON form is the value
_BYTES = "base64"  # the name in the JSON form of bytes

NEVER_DECREASE = (
    "epoch",
    "next_position",
    "first_position",
    "manifest_version",
    "current_generation",
    "schema_version",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapApplied:
    """The swap was applied; `record` is the record right after it."""

    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapLost:
    """An expected field differed; nothing changed. `record` is the present record, None if there was no record."""

    record: Record | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapUnknown:
    """There was no answer: the swap may have been applied, or may be applied later. Read the record to find out."""

    cause: str


class Registry(Protocol):
    """Strongly consistent records. Every adapter passes tests/conformance/test_registry.py, races included.

    Reads raise `Unavailable` if there is no answer. Thread-safe.
    """

    def read(self, key: Key) -> Record | None:
        """Read a record; None if it does not exist."""
        ...

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        """Write the fields of `change` if the record has all fields of `expect`, atomically.

        Args:
            expect: the expected fields; the value None means that the field must be absent. If `expect` itself is None,
                there must be no record, and it is created from `change`.
            change: the fields to write; the value None removes the field. Other fields keep their values.

        Raises:
            Corrupt: a field of `NEVER_DECREASE` would decrease: the registry is an older copy. Rebuild it.
        """
        ...

    def delete(self, key: Key, *, expect: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        """Delete the record if it has all fields of `expect`; `SwapApplied` has the deleted record.

        A record may be created again under the key, so `expect` must name a value that no later record has: a version
        or a nonce. Heads are never deleted while the table exists.
        """
        ...

    def discard(self, key: Key) -> None:
        """Delete a record unconditionally, together with everything that the adapter keeps to recognise later ones.

        Use it only if no process depends on a record under this key any more: keys that contain the nonce of a finished
        operation, and records that are advisory. A swap that was sent before may still arrive, and then leaves an
        unused record.

        Raises:
            Unavailable: no answer; the record may be deleted now or later.
        """
        ...

    def list(self, partition: str) -> list[tuple[Key, Record]]:
        """List all records of a partition, in order of `sort`."""
        ...


@runtime_checkable
class ReadsMany(Protocol):
    """A registry that reads many records in less time than one by one."""

    def read_all(self, keys: Sequence[Key]) -> list[Record | None]:
        """Read records, each as `Registry.read` does, in the order of the keys."""
        ...


def apply_swap(key: Key, record: Record | None, *, expect: Fields | None, change: Fields) -> Record | None:
    """Return the record after a swap, or None if the swap is lost: the decision of every adapter as a pure function.

    Raises:
        Corrupt: for the same reason as in `Registry.swap`.
    """
    if expect is None:
        return _drop_none(change) if record is None else None
    if record is None or not matches(record, expect):
        return None
    for field in NEVER_DECREASE:
        old, new = record.get(field), change.get(field, record.get(field))
        if isinstance(old, int) and (not isinstance(new, int) or new < old):  # guard: floor never decreases
            raise Corrupt(
                f"{field} would decrease from {old} to {new!r}",
                remedy="The registry is older than its table: run `lancelsm registry rebuild` with all writers stopped",
                record=f"{key.partition}/{key.sort}",
                field=field,
            )
    return _drop_none({**record, **change})


def matches(record: Record, expect: Fields) -> bool:
    """Return whether a record has all these fields."""
    return all(record.get(field) == value for field, value in expect.items())


def repair_remedy(partition: str) -> str:
    """Return the remedy for an unreadable record of this partition."""
    if partition.startswith(("S#", "C#")):
        return "Drop the snapshot or cursor of this record by its name, then create it again"
    return "Stop all writers and run `lancelsm registry rebuild`"


def check_record(fields: object) -> Record:
    """Return the decoded fields if they are a record; raise `TypeError` if not."""
    if not isinstance(fields, dict):
        raise TypeError(f"a {type(fields).__name__} is not a record")
    if _PLAIN.issuperset(map(type, fields.values())):
        return cast("Record", fields)
    record = {field: _from_json(value) for field, value in fields.items()}
    for field, value in record.items():
        if not isinstance(value, str | int | bytes):
            raise TypeError(f"{field} is {value!r}")
    return cast("Record", record)


def bytes_to_json(value: object) -> dict[str, str]:
    """Return the JSON form of a field of bytes, for the `default` of `json.dumps`."""
    if not isinstance(value, bytes):
        raise TypeError(f"a {type(value).__name__} is not a value of a record")
    return {_BYTES: base64.b64encode(value).decode()}


def _from_json(value: object) -> object:
    if isinstance(value, dict) and isinstance(value.get(_BYTES), str) and len(value) == 1:
        return base64.b64decode(value[_BYTES], validate=True)
    return value


def number(record: Record, field: str, *, least: int = 0) -> int:
    """Return a number field; raise `ValueError` if it is missing, not a number, or less than `least`."""
    value = record.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_NUMBER:
        raise ValueError(f"{field} is {value!r}")
    return value


def text(record: Record, field: str) -> str:
    """Return a text field; raise `ValueError` if it is missing or not text."""
    value = record.get(field)
    if not isinstance(value, str):
        raise ValueError(f"{field} is {value!r}")
    return value


def _drop_none(fields: Fields) -> Record:
    return {field: value for field, value in fields.items() if value is not None}
