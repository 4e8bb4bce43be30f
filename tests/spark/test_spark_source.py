"""The data source on real Spark: rows, schema and options, found without registration."""

from __future__ import annotations

import math
import os
import runpy
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.compaction.spark import Spark
from lancelsm.errors import Invalid
from lancelsm.spark import WrittenRows, merge, read, write
from tests.notebooks import run_cells
from tests.unit.tables import NEWEST, by_key, three_levels

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.rest]
MAP = pa.map_(pa.string(), pa.int64())
needs_data_sources = pytest.mark.skipif(version("pyspark") < "4", reason="Spark 3.5 has no data sources in Python")
needs_filters = pytest.mark.skipif(
    tuple(map(int, version("pyspark").split(".")[:2])) < (4, 1), reason="Spark before 4.1 pushes no filters"
)
SHARED = str(Path(lancelsm.__file__).parents[1])


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """The Spark session of this process, whose workers import the lancelsm of this process."""
    from pyspark.sql import SparkSession

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([SHARED, *filter(None, [before])])
    spark = Spark.local()
    found = SparkSession.getActiveSession()
    assert found is not None
    yield found
    spark._context.stop()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@needs_data_sources
def test_a_query_reads_each_level_once(tmp_path: Path, session: SparkSession) -> None:
    table = three_levels(tmp_path / "table")

    frame = session.read.format("lancelsm").load(table.uri)

    assert {row.id: row.v for row in frame.collect()} == NEWEST
    assert frame.count() == len(NEWEST)
    chosen = session.read.format("lancelsm").options(columns="v", where="id = 0").load(table.uri)
    assert [row.asDict() for row in chosen.collect()] == [{"v": 2}]


def test_a_frame_reads_the_view_of_its_call_on_spark_3_5_too(tmp_path: Path, session: SparkSession) -> None:
    table = three_levels(tmp_path / "table")

    frame = read(session, table.uri, columns=["v", "id"], where="v > 0")
    table.upsert([{"id": 0, "v": 9}])

    assert sorted(map(tuple, frame.collect())) == sorted((v, key) for key, v in NEWEST.items())
    assert frame.rdd.getNumPartitions() == 2  # the base, and what is above it
    assert read(session, table.uri, where="v = 9").count() == 1


@needs_data_sources
def test_values_of_types_that_spark_lacks_arrive(tmp_path: Path, session: SparkSession) -> None:
    kinds = {
        "id": pa.int64(),
        "u": pa.uint32(),
        "vec": pa.list_(pa.float32(), 2),
        "text": pa.large_string(),
        "at": pa.timestamp("ms"),
        "price": pa.decimal128(9, 2),
        "inner": pa.struct([pa.field("x", pa.uint32())]),
    }
    values = {"id": 1, "u": 2**32 - 1, "vec": [0.5, 1.5], "text": "é", "at": None, "price": None, "inner": {"x": 7}}
    fields = [pa.field(name, kind, nullable=name != "id") for name, kind in kinds.items()]
    table = lancelsm.create(tmp_path / "table", pa.schema(fields), primary_key="id")
    table.upsert([values])

    (row,) = session.read.format("lancelsm").load(table.uri).collect()

    assert row.asDict(recursive=True) == values


@needs_filters
@pytest.mark.long
def test_filters_of_a_query_reach_the_scan(tmp_path: Path, session: SparkSession) -> None:
    columns = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("u", pa.uint64()),
            ("f", pa.float64()),
            ("s", pa.string()),
            ("b", pa.binary()),
            ("p", pa.decimal128(9, 2)),
            ("d", pa.date32()),
            ("n", pa.timestamp("ms")),
            ("t", pa.timestamp("us", "UTC")),
        ]
    )
    table = lancelsm.create(tmp_path / "table", columns, primary_key="id")
    noon = datetime.fromisoformat("2024-01-02T12:00:00.005")
    row = {"id": 1, "u": 2**64 - 1, "f": math.nan, "s": "o'r", "b": b"\0\xff", "p": Decimal("1.50"), "d": noon.date()}
    table.upsert([{**row, "n": noon, "t": noon.replace(tzinfo=UTC)}])
    table.upsert([dict.fromkeys(columns.names) | {"id": 2}])
    taken = [
        "id > 0",
        "id in (1, 7)",
        "u = 18446744073709551615",
        "f > 1e300",
        "s = 'o\\'r'",
        "s like 'o%'",
        "not s like '%x'",
        "b = x'00ff'",
        "p >= 1.5",
        "d = date '2024-01-02'",
        "n = timestamp_ntz '2024-01-02 12:00:00.005'",
        "t = timestamp '2024-01-02 12:00:00.005Z'",
        "s is not null",
    ]
    left = ["length(s) = 3", "id < 2 or length(s) = 0"]
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for one in (*taken, *left):
            frame = session.read.format("lancelsm").load(table.uri).where(one)
            plan = str(frame._jdf.queryExecution().executedPlan())  # type: ignore[operator]
            assert ("Filter" in plan.replace("RuntimeFilters", "")) == (one in left), (one, plan)
            assert {row.id for row in frame.collect()} == ({1, 2} if one == "id > 0" else {1}), one
    finally:
        session.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert session.read.format("lancelsm").load(table.uri).where("id = 2").count() == 1


