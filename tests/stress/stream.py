"""Derive streams of rows from a seed, so that a reader can check every row that it sees.

A stream owns its keys. Its operation number n upserts or deletes some of them, hot keys more often. In each region that
it touches it also writes n into a progress row, in the same entry. So a reader of a region knows the progress of each
stream there, and from that it knows every row.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.record.normalize import deletes, upserts
from lancelsm.record.schema import TableSchema, declare_primary_key, numbered
from lancelsm.routing.route import route
from lancelsm.routing.spec import parse_regions

REGIONS = "bucket(id, 3)"
STREAMS = 3
KEYS = 300  # of one stream
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64()), pa.field("text", pa.string())])
_PROGRESS = 1_000_000  # keys from here on are progress rows
SCHEMA = TableSchema(columns=numbered(declare_primary_key(COLUMNS, ["id"])), primary_key=("id",))
_SPEC = parse_regions(REGIONS, schema=SCHEMA)

Row = tuple[int, str]  # n and text
Slice = tuple[int, int]  # the keys of one stream in one region: both numbers


@lru_cache(maxsize=100_000)
def step(seed: int, stream: int, number: int) -> Mapping[int, bool]:
    """Return operation `number` (from 1) of a stream, without its progress rows: keys to upsert (True) or to delete."""
    rng = random.Random(f"{seed} {stream} {number}")
    chosen = {int(KEYS * rng.random() ** 3) * STREAMS + stream for _ in range(rng.choice([1, 1, 2, 5, 20]))}
    return {key: rng.random() < 0.8 for key in sorted(chosen)}


def text(seed: int, key: int, number: int) -> str:
    """Return the text in the row of a key after an operation."""
    size = 8 + (key * 31 + number) % 56
    return blake2b(f"{seed} {key} {number}".encode(), digest_size=size).hexdigest()


def stream_of(key: int) -> int:
    return key % STREAMS


def progress_key(slice_: Slice) -> int:
    return _progress_keys()[slice_]


def is_progress(key: int) -> bool:
    return key >= _PROGRESS


@lru_cache(maxsize=1)
def _regions() -> dict[int, int]:
    """Return the number of the region of every key, by the table's own routing."""
    count = KEYS * STREAMS
    ids = [*range(count), *range(_PROGRESS, _PROGRESS + 200)]
    routed = sorted(route(pa.table({"id": pa.array(ids, pa.int64())}), _SPEC), key=lambda one: str(one.values))
    return {key: number for number, one in enumerate(routed) for key in one.rows["id"].to_pylist()}


def region_of(key: int) -> int:
    return _regions()[key]


@lru_cache(maxsize=1)
def _progress_keys() -> dict[Slice, int]:
    """Return the key of the progress row of each stream in each region."""
    found: dict[Slice, int] = {}
    for key, region in sorted(_regions().items()):
        if is_progress(key):
            found.setdefault((stream_of(key), region), key)
    return found


def slice_of(key: int) -> Slice:
    return stream_of(key), region_of(key)


def slices_of(keys: Iterable[int]) -> list[Slice]:
    """Return the slices that contain these keys."""
    return sorted({slice_of(key) for key in keys})


def with_progress(keys: Iterable[int]) -> list[int]:
    """Return these keys with the progress rows of their slices, which are needed to check their rows."""
    keys = list(keys)
    return keys + [progress_key(slice_) for slice_ in slices_of(keys)]


def rows_of(seed: int, stream: int, number: int) -> pa.Table:
    """Return the rows of an operation in stored form, with its progress rows."""
    changes = step(seed, stream, number)
    progress = [progress_key(slice_) for slice_ in slices_of(changes)]
    upserted = [key for key, upsert in changes.items() if upsert] + progress
    deleted = [key for key, upsert in changes.items() if not upsert]
    rows = [{"id": key, "n": number, "text": text(seed, key, number)} for key in upserted]
    return pa.concat_tables([upserts(rows, schema=SCHEMA), deletes(deleted, schema=SCHEMA)]).combine_chunks()


