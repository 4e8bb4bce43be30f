"""A whole table with a real base in a directory and its registry in memory.

The environment records each entry at the moment when it is committed. This log decides what a read must return and what
a recovery must leave. Each write carries a number, so that its entries are found in the log.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from unittest import mock

import lance
import pyarrow as pa

from lancelsm.admin.create import create_table
from lancelsm.common.clock import SeededIds
from lancelsm.common.layout import Key, Position, RegionId, TableId, wal_entry
from lancelsm.compaction import maintenance
from lancelsm.compaction import merge as merging
from lancelsm.compaction.maintenance import optimize_table
from lancelsm.compaction.merge import Merged
from lancelsm.dataset.base_table import counters
from lancelsm.dataset.native import translated
from lancelsm.errors import Contended, LsmError
from lancelsm.objects.filesystem import LocalStore
from lancelsm.region import head as heads
from lancelsm.region import manifest_codec
from lancelsm.region.handle import Ports, open_table
from lancelsm.region.lease import LEASE_SECONDS
from lancelsm.registry import Fields, Record, SwapApplied, SwapLost
from lancelsm.table import Table
from lancelsm.wal import writer
from lancelsm.wal.entry import decode
from tests.simulation import seam
from tests.simulation.faults import (
    CRASH_AFTER,
    CRASH_BEFORE,
    DENY,
    FAIL_AFTER,
    FAIL_BEFORE,
    Crash,
    FaultPlan,
    FaultyRegistry,
    FaultyStore,
    MemoryRegistry,
    late,
    stall,
)
from tests.simulation.schedule import Schedule, ScheduledRegistry, ScheduledStore
from tests.simulation.table_audit import audit, audit_settled
from tests.simulation.table_log import (
    FOREIGN,
    REGIONS,
    Log,
    Rows,
    Write,
    owner,
    rows_of,
    sides,
    sides_of_regions,
    tag,
)

STORED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
DEFAULT = 7  # of the column that is added
SETTINGS = {"flush_rows": 3, "max_generations": 1, "optimize_small_fragments": 2}
WRITING = frozenset({"create", "replace", "swap"}) | seam.WRITES | seam.OUTER_WRITES
READ_FAULTS = (FAIL_BEFORE, CRASH_BEFORE)
WRITE_FAULTS = (
    FAIL_AFTER,
    CRASH_BEFORE,
    late(1),
    CRASH_AFTER,
    FAIL_BEFORE,
    late(3),
    DENY,
    late(1_000_000),
    stall(5.0),
    stall(200.0),
)


class TableEnvironment:
    """Storage of one table in the directory `path`, and a record of what happened to it.

    Use it as a context manager: only within it, calls to Lance pass the plan and the schedule.
    """

    def __init__(self, path: Path, *, schedule: Schedule | None = None, settings: Mapping[str, object] = {}) -> None:
        self.path = path
        self.schedule = schedule or Schedule()
        self.plan = FaultPlan()
        self.settings = {**SETTINGS, **settings}
        self.registry = WatchedRegistry(self)
        self.store = LocalStore(path, fsync=lambda descriptor: None)
        self.ids = SeededIds(repr(self.schedule))
        self.logs = {0: Log(), 1: Log()}
        self.foreign: list[Rows] = [{}]  # rows of another tool in the base, after each of its commits
        self.writes: list[Write] = []
        self.sides: dict[RegionId, int] = {}
        self.indexed = False

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(seam.through(self))
        self._stack.enter_context(mock.patch.object(writer, "TaskPool", _Inline))
        self._stack.enter_context(mock.patch.object(merging, "index_pays", self._index_pays))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _index_pays(self, **_: object) -> bool:
        return self.indexed

    def fork(self, path: Path) -> TableEnvironment:
        """Copy the table and its environment to another directory. The copies are independent."""
        other = TableEnvironment(path, settings=self.settings)
        if self.path.exists():
            shutil.copytree(self.path, path)
        other.registry.copy_from(self.registry)
        other.ids = SeededIds(str(path.name))
        other.schedule.clock.reach(self.schedule.clock.monotonic())
        other.logs = {side: log.copy() for side, log in self.logs.items()}
        other.foreign, other.writes, other.sides = list(self.foreign), list(self.writes), dict(self.sides)
        other.indexed = self.indexed
        return other

    # Processes

    def ports(self, process: str) -> Ports:
        """Return the ports of one process. A crash in them ends this process only."""
        return Ports(
            store=lambda uri, options: FaultyStore(
                ScheduledStore(self.store, self.schedule), self.plan, process=process
            ),
            registry=lambda kind, **_: FaultyRegistry(
                ScheduledRegistry(self.registry, self.schedule), self.plan, process=process
            ),
            clock=self.schedule.clock,
            ids=self.ids,
            threads=1,
        )

    def create(self, process: str, *, loaded: Sequence[int] = ()) -> None:
        """Create the table with these keys in its base."""
        for side, log in self.logs.items():
            log.states[0] = {key: 0 for key in loaded if sides()[key] == side}
        with self.at(process):
            create_table(
                self.path,
                pa.table({"id": pa.array(loaded, pa.int64()), "v": pa.array([0] * len(loaded), pa.int64())}),
                primary_key="id",
                regions=REGIONS,
                settings=self.settings,
                ports=self.ports(process),
            )

    def table(self, process: str) -> Table:
        with self.at(process):
            return Table(open_table(self.path, ports=self.ports(process)))

    at = staticmethod(seam.at)

    def write(self, process: str, *, upsert: Iterable[int] = (), delete: Iterable[int] = ()) -> Write:
        """Upsert or delete these keys and record the result."""
        with self.at(process):
            return self.write_by(self.table(process), process, upsert=upsert, delete=delete)

    def write_by(self, table: Table, process: str, *, upsert: Iterable[int] = (), delete: Iterable[int] = ()) -> Write:
        """Like `write`, with a handle that the process already has."""
        upserted, deleted = list(upsert), list(delete)
        assert bool(upserted) != bool(deleted)
        touched = frozenset(sides()[key] for key in upserted + deleted)
        started = Write(
            number=len(self.writes) + 1,
            process=process,
            sides=touched,
            floors={side: Position(len(self.logs[side].entries)) for side in touched},
            raised=Crash("no result yet"),
        )
        self.writes.append(started)
        try:
            if upserted:
                table.upsert([{"id": key, "v": started.number} for key in upserted])
            else:
                table.delete([*deleted, *(tag(side, started.number) for side in sorted(touched))])
        except (LsmError, Crash) as error:
            started.raised = error
            raise
        started.raised = None
        return started

    def flush(self, process: str, table: Table | None = None) -> None:
        """Flush. After it returns, every entry that was committed before it is in a generation."""
        table = table or self.table(process)
        ends = {side: max(log.positions_of_rows, default=0) for side, log in self.logs.items()}
        with self.at(process):
            table.flush()
        for region, head in self.heads().items():
            found = self.store.get(head["manifest_key"])
            assert found is not None
            reached = manifest_codec.decode(found.body, key=head["manifest_key"]).replay_after
            assert reached >= ends[self.sides[region]], f"{process} flushed {region} through {reached}, not {ends}"

    def compact(self, process: str) -> None:
        """Compact generations. After it returns, each region has at most one that is not merged."""
        table = self.table(process)
        with self.at(process):
            table.compact()
        assert all(one.pending_generations <= 1 for one in map(heads.from_record, self.heads().values()))

    def merge(self, process: str, table: Table | None = None) -> Merged:
        """Merge. After it returns, every generation that was committed before it is in the base."""
        table = table or self.table(process)
        newest = {region: head["current_generation"] - 1 for region, head in self.heads().items()}
        with self.at(process):
            merged = table.merge(engine="inprocess")
        names = lance.dataset(self.path).schema.metadata or {}
        found = counters({name.decode(): value.decode() for name, value in names.items()})
        for region, number in newest.items():
            assert merged.regions.get(region, 0) >= number, f"{process} merged {merged}, not {newest}"
            assert found.get(region, 0) >= merged.regions.get(region, 0)
        return merged

    def heads(self) -> dict[RegionId, Record]:
        """Return all heads, without any fault."""
        found = {region: self.registry.find_head(region) for region in self.sides}
        return {region: head for region, head in found.items() if head is not None}

    def optimize(self, process: str) -> None:
        with self.at(process):
            optimize_table(open_table(self.path, ports=self.ports(process)))

    def change_columns(self, process: str) -> None:
        """Add a column, widen it, rename it, or drop it, whatever is next. Every row has its default in it."""
        table = self.table(process)
        with self.at(process):
            if "c" not in table.schema.names and "d" not in table.schema.names:
                table.add_column("c", "int16", default=DEFAULT)
            elif "d" in table.schema.names:
                table.drop_column("d")
            elif table.schema.field("c").type == pa.int16():
                table.widen_column("c", "int64")
            else:
                table.rename_column("c", "d")

    def index(self) -> None:
        """Let another tool index the key of the base. From now on merges use this index, even for few keys."""
        lance.dataset(self.path).create_scalar_index("id", "BTREE")
        self.indexed = True

    def foreign_commit(self, dataset: lance.LanceDataset, what: str) -> bool:
        """Let another tool commit on the version of the base that it opened. Return whether the commit succeeded."""
        rows = dict(self.foreign[-1])
        try:
            match what:
                case "append":
                    rows[FOREIGN + len(self.foreign)] = 0
                    new = pa.table([[FOREIGN + len(self.foreign)], [0]], schema=STORED)
                    for field in list(dataset.schema)[len(STORED) :]:
                        new = new.append_column(field, pa.nulls(1, field.type))
                    lance.write_dataset(new, dataset, mode="append")
                case "delete" if rows:
                    dataset.delete(f"id = {min(rows)}")
                    del rows[min(rows)]
                case "compact":
                    dataset.optimize.compact_files()
                case _:
                    dataset.update_config({"note": str(len(self.foreign))})
        except (OSError, ValueError, RuntimeError) as error:
            if not isinstance(translated(error, doing="another tool failed", table=""), Contended):
                raise
            return False
        self.foreign.append(rows)
        return True

    # Commits, reported by the registry

    def committed(self, key: Key, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> None:
        """A head changed: record the committed entries."""
        _, table, name = key.partition.split("#")
        region = RegionId(name)
        self.sides = sides_of_regions(TableId(table))
        for position in map(Position, range(1 if old is None else old["next_position"], new["next_position"])):
            found = self.store.get(wal_entry(region, position))
            assert found is not None, f"position {position} committed without an object"
            entry = decode(found.body, position=position, key="")
            assert entry.sound, f"an unsound entry was committed at {position}"
            self.log_of(region).add(entry)

    def log_of(self, region: RegionId) -> Log:
        return self.logs[self.sides[region]]

    # Reading

    def read(self, table: Table, *, get: Sequence[int] = ()) -> Rows:
        """Scan the table or get these keys. In each region, the result must be the state at one moment of the read."""
        before = self._moment()
        rows = table.get(list(get)) if get else table.scan().to_arrow()
        found = rows_of(rows)
        added = [row[name] for row in rows.to_pylist() for name in row if name in "cd" and row["id"] < FOREIGN]
        assert set(added) <= {DEFAULT}
        after = self._moment()
        for name, states in self._histories().items():
            possible = [
                {key: v for key, v in state.items() if not get or key in get}
                for state in states[before[name] : after[name] + 1]
            ]
            part = {key: v for key, v in found.items() if owner(key) == name}
            assert part in possible, (
                f"{name} was read as {part}, which is not a state between {possible[0]} and {possible[-1]}"
            )
        return found

    def _histories(self) -> dict[int | str, list[Rows]]:
        return {**{side: log.states for side, log in self.logs.items()}, "foreign": self.foreign}

    def _moment(self) -> dict[int | str, int]:
        return {name: len(states) - 1 for name, states in self._histories().items()}

    @property
    def truth(self) -> Rows:
        """Return the rows that must be in the table now."""
        return {key: v for states in self._histories().values() for key, v in states[-1].items()}

    # After the run

    def recover(self, process: str) -> None:
        """Recover in a fresh process: wait for the lease of a crashed one, read, flush, merge, audit and optimize."""
        self.plan.stop()
        self.schedule.clock.advance(LEASE_SECONDS + 1)
        with self.at(process):
            table = self.table(process)
            assert self.read(table) == self.truth
            self.flush(process, table)
            assert self.read(table) == self.truth
            self.merge(process, table)
            assert self.read(table) == self.truth
            audit(self, process)
            audit_settled(self, table)
            self.optimize(process)
            assert self.read(table) == self.truth


class WatchedRegistry(MemoryRegistry):
    """Reports each change of a head to its environment."""

    def __init__(self, environment: TableEnvironment) -> None:
        super().__init__()
        self._environment = environment

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost:
        old = self.read(key)
        outcome = super().swap(key, expect=expect, change=change)
        if isinstance(outcome, SwapApplied) and key.partition.startswith("H#"):
            self._environment.committed(key, old, outcome.record)
        return outcome

    def find_head(self, region: RegionId) -> Record | None:
        return next((dict(r) for key, r in self._records.items() if key.partition.endswith(f"#{region}")), None)

    def copy_from(self, other: WatchedRegistry) -> None:
        """Copy all records of another registry."""
        self._records = {key: dict(record) for key, record in other._records.items()}


class _Inline:
    """A pool that runs work at once, in the thread and turn of the caller."""

    def __init__(self, size: int) -> None:
        pass

    def stop(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def submit(self, call: Callable[[], Any]) -> None:
        with contextlib.suppress(BaseException):  # the futures of the writer have the error
            call()


@contextlib.contextmanager
def lease(*, held: bool) -> Iterator[None]:
    """Use the lease of the base, or remove it so that mergers meet more often. Safety does not depend on the lease."""

    @contextlib.contextmanager
    def free(context: object, name: str) -> Iterator[None]:
        yield

    with contextlib.nullcontext() if held else mock.patch.object(maintenance, "lease", free):
        yield
