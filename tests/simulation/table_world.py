"""A whole table: a real base in a directory, its registry in memory, whoever works on it, and an auditor.

The registry watches each append at the moment when it is committed. That log is the truth: what a read must return, and
what must be left after every recovery. Each write carries a number, so that its entries are found in the log.
"""

from __future__ import annotations

import contextlib
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Self
from unittest import mock

import lance
import pyarrow as pa

from lancelsm import manifest as manifests
from lancelsm import upkeep, writer
from lancelsm.clock import SeededIds
from lancelsm.commit import load
from lancelsm.dataset.base_table import counters, open_base
from lancelsm.dataset.generation import check_generation
from lancelsm.dataset.markers import read_markers
from lancelsm.dataset.native import translated
from lancelsm.errors import Ambiguous, Contended, Fenced, Invalid, LsmError, Unavailable
from lancelsm.layout import (
    Key,
    Position,
    RegionId,
    TableId,
    Version,
    generation_number,
    generation_path,
    published_manifest,
    region_id,
    region_prefix,
    wal_entry,
)
from lancelsm.lease import LEASE_SECONDS
from lancelsm.merge import commit as merging
from lancelsm.objects.local import LocalStore
from lancelsm.opening import Ports, make_table, open_table
from lancelsm.record.schema import TOMBSTONE, TableSchema, numbered
from lancelsm.region import Region, regions
from lancelsm.registry import Applied, Fields, Lost
from lancelsm.routing.route import Routed, route
from lancelsm.routing.spec import parse_regions
from lancelsm.setsum import Setsum
from lancelsm.table import Table
from lancelsm.upkeep import optimize_table
from lancelsm.wal.entry import Entry, decode
from tests.simulation import seam
from tests.simulation.faults import Crash, FaultPlan, FaultyRegistry, FaultyStore, MemoryRegistry
from tests.simulation.schedule import Schedule, ScheduledRegistry, ScheduledStore

REGIONS = "bucket(id, 2)"
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64())])
STORED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
SETTINGS = {"flush_rows": 3, "optimize_small_fragments": 2}
WRITING = frozenset({"create", "replace", "swap"}) | seam.WRITES | seam.OUTER_WRITES
NOT_IN_THE_LOG = (Fenced, Contended, Invalid, Unavailable)
FOREIGN = 1_000_000  # keys from here on are another tool's, in the base alone
_TAGS = 1_000  # and from here on they only say which write deleted them

SPEC = parse_regions(REGIONS, schema=TableSchema(columns=numbered(COLUMNS), primary_key=("id",)))

Rows = dict[int, int]  # id -> v, the number of the write


@cache
def _parts() -> tuple[Routed, ...]:
    """Keys by region, in a fixed order: the left (0) and the right (1) one."""
    ids = pa.table({"id": pa.array(range(2 * _TAGS), pa.int64())})
    return tuple(sorted(route(ids, SPEC), key=lambda part: str(part.values)))


@cache
def keys(side: int) -> tuple[int, ...]:
    """Keys of the left (0) or the right (1) region, ascending, so many that each write has a tag among them."""
    return tuple(_parts()[side].rows["id"].to_pylist())


@cache
def _sides() -> dict[int, int]:
    return {key: side for side in (0, 1) for key in keys(side)}


def _tag(side: int, number: int) -> int:
    """A key that only the write with this number deletes."""
    tags = keys(side)
    return tags[bisect_left(tags, _TAGS) + number]


def _numbers(entry: Entry) -> set[int]:
    """The writes whose rows are in an entry."""
    found = set()
    for row in entry.table().to_pylist():
        if not row[TOMBSTONE]:
            found.add(row["v"])
        elif row["id"] >= _TAGS:
            side = _sides()[row["id"]]
            found.add(keys(side).index(row["id"]) - bisect_left(keys(side), _TAGS))
    return found


@dataclass
class Write:
    """One upsert or delete: which sides it touches, where their logs ended when it began, what its caller was told."""

    number: int
    process: str
    sides: frozenset[int]
    floors: Mapping[int, Position]
    told: BaseException | None


@dataclass
class Log:
    """One region's committed entries, and its rows after each of them; `states[0]` is what was loaded."""

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

    def copy(self) -> Log:
        return Log(entries=list(self.entries), states=list(self.states))