@dataclass
class Expected:
    """The rows of each slice up to the newest operation that a reader has seen."""

    seed: int
    at: dict[Slice, int] = field(default_factory=dict)
    rows: dict[Slice, dict[int, Row]] = field(default_factory=dict)

    def copy(self) -> Expected:
        return Expected(self.seed, dict(self.at), {slice_: dict(rows) for slice_, rows in self.rows.items()})

    def advance(self, slice_: Slice, number: int) -> None:
        """Apply the operations of a slice up to `number`."""
        before = self.at.get(slice_, 0)
        assert number >= before, f"stream and region {slice_} went back from operation {before} to {number}"
        rows = self.rows.setdefault(slice_, {})
        stream, region = slice_
        for operation in range(before + 1, number + 1):
            here = {
                key: upsert for key, upsert in step(self.seed, stream, operation).items() if region_of(key) == region
            }
            for key, upsert in here.items():
                rows.pop(key, None)
                if upsert:
                    rows[key] = (operation, text(self.seed, key, operation))
        self.at[slice_] = number

    def check(self, found: pa.Table) -> None:
        """Check a scan of the whole table: every row is as its stream says, and no row is missing or superfluous."""
        seen = _by_slice(found)
        for slice_ in seen.keys() | self.at.keys():
            self._check(slice_, seen.get(slice_, {}))

    def check_some(self, found: pa.Table, keys: Collection[int]) -> None:
        """Check a get of `with_progress(some keys)`: each key has the row that its stream says, or no row."""
        seen = _by_slice(found)
        for slice_ in {slice_of(key) for key in keys} | seen.keys():
            self._check(slice_, seen.get(slice_, {}), among=frozenset(keys))

    def _check(self, slice_: Slice, rows: dict[int, Row], *, among: Collection[int] | None = None) -> None:
        number, found_text = rows.pop(progress_key(slice_), (0, ""))
        assert not number or found_text == text(self.seed, progress_key(slice_), number)
        self.advance(slice_, number)
        expected = {key: row for key, row in self.rows[slice_].items() if among is None or key in among}
        wrong = {key for key in expected.keys() | rows.keys() if expected.get(key) != rows.get(key)}
        assert not wrong, self._difference(slice_, wrong, rows)

    def _difference(self, slice_: Slice, wrong: Iterable[int], rows: Mapping[int, Row]) -> str:
        lines = [f"key {key}: {rows.get(key)}, not {self.rows[slice_].get(key)}" for key in sorted(wrong)]
        return f"stream and region {slice_} at operation {self.at[slice_]}: " + "; ".join(lines[:10])


def _by_slice(found: pa.Table) -> dict[Slice, dict[int, Row]]:
    seen: dict[Slice, dict[int, Row]] = {}
    for key, number, found_text in zip(*(found.column(name).to_pylist() for name in COLUMNS.names), strict=True):
        rows = seen.setdefault(slice_of(key), {})
        assert key not in rows, f"key {key} occurs twice"
        rows[key] = (number, found_text)
    return seen


def by_region(rows: pa.Table) -> list[pa.Table]:
    """Split the rows of an entry into those of each region of `REGIONS`, after a reshard to fewer regions."""
    numbers = pa.array([region_of(key) for key in rows["id"].to_pylist()], pa.int64())
    return [rows.filter(pc.equal(numbers, number)) for number in pc.unique(numbers).to_pylist()]


@dataclass
class Followed:
    """The progress of a consumer of changes in each slice. It must see every operation, in order.

    A writer that got no reply repeats its last operation, so an operation may occur twice in a row, in two entries.
    """

    seed: int
    at: dict[Slice, int] = field(default_factory=dict)

    def take(self, rows: pa.Table) -> None:
        """Check one entry and advance."""
        columns = [rows.column(name).to_pylist() for name in ("id", "n", "_op")]
        shown = {key: op == "upsert" for key, _, op in zip(*columns, strict=True) if not is_progress(key)}
        (key,) = [key for key in columns[0] if is_progress(key)]
        slice_ = slice_of(key)
        number, before = columns[1][columns[0].index(key)], self.at.get(slice_, 0)
        assert number >= before, f"{slice_}: operation {number} after {before}"
        between = [n for n in range(before + 1, number) if slice_ in slices_of(step(self.seed, slice_[0], n))]
        assert not between, f"{slice_}: {between} are missing before {number}"
        here = {key: up for key, up in step(self.seed, slice_[0], number).items() if region_of(key) == slice_[1]}
        assert shown == here, f"{slice_}: operation {number} is {here}, not {shown}"
        self.at[slice_] = number
