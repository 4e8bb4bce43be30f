"""One region with all parts of a table: rows by key, generations, a base, pins and readers.

It runs the real code, except for Lance: the base is in memory, and a generation is one object with its rows. All calls
and answers are recorded as a history, which is checked for linearizability.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from lancelsm.common.layout import Generation, Position, generation_path
from lancelsm.common.setsum import Setsum
from lancelsm.compaction.compact import compact_parts
from lancelsm.errors import Contended, Corrupt, LsmError
from lancelsm.history.pin_records import Pin
from lancelsm.history.snapshot import create_snapshot, refresh_snapshot
from lancelsm.read.view import View
from lancelsm.record.schema import TableSchema
from lancelsm.region.catalog import Region, TableContext, regions
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.config import Config
from lancelsm.region.handle import TableHandle
from lancelsm.region.head import Head
from lancelsm.region.manifest import FlushedGeneration, missing_numbers
from lancelsm.table import Table
from lancelsm.wal.append import append_after
from lancelsm.wal.claim import claim
from lancelsm.wal.entry import Draft, Entry, draft
from tests.simulation import seam
from tests.simulation.collecting import FILES, TableEnv
from tests.simulation.environment import NOT_IN_THE_LOG, OWNER, TABLE
from tests.simulation.faults import Call, Crash, FaultPlan
from tests.simulation.linearizable import NEVER, Append, Operation, Read, ReadHead, violation
from tests.simulation.memory_base import MemoryBase, folded, rows_in, written
from tests.simulation.situations import note_on_failure

# The `id` of a row is its number, which identifies it in the environment. A tombstone has a number, too.
NUMBER = pa.field("id", pa.int64(), metadata={"lance:field_id": "1"})
KEY = pa.field("k", pa.int64(), nullable=False, metadata={"lance:field_id": "0"})
ROWS = TableSchema(columns=pa.schema([KEY, NUMBER]), primary_key=("k",))
QUEUE = "queue"

Content = dict[int, int]  # number by key


@dataclass(frozen=True, slots=True)
class SkewedClock:
    """The clock of one machine, which is wrong by some seconds."""

    inner: Any
    seconds: float

    def now(self) -> float:
        return float(self.inner.now()) + self.seconds

    def monotonic(self) -> float:
        return float(self.inner.monotonic())

    def sleep(self, seconds: float) -> None:
        self.inner.sleep(seconds)


@dataclass
class Held:
    """A snapshot as its holder knows it, with the moments before and after its creation."""

    pin: Pin
    called: float
    answered: float
    content: Content | None = None


@dataclass(kw_only=True)
class WholeTableEnv(TableEnv):
    """A table environment with rows.

    `skews` are the seconds by which clocks are wrong, by the beginning of the name of the process.
    """

    history: list[Operation] = field(default_factory=list)
    skews: Mapping[str, float] = field(default_factory=dict)
    operations: int = 0
    wrap: Callable[[str, Any], Any] = lambda process, store: store
    schema: ClassVar[TableSchema] = ROWS

    def __post_init__(self) -> None:
        self.base = MemoryBase(self.environment, ROWS)
        self._ticks = itertools.count(1)
        self._numbers = itertools.count(1)
        self.held: dict[str, Held] = {}

    def tick(self) -> float:
        return float(next(self._ticks))

    # Processes

    at = staticmethod(seam.at)

    def context(self, process: str, *, faulty: bool = True) -> TableContext:
        plain = self.environment.context(process, faulty=faulty)
        skew = next((seconds for name, seconds in self.skews.items() if process.startswith(name)), 0.0)
        clock = SkewedClock(plain.clock, skew)
        return replace(plain, clock=clock, parallel=1, objects=self.wrap(process, plain.objects))

    def region(self, process: str, *, faulty: bool = False) -> Region:
        return replace(self.environment.region(process), context=self.context(process, faulty=faulty))

    def handle(self, process: str, *, faulty: bool = True) -> TableHandle:
        config = Config(table=TABLE, registry="memory", owner=OWNER, schema=ROWS, regions=None)
        context = self.context(process, faulty=faulty)
        return TableHandle(config=config, context=context, settings=self.settings, storage_options=None)

    def collecting(self) -> AbstractContextManager[None]:
        return nullcontext()  # `in_place_of_lance` is active for the whole run

    def interrupt(self, before: Callable[[Call], bool], other: Callable[[], object]) -> FaultPlan:
        """From now on run another operation right before each such call. Its own calls are not part of this plan."""

        def decide(call: Call) -> None:
            if before(call):
                self.environment.plan = FaultPlan()
                other()
                self.environment.plan = plan

        self.environment.plan = plan = FaultPlan(decide)
        return plan

    # Writing

    def put(self, process: str, changes: Mapping[int, bool], *, owner: str = OWNER, held: Head | None = None) -> Head:
        """Upsert (True) or delete (False) keys in one entry, and record the result."""
        numbers = {key: next(self._numbers) for key in changes}
        self._start(numbers.values(), owner)
        called = self.tick()
        try:
            done = append_after(
                self.region(process, faulty=True), lambda _: _drafted(numbers, changes), owner=owner, held=held
            )
        except (LsmError, Crash) as error:
            self._raised(process, called, numbers, changes, error)
            raise
        assert not isinstance(done, Head)
        self._acknowledged(process, called, numbers, changes, done.summary.position)
        return done.head

    def deliver(self, process: str, messages: Sequence[tuple[int, int]]) -> None:
        """Deliver a batch of pairs of sequence and key. For each head that is tried, drop the applied messages."""
        region = self.region(process, faulty=True)
        sent: list[tuple[int, int]] = []
        calls: list[float] = []

        def next_draft(head: Head) -> Draft | None:
            applied = head.applied(QUEUE)
            sent[:] = [message for message in messages if message[0] > applied]
            if not sent:
                return None
            numbers = {key: 1_000_000 + sequence for sequence, key in sent}
            self._start([number for number in numbers.values() if number not in self.environment.writers], OWNER)
            calls.append(self.tick())
            return _drafted(
                numbers,
                dict.fromkeys(numbers, True),
                applied_sequences={QUEUE: str(sent[-1][0])},
                at=region.context.clock.now(),
            )

        append_after(region, next_draft, owner=OWNER)

    def _start(self, numbers: Any, owner: str) -> None:
        for number in numbers:
            self.environment.writers[number] = owner
            self.environment.floors[number] = max(self.environment.acknowledged.values(), default=Position(0))

    def _raised(
        self, process: str, called: float, numbers: Content, changes: Mapping[int, bool], error: LsmError | Crash
    ) -> None:
        for number in numbers.values():
            self.environment.raised[number] = error
        if not isinstance(error, NOT_IN_THE_LOG):
            self._note(Append, process, called, NEVER, rows=_pairs(numbers, changes))

    def _acknowledged(
        self, process: str, called: float, numbers: Content, changes: Mapping[int, bool], position: Position
    ) -> None:
        for number in numbers.values():
            self.environment.acknowledged[number] = position
        self._note(Append, process, called, self.tick(), rows=_pairs(numbers, changes), position=int(position))

    def _note(self, kind: type[Operation], actor: str, called: float, answered: float, **what: Any) -> None:
        self.history.append(kind(actor=actor, called=called, answered=answered, **what))

    # Merging

    def _bodies(self, rows: pa.Table, setsum: Setsum) -> tuple[bytes, bytes]:
        return written(rows), setsum.digest()

    def merge(self, region: Region | None = None) -> None:
        """Merge the pending generations into the base."""
        commit = self.prepare_merge(region or self.region("merger"))
        if commit is not None:
            commit()

    def prepare_merge(self, region: Region) -> Callable[[], None] | None:
        """Read the head, then the base, and write the rows of a merge. Return a function that commits it if valid."""
        _, manifest = newest(region, region.head())
        base = self.base.open_base(uri="memory://t")
        counter = base.counters.get(region.id, Generation(0))
        pending = [g for g in manifest.generations if g.generation > counter]
        if missing_numbers((g.numbers for g in pending), above=counter, newest=manifest.newest):
            raise Contended("the base is ahead of the head that was read")
        if not pending:
            return None
        parts = [self.base.rows(base.version, region.context.objects.get)]
        try:
            parts += [_generation(region, g.path) for g in pending]
        except Corrupt:
            _, now = newest(region, region.head())
            if {g.path for g in pending} <= {g.path for g in now.generations}:
                raise
            raise Contended("the generations were compacted or merged, and collected") from None
        rows = _rows(folded(parts))
        key = f"data/{region.context.ids.nonce()}.lance"
        commit = self.base.replace_rows(base, region.context.objects, rows, region=region.id, key=key)

        def committed() -> None:
            if commit(pending[-1].generation):
                self.counter = max(self.counter, pending[-1].generation)

        return committed

    def compact(self, region: Region, dice: random.Random) -> bool:
        """Replace some neighbouring generations by one. Return whether they were replaced."""
        _, manifest = newest(region, region.head())
        counter = self.base.open_base(uri="memory://t").counters.get(region.id, Generation(0))
        live = [g for g in manifest.generations if g.generation > counter]
        if len(live) < 2:
            return False
        first = dice.randrange(len(live) - 1)
        parts = live[first : dice.randrange(first + 2, len(live) + 1)]

        def read(part: FlushedGeneration, _: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
            yield from _generation(region, part.path).to_batches()

        write = self.writing(region)
        return compact_parts(region, self.schema, began=manifest, parts=parts, read=read, write=write) is not None

    def optimize(self, region: Region) -> None:
        """Rewrite the base without changing its rows."""
        base = self.base.open_base(uri="memory://t")
        rows = self.base.rows(base.version, region.context.objects.get)
        key = f"data/{region.context.ids.nonce()}.lance"
        commit = self.base.replace_rows(base, region.context.objects, rows, region=region.id, key=key)
        commit(base.counters.get(region.id, Generation(0)))

    # Reading

    def scan(
        self, process: str, *, keys: Sequence[int] | None = None, faulty: bool = True, held: Table | None = None
    ) -> Content:
        """Read the table or some of its keys, with a second view if an object of the first one is missing.

        Args:
            held: the table, if the process holds it open. It uses parts of earlier views.
        """
        called = self.tick()
        found = self._content(held or Table(self.handle(process, faulty=faulty)))
        if keys is not None:
            found = {key: value for key, value in found.items() if key in keys}
        only = None if keys is None else frozenset(keys)
        self._note(Read, process, called, self.tick(), rows=found, keys=only)
        return found

    def _content(self, table: Table) -> Content:
        context = table._handle.context
        return table._read_with_retry(
            lambda view: self._of_view(view, context), lambda: regions(context), spec=None, select=list
        )

    def _of_view(self, view: View, context: TableContext) -> Content:
        (of_region,) = view.regions
        region = replace(self.region("reader"), context=context)
        parts = [self.base.rows(view.base.version, context.objects.get)]
        for one in of_region.generations:
            assert one.generation > of_region.counter
            parts.append(_generation(region, one.path))
        return folded([*parts, *of_region.tail.in_order()])

    def read_head(self, process: str) -> None:
        called = self.tick()
        head = self.region(process, faulty=True).head()
        self._note(ReadHead, process, called, self.tick(), entries=int(head.next_position) - 1)

    # Snapshots

    def hold(self, process: str, name: str, *, ttl_seconds: float) -> None:
        called = self.tick()
        pin = create_snapshot(self.handle(process), name, ttl_seconds=ttl_seconds)
        self.held[name] = Held(pin, called, self.tick())
        self.pinned.append(pin)

    def read_held(self, process: str, name: str) -> None:
        """A snapshot shows the state at one moment of its creation, and the same state at each read."""
        held = self.held[name]
        table = Table(self.handle(process), at=held.pin)
        found = self._content(table)
        assert held.content in (None, found), f"{name} changed from {held.content} to {found}"
        if held.content is None:
            held.content = found
            self._note(Read, process, held.called, held.answered, rows=found)

    def renew(self, process: str, name: str, *, ttl_seconds: float) -> None:
        pin = refresh_snapshot(self.handle(process), name, ttl_seconds=ttl_seconds)
        self._forget(name)
        self.held[name].pin = pin
        self.pinned.append(pin)

    def let_go(self, name: str) -> None:
        """From now on the holder no longer relies on the snapshot."""
        self._forget(name)
        self.held.pop(name, None)

    def _forget(self, name: str) -> None:
        self.pinned[:] = [pin for pin in self.pinned if pin.name != name]

    # What must hold

    def check(self) -> None:
        """All results fit into one order."""
        self.history += [
            Append(actor="queue", called=0.0, answered=NEVER, rows=_shown(entry))
            for entry in self.environment.log.values()
            if entry.summary.applied_sequences
        ]
        found = violation(self.history)
        assert found is None, str(found)
        self.environment._audit_writers()

    @property
    def truth(self) -> Content:
        return folded([entry.table() for _, entry in sorted(self.environment.log.items()) if entry.summary.rows])

    def take_over(self, process: str, owner: str) -> None:
        claim(self.region(process, faulty=True), owner=owner)


def at_each_call(scenario: Callable[[int], FaultPlan]) -> None:
    """Run a scenario once for each call in the plan that it returns, with the number of the call, then once without."""
    at, calls = 0, 0
    while at <= calls:
        with note_on_failure(at):
            calls = len(scenario(at).calls)
        at += 1


def rows_of_entry(entry: Entry) -> tuple[tuple[int, int, bool], ...]:
    table = entry.table()
    return tuple(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))


def _shown(entry: Entry) -> dict[int, int | None]:
    return {key: None if dead else number for key, number, dead in rows_of_entry(entry)}


def _pairs(numbers: Content, changes: Mapping[int, bool]) -> dict[int, int | None]:
    return {key: number if changes[key] else None for key, number in numbers.items()}


def _drafted(
    numbers: Content,
    changes: Mapping[int, bool],
    *,
    applied_sequences: Mapping[str, str] | None = None,
    at: float | None = None,
) -> Draft:
    columns = [list(numbers), list(numbers.values()), [not changes[key] for key in numbers]]
    return draft(pa.table(columns, schema=ROWS.stored), applied_sequences=applied_sequences, at=at)


def _rows(content: Content) -> pa.Table:
    return pa.table([list(content), list(content.values()), [False] * len(content)], schema=ROWS.stored)


def _generation(region: Region, path: str) -> pa.Table:
    key = f"{generation_path(region.id, path)}/{FILES[0]}"
    found = region.context.objects.get(key)
    if found is None:
        raise Corrupt("a generation is missing", object=key)
    return rows_in(found.body)
