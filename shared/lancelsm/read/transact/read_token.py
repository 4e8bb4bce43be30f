"""Tokens of reads: up to which entry of each region the rows were read, to write only if nothing has changed since."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.layout import Position, RegionId, TableId
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Contended, Invalid, LsmError, error_context
from lancelsm.record.casts import shown_value
from lancelsm.record.key import key_column
from lancelsm.record.schema import TableSchema
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.wal.replay import LogCollected, LogEnd, entries_between, stored_rows

Mark = tuple[Position, Setsum]
"""The next position of a log, and the sum of all entries before it."""

_AGAIN = "Nothing was written: read the rows again, then decide"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWithToken:
    """The live rows of some keys, and the token of the read, for `Table.upsert(rows, if_unchanged=token)`."""

    rows: pa.Table
    token: str


def mark_of(end: LogEnd | None) -> Mark:
    """Return the mark of the end of a log; None for a region that does not exist yet."""
    return (Position(1), Setsum()) if end is None else (end.next_position, end.entry_setsum)


def encode_token(table: TableId, marks: Mapping[RegionId, Mark]) -> str:
    """Return a token as one word."""
    regions = {region: [position, total.hex()] for region, (position, total) in marks.items()}
    text = json.dumps({"table": table, "regions": regions}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode_token(token: str, *, table: TableId) -> dict[RegionId, Mark]:
    """Return the mark of each region.

    Raises:
        Invalid: it is no token, or that of another table.
    """
    try:
        document = json.loads(base64.b64decode(token.encode(), altchars=b"-_", validate=True))
        marks = {
            RegionId(region): (_position(position), Setsum.from_hex(total))
            for region, (position, total) in document["regions"].items()
        }
        owner = document["table"]
    except (LsmError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise Invalid("if_unchanged is not the token of a read", remedy=_TAKE, field="if_unchanged") from error
    if owner != table:
        raise Invalid("the token is of another table", remedy=_TAKE, field="if_unchanged")
    return marks


def _position(number: object) -> Position:
    if not isinstance(number, int) or not 0 < number < 1 << 63:
        raise ValueError(f"{number!r} is not a position")
    return Position(number)


_TAKE = "Give the token of table.get(keys, with_token=True)"


class Unchanged:
    """Checks that no entry since a mark has one of some keys of a region. Each entry is read once."""

    def __init__(self, region: Region, schema: TableSchema, keys: pa.Table, *, since: Mark) -> None:
        self._region = region
        self._schema = schema
        self._keys = key_column(keys, schema.primary_key)
        self._next, self._sum = since

    @classmethod
    def of(cls, marks: Mapping[RegionId, Mark], region: Region, schema: TableSchema, keys: pa.Table) -> Unchanged:
        """Take the mark of the region. Raise `Invalid` if the token has none."""
        if region.id not in marks:
            raise Invalid(
                "the token is of a read of other regions than that of a row",
                remedy="Read the keys of all rows in the call that returns the token",
                **region.where,
                field="if_unchanged",
            )
        return cls(region, schema, keys, since=marks[region.id])

    def at(self, head: Head) -> bool:
        """Return whether the head is at or after the mark; then no entry up to this head has one of the keys.

        Raises:
            Contended: an entry has one of the keys, or it can't be known any more.
            Corrupt, Unavailable: see `wal.replay.entries_between`.
        """
        if head.next_position < self._next:
            return False
        if head.next_position == self._next and head.entry_setsum != self._sum:  # guard: token is of this log
            raise Contended("the log is not the one that was read", remedy=_AGAIN, **self._region.where)
        names = self._schema.primary_key
        entries = entries_between(self._region, first=self._next, sum_before=self._sum, end=head)
        changed: list[pa.Table] = []
        try:
            with error_context(**self._region.where):
                for entry in entries:
                    if entry.summary.rows:
                        rows = stored_rows(entry, self._schema)
                        changed.append(rows.filter(pc.is_in(key_column(rows, names), value_set=self._keys)))
        except LogCollected:
            raise Contended(
                "the log was collected since the rows were read, so it is not known whether they have changed",
                remedy=_AGAIN,
                **self._region.where,
            ) from None
        first = next((rows for rows in changed if rows.num_rows), None)
        if first is not None:  # guard: row that changed since its token is not replaced
            key = ", ".join(f"{name} {shown_value(first.column(name)[0])}" for name in names)
            raise Contended(
                f"the row with the key {key} was written since it was read",
                remedy=_AGAIN,
                redacted="a row was written since it was read",
                **self._region.where,
            )
        self._next, self._sum = head.next_position, head.entry_setsum
        return True
