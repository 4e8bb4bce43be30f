"""Writes of Spark tasks, without Spark: regions, chunks, and attempts that write each row once."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

import lancelsm
from lancelsm.errors import Contended, Invalid, Unavailable
from lancelsm.region.handle import open_configured
from lancelsm.spark import merge, write, write_stream
from lancelsm.spark.executor_errors import error_of
from lancelsm.spark.write_rows import (
    REGION,
    WriteJob,
    chunks,
    job_slot,
    rows_per_entry,
    spec_number_of,
    with_regions,
    write_sorted,
)
from lancelsm.table import Table
from tests.unit.tables import by_key

SIZE = 3


def job_of(table: Table, **changes: Any) -> WriteJob:
    job = WriteJob(uri=table.uri, op="upsert", producer="spark:job", batch=0, alone=False, rows_per_entry=SIZE)
    return replace(job, **changes)


def table_in(path: Path, **options: Any) -> Table:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.uint64())])
    return lancelsm.create(path / "table", columns, primary_key="id", regions="bucket(id, 2)", **options)


def task(job: WriteJob, ids: Any, v: int = 1, **more: Any) -> list[pa.RecordBatch]:
    """The rows of all regions as one task gets them, sorted. Spark has no uint64, but decimals."""
    columns = {"id": list(ids), "v": pa.array([v] * len(ids), pa.decimal128(20, 0)), **more}
    batches = pa.table(columns).to_batches(max_chunksize=4)
    rows = pa.Table.from_batches(with_regions([batches[0].slice(0, 0), *batches], job))  # one batch without rows
    return rows.sort_by([(REGION, "ascending"), ("id", "ascending")]).to_batches(max_chunksize=4)


def run(job: WriteJob, batches: Any) -> dict[str, Any]:
    (result,) = write_sorted(batches, job)
    return dict(result.to_pylist()[0])


def logged(table: Table) -> list[int]:
    """The keys in the log, as often as they are there."""
    return sorted(key for change in table.changes(start="earliest") for key in change.rows["id"].to_pylist())


@given(runs=st.lists(st.integers(1, 9), min_size=1, max_size=4), cut=st.integers(1, 5), size=st.integers(1, 4))
def test_chunks_depend_on_the_rows_of_their_region_alone(runs: list[int], cut: int, size: int) -> None:
    regions = [str(number) for number, rows in enumerate(runs) for _ in range(rows)]
    rows = pa.table({"n": list(range(len(regions))), REGION: regions})

    found = [
        (region, number, part["n"].to_pylist()) for region, number, part in chunks(rows.to_batches(cut), size=size)
    ]

    expected, start = [], 0
    for region, count in enumerate(runs):
        numbers = list(range(start, start + count))
        expected += [(str(region), at // size, numbers[at : at + size]) for at in range(0, count, size)]
        start += count
    assert found == expected


def test_attempts_at_the_same_time_and_repeated_runs_write_each_row_once(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    job = job_of(table)
    rows = task(job, range(20))
    second: list[dict[str, Any]] = []

    def interrupted() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(rows):
            if number == 2:
                second.append(run(job, rows))  # a speculative attempt overtakes this one
            yield batch

    first = run(job, interrupted())
    again = run(job, rows)

    assert (
        first == again == second[0] == {"rows": 20, "entries": first["entries"], "late": 0, "skipped": 0, "error": None}
    )
    assert logged(table) == list(range(20))
    run(replace(job, batch=1), task(job, range(20), v=2))
    run(job, rows)  # an old attempt comes late
    assert set(by_key(table.scan().to_arrow()).values()) == {2}


def test_a_task_that_failed_continues_after_its_last_entry(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    job = job_of(table)
    rows = task(job, range(20))

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows[:3]
        raise Unavailable("the store did not answer")

    with pytest.raises(Unavailable):
        run(job, failing())
    assert 0 < len(logged(table)) < 20

    assert run(job, rows)["error"] is None
    assert logged(table) == list(range(20))


def test_a_delete_needs_the_key_alone(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    job = job_of(table)
    run(job, task(job, range(6)))

    run(replace(job, op="delete", batch=1), [one.drop_columns(["v"]) for one in task(job, range(1, 6))])

    assert by_key(table.scan().to_arrow()) == {0: 1}


def test_events_are_applied_once_and_by_their_sequence(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    table.apply_changes([{"id": 1, "v": 5}, {"id": 2, "v": 5}], sequence_by="v")
    job = job_of(table, op="apply")
    ops = ["delete", "upsert", "upsert"]

    events = task(job, [1, 2, 3], v=7, _op=ops)
    first, again = run(job, events), run(job, events)
    late = run(replace(job, batch=1), task(job, [1, 3], v=6, _op=["upsert", "upsert"]))

    assert (first["error"], again["error"], late["error"]) == (None, None, None)
    assert (first["late"], again["late"], late["late"]) == (0, 0, 2)
    assert by_key(table.scan().to_arrow()) == {2: 7, 3: 7}
    assert logged(table) == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("op", ["upsert", "apply"])
def test_rows_of_an_older_run_are_skipped_and_counted(tmp_path: Path, op: str) -> None:
    table = table_in(tmp_path)
    if op == "apply":
        table.apply_changes([], sequence_by="v")
    jobs = {batch: job_of(table, op=op, batch=batch) for batch in (1, 2)}
    runs = [run(jobs[batch], task(jobs[batch], [1, 2, 3], v=7 + batch)) for batch in (2, 2, 1)]
    assert [(one["rows"], one["skipped"], one["error"]) for one in runs] == [(3, 0, None), (3, 0, None), (3, 3, None)]
    assert by_key(table.scan().to_arrow()) == dict.fromkeys([1, 2, 3], 9)


def test_a_table_with_an_order_takes_only_events(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    table.apply_changes([{"id": 1, "v": 5}], sequence_by="v")
    error = pickle.loads(run(job_of(table), task(job_of(table), [1], v=4))["error"])
    assert "takes no plain writes" in str(error)


def test_an_error_that_no_attempt_avoids_is_a_result(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    job = job_of(table)
    rows = [one.set_column(1, "v", pa.array([-1] * one.num_rows, pa.int64())) for one in task(job, [1])]

    error = pickle.loads(run(job, rows)["error"])

    assert isinstance(error, Invalid)
    assert error.where == {"table": table.uri, "field": "v"}


@pytest.mark.rest
def test_jobs_without_a_name_share_few_producers(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    handle = open_configured(table.uri)
    for _ in range(17):  # a head remembers 16 producers
        with job_slot(handle.context) as (producer, batch):
            job = job_of(table, producer=producer, batch=batch, alone=True)
            assert run(job, task(job, range(4)))["error"] is None
    assert logged(table) == sorted([*range(4)] * 17)

    late = replace(job, batch=job.batch - 1)
    error = pickle.loads(run(late, task(late, [9]))["error"])
    assert "a later job took the place" in str(error)
    assert 9 not in logged(table)

    with job_slot(handle.context), job_slot(handle.context), job_slot(handle.context), job_slot(handle.context):
        fifth = job_slot(handle.context)
        with pytest.raises(Contended, match="give txn_app"):
            fifth.__enter__()


def test_entries_of_long_vectors_have_fewer_rows(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("vec", pa.list_(pa.float32(), 1536))])
    wide = lancelsm.create(tmp_path / "wide", columns, primary_key="id")

    assert rows_per_entry(table_in(tmp_path).config.schema) == 100_000
    assert rows_per_entry(wide.config.schema) == 10_908


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ModuleNotFoundError: No module named 'lancelsm'", "no module lancelsm"),
        ("[PACKAGE_NOT_INSTALLED] Pandas >= 2.0.0 must be installed", "no package pandas"),
        ("ModuleNotFoundError: No module named 'pandas'", "no package pandas"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10", "PYSPARK_PYTHON"),
        ("lancelsm.errors.Contended: 16 producers append. Nothing was written", "16 producers append"),
        ("\n org.apache.spark.SparkException: killed\n", "SparkException: killed"),
    ],
)
def test_a_failed_job_says_what_to_do(text: str, found: str) -> None:
    assert found in str(error_of(text, table="orders"))


def test_a_merge_on_executors_without_the_package_says_so(tmp_path: Path) -> None:
    class Context:
        defaultParallelism = 1

        def parallelize(self, *_: Any) -> Any:
            raise Py4JError("ModuleNotFoundError: No module named 'lancelsm'")

    table = table_in(tmp_path)
    table.upsert([{"id": 1, "v": 1}])
    table.flush()

    with pytest.raises(Invalid, match="the Python of the executors has no module lancelsm"):
        merge(SimpleNamespace(sparkContext=Context()), table.uri)  # type: ignore[arg-type]


@pytest.mark.parametrize(("is_stream", "call"), [(True, write), (False, write_stream)])
def test_a_frame_of_the_other_kind_is_refused_with_the_right_call(is_stream: bool, call: Any, tmp_path: Path) -> None:
    right = "write" if call is write_stream else "write_stream"
    with pytest.raises(Invalid, match=rf"Call lancelsm.spark.{right}$"):
        call(SimpleNamespace(isStreaming=is_stream), str(tmp_path))


def test_a_run_that_a_reshard_interrupted_writes_each_row_once(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    job = job_of(table)
    batches = task(job, range(20))
    run(job, pa.Table.from_batches(batches).slice(0, 2 * SIZE).to_batches())  # of one region

    table.reshard("bucket(id, 3)")

    run(job, batches)  # the task goes on, and placed its rows before
    assert logged(table) == list(range(20))
    for batch, number, times in ((0, 1, 1), (1, 2, 2)):  # the same run again, then the next one
        again = job_of(table, batch=batch)
        again = replace(again, number=spec_number_of(again, open_configured(table.uri)))
        assert again.number == number
        run(again, task(again, range(20)))
        assert logged(table) == sorted(list(range(20)) * times)
