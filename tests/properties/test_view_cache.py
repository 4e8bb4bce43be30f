"""Compare a table that is held open with the same table opened for each read, while others write, merge and collect."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.compaction.maintenance import optimize_table
from lancelsm.region.handle import open_table
from lancelsm.table import Table
from tests.simulation.faults import FakeClock, FaultPlan
from tests.unit.tables import by_key, faulty

KEYS = 12
SETTINGS = {"collect_interval_seconds": 100, "keep_versions_seconds": 200, "flush_rows": 4}


class Actors:
    """Operations on one table, each by a process of its own. The clock goes on between them."""

    def __init__(self, path: Path, random: random.Random) -> None:
        self.random = random
        self.clock = FakeClock()
        self.uri = str(path / "table")
        lancelsm.create(self.uri, [{"id": 0, "v": 0}], primary_key="id", regions="identity(id)", settings=SETTINGS)
        self.states: list[tuple[float, dict[int, Any]]] = []  # the rows of the table from each time on
        self.number = 0
        self.note()

    def open(self) -> Table:
        return lancelsm.open.on(faulty(FaultPlan(), clock=self.clock))(self.uri)

    def note(self) -> None:
        self.states.append((self.clock.monotonic(), by_key(self.open().scan().to_arrow())))

    def upsert(self) -> None:
        self.number += 1
        keys = self.random.sample(range(KEYS), 2)  # often in regions that are new
        self.open().upsert([{"id": key, "v": self.number} for key in keys])

    def delete(self) -> None:
        self.open().delete([self.random.randrange(KEYS)])

    def flush(self) -> None:
        self.open().flush()

    def merge(self) -> None:
        self.open().merge(engine="inprocess")

    def optimize(self) -> None:
        optimize_table(open_table(self.uri, ports=faulty(FaultPlan(), clock=self.clock)))

    def collect(self) -> None:
        self.clock.advance(self.random.choice([0, 101]))
        self.open().collect()

    def append_with_lance(self) -> None:
        self.number += 1
        schema = lance.dataset(self.uri).schema
        lance.write_dataset(pa.table([[KEYS + self.number], [self.number]], schema=schema), self.uri, mode="append")

    def rows_since(self, oldest: float) -> list[dict[int, Any]]:
        """Return the states of the table that were its newest one at this time or later."""
        current = max((at for at, _ in self.states if at <= oldest), default=0.0)
        return [rows for at, rows in self.states if at >= current]


def check_strong(held: Table, actors: Actors) -> None:
    expected = actors.states[-1][1]
    for _ in range(2):  # from a new view, then from the same one
        assert by_key(held.scan().to_arrow()) == expected
        assert by_key(held.scan(where="v % 2 = 0").to_arrow()) == {k: v for k, v in expected.items() if v % 2 == 0}
    wanted = actors.random.sample(range(KEYS), 3)
    assert by_key(held.get(wanted)) == {key: expected[key] for key in sorted(wanted) if key in expected}


def check_eventual(held: Table, actors: Actors) -> None:
    """The rows of each region are those of one moment that is young enough; regions may be of different moments."""
    staleness = actors.random.choice([1, 30, 99])
    states = actors.rows_since(actors.clock.monotonic() - staleness)
    found = by_key(held.scan(consistency="eventual", max_staleness=staleness).to_arrow())
    for key in range(KEYS + actors.number + 1):
        assert found.get(key) in [state.get(key) for state in states], (key, staleness)
    key = actors.random.randrange(KEYS)
    found = by_key(held.get([key], consistency="eventual", max_staleness=staleness))
    assert found.get(key) in [state.get(key) for state in states]


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore::lancelsm.LsmWarning")  # about the rows that Lance appends
@pytest.mark.parametrize("seed", range(2))
def test_a_held_table_shows_what_a_table_that_was_just_opened_shows(seed: int, tmp_path: Path) -> None:
    actors = Actors(tmp_path, random.Random(f"held {seed}"))
    held, mostly_eventual = actors.open(), actors.open()
    operations: list[Callable[[], None]] = [
        *[actors.upsert] * 6,
        *[actors.delete] * 2,
        *[actors.flush] * 2,
        *[actors.merge] * 2,
        actors.collect,
        actors.optimize,
        actors.append_with_lance,
    ]
    for _ in range(20):
        actors.clock.advance(actors.random.choice([0, 1, 20, 60]))
        actors.random.choice(operations)()
        actors.note()
        check_eventual(mostly_eventual, actors)
        check_strong(held, actors)
        check_eventual(held, actors)
