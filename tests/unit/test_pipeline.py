"""Writers with real threads, and what callers may do to them. tests/simulation/test_pipeline.py covers event orders."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lancelsm.common.clock import SeededIds
from lancelsm.common.layout import Position, table_key, wal_entry
from lancelsm.common.settings import Settings
from lancelsm.errors import Contended, Fenced, Invalid, Unavailable
from lancelsm.record.normalize import upserts
from lancelsm.record.schema import TableSchema, declare_primary_key, numbered
from lancelsm.region.catalog import Directory, TableContext, regions
from lancelsm.region.handle import WriteTarget
from lancelsm.routing.spec import parse_regions
from lancelsm.wal.append import append
from lancelsm.wal.claim import claim, create_region, seal
from lancelsm.wal.entry import decode, draft
from lancelsm.wal.group_commit import Submission
from lancelsm.wal.pipeline import Pipeline
from lancelsm.wal.writer import Writer
from tests.simulation.environment import TABLE
from tests.simulation.faults import FakeClock, MemoryRegistry, MemoryStore

SECONDS = 20  # more than any step takes; a deadlock fails a test instead of hanging it
OWNER = "default"
SCHEMA = TableSchema(
    columns=numbered(
        declare_primary_key(pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())]), ("id",))
    ),
    primary_key=("id",),
)


class GatedStore(MemoryStore):
    """A store whose puts into the log wait at a gate, and fail while the store is `broken`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False
        self.arrived = threading.Semaphore(0)

    def create(self, key: str, body: Any) -> Any:
        if "/wal/" in key:
            self.arrived.release()
            assert self.gate.wait(SECONDS)
            if self.broken and decode(bytes(body), position=Position(1), key=key).summary.rows:
                raise Unavailable("the store is down", remedy="Retry")
        return super().create(key, body)

    @contextmanager
    def closed_gate(self):
        self.gate.clear()
        try:
            yield
        finally:
            self.gate.set()


@pytest.fixture
def store() -> GatedStore:
    return GatedStore()


@pytest.fixture
def target(store: GatedStore) -> WriteTarget:
    return _target(store, "bucket(id, 1)")


def _target(store: GatedStore, spec: str) -> WriteTarget:
    registry = MemoryRegistry()
    registry.swap(table_key(TABLE), expect=None, change={"format": 1})
    context = TableContext(
        uri="memory://t",
        table=TABLE,
        objects=store,
        registry=registry,
        clock=FakeClock(),
        ids=SeededIds("writers"),
        budget_seconds=0.05,
    )
    regions_of = parse_regions(spec, schema=SCHEMA)
    return WriteTarget(
        context=context,
        schema=SCHEMA,
        regions=regions_of,
        settings=Settings(group_commit_milliseconds=1),
        owner=OWNER,
        directory=Directory(context, spec_id=regions_of.spec_id),
    )


def row(number: int) -> dict[str, list[Any]]:
    return {"id": [number], "text": [f"row {number}"]}


def entry(number: int) -> Any:
    return draft(pa.table([[number], ["x"], [False]], schema=SCHEMA.stored))


def in_log(target: WriteTarget) -> list[int]:
    """Return the keys of all committed rows in the order of the log, region by region."""
    numbers: list[int] = []
    for region in sorted(regions(target.context), key=lambda region: region.id):
        for position in map(Position, range(1, region.head().next_position)):
            found = target.context.objects.get(wal_entry(region.id, position))
            assert found is not None
            decoded = decode(found.body, position=position, key="")
            numbers += [] if decoded.fence else decoded.table().column("id").to_pylist()
    return numbers


def region_of(target: WriteTarget) -> Any:
    values = (("bucket", (0).to_bytes(4, "little")),)
    return create_region(target.context, spec_id=target.regions.spec_id, values=values, owner=OWNER)


@contextmanager
def failing(error: type[BaseException], writer: Writer):
    """A writer whose `with` block ends by raising the first failure of its rows."""
    try:
        yield writer
    finally:
        writer.close()
    with pytest.raises(error):
        writer.__exit__(None, None, None)


