"""What streams of rows say, from a seed alone: who sees a row, or a region, can tell whether it is what must be there.

A stream owns its keys. Its operation number n upserts or deletes some of them, hot keys more often, and puts n into a
row of each region that it touches, in the same entry. So whoever sees a region knows how far each stream is there, and
with that every row of it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

import pyarrow as pa

from lancelsm.record.normalize import deletes, upserts
from lancelsm.record.schema import TableSchema, declare_primary_key, numbered
from lancelsm.routing.route import route
from lancelsm.routing.spec import parse_regions

REGIONS = "bucket(id, 3)"
STREAMS = 3
KEYS = 300  # of one stream
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64()), pa.field("text", pa.string())])
_PROGRESS = 1_000_000  # keys from here on say how far a stream is in a region
SCHEMA = TableSchema(columns=numbered(declare_primary_key(COLUMNS, ["id"])), primary_key=("id",))
_SPEC = parse_regions(REGIONS, schema=SCHEMA)

Row = tuple[int, str]  # n and text
Place = tuple[int, int]  # stream and region, both by number


@lru_cache(maxsize=100_000)
def step(seed: int, stream: int, number: int) -> Mapping[int, bool]:
    """The operation `number` (from 1) of a stream: keys to upsert (True) or delete; rows of progress come with it."""
    dice = random.Random(f"{seed} {stream} {number}")
    chosen = {int(KEYS * dice.random() ** 3) * STREAMS + stream for _ in range(dice.choice([1, 1, 2, 5, 20]))}
    return {key: dice.random() < 0.8 for key in sorted(chosen)}


def text(seed: int, key: int, number: int) -> str:
    """What the row of a key says after an operation."""
    size = 8 + (key * 31 + number) % 56
    return blake2b(f"{seed} {key} {number}".encode(), digest_size=size).hexdigest()


def stream_of(key: int) -> int:
    return key % STREAMS


def progress_key(place: Place) -> int:
    return _progress_keys()[place]


def is_progress(key: int) -> bool:
    return key >= _PROGRESS


@lru_cache(maxsize=1)
def _regions() -> dict[int, int]:
    """The region of every key, by number: the table's own routing."""
    count = KEYS * STREAMS
    ids = [*range(count), *range(_PROGRESS, _PROGRESS + 200)]
    parts = sorted(route(pa.table({"id": pa.array(ids, pa.int64())}), _SPEC), key=lambda part: str(part.values))
    return {key: number for number, part in enumerate(parts) for key in part.rows["id"].to_pylist()}


def region_of(key: int) -> int:
    return _regions()[key]


@lru_cache(maxsize=1)
def _progress_keys() -> dict[Place, int]:
    """A key of each stream in each region."""
    found: dict[Place, int] = {}
    for key, region in sorted(_regions().items()):
        if is_progress(key):
            found.setdefault((stream_of(key), region), key)
    return found


def place_of(key: int) -> Place:
    return stream_of(key), region_of(key)


def touched(keys: Iterable[int]) -> list[Place]:
    """Where these keys have their rows."""
    return sorted({place_of(key) for key in keys})


def with_progress(keys: Iterable[int]) -> list[int]:
    """What to ask for to know of each of these keys what its row must be: how far its stream is there, too."""
    keys = list(keys)
    return keys + [progress_key(place) for place in touched(keys)]


def written(seed: int, stream: int, number: int) -> pa.Table:
    """The rows of an operation in stored form, with those of its progress."""
    changes = step(seed, stream, number)
    progress = [progress_key(place) for place in touched(changes)]
    alive = [key for key, upsert in changes.items() if upsert] + progress
    dead = [key for key, upsert in changes.items() if not upsert]
    rows = [{"id": key, "n": number, "text": text(seed, key, number)} for key in alive]
    return pa.concat_tables([upserts(rows, schema=SCHEMA), deletes(dead, schema=SCHEMA)]).combine_chunks()


