"""Runs of `dispatch` over many tables: they go to the queue in chunks, and a run without time is continued."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lancelsm.common.layout import Key, RegionId, TableId, head_key
from lancelsm.compaction.pace import Pace
from lancelsm.errors import Invalid, Unavailable
from lancelsm.objects import Object
from lancelsm.registry import Record
from lancelsm.stack.dispatch import dispatch
from lancelsm.stack.fan_out import CHUNK_TABLES, DirtyRegions, SqsChunks, chunked, decode, encode, start_run
from tests.simulation.faults import FakeClock, MemoryRegistry, MemoryStore
from tests.unit.counting import CountingRegistry
from tests.unit.tables import create, row
from tests.unit.test_dispatch import EAGER, DirtyIndex, FakeWork


def identity(number: int) -> TableId:
    return TableId(str(uuid.UUID(int=number)))


class ManyTables(MemoryRegistry):
    """A registry whose index has this many tables with 4 dirty regions each. It counts its calls."""

    def __init__(self, tables: int) -> None:
        super().__init__()
        self.marks = [
            (identity(table), RegionId(identity(10 * table + region)), "1")
            for table in range(tables)
            for region in range(4)
        ]
        self.calls: list[str] = []

    def dirty(self) -> list[tuple[TableId, RegionId, str]]:
        self.calls.append("dirty")
        return self.marks

    def read(self, key: Key) -> Record | None:
        self.calls.append("read")
        return super().read(key)


@dataclass
class Queue:
    clock: FakeClock = field(default_factory=FakeClock)
    seconds: float = 0.0  # that one call takes
    calls: list[Sequence[DirtyRegions]] = field(default_factory=list)

    def send(self, chunks: Sequence[DirtyRegions]) -> None:
        self.clock.sleep(self.seconds)
        self.calls.append(chunks)

    @property
    def tables(self) -> list[TableId]:
        return [table for call in self.calls for chunk in call for table in chunk]


def test_ten_thousand_dirty_tables_take_one_scan_and_twenty_calls_of_the_queue() -> None:
    registry, queue = ManyTables(10_000), Queue()

    now, queued = start_run(registry, queue, pace=Pace(clock=queue.clock, seconds=60))

    assert (now, queued, registry.calls, len(queue.calls)) == ({}, 10_000, ["dirty", "read"], 20)
    assert queue.tables == [identity(table) for table in range(10_000)]
    assert all(len(regions or ()) == 4 for call in queue.calls for chunk in call for regions in chunk.values())
    assert max(len(encode(chunk)) for call in queue.calls for chunk in call) < 10_000


def test_few_tables_are_served_at_once() -> None:
    registry, queue = ManyTables(CHUNK_TABLES), Queue()

    now, queued = start_run(registry, queue, pace=Pace(clock=queue.clock, seconds=60))

    assert (len(now), queued, queue.calls, registry.calls) == (CHUNK_TABLES, 0, [], ["dirty"])


def test_a_run_without_time_is_continued_by_the_next_one() -> None:
    registry, queue = ManyTables(2000), Queue(seconds=10)

    sent = [start_run(registry, queue, pace=Pace(clock=queue.clock, seconds=35))[1] for _ in range(2)]
    first, second = queue.tables[: sent[0]], queue.tables[sent[0] :]

    assert sent == [1000, 1000], "after two calls of 10 s there are not 20 s left"
    assert first + second == [identity(table) for table in range(2000)]
    queue.seconds = 0
    for _ in range(2):
        assert start_run(registry, queue, pace=Pace(clock=queue.clock, seconds=35))[1] == 2000
    assert queue.tables[-2000] == identity(0), "a run that served all tables leaves no position"


def test_chunks_are_small_and_a_table_with_very_many_regions_is_named_without_them() -> None:
    registry = ManyTables(0)
    registry.marks = [(identity(1), RegionId(identity(region)), "1") for region in range(10_000)]
    registry.marks += [(identity(2), RegionId(identity(region)), "1") for region in range(1900)]
    registry.marks += [(identity(3), RegionId(identity(region)), "1") for region in range(200)]

    dirty = start_run(registry, Queue(), pace=Pace(clock=FakeClock(), seconds=60))[0]

    assert [list(chunk) for chunk in chunked(dirty)] == [[identity(1), identity(2)], [identity(3)]]
    assert dirty[identity(1)] is None
    assert decode(encode(dirty)) == dirty


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"tables": {"a": []}}', '{"tables": {"a": 7}}'])
def test_a_message_that_is_no_chunk_is_refused(body: str) -> None:
    with pytest.raises(Invalid, match="the message"):
        decode(body)


def test_tables_for_which_there_is_no_time_are_left(tmp_path: Path) -> None:
    registry, work, clock = DirtyIndex(), FakeWork(), FakeClock()
    tables = [create(tmp_path / name) for name in ("a", "b", "c")]
    for table in tables:
        table.upsert([row(1)])
        registry.add(table)

    def slow(uri: str) -> Any:
        clock.sleep(20)
        return EAGER(uri)

    dirty: DirtyRegions = {table.config.table: tuple(one.id for one in table.list_regions()) for table in tables}
    done = dispatch(registry, dirty, open_table=slow, work=work, pace=Pace(clock=clock, seconds=70))

    assert done.flushed == tuple(table.uri for table in tables[:2]), "two tables took 40 s, a third may take 20 s"
    assert done.left == {tables[2].config.table: dirty[tables[2].config.table]}


def test_all_regions_of_a_table_are_looked_at_if_the_chunk_names_none(tmp_path: Path) -> None:
    registry, work, table = DirtyIndex(), FakeWork(), create(tmp_path, regions="bucket(id, 4)")
    table.upsert([row(key) for key in range(20)])
    registry.add(table)

    dispatch(registry, {table.config.table: None}, open_table=EAGER, work=work)

    assert sorted(work.groups[0]) == sorted(region.id for region in table.list_regions())


class CountedGets(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.gets: list[str] = []

    def get(self, key: str) -> Object | None:
        self.gets.append(key)
        return super().get(key)


def test_a_due_table_of_four_regions_is_checked_with_these_reads(tmp_path: Path) -> None:
    """docs/reference/limits.md has these numbers, and the price that follows."""
    table, index = create(tmp_path, regions="bucket(id, 4)"), DirtyIndex()
    table.upsert([row(key) for key in range(20)])
    index.add(table)
    handle = EAGER(table.uri)
    store, registry = CountedGets(), CountingRegistry()
    for listed in handle.context.objects.list(""):
        if (found := handle.context.objects.get(listed.key)) is not None:
            store.create(listed.key, found.body)
    heads = [head_key(table.config.table, one.id).partition for one in table.list_regions()]
    for partition in [f"T#{table.config.table}", *heads]:
        for key, record in handle.context.registry.list(partition):
            registry.swap(key, expect=None, change=record)
    registry.units.clear()
    counted = replace(handle, context=replace(handle.context, objects=store, registry=registry))

    dirty: DirtyRegions = {table.config.table: tuple(one.id for one in table.list_regions())}
    done = dispatch(index, dirty, open_table=lambda _: counted, work=FakeWork())

    assert {one.name for one in done.waiting[table.uri]} == {"oldest_unflushed_seconds", "log_bytes"}
    assert registry.units == {"record_reads": 1 + 4 + 4}, "the list of regions, their heads, their leases"
    assert len(store.gets) == 4, "a manifest for each region"


class Answers:
    """An SQS client with one kind of answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.requests: list[Any] = []

    def send_message_batch(self, **request: Any) -> Any:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_chunks_are_sent_ten_at_a_time_and_large_ones_apart() -> None:
    client = Answers({})
    regions = tuple(RegionId(identity(number)) for number in range(2000))
    small: list[DirtyRegions] = [{identity(number): ()} for number in range(12)]

    SqsChunks("url", client=client).send([*small, *({identity(number): regions} for number in range(3))])

    sizes = [len(request["Entries"]) for request in client.requests]
    assert sizes == [10, 4, 1]
    assert json.loads(client.requests[0]["Entries"][0]["MessageBody"]) == {"tables": {identity(0): []}}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"Failed": [{"Id": "0", "Code": "InternalError"}]}, Unavailable),
        (ClientError({"Error": {"Code": "ThrottlingException"}}, "Send"), Unavailable),
        (ClientError({"Error": {"Code": "AccessDenied"}}, "Send"), Invalid),
    ],
)
def test_chunks_that_may_not_have_been_sent_are_an_error(answer: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        SqsChunks("url", client=Answers(answer)).send([{identity(0): ()}])
