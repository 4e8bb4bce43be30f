"""Tokens of reads: a token records up to which entry of each region the rows were read."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
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
from lancelsm.region.handle import WriteTarget
from lancelsm.region.head import Head
from lancelsm.wal.replay import LogCollected, LogEnd, entries_between, stored_rows

LogPoint = tuple[Position, Setsum]
"""A point in a log: the position of the next entry, and the sum of all entries before it."""

_AGAIN = "Nothing was written: read the rows again, then decide"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWithToken:
    """The live rows of some keys, and the token of the read, for `Table.upsert(rows, if_unchanged=token)`."""

    rows: pa.Table
    token: str


def point_of(end: LogEnd | None) -> LogPoint:
    """Return the point at the end of a log; `end` is None for a region that does not exist yet."""
    return (Position(1), Setsum()) if end is None else (end.next_position, end.entry_setsum)


def encode_token(table: TableId, points: Mapping[RegionId, LogPoint]) -> str:
    """Encode the points of a read as text without spaces."""
    regions = {region: [position, total.hex()] for region, (position, total) in points.items()}
    text = json.dumps({"table": table, "regions": regions}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode_token(token: str, *, table: TableId) -> dict[RegionId, LogPoint]:
    """Decode `encode_token`.

    Raises:
        Invalid: the text is not a token, or it is the token of another table.
    """
    try:
        document = json.loads(base64.b64decode(token.encode(), altchars=b"-_", validate=True))
        points = {
            RegionId(region): (_position(position), Setsum.from_hex(total))
            for region, (position, total) in document["regions"].items()
        }
        owner = document["table"]
    except (LsmError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise Invalid("if_unchanged is not the token of a read", remedy=_TAKE, field="if_unchanged") from error
    if owner != table:
        raise Invalid("the token belongs to another table", remedy=_TAKE, field="if_unchanged")
    return points


def check_not_resharded(points: Mapping[RegionId, LogPoint], found: Iterable[Region], target: WriteTarget) -> None:
    """Raise `Contended` if a token lacks one of these regions since the table was resharded after the read."""
    if target.earlier_regions and any(region.id not in points for region in found):
        raise Contended("the table was resharded since the rows were read", remedy=_AGAIN, table=target.context.uri)


def check_covered(points: Mapping[RegionId, LogPoint], regions: Iterable[Region]) -> None:
    """Raise `Invalid` if a token has no point of one of these regions."""
    for region in regions:
        if region.id not in points:
            raise Invalid(
                "the token does not cover the region of a row",
                remedy="Read the keys of all rows in the call that returns the token",
                **region.where,
                field="if_unchanged",
            )


def _position(number: object) -> Position:
    if not isinstance(number, int) or not 0 < number < 1 << 63:
        raise ValueError(f"{number!r} is not a position")
    return Position(number)


_TAKE = "Give the token of table.get(keys, with_token=True), or of `lancelsm get --with-token`"


class Unchanged:
    """Checks that no entry after a point in the log of a region has one of the given keys. Reads each entry once."""

    def __init__(self, region: Region, schema: TableSchema, keys: pa.Table, *, since: LogPoint) -> None:
        self._region = region
        self._schema = schema
        self._keys = key_column(keys, schema.primary_key)
        self._next, self._sum = since

    def at(self, head: Head) -> bool:
        """Return True if no entry from the point up to this head has one of the keys; False if the head is older.

        Raises:
            Contended: an entry has one of the keys, or the log was collected past the point.
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
