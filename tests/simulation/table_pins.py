"""Run many actors on a table with a real base as a seed decides, with snapshots, a cursor and collectors.

Collections also delete versions and files of the base. So the checks at the end read the table as any reader can.

    replay: .venv/bin/python -m tests.simulation.table_pins SEED
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from lancelsm.common.layout import Position, RegionId
from lancelsm.dataset.cleanup import named_files, stored_versions
from lancelsm.errors import Invalid, LsmError
from lancelsm.gc import base
from lancelsm.region.lease import LEASE_SECONDS
from lancelsm.table import Table
from tests.simulation.actors import ROUGH
from tests.simulation.environment import PASSING
from tests.simulation.fault_rates import by_rate
from tests.simulation.faults import Crash, FaultPlan
from tests.simulation.schedule import Schedule
from tests.simulation.table_environment import WRITING, TableEnvironment, lease
from tests.simulation.table_log import Rows, keys, rows_of

KEYS = (*keys(0)[:5], *keys(1)[:5])

Act = Callable[[str, Table, random.Random], object]


class TablePins:
    """One run."""

    def __init__(self, seed: int, path: Path) -> None:
        self.seed = seed
        self.dice = random.Random(f"table time {seed}")
        settings = {"flush_rows": self.dice.choice([1, 3]), "snapshot_ttl_seconds": 10_000_000}
        self.environment = TableEnvironment(path, schedule=Schedule(seed), settings=settings)
        self.possible: dict[tuple[str, int], list[Rows]] = {}  # states of a side while a snapshot was created
        self.shown: dict[str, Rows | None] = {}  # rows of each snapshot that is held, once it was read
        self.snapshots = 0
        self.read: dict[int, list[Position]] = {0: [], 1: []}  # positions that the consumer has read
        self.next: dict[RegionId, Position] = {}

    def run(self) -> TablePins:
        environment, dice = self.environment, self.dice
        with (
            contextlib.redirect_stdout(io.StringIO()),
            environment,
            lease(held=dice.random() < 0.5),
            mock.patch.object(base, "_VERSIONS_MIN", 1),
        ):
            environment.create("creator", loaded=KEYS[::2])
            rates = {fault: rate * dice.choice([0, 0.3, 1]) for fault, rate in ROUGH.items()}
            actors = self._actors()
            decide = by_rate(random.Random(f"table time faults {self.seed}"), rates, writing=WRITING)
            environment.plan = FaultPlan(decide, clock=environment.schedule.clock)
            environment.schedule.run(actors)
            environment.plan.stop()
            environment.plan.forget() if dice.random() < 0.3 else environment.plan.land()
            self._finish()
        return self

    def _actors(self) -> dict[str, Callable[[], object]]:
        actors: dict[str, Callable[[], object]] = {}
        for name, act, times in (
            ("writer", self._write, 8),
            ("reader", self._read, 4),
            ("flusher", lambda process, table, _: table.flush(), 5),
            ("merger 0", lambda process, table, _: table.merge(engine="inprocess"), 4),
            ("merger 1", lambda process, table, _: table.merge(engine="inprocess"), 2),
            ("collector 0", self._collect, 3),
            ("collector 1", self._collect, 3),
            ("holder", self._use_snapshot, 6),
            ("consumer", self._consume, 4),
        ):
            actors[name] = self._repeat(name, act, times, random.Random(self.dice.random()))
        return actors

    def _repeat(self, name: str, act: Act, times: int, dice: random.Random) -> Callable[[], None]:
        def run() -> None:
            process, table = name, None
            for time in range(times):
                with self.environment.at(process):
                    try:
                        self.environment.schedule.clock.sleep(dice.choice([0.0, 0.0, 0.1]))
                        table = table or self.environment.table(process)
                        act(process, table, dice)
                    except Crash:
                        process, table = f"{name}, life {time}", None
                    except LsmError as error:
                        if not isinstance(error, PASSING):
                            raise AssertionError(f"{process} got {error!r}") from error

        return run

    def _write(self, process: str, table: Table, dice: random.Random) -> None:
        chosen = dice.sample(KEYS, dice.choice([1, 1, 2, 3]))
        if dice.random() < 0.3:
            self.environment.write_by(table, process, delete=chosen)
        else:
            self.environment.write_by(table, process, upsert=chosen)

    def _read(self, process: str, table: Table, dice: random.Random) -> None:
        self.environment.read(table, get=dice.sample(KEYS, 3) if dice.random() < 0.4 else ())

    def _collect(self, process: str, table: Table, dice: random.Random) -> None:
        table.collect(yes=True, interval_seconds=0)

    def _use_snapshot(self, process: str, table: Table, dice: random.Random) -> None:
        name = self.snapshot_of("s")
        if name is None:
            self._create_snapshot(table, "s")
            return
        self._read_snapshot(table, name)
        if dice.random() < 0.3:
            del self.shown[name]
            table.drop_snapshot(name)

    def snapshot_of(self, kind: str) -> str | None:
        """Return a held snapshot whose name begins with `kind`; None if there is none."""
        return next((name for name in self.shown if name.startswith(kind)), None)

    def _create_snapshot(self, table: Table, kind: str) -> str:
        self.snapshots += 1
        name = f"{kind}{self.snapshots}"
        before = {side: len(log.states) - 1 for side, log in self.environment.logs.items()}
        table.snapshot(name)
        for side, log in self.environment.logs.items():
            self.possible[name, side] = log.states[before[side] :]
        self.shown[name] = None
        return name

    def _read_snapshot(self, table: Table, name: str) -> Rows:
        """Read a snapshot: each region has the state at one moment of its creation, and the same state at each read."""
        found = rows_of(table.at(name).scan().to_arrow())
        for side in (0, 1):
            part = {key: v for key, v in found.items() if key in keys(side)}
            assert part in self.possible[name, side], f"{name} shows {part} of {side}, not {self.possible[name, side]}"
        assert self.shown[name] in (None, found), f"{name} has changed from {self.shown[name]} to {found}"
        self.shown[name] = found
        return found

    def _consume(self, process: str, table: Table, dice: random.Random) -> None:
        try:
            changes = table.changes(cursor="consumer", start=dict(self.next) or "earliest")
        except Invalid:
            assert not self.next, "the cursor is missing"
            table.drop_cursor("consumer")  # its creator has crashed
            return
        for change in changes:
            side = self.environment.sides[change.region]
            entry, read = self.environment.logs[side].entries[change.position - 1], self.read[side]
            assert change.rows.column("id").to_pylist() == entry.table().column("id").to_pylist()
            assert not read or read[-1] < change.position
            read.append(change.position)
            self.next = dict(changes.positions)
        self.next = dict(changes.positions)
        changes.save()

    def _finish(self) -> None:
        """Read, flush, merge and collect with a healthy process. Snapshots and cursor hold; the base lacks no file."""
        environment = self.environment
        environment.schedule.clock.advance(LEASE_SECONDS + 1)
        with environment.at("last"):
            table = environment.table("last")
            for _ in range(2):
                assert environment.read(table) == environment.truth
                table.flush()
                table.merge(engine="inprocess")
                assert environment.read(table) == environment.truth
                table.collect(yes=True, interval_seconds=0)
                for name in self.shown:
                    self._read_snapshot(table, name)
            assert environment.read(table) == environment.truth
            self._consume("last", table, self.dice)
            for side, log in environment.logs.items():
                first = self.read[side][0] if self.read[side] else 0
                assert self.read[side] == [position for position in log.positions_of_rows if position >= first]
        uri = str(environment.path)
        for one in stored_versions(uri=uri):
            missing = {key for key in named_files(uri=uri, version=one.version) if environment.store.get(key) is None}
            assert not missing, f"version {one.version} of the base lacks {missing}"


def run_table_pins(seed: int, path: Path) -> TablePins:
    """Run all actors to their end. The first violation raises, with the command that replays it."""
    try:
        return TablePins(seed, path).run()
    except BaseException as error:
        error.add_note(f"replay: .venv/bin/python -m tests.simulation.table_pins {seed}")
        raise


if __name__ == "__main__":
    for given in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            done = run_table_pins(int(given), Path(scratch) / "table")
        print(f"seed {given}: {len(done.environment.plan.calls)} calls, no violation")