class TableWorld:
    """Storage of one table in `place`, which it may fill, and what happened to it.

    Use it as a context: outside, the seam to Lance is as it always was.
    """

    def __init__(self, place: Path, *, schedule: Schedule | None = None, settings: Mapping[str, object] = {}) -> None:
        self.place = place
        self.schedule = schedule or Schedule()
        self.plan = FaultPlan()
        self.settings = {**SETTINGS, **settings}
        self.registry = WatchedRegistry(self)
        self.store = LocalStore(place, fsync=lambda descriptor: None)
        self.ids = SeededIds(repr(self.schedule))
        self.logs = {0: Log(), 1: Log()}
        self.foreign: list[Rows] = [{}]  # what another tool has in the base, after each of its commits
        self.writes: list[Write] = []
        self.sides: dict[RegionId, int] = {}
        self.indexed = False

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(seam.through(self))
        self._stack.enter_context(mock.patch.object(writer, "ThreadPoolExecutor", _Inline))
        self._stack.enter_context(mock.patch.object(merging, "index_pays", self._index_pays))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _index_pays(self, **_: object) -> bool:
        return self.indexed

    def fork(self, place: Path) -> TableWorld:
        """The same table elsewhere: what happens to one does not happen to the other."""
        other = TableWorld(place, settings=self.settings)
        if self.place.exists():
            shutil.copytree(self.place, place)
        other.registry.take(self.registry)
        other.ids = SeededIds(str(place.name))
        other.schedule.clock.reach(self.schedule.clock.monotonic())
        other.logs = {side: log.copy() for side, log in self.logs.items()}
        other.foreign, other.writes, other.sides = list(self.foreign), list(self.writes), dict(self.sides)
        other.indexed = self.indexed
        return other

    # Processes

    def ports(self, process: str) -> Ports:
        """What a process works with; a crash there ends this process only."""
        return Ports(
            store=lambda uri, options: FaultyStore(
                ScheduledStore(self.store, self.schedule), self.plan, process=process
            ),
            registry=lambda kind, **_: FaultyRegistry(
                ScheduledRegistry(self.registry, self.schedule), self.plan, process=process
            ),
            clock=self.schedule.clock,
            ids=self.ids,
            parallel=1,
        )

    def create(self, process: str, *, loaded: Sequence[int] = ()) -> None:
        """Make the table with these keys in its base."""
        for side, log in self.logs.items():
            log.states[0] = {key: 0 for key in loaded if _sides()[key] == side}
        with self.at(process):
            make_table(
                self.place,
                pa.table({"id": pa.array(loaded, pa.int64()), "v": pa.array([0] * len(loaded), pa.int64())}),
                primary_key="id",
                regions=REGIONS,
                settings=self.settings,
                ports=self.ports(process),
            )

    def table(self, process: str) -> Table:
        with self.at(process):
            return Table(open_table(self.place, ports=self.ports(process)))

    @contextlib.contextmanager
    def at(self, process: str) -> Iterator[None]:
        """What is done within is done by this process."""
        token = seam.PROCESS.set(process)
        try:
            yield
        finally:
            seam.PROCESS.reset(token)

    def write(self, process: str, *, upsert: Iterable[int] = (), delete: Iterable[int] = ()) -> Write:
        """Upsert or delete these keys, and keep what the writer was told."""
        with self.at(process):
            return self.write_by(self.table(process), process, upsert=upsert, delete=delete)

    def write_by(
        self, table: Table, process: str, *, upsert: Iterable[int] = (), delete: Iterable[int] = ()
    ) -> Write:
        """As `write`, by a handle that the process has."""
        upserted, deleted = list(upsert), list(delete)
        assert bool(upserted) != bool(deleted)
        sides = frozenset(_sides()[key] for key in upserted + deleted)
        begun = Write(
            number=len(self.writes) + 1,
            process=process,
            sides=sides,
            floors={side: Position(len(self.logs[side].entries)) for side in sides},
            told=Crash("not told anything yet"),
        )
        self.writes.append(begun)
        try:
            if upserted:
                table.upsert([{"id": key, "v": begun.number} for key in upserted])
            else:
                table.delete([*deleted, *(_tag(side, begun.number) for side in sorted(sides))])
        except (LsmError, Crash) as error:
            begun.told = error
            raise
        begun.told = None
        return begun

    def flush(self, process: str) -> None:
        self.table(process).flush()

    def merge(self, process: str) -> None:
        self.table(process).merge(engine="inprocess")

    def optimize(self, process: str) -> None:
        optimize_table(open_table(self.place, ports=self.ports(process)))

    def index(self) -> None:
        """Another tool indexes the key of the base; from now on merges look keys up by it, however few they are."""
        lance.dataset(self.place).create_scalar_index("id", "BTREE")
        self.indexed = True

    def foreign_commit(self, dataset: lance.LanceDataset, what: str) -> bool:
        """Another tool's commit on the base as it opened it; whether it came through."""
        rows = dict(self.foreign[-1])
        try:
            match what:
                case "append":
                    rows[FOREIGN + len(self.foreign)] = 0
                    new = pa.table([[FOREIGN + len(self.foreign)], [0]], schema=STORED)
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

    # What the watching registry reports

    def committed(self, key: Key, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> None:
        """A head changed: entries joined its log."""
        _, table, name = key.partition.split("#")
        region = RegionId(name)
        for side, part in enumerate(_parts()):
            self.sides[region_id(table=TableId(table), spec_id=SPEC.spec_id, values=part.values)] = side
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
        """Scan the table, or get these keys: what comes was there at some moment of the read, in each region."""
        before = self._moment()
        found = rows_of(table.get(list(get)) if get else table.scan().to_arrow())
        after = self._moment()
        for name, states in self._histories().items():
            possible = [
                {key: v for key, v in state.items() if not get or key in get}
                for state in states[before[name] : after[name] + 1]
            ]
            part = {key: v for key, v in found.items() if _owner(key) == name}
            assert part in possible, f"{name} was read as {part}, between {possible[0]} and {possible[-1]}"
        return found

    def _histories(self) -> dict[int | str, list[Rows]]:
        return {**{side: log.states for side, log in self.logs.items()}, "foreign": self.foreign}

    def _moment(self) -> dict[int | str, int]:
        return {name: len(states) - 1 for name, states in self._histories().items()}

    @property
    def truth(self) -> Rows:
        """What must be in the table now."""
        return {key: v for states in self._histories().values() for key, v in states[-1].items()}

    # After the run

    def recover(self, process: str) -> None:
        """What a fresh process does after a crash: flush, merge, read. It waits for the lease of the dead."""
        self.plan.stop()
        self.schedule.clock.advance(LEASE_SECONDS + 1)
        with self.at(process):
            table = self.table(process)
            assert self.read(table) == self.truth
            table.flush()
            assert self.read(table) == self.truth
            table.merge(engine="inprocess")
            assert self.read(table) == self.truth
            self.audit(process)
            self.audit_settled(table)

    def audit(self, process: str) -> None:
        """What storage says, against the log and what writers were told."""
        self._audit_writes()
        opened = open_table(self.place, ports=self.ports(process))
        for region in regions(opened.storage):
            self._audit_region(region, opened.config.schema)

    def _audit_writes(self) -> None:
        places: dict[tuple[int, int], list[Position]] = {}
        for side, log in self.logs.items():
            for entry in log.entries:
                numbers = _numbers(entry) if entry.summary.rows else set()
                assert len(numbers) == (entry.summary.rows > 0), f"an entry of the writes {numbers}"
                for number in numbers:
                    places.setdefault((number, side), []).append(entry.summary.position)
        for write in self.writes:
            for side in (0, 1):
                found = places.pop((write.number, side), [])
                where = f"write {write.number} on side {side} is at {found}, its caller was told {write.told!r}"
                assert len(found) <= (side in write.sides), where
                assert all(position > write.floors[side] for position in found), where
                if side in write.sides and write.told is None:
                    assert len(found) == 1, where
                if write.told is not None and len(write.sides) == 1:
                    assert isinstance(write.told, (*NOT_IN_THE_LOG, Ambiguous, Crash)), where
                    assert not (found and isinstance(write.told, NOT_IN_THE_LOG)), where
        assert not places, f"rows that nobody wrote: {places}"

    def _audit_region(self, region: Region, schema: TableSchema) -> None:
        head = region.find_head()
        if head is None:
            return
        log = self.log_of(region.id)
        assert head.next_position == len(log.entries) + 1
        assert head.entry_setsum == sum((e.summary.entry_setsum for e in log.entries), start=Setsum())
        older = None
        for version in map(Version, range(1, head.manifest_version + 1)):
            published = load(region, published_manifest(region.id, version))
            if published is None:
                assert version == head.manifest_version, f"manifest {version} of {head.manifest_version} is missing"
                published = load(region, head.manifest_key)
            assert published is not None
            assert manifests.violations(older, published.manifest) == []
            older = published.manifest
        assert older is not None
        folded = [e for e in log.entries if e.summary.position <= older.replay_after]
        assert older.entry_setsum == sum((e.summary.entry_setsum for e in folded), start=Setsum())
        assert [g.generation for g in older.generations] == list(range(1, older.current_generation))
        for generation in older.generations:
            assert generation.folded is not None
            check_generation(
                uri=f"{self.place}/{generation_path(region.id, generation.path)}",
                schema=schema,
                rows=generation.rows or 0,
                setsum=generation.folded.row_setsum,
            )
        self._audit_orphans(region, {g.path for g in older.generations})

    def _audit_orphans(self, region: Region, named: set[str]) -> None:
        """A directory that no manifest names has a number that is taken, or is the next one's."""
        present = {path.name for path in (self.place / region_prefix(region.id)).iterdir()}
        directories = {name for name in present if generation_number(name) is not None}
        assert named <= directories
        newest = max((generation_number(name) or 0 for name in named), default=0)
        assert all((generation_number(name) or 0) <= newest + 1 for name in directories - named)

    def audit_settled(self, table: Table) -> None:
        """Everything is in the base, once; its counters and markers say so; merging again changes nothing."""
        base = open_base(uri=str(self.place))
        dataset = lance.dataset(self.place)
        assert rows_of(dataset.to_table()) == self.truth
        newest = {region.id: region.head().current_generation - 1 for region in table.regions()}
        assert base.counters == {region: number for region, number in newest.items() if number}
        markers = read_markers(objects=self.store, version=base.version)
        assert markers is not None
        assert markers.merged == base.counters
        history = [
            counters({name.decode(): value.decode() for name, value in found.schema.metadata.items()})
            for found in map(dataset.checkout_version, range(1, dataset.version + 1))
        ]
        for before, after in pairwise(history):
            assert all(after.get(region, 0) >= number for region, number in before.items()), "a counter decreased"
        again = table.merge(engine="inprocess")
        assert (again.generations, again.base_version) == (0, base.version)
        assert table.flush() == []


class WatchedRegistry(MemoryRegistry):
    """Shows each change of a head to its world."""

    def __init__(self, world: TableWorld) -> None:
        super().__init__()
        self._world = world

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> Applied | Lost:
        old = self.read(key)
        outcome = super().swap(key, expect=expect, change=change)
        if isinstance(outcome, Applied) and key.partition.startswith("H#"):
            self._world.committed(key, old, outcome.record)
        return outcome

    def take(self, other: WatchedRegistry) -> None:
        """Hold what another one holds."""
        self._records = {key: dict(record) for key, record in other._records.items()}


class _Inline:
    """A pool that does what it is given at once, in the caller's thread and turn."""

    def __init__(self, size: int) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, act: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(act(*args))
        except BaseException as error:  # noqa: BLE001 - as a pool does
            future.set_exception(error)
        return future


@contextlib.contextmanager
def lease(*, held: bool) -> Iterator[None]:
    """With the lease of the base, mergers seldom meet. Nothing rests on it, so it may be missing."""

    @contextlib.contextmanager
    def free(storage: object, name: str) -> Iterator[None]:
        yield

    with contextlib.nullcontext() if held else mock.patch.object(upkeep, "lease", free):
        yield


def rows_of(table: pa.Table) -> Rows:
    """By key; fails if one is there twice."""
    rows = dict(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))
    assert len(rows) == table.num_rows, f"a key twice: {sorted(table['id'].to_pylist())}"
    return rows


def _owner(key: int) -> int | str:
    return "foreign" if key >= FOREIGN else _sides()[key]
