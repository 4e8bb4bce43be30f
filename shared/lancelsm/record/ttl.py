"""Decide which rows have expired: those whose time in a column lies longer ago than the time to live of the table.

A time without a zone is in UTC, and a date begins at midnight, UTC. A null never expires. Times are compared as
integers in the unit of their column, so no time overflows. Pure: the caller gives the time of now.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.duration import seconds_of
from lancelsm.common.error_text import shown
from lancelsm.errors import Corrupt, Invalid
from lancelsm.record.schema import TOMBSTONE, unknown_column

_TTL: Final = re.compile(r"\s*(\S+)\s+on\s+(.*\S)\s*", re.IGNORECASE | re.DOTALL)
_UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # in a second
_DAY: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """Which rows have expired at one moment: those whose value in a column is at most `newest`.

    Args:
        column: a column of timestamps or dates.
        newest: in the unit of the column, and within its range.
    """

    column: str
    newest: int

    def newest_value(self, columns: pa.Schema) -> pa.Array:
        """Return `newest` as the only value of an array of the type of the column."""
        kind = columns.field(self.column).type
        return pa.array([self.newest], _number(kind)).cast(kind)

    def expired(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return for each row whether it has expired; never null."""
        column = rows.column(self.column)
        number = _number(column.type)
        return pc.fill_null(pc.less_equal(column.cast(number), pa.scalar(self.newest, number)), False)

    def live(self, rows: pa.Table) -> pa.Table:
        """Return the rows that have not expired."""
        return rows.filter(pc.invert(self.expired(rows)))

    def as_deletes(self, rows: pa.Table) -> pa.Table:
        """Return rows in stored form, with those that have expired marked as tombstones. Their values stay."""
        at = rows.schema.get_field_index(TOMBSTONE)
        dead = pc.or_(rows.column(at), self.expired(rows))
        return rows.set_column(at, rows.schema.field(at), dead)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ttl:
    """The time to live of the rows of a table, counted from the time in a column. `text` is what the user wrote."""

    column: str
    seconds: Fraction
    text: str = field(compare=False)

    def at(self, now: float, columns: pa.Schema) -> Expiry | None:
        """Return which rows have expired at a time in Unix seconds; None if no value of the column has.

        Raises:
            Corrupt: the table has no such column any more, or it has no times: another tool changed the table.
        """
        kind = columns.field(self.column).type if self.column in columns.names else None
        if kind is None or not has_times(kind):
            what = "is gone" if kind is None else "has no times"
            raise Corrupt(
                f"rows of the table expire by column {self.column!r}, which {what}: another tool changed the table",
                remedy="Restore the column, or remove the time to live: table.set_ttl(None)",
                field=self.column,
            )
        bits = _number(kind).bit_width
        newest = ((Fraction(now) - self.seconds) * _per_second(kind)).__floor__()
        least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        return None if newest < least else Expiry(column=self.column, newest=min(newest, most))


def parse_ttl(text: object, columns: pa.Schema) -> Ttl:
    """Parse a time to live such as `7d on created_at`, for a table with these columns.

    Raises:
        Invalid: the text is no duration, `on` and the name of a column; or the column has no times.
    """
    found = decode_ttl(text)
    if found.column not in columns.names:
        raise unknown_column(found.column, columns.names)
    kind = columns.field(found.column).type
    if not has_times(kind):
        raise Invalid(
            f"column {found.column!r} of type {kind} has no times from which a time to live could count",
            remedy="Give a column of timestamps or dates",
            field=found.column,
        )
    return found


def decode_ttl(text: object) -> Ttl:
    """Parse a time to live without its table. Raise `Invalid` if the text has another form."""
    match = _TTL.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise Invalid(
            f"{shown(text)} is no time to live",
            remedy="Give a duration and a column of times, such as '7d on created_at'",
            field="ttl",
        )
    duration, column = match[1], match[2]
    return Ttl(column=column, seconds=Fraction(str(seconds_of(duration, field="ttl"))), text=f"{duration} on {column}")


def has_times(kind: pa.DataType) -> bool:
    """Return whether values of a type are moments: timestamps of any unit, with or without a zone, or dates."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _number(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(kind) else pa.int64()


def _per_second(kind: pa.DataType) -> Fraction:
    if pa.types.is_date32(kind):
        return Fraction(1, _DAY)
    return Fraction(_UNITS["ms"] if pa.types.is_date64(kind) else _UNITS[kind.unit])
