"""The expected content of a table: its keys by region, the writes, and the rows after each committed entry.

A write with number n puts n into column `v`. A delete also deletes a key that no other write uses. So every entry shows
which write it belongs to.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa

from lancelsm.common.layout import Position, RegionId, TableId, region_id
from lancelsm.record.schema import TOMBSTONE, TableSchema, numbered
from lancelsm.routing.route import Routed, route
from lancelsm.routing.spec import parse_regions
from lancelsm.wal.entry import Entry

REGIONS = "bucket(id, 2)"
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64())])
FOREIGN = 1_000_000  # keys from here on belong to another tool and are only in the base
_TAGS = 1_000  # keys from here on are tags: they only show which write deleted them
_SPEC = parse_regions(REGIONS, schema=TableSchema(columns=numbered(COLUMNS), primary_key=("id",)))

Rows = dict[int, int]  # id -> v, the number of the write


@cache
def _parts() -> tuple[Routed, ...]:
    """Route keys to the left (0) and the right (1) region, in a fixed order."""
    ids = pa.table({"id": pa.array(range(2 * _TAGS), pa.int64())})
    return tuple(sorted(route(ids, _SPEC), key=lambda part: str(part.values)))


@cache
def keys(side: int) -> tuple[int, ...]:
    """Return the keys of the left (0) or the right (1) region, ascending. Each write has a tag among them."""
    return tuple(_parts()[side].rows["id"].to_pylist())


@cache
def sides() -> dict[int, int]:
    return {key: side for side in (0, 1) for key in keys(side)}


def tag(side: int, number: int) -> int:
    """Return the key that only the write with this number deletes."""
    tags = keys(side)
    return tags[bisect_left(tags, _TAGS) + number]


def numbers_in(entry: Entry) -> set[int]:
    """Return the numbers of the writes with rows in an entry."""
    found = set()
    for row in entry.table().to_pylist():
        if not row[TOMBSTONE]:
            found.add(row["v"])
        elif row["id"] >= _TAGS:
            side = sides()[row["id"]]
            found.add(keys(side).index(row["id"]) - bisect_left(keys(side), _TAGS))
    return found


@dataclass
class Write:
    """One upsert or delete: the sides that it writes to, the ends of their logs before it, and its error."""

    number: int
    process: str
    sides: frozenset[int]
    floors: Mapping[int, Position]
    raised: BaseException | None


@dataclass
class Log:
    """The committed entries of one region, and its rows after each of them. `states[0]` has the loaded rows."""

    entries: list[Entry] = field(default_factory=list)
    states: list[Rows] = field(default_factory=lambda: [{}])

    def add(self, entry: Entry) -> None:
        rows = dict(self.states[-1])
        for row in entry.table().to_pylist() if entry.summary.rows else ():
            rows.pop(row["id"], None)
            if not row[TOMBSTONE]:
                rows[row["id"]] = row["v"]
        self.entries.append(entry)
        self.states.append(rows)

    @property
    def positions_of_rows(self) -> list[Position]:
        return [entry.summary.position for entry in self.entries if entry.summary.rows]

    def copy(self) -> Log:
        return Log(entries=list(self.entries), states=list(self.states))


def sides_of_regions(table: TableId) -> dict[RegionId, int]:
    """Return the left (0) and the right (1) region of the table by their id."""
    return {
        region_id(table=table, spec_id=_SPEC.spec_id, values=part.values): side for side, part in enumerate(_parts())
    }


def owner(key: int) -> int | str:
    """Return the side of a key, or `foreign`."""
    return "foreign" if key >= FOREIGN else sides()[key]


def rows_of(table: pa.Table) -> Rows:
    """Return the rows by key. Fail if a key occurs twice."""
    rows = dict(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))
    assert len(rows) == table.num_rows, f"a key occurs twice: {sorted(table['id'].to_pylist())}"
    return rows
