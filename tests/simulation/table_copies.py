"""A table with everybody of `table_time` on it, and with those who copy, drop and scrub, as a seed decides.

A cloner clones a snapshot, works on the clone and drops it; another one backs a snapshot up and restores it elsewhere;
a scrubber finds nothing wrong, since nothing is. Source, clones and restored tables have stores and registries of
their own, under one plan of faults.

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

from lancelsm import backup
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.drop import drop_table
from lancelsm.backup import back_up, restore
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
from tests.simulation.table_time import KEYS, TableTime

_CALLS_OF_A_DROP = 40
THERE, GONE = "a table exists there already", "no table is there"


class TableCopies(TableTime):
    """One run. `done` counts what came through."""

    def __init__(self, seed: int, place: Path) -> None:
        super().__init__(seed, place)
        self.stores: dict[str, ObjectStore] = {str(place): self.environment.store}
        self.registries: dict[str, Registry] = {str(place): self.environment.registry}
        self.done: Counter[str] = Counter()
        self.clones: dict[str, Rows] = {}  # that stand, by place
        self.begun: dict[str, str] = {}  # places where something was begun, by what
        self.places = 0

    def run(self) -> TableCopies:
        with (
            mock.patch.object(copies, "make_durable"),
            mock.patch.object(backup, "write_copy", _write_what_was_read),
        ):
            super().run()
        return self

    def ports(self, process: str) -> Ports:
        """What a process works with at any place."""
        environment = self.environment

        def store(uri: str, _: object) -> FaultyStore:
            inner = self.stores.setdefault(uri, LocalStore(Path(uri), fsync=lambda descriptor: None))
            return FaultyStore(ScheduledStore(inner, environment.schedule), environment.plan, process=process)

        def registry(_: str, *, uri: str, **__: object) -> FaultyRegistry:
            inner = self.registries.setdefault(uri, MemoryRegistry())
            return FaultyRegistry(ScheduledRegistry(inner, environment.schedule), environment.plan, process=process)

        return replace(environment.ports(process), store=store, registry=registry)

    def open(self, process: str, place: str) -> Table:
        return Table(open_table(place, ports=self.ports(process)))

    def _actors(self) -> dict[str, Callable[[], object]]:
        actors = super()._actors()
        for name, act, times in (
            ("cloner", self._clones, 7),
            ("archivist", self._archives, 5),
            ("scrubber", self._scrubs, 3),
        ):
            actors[name] = self._often(name, act, times, random.Random(self.dice.random()))
        return actors

    def _place(self, what: str) -> str:
        """Where something is made: the same place again until it is there."""
        if what not in self.begun:
            self.places += 1
            self.begun[what] = f"{self.environment.place}-{what}-{self.places}"
        return self.begun[what]

    def _clones(self, life: str, table: Table, dice: random.Random) -> None:
        if "drop" in self.begun:
            self._drops(life, table)
        elif not self.clones:
            self._begins_clone(life, table, dice)
        elif dice.random() < 0.7:
            ((place, rows),) = self.clones.items()
            self._works_on(life, place, rows, folds=dice.random() < 0.5)
        else:
            self.begun["drop"], _ = self.clones.popitem()
            self._drops(life, table)

    def _begins_clone(self, life: str, table: Table, dice: random.Random) -> None:
        name = self.named("c") or self._hold(table, "c")
        rows = self._read_held(table, name)
        place = self._place("clone")
        with _done_already(THERE):
            clone_snapshot(table._opened, name, place, ports=self.ports(life))
        self.clones[place] = rows
        del self.begun["clone"]
        self.done["clone"] += 1
        self._works_on(life, place, rows, folds=False)
        if dice.random() < 0.7:
            del self.shown[name]
            table.drop_snapshot(name)

    def _works_on(self, life: str, place: str, rows: Rows, *, folds: bool) -> None:
        """A clone has the snapshot's rows, whatever its source and itself fold and collect."""
        clone = self.open(life, place)
        assert rows_of(clone.scan().to_arrow()) == rows, f"the clone {place} is not {rows}"
        if folds:
            clone.flush()
            clone.merge(engine="inprocess")
            clone.collect(yes=True, interval_seconds=0)
            assert rows_of(clone.scan().to_arrow()) == rows, f"the clone {place} is not {rows} any more"

    def _drops(self, life: str, table: Table) -> None:
        place = self.begun["drop"]
        with _done_already(GONE):
            drop_table(place, ports=self.ports(life))
        assert place not in {pin.clone for pin in table.snapshots()}, f"the clone {place} is gone, its pin is not"
        del self.begun["drop"]
        self.done["drop"] += 1

    def _archives(self, life: str, table: Table, dice: random.Random) -> None:
        """Back a snapshot up, each time to another place; restore it, as often as it takes to the same one."""
        name = self.named("b") or self._hold(table, "b")
        rows = self._read_held(table, name)
        if "backup" not in self.begun:
            self.places += 1
            place = f"{self.environment.place}-backup-{self.places}"
            back_up(table.at(name), place, ports=self.ports(life))
            self.begun["backup"] = place
        place = self._place("restored")
        with _done_already(THERE):
            restore(self.begun["backup"], place, ports=self.ports(life))
        found = rows_of(self.open(life, place).scan().to_arrow())
        assert found == rows, f"{found} was restored, not {rows}"
        self.done["restore"] += 1
        del self.begun["backup"], self.begun["restored"], self.shown[name]
        table.drop_snapshot(name)

    def _scrubs(self, life: str, table: Table, dice: random.Random) -> None:
        self._finds_nothing(table)

    def _finds_nothing(self, table: Table) -> None:
        found = table.scrub().problems
        assert not found, f"nothing is wrong with {table.uri}, but scrub says {found}"
        self.done["scrub"] += 1

    def _finish(self) -> None:
        """Besides: clones outlive whatever is done to their source; then clones are dropped, and some sources."""
        super()._finish()
        with self.environment.at("keeper"):
            table = self.environment.table("keeper")
            self._finds_nothing(table)
            if "drop" in self.begun:
                self._drops("keeper", table)
            if not self.clones:
                self._begins_clone("keeper", table, self.dice)
            for name in list(self.shown):
                del self.shown[name]
                table.drop_snapshot(name)
            for _ in range(2):
                self.environment.write_by(table, "keeper", upsert=KEYS)
                table.flush()
                table.merge(engine="inprocess")
                table.collect(yes=True, interval_seconds=0)
            for place, rows in self.clones.items():
                self._works_on("keeper", place, rows, folds=False)
                self._finds_nothing(self.open("keeper", place))
                self._is_not_dropped(str(self.environment.place))
                self._works_on("keeper", place, rows, folds=True)
        for place in self.clones:
            self._drop_with_a_crash(place)
        left = [pin.clone for pin in self.environment.table("keeper").snapshots() if pin.clone in self.clones]
        assert left == [], f"clones are gone, their pins are not: {left}"
        if self.dice.random() < 0.5:
            self._drop_with_a_crash(str(self.environment.place))
            self.done["drop of the source"] += 1

    def _is_not_dropped(self, place: str) -> None:
        heard = raised(lambda: drop_table(place, ports=self.ports("keeper")))
        assert isinstance(heard, Invalid), f"of a drop of files that a clone shares was told: {heard!r}"
        assert "a clone shares" in heard.message, heard

    def _drop_with_a_crash(self, place: str) -> None:
        fault = self.dice.choice([CRASH_BEFORE, CRASH_AFTER])
        self.environment.plan = FaultPlan.at(
            self.dice.randrange(_CALLS_OF_A_DROP), fault, clock=self.environment.schedule.clock
        )
        with self.environment.at("dropper"), contextlib.suppress(Crash):
            drop_table(place, ports=self.ports("dropper"))
        self.environment.plan.stop()
        self.environment.schedule.clock.advance(LEASE_SECONDS + 1)
        with self.environment.at("next dropper"):
            with _done_already(GONE):
                drop_table(place, ports=self.ports("next dropper"))
            heard = raised(lambda: self.open("next dropper", place))
            assert isinstance(heard, Invalid), f"{place} was dropped, who opens it was told: {heard!r}"
            assert GONE in heard.message, heard
        left = [one.key for one in self.stores[place].list("")]
        assert left == [], f"{left} was left of {place}"
        self.done["drop"] += 1


@contextlib.contextmanager
def _done_already(words: str) -> Iterator[None]:
    """What is done again, since nobody was told that it was done, may be told so, in these words."""
    try:
        yield
    except Invalid as error:
        if words not in error.message:
            raise


def _write_what_was_read(*, rows: Iterable[pa.RecordBatch], columns: pa.Schema, **place: Any) -> None:
    """`write_copy` of rows that were read before: Lance reads in a thread of its own, whose turns nobody knows."""
    copies.write_copy(rows=list(rows), columns=columns, **place)


def table_copies(seed: int, place: Path) -> TableCopies:
    """Run everybody to their end; raises at the first violation, and says how to replay it."""
    try:
        return TableCopies(seed, place).run()
    except BaseException as error:
        error.add_note(f"replay: .venv/bin/python -m tests.simulation.table_copies {seed}")
        raise


if __name__ == "__main__":
    for given in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            one = table_copies(int(given), Path(scratch) / "table")
        print(f"seed {given}: {len(one.environment.plan.calls)} calls, {dict(one.done)}, nothing is wrong")
