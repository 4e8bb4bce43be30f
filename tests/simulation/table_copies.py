"""Run the actors of `table_pins` on a table, and actors that copy, drop and scrub, as a seed decides.

A cloner clones a snapshot, works on the clone and drops it. An archivist backs a snapshot up and restores it to another
table. A scrubber must find no problem. Source, clones and restored tables have stores and registries of their own,
under one plan of faults.

    replay: .venv/bin/python -m tests.simulation.table_copies SEED
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

import lancelsm
from lancelsm.admin import backup
from lancelsm.admin.clone import clone_snapshot
from lancelsm.dataset import copies
from lancelsm.errors import Invalid
from lancelsm.objects import ObjectStore
from lancelsm.objects.filesystem import LocalStore
from lancelsm.region.handle import Ports, open_table
from lancelsm.region.lease import LEASE_SECONDS
from lancelsm.registry import Registry
from lancelsm.table import Table
from tests.simulation.environment import raised
from tests.simulation.faults import (
    CRASH_AFTER,
    CRASH_BEFORE,
    Crash,
    FaultPlan,
    FaultyRegistry,
    FaultyStore,
    MemoryRegistry,
)
from tests.simulation.schedule import ScheduledRegistry, ScheduledStore
from tests.simulation.table_log import Rows, rows_of
from tests.simulation.table_pins import KEYS, TablePins

_CALLS_OF_A_DROP = 40
EXISTS, MISSING = "a table already exists at this location", "there is no table at this location"


class TableCopies(TablePins):
    """One run. `done` counts the operations that succeeded."""

    def __init__(self, seed: int, path: Path) -> None:
        super().__init__(seed, path)
        self.stores: dict[str, ObjectStore] = {str(path): self.environment.store}
        self.registries: dict[str, Registry] = {str(path): self.environment.registry}
        self.done: Counter[str] = Counter()
        self.clones: dict[str, Rows] = {}  # rows of each existing clone, by location
        self.started: dict[str, str] = {}  # location of each operation that is not finished, by its kind
        self.locations = 0

    def run(self) -> TableCopies:
        with (
            mock.patch.object(copies, "make_durable"),
            mock.patch.object(backup, "write_copy", _write_rows_read_before),
        ):
            super().run()
        return self

    def ports(self, process: str) -> Ports:
        """Return the ports of one process, for any location."""
        environment = self.environment

        def store(uri: str, _: object) -> FaultyStore:
            inner = self.stores.setdefault(uri, LocalStore(Path(uri), fsync=lambda descriptor: None))
            return FaultyStore(ScheduledStore(inner, environment.schedule), environment.plan, process=process)

        def registry(_: str, *, uri: str, **__: object) -> FaultyRegistry:
            inner = self.registries.setdefault(uri, MemoryRegistry())
            return FaultyRegistry(ScheduledRegistry(inner, environment.schedule), environment.plan, process=process)

        return replace(environment.ports(process), store=store, registry=registry)

    def open(self, process: str, location: str) -> Table:
        return Table(open_table(location, ports=self.ports(process)))

    def _actors(self) -> dict[str, Callable[[], object]]:
        actors = super()._actors()
        for name, act, times in (
            ("cloner", self._use_clone, 7),
            ("archivist", self._back_up_and_restore, 5),
            ("scrubber", self._scrub, 3),
        ):
            actors[name] = self._repeat(name, act, times, random.Random(self.dice.random()))
        return actors

    def _location(self, kind: str) -> str:
        """Return the location of an operation: the same one until the operation is finished."""
        if kind not in self.started:
            self.locations += 1
            self.started[kind] = f"{self.environment.path}-{kind}-{self.locations}"
        return self.started[kind]

    def _use_clone(self, process: str, table: Table, dice: random.Random) -> None:
        if "drop" in self.started:
            self._drop_clone(process, table)
        elif not self.clones:
            self._create_clone(process, table, dice)
        elif dice.random() < 0.7:
            ((location, rows),) = self.clones.items()
            self._work_on_clone(process, location, rows, merges=dice.random() < 0.5)
        else:
            self.started["drop"], _ = self.clones.popitem()
            self._drop_clone(process, table)

    def _create_clone(self, process: str, table: Table, dice: random.Random) -> None:
        name = self.snapshot_of("c") or self._create_snapshot(table, "c")
        rows = self._read_snapshot(table, name)
        location = self._location("clone")
        with _if_done_already(EXISTS):
            clone_snapshot(table._handle, name, location, ports=self.ports(process))
        self.clones[location] = rows
        del self.started["clone"]
        self.done["clone"] += 1
        self._work_on_clone(process, location, rows, merges=False)
        if dice.random() < 0.7:
            del self.shown[name]
            table.drop_snapshot(name)

    def _work_on_clone(self, process: str, location: str, rows: Rows, *, merges: bool) -> None:
        """A clone has the rows of the snapshot, even after merges and collections of its source or of itself."""
        clone = self.open(process, location)
        assert rows_of(clone.scan().to_arrow()) == rows, f"the clone {location} does not have the rows {rows}"
        if merges:
            clone.flush()
            clone.merge(engine="inprocess")
            clone.collect(yes=True, interval_seconds=0)
            assert rows_of(clone.scan().to_arrow()) == rows, f"the clone {location} no longer has the rows {rows}"

    def _drop_clone(self, process: str, table: Table) -> None:
        location = self.started["drop"]
        with _if_done_already(MISSING):
            lancelsm.drop.on(self.ports(process))(location)
        assert location not in {pin.clone for pin in table.snapshots()}, (
            f"the clone {location} is dropped, but its pin remains"
        )
        del self.started["drop"]
        self.done["drop"] += 1

    def _back_up_and_restore(self, process: str, table: Table, dice: random.Random) -> None:
        """Back a snapshot up, each time to a new location. Restore it to the same location until that succeeds."""
        name = self.snapshot_of("b") or self._create_snapshot(table, "b")
        rows = self._read_snapshot(table, name)
        if "backup" not in self.started:
            self.locations += 1
            location = f"{self.environment.path}-backup-{self.locations}"
            lancelsm.backup.on(self.ports(process))(table.at(name), location)
            self.started["backup"] = location
        location = self._location("restored")
        with _if_done_already(EXISTS):
            lancelsm.restore.on(self.ports(process))(self.started["backup"], location)
        found = rows_of(self.open(process, location).scan().to_arrow())
        assert found == rows, f"{found} was restored instead of {rows}"
        self.done["restore"] += 1
        del self.started["backup"], self.started["restored"], self.shown[name]
        table.drop_snapshot(name)

    def _scrub(self, process: str, table: Table, dice: random.Random) -> None:
        self._check_scrub(table)

    def _check_scrub(self, table: Table) -> None:
        found = table.scrub().problems
        assert not found, f"{table.uri} has no problem, but scrub reports {found}"
        self.done["scrub"] += 1

    def _finish(self) -> None:
        """Also check that clones keep their rows while the source changes. Then drop the clones and some sources."""
        super()._finish()
        with self.environment.at("keeper"):
            table = self.environment.table("keeper")
            self._check_scrub(table)
            if "drop" in self.started:
                self._drop_clone("keeper", table)
            if not self.clones:
                self._create_clone("keeper", table, self.dice)
            for name in list(self.shown):
                del self.shown[name]
                table.drop_snapshot(name)
            for _ in range(2):
                self.environment.write_by(table, "keeper", upsert=KEYS)
                table.flush()
                table.merge(engine="inprocess")
                table.collect(yes=True, interval_seconds=0)
            for location, rows in self.clones.items():
                self._work_on_clone("keeper", location, rows, merges=False)
                self._check_scrub(self.open("keeper", location))
                self._check_drop_is_refused(str(self.environment.path))
                self._work_on_clone("keeper", location, rows, merges=True)
        for location in self.clones:
            self._drop_with_a_crash(location)
        left = [pin.clone for pin in self.environment.table("keeper").snapshots() if pin.clone in self.clones]
        assert left == [], f"clones are dropped, but their pins remain: {left}"
        if self.dice.random() < 0.5:
            self._drop_with_a_crash(str(self.environment.path))
            self.done["drop of the source"] += 1

    def _check_drop_is_refused(self, location: str) -> None:
        error = raised(lambda: lancelsm.drop.on(self.ports("keeper"))(location))
        assert isinstance(error, Invalid), f"a drop of files that a clone shares got {error!r}"
        assert "a clone shares" in error.message, error

    def _drop_with_a_crash(self, location: str) -> None:
        fault = self.dice.choice([CRASH_BEFORE, CRASH_AFTER])
        self.environment.plan = FaultPlan.at(
            self.dice.randrange(_CALLS_OF_A_DROP), fault, clock=self.environment.schedule.clock
        )
        with self.environment.at("dropper"), contextlib.suppress(Crash):
            lancelsm.drop.on(self.ports("dropper"))(location)
        self.environment.plan.stop()
        self.environment.schedule.clock.advance(LEASE_SECONDS + 1)
        with self.environment.at("next dropper"):
            with _if_done_already(MISSING):
                lancelsm.drop.on(self.ports("next dropper"))(location)
            error = raised(lambda: self.open("next dropper", location))
            assert isinstance(error, Invalid), f"{location} was dropped, but opening it got {error!r}"
            assert MISSING in error.message, error
        left = [one.key for one in self.stores[location].list("")]
        assert left == [], f"{location} was dropped, but {left} remains"
        self.done["drop"] += 1


@contextlib.contextmanager
def _if_done_already(message: str) -> Iterator[None]:
    """Accept this message: an earlier attempt had no answer, but may have succeeded."""
    try:
        yield
    except Invalid as error:
        if message not in error.message:
            raise


def _write_rows_read_before(*, rows: Iterable[pa.RecordBatch], columns: pa.Schema, **location: Any) -> None:
    """Call `write_copy` with rows that are read first: Lance would read them in a thread outside the schedule."""
    copies.write_copy(rows=list(rows), columns=columns, **location)


def run_table_copies(seed: int, path: Path) -> TableCopies:
    """Run all actors to their end. The first violation raises, with the command that replays it."""
    try:
        return TableCopies(seed, path).run()
    except BaseException as error:
        error.add_note(f"replay: .venv/bin/python -m tests.simulation.table_copies {seed}")
        raise


if __name__ == "__main__":
    for given in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            one = run_table_copies(int(given), Path(scratch) / "table")
        print(f"seed {given}: {len(one.environment.plan.calls)} calls, {dict(one.done)}, no violation")
