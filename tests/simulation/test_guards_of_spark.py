"""Each guard of writes from Spark is needed: without it, its scenario fails."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa

import lancelsm
from lancelsm.spark.stream_read import ChangeSource, StreamRequest
from lancelsm.spark.write_rows import REGION, WriteJob, write_sorted
from tests.simulation.marks import without
from tests.simulation.removal import with_and_without


def written(path: Path, *runs: tuple[int, int]) -> tuple[list[int], list[bytes | None]]:
    """Write a row by jobs with these batches and values; return the values in the log, and the errors."""
    table = lancelsm.create(path / "table", pa.schema([("id", pa.int64()), ("v", pa.int64())]), primary_key="id")
    errors = []
    for batch, v in runs:
        job = WriteJob(uri=table.uri, op="upsert", producer="job", batch=batch, alone=True, rows_per_entry=10)
        rows = pa.table({"id": [1], "v": [v], REGION: ["r"]})
        errors += [one["error"][0].as_py() for one in write_sorted(rows.to_batches(), job)]
    return [v for change in table.changes(start="earliest") for v in change.rows["v"].to_pylist()], errors


def repeated_task(path: Path) -> None:
    """Spark runs a task again that has appended its rows."""
    assert written(path, (0, 1), (0, 1)) == ([1], [None, None])


def job_whose_place_was_taken(path: Path) -> None:
    """A job without a name stands still until another one has its producer."""
    values, (_, error) = written(path, (5, 1), (4, 2))
    assert values == [1]
    assert error is not None
    assert "a later job took the place" in str(pickle.loads(error))


def batch_that_is_behind_the_cursor(path: Path) -> None:
    """A query with an older checkpoint commits a batch that is before the cursor."""
    table = lancelsm.create(path / "table", pa.schema([("id", pa.int64())]), primary_key="id")
    source = ChangeSource(StreamRequest(uri=table.uri, cursor="c"))
    start = source.initial_offset()
    table.upsert([{"id": 1}])
    source.commit(source.latest_offset())
    source.commit(start)
    assert source.initial_offset() == source.latest_offset()


test_scenarios_pass, test_scenarios_fail_without_their_guard = with_and_without(
    {
        "chunk of a job is appended once": ([without("chunk of a job is appended once")], repeated_task),
        "job is the only one of its producer": (
            [without("job is the only one of its producer")],
            job_whose_place_was_taken,
        ),
        "cursor of a stream moves forward alone": (
            [without("cursor of a stream moves forward alone")],
            batch_that_is_behind_the_cursor,
        ),
    },
    own=(repeated_task, job_whose_place_was_taken, batch_that_is_behind_the_cursor),
)