def test_a_job_that_is_repeated_writes_each_row_once(tmp_path: Path, session: SparkSession) -> None:
    columns = pa.schema(
        [pa.field("a b", pa.int64(), nullable=False), pa.field("at", pa.timestamp("ms")), pa.field("m", MAP)]
    )
    table = lancelsm.create(tmp_path / "table", columns, primary_key="a b", regions="bucket(a b, 3)")
    frame = session.range(5_000).selectExpr(
        "timestamp_ntz '2024-01-01 00:00:00' as at", "id % 4000 as `a b`", "map('x', id) as m"
    )

    first = write(frame, table.uri, txn_app="nightly", txn_version=0)
    again = write(frame, table.uri, txn_app="nightly", txn_version=0)
    removed = write(frame.where("`a b` >= 10"), table.uri, op="delete")

    assert first == again == WrittenRows(rows=5_000, entries=3, late=0)
    assert sum(change.rows.num_rows for change in table.changes(start="earliest")) == 4_000 + 3_990
    assert (removed.rows, sorted(table.scan().to_arrow()["a b"].to_pylist())) == (4_980, list(range(10)))
    assert table.get([7]).to_pylist()[0]["m"] == [("x", 7)]  # the order of keys '{"m":{"x":4007}}' < '{"m":{"x":7}}'


def test_an_error_of_a_task_keeps_its_kind_and_place(tmp_path: Path, session: SparkSession) -> None:
    table = three_levels(tmp_path / "table")

    with pytest.raises(Invalid, match=r"null.*field id\]"):
        write(session.sql("select cast(null as bigint) as id, 1L as v"), table.uri)


@needs_data_sources
def test_a_plain_write_appends_the_rows_of_each_task(tmp_path: Path, session: SparkSession) -> None:
    table = three_levels(tmp_path / "table")
    rows = session.range(100, 200).selectExpr("id", "id as v")

    rows.write.format("lancelsm").mode("append").save(table.uri)
    rows.where("id >= 102").write.format("lancelsm").mode("append").option("op", "delete").save(table.uri)

    assert by_key(table.scan().to_arrow()) == {**NEWEST, 100: 100, 101: 101}
    with pytest.raises(Exception, match=r"Call lancelsm\.spark\.write"):
        rows.write.format("lancelsm").mode("append").option("txn_app", "x").save(table.uri)


@needs_data_sources
def test_the_example_reads_joins_writes_and_merges(tmp_path: Path, session: SparkSession) -> None:
    totals = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "spark_orders.py"))["totals"]
    rows = [{"id": n, "customer": n % 2, "total": n, "state": "paid" if n else "new"} for n in range(5)]
    orders = lancelsm.create(tmp_path / "orders", rows, primary_key="id")
    customers = lancelsm.create(
        tmp_path / "customers", [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}], primary_key="id"
    )
    target = lancelsm.create(tmp_path / "totals", [{"id": 9, "name": "z", "total": 0}], primary_key="id")

    assert totals(session, orders.uri, customers.uri, target.uri, 1).rows == 2
    target.flush()
    assert merge(session, target.uri).rows_upserted == 2
    found = session.read.format("lancelsm").load(target.uri).sort("id").collect()
    assert [tuple(one) for one in found] == [(0, "a", 6), (1, "b", 4), (9, "z", 0)]


@needs_data_sources
@pytest.mark.long
def test_the_notebook_shows_what_it_does(
    tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    for one in run_cells("spark"):
        assert one.text == one.cell.text


@needs_data_sources
def test_a_stream_continues_at_its_checkpoint(tmp_path: Path, session: SparkSession) -> None:
    table = three_levels(tmp_path / "table")
    options = {"changes": "true", "cursor": "copy", "entries_per_trigger": 1}
    seen: list[tuple[int, int | None, str]] = []

    def run() -> list[tuple[int, int | None, str]]:
        seen.clear()
        frame = session.readStream.format("lancelsm").options(**options).load(table.uri)
        query = frame.writeStream.foreachBatch(lambda df, _: seen.extend((r.id, r.v, r._op) for r in df.collect()))
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(240)
        return sorted(seen, key=str)

    first = run()
    table.upsert([{"id": 7, "v": 7}])
    assert run() == [(7, 7, "upsert")]
    assert run() == []
    assert first == [(0, 1, "upsert"), (0, 2, "upsert"), (1, 1, "upsert"), (2, 1, "upsert"), (3, None, "delete")]


@needs_data_sources
def test_an_overwrite_is_refused_with_the_recipe(tmp_path: Path, session: SparkSession) -> None:
    table = three_levels(tmp_path / "table")
    frame = session.createDataFrame([(1, 1)], "id long, v long")

    with pytest.raises(Exception, match=r"Delete rows with Table\.delete"):
        frame.write.format("lancelsm").mode("overwrite").save(table.uri)