@dataclass
class Expected:
    """What is in each region of the streams, as far as somebody has followed them."""

    seed: int
    at: dict[Place, int] = field(default_factory=dict)
    rows: dict[Place, dict[int, Row]] = field(default_factory=dict)

    def copy(self) -> Expected:
        return Expected(self.seed, dict(self.at), {place: dict(rows) for place, rows in self.rows.items()})

    def advance(self, place: Place, number: int) -> None:
        """Follow a stream in one region through its operation `number`."""
        before = self.at.get(place, 0)
        assert number >= before, f"stream and region {place} went back from operation {before} to {number}"
        rows = self.rows.setdefault(place, {})
        stream, region = place
        for each in range(before + 1, number + 1):
            here = {key: upsert for key, upsert in step(self.seed, stream, each).items() if region_of(key) == region}
            for key, upsert in here.items():
                rows.pop(key, None)
                if upsert:
                    rows[key] = (each, text(self.seed, key, each))
        self.at[place] = number

    def check(self, found: pa.Table) -> None:
        """A whole table, as one read saw it: every row is what its stream made it, none is missing or too much."""
        seen = _by_place(found)
        for place in seen.keys() | self.at.keys():
            self._check(place, seen.get(place, {}))

    def check_some(self, found: pa.Table, asked: Collection[int]) -> None:
        """The answer to `with_progress` of some keys: of each its row as its stream made it, or none if it has none."""
        seen = _by_place(found)
        for place in {place_of(key) for key in asked} | seen.keys():
            self._check(place, seen.get(place, {}), among=frozenset(asked))

    def _check(self, place: Place, rows: dict[int, Row], *, among: Collection[int] | None = None) -> None:
        number, said = rows.pop(progress_key(place), (0, ""))
        assert not number or said == text(self.seed, progress_key(place), number)
        self.advance(place, number)
        want = {key: row for key, row in self.rows[place].items() if among is None or key in among}
        wrong = {key for key in want.keys() | rows.keys() if want.get(key) != rows.get(key)}
        assert not wrong, self._difference(place, wrong, rows)

    def _difference(self, place: Place, wrong: Iterable[int], rows: Mapping[int, Row]) -> str:
        lines = [f"key {key}: {rows.get(key)}, not {self.rows[place].get(key)}" for key in sorted(wrong)]
        return f"stream and region {place} at operation {self.at[place]}: " + "; ".join(lines[:10])


def _by_place(found: pa.Table) -> dict[Place, dict[int, Row]]:
    seen: dict[Place, dict[int, Row]] = {}
    for key, number, said in zip(*(found.column(name).to_pylist() for name in COLUMNS.names), strict=True):
        rows = seen.setdefault(place_of(key), {})
        assert key not in rows, f"key {key} is there twice"
        rows[key] = (number, said)
    return seen


@dataclass
class Followed:
    """How far a consumer of changes has seen each stream in each region: each operation there once, none left out.

    A writer that was told nothing repeats its last operation, so one may come twice in a row, as two entries.
    """

    seed: int
    at: dict[Place, int] = field(default_factory=dict)

    def take(self, rows: pa.Table) -> None:
        """One entry."""
        columns = [rows.column(name).to_pylist() for name in ("id", "n", "_op")]
        shown = {key: op == "upsert" for key, _, op in zip(*columns, strict=True) if not is_progress(key)}
        (key,) = [key for key in columns[0] if is_progress(key)]
        place = place_of(key)
        number, before = columns[1][columns[0].index(key)], self.at.get(place, 0)
        assert number >= before, f"{place}: operation {number} after {before}"
        between = [n for n in range(before + 1, number) if place in touched(step(self.seed, place[0], n))]
        assert not between, f"{place}: {between} left out before {number}"
        here = {key: up for key, up in step(self.seed, place[0], number).items() if region_of(key) == place[1]}
        assert shown == here, f"{place}: operation {number} is {here}, not {shown}"
        self.at[place] = number