@contextmanager
def pipeline_of(target: WriteTarget, *, depth: int = 2):
    pipeline = Pipeline(region_of(target), owner="alone", previous_owners=(OWNER,), depth=depth)
    try:
        yield pipeline
    finally:
        target.context.objects.gate.set()
        pipeline.close()


def within(act: Any) -> Any:
    """Return the result of `act`, which must end by itself."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(act())
        except BaseException as error:  # noqa: BLE001 - `outcome.result` raises it
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(SECONDS)


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_a_future_of_a_writer_cannot_be_cancelled(target, store, depth):
    with Writer(target, pipeline_depth=depth) as writer:
        with store.closed_gate():
            futures = [writer.submit(row(number)) for number in range(6)]
            assert not futures[0].cancel()
        committed = [future.result(SECONDS) for future in futures]
    assert [done.rows for done in committed] == [1] * 6
    assert in_log(target) == list(range(6))


def test_an_entry_in_flight_cannot_be_cancelled(target, store):
    with pipeline_of(target) as pipeline:
        first = pipeline.submit(entry(1))
        first.result(SECONDS)
        with store.closed_gate():
            second = pipeline.submit(entry(2))
            assert not second.cancel()
        assert second.result(SECONDS).position == first.result().position + 1


def test_a_cancelled_task_does_not_cancel_the_rest_of_its_batch(target, store):
    async def run() -> Any:
        with Writer(target, pipeline_depth=2) as writer:
            with store.closed_gate():
                tasks = [asyncio.ensure_future(writer.submit_async(row(number))) for number in range(3)]
                await asyncio.sleep(0)
                tasks[1].cancel()
                await asyncio.sleep(0)
            return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), SECONDS)

    first, second, third = asyncio.run(run())
    assert (first.rows, third.rows) == (1, 1)
    assert isinstance(second, asyncio.CancelledError)
    assert in_log(target) == [0, 1, 2]


def test_an_event_loop_that_is_closed_before_the_acknowledgement_harms_no_other_caller(target, store):
    with Writer(target, pipeline_depth=2) as writer:
        with store.closed_gate():

            async def leave() -> None:
                asyncio.ensure_future(writer.submit_async(row(0)))  # noqa: RUF006 - abandoned on purpose
                await asyncio.sleep(0)

            asyncio.run(leave())
            other = writer.submit(row(1))
        assert other.result(SECONDS).rows == 1
    assert in_log(target) == [0, 1]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
def test_an_error_in_a_callback_does_not_keep_results_from_other_callers(target, store, depth, error, caplog):
    def fail(_: Any) -> None:
        raise error("from a callback")

    with Writer(target, pipeline_depth=depth) as writer:
        with store.closed_gate():
            futures = [writer.submit(row(number)) for number in range(4)]
            futures[0].add_done_callback(fail)
        assert [future.result(SECONDS).rows for future in futures] == [1] * 4
        assert writer.upsert(row(4)).rows == 1


def test_a_callback_may_submit_rows(target):
    with Writer(target, pipeline_depth=2) as writer:
        chained: Future[Any] = Future()
        writer.submit(row(1)).add_done_callback(lambda _: chained.set_result(writer.submit(row(2))))
        assert chained.result(SECONDS).result(SECONDS).rows == 1


@pytest.mark.parametrize("depth", [1, 4])
def test_close_waits_for_all_rows_and_a_second_close_does_nothing(target, store, depth):
    writer = Writer(target, pipeline_depth=depth)
    with store.closed_gate():
        futures = [writer.submit(row(number)) for number in range(5)]
        closing = threading.Thread(target=writer.close)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        assert not wait(futures, 0).done
    closing.join(SECONDS)
    assert not closing.is_alive()
    assert all(future.done() for future in futures)
    within(writer.close)
    assert region_of(target).head().owner == OWNER


def test_rows_that_waited_behind_an_entry_do_not_wait_for_a_group_commit_again(target, store):
    two = {"id": [1, 2], "text": ["a", "b"]}
    limit = upserts(two, schema=SCHEMA).nbytes
    settings = replace(target.settings, group_commit_milliseconds=60_000, group_commit_bytes=limit)
    with Writer(replace(target, settings=settings)) as writer, store.closed_gate():
        full = writer.submit(two)
        assert store.arrived.acquire(timeout=SECONDS)
        alone = writer.submit(row(3))
        target.context.clock.advance(60)
        store.gate.set()
        assert full.result(SECONDS).rows + alone.result(SECONDS).rows == 3


def test_a_closed_writer_refuses_rows(target):
    writer = Writer(target, pipeline_depth=2)
    writer.close()
    with pytest.raises(Invalid, match="closed"):
        writer.submit(row(1))
    with pipeline_of(target) as pipeline:
        pipeline.close()
        with pytest.raises(Invalid, match="closed"):
            pipeline.submit(entry(1))


def test_a_submit_that_waits_for_a_free_slot_is_refused_when_the_pipeline_closes(target, store):
    with pipeline_of(target, depth=2) as pipeline:
        pipeline.submit(entry(0)).result(SECONDS)
        with store.closed_gate():
            futures = [pipeline.submit(entry(number)) for number in (1, 2)]
            refused: Future[Any] = Future()

            def submit() -> None:
                try:
                    refused.set_result(pipeline.submit(entry(3)))
                except Invalid as error:
                    refused.set_exception(error)

            threading.Thread(target=submit).start()
            closing = threading.Thread(target=pipeline.close)
            closing.start()
            assert isinstance(refused.exception(SECONDS), Invalid)
        closing.join(SECONDS)
        assert [future.result(SECONDS).rows for future in futures] == [1, 1]


def test_an_interrupted_wait_leaves_the_writer_usable(target, store):
    class Interrupted(Submission):
        def result(self, timeout=None):
            raise KeyboardInterrupt

    writer = Writer(target, pipeline_depth=2)
    with writer, pytest.MonkeyPatch.context() as patch:
        patch.setattr("lancelsm.wal.writer.Submission", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.upsert(row(1))
    assert in_log(target) == [1]
    assert region_of(target).head().owner == OWNER


def test_an_interrupted_close_is_finished_by_the_next_close(target, store):
    writer = Writer(target, pipeline_depth=2)
    with store.closed_gate():
        future = writer.submit(row(1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer._pool, "finish", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                writer.close()
        with pytest.raises(Invalid, match="closed"):
            writer.submit(row(2))
    within(writer.close)
    assert future.done()
    assert region_of(target).head().owner == OWNER


def test_a_failure_of_the_store_reaches_every_caller_and_the_next_write_succeeds(target, store):
    with failing(Unavailable, Writer(target, pipeline_depth=4)) as writer:
        assert writer.upsert(row(0)).rows == 1
        store.broken = True
        futures = [writer.submit(row(number)) for number in range(1, 9)]
        errors = [future.exception(SECONDS) for future in futures]
        assert {type(error) for error in errors} <= {Unavailable, Contended}
        store.broken = False
        assert writer.upsert(row(9)).rows == 1
    assert in_log(target) == [0, 9]


def test_a_region_of_another_owner_is_not_claimed(target):
    with Writer(target, pipeline_depth=2) as first:
        first.upsert(row(1))
        with pytest.raises(Fenced, match="lancelsm region claim"):
            Writer(target, pipeline_depth=2).upsert(row(2))
        with pytest.raises(Fenced, match="lancelsm region claim"):
            Writer(target, exclusive=True).upsert(row(3))
        assert first.upsert(row(4)).rows == 1
    assert in_log(target) == [1, 4]


def test_an_entry_whose_position_another_writer_took_fails_as_contended(target):
    with pipeline_of(target) as pipeline:
        first = pipeline.submit(entry(1)).result(SECONDS)
        append(region_of(target), entry(2), owner="alone")
        error = pipeline.submit(entry(3)).exception(SECONDS)
        pipeline.submit(entry(4)).result(SECONDS)

    assert isinstance(error, Contended)
    assert error.where["position"] == first.position + 1
    assert in_log(target) == [1, 2, 4]


@pytest.mark.parametrize("depth", [1, 2])
def test_an_entry_records_when_its_writer_got_the_rows(target, depth):
    target.context.clock.advance(5)
    with Writer(target, pipeline_depth=depth) as writer:
        (committed,) = writer.upsert(row(1)).entries

    key = wal_entry(committed.region, committed.position)
    found = decode(target.context.objects.get(key).body, position=committed.position, key=key)
    assert found.at == target.context.clock.now()


def test_a_writer_that_lost_its_region_never_claims_it_again(target):
    with failing(Fenced, Writer(target, pipeline_depth=2)) as writer:
        writer.upsert(row(1))
        claim(region_of(target), owner=OWNER)
        for number in (2, 3):
            with pytest.raises(Fenced):
                writer.upsert(row(number))
        append(region_of(target), entry(4), owner=OWNER)
    assert in_log(target) == [1, 4]


@pytest.mark.parametrize("depth", [1, 3])
def test_exclusive_writers_release_every_region_even_if_one_is_sealed(store, depth):
    target = _target(store, "bucket(id, 4)")
    writer = Writer(target, pipeline_depth=depth, exclusive=True)
    futures = [writer.submit(row(number)) for number in range(40)]
    assert sum(future.result(SECONDS).rows for future in futures) == 40
    holders = {region.head().owner for region in regions(target.context)}
    assert len(holders) == 1
    assert holders != {OWNER}
    seal(regions(target.context)[0])
    within(writer.close)
    assert {region.head().owner for region in regions(target.context)[1:]} == {OWNER}


def test_a_region_that_could_not_be_released_is_released_by_closing_again(target):
    writer = Writer(target, pipeline_depth=2)
    writer.upsert(row(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lancelsm.wal.region_writer.claim_held", _unavailable)
        with pytest.raises(Unavailable):
            writer.close()
    assert region_of(target).head().owner != OWNER
    writer.close()
    assert region_of(target).head().owner == OWNER


def _unavailable(*_: Any, **__: Any) -> None:
    raise Unavailable("no answer", remedy="Retry")


@pytest.mark.parametrize("depth", [1, 8])
def test_each_row_of_many_concurrent_threads_is_in_the_log_once(store, depth):
    target = _target(store, "bucket(id, 3)")
    with Writer(target, pipeline_depth=depth) as writer:

        def write_some(start: int) -> None:
            for future in [writer.submit(row(number)) for number in range(start, start + 50)]:
                assert future.result(SECONDS).rows == 1

        threads = [threading.Thread(target=write_some, args=(start,)) for start in range(0, 400, 50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    assert sorted(in_log(target)) == list(range(400))


def test_submitting_no_rows_succeeds_at_once_without_an_entry(target):
    with Writer(target, pipeline_depth=2) as writer:
        assert writer.submit([]).result(SECONDS).entries == ()
    assert regions(target.context) == []


def test_a_region_that_cannot_be_created_fails_only_its_own_rows(target, store, monkeypatch):
    real = target.directory.find
    monkeypatch.setattr(target.directory, "find", lambda values: _unavailable())
    with failing(Unavailable, Writer(target)) as writer:
        assert isinstance(writer.submit(row(1)).exception(SECONDS), Unavailable)
        monkeypatch.setattr(target.directory, "find", real)
        assert writer.upsert(row(2)).rows == 1


def test_a_full_buffer_refuses_rows_until_acknowledgements_empty_it(target, store):
    size = upserts(row(1), schema=SCHEMA).nbytes
    small = replace(target, settings=replace(target.settings, buffer_bytes=2 * size))
    with Writer(small) as writer:
        with store.closed_gate():
            held = [writer.submit(row(number)) for number in (1, 2)]
            with pytest.raises(Unavailable, match="not acknowledged"):
                writer.submit(row(3))
        assert all(future.result(SECONDS).rows == 1 for future in held)
        assert writer.upsert(row(100)).rows == 1
