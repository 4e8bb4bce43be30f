"""Reads for Spark, without Spark: the conversion of values, and parts that together are one view."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
import zipimport
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lancelsm
from lancelsm.common.layout import RegionId
from lancelsm.common.zip_importers import forget_zip_importers
from lancelsm.dataset.base_manifest import Fragment
from lancelsm.errors import Invalid, Unavailable
from lancelsm.spark import batch_read
from lancelsm.spark.arrow_types import spark_batch, spark_schema
from lancelsm.spark.batch_read import ReadRequest, declared_schema, grouped, grouped_regions, parts, read_part
from lancelsm.table import Table
from tests.simulation.faults import FakeClock
from tests.unit.tables import NEWEST, by_key, three_levels
from tests.unit.ttl_scenarios import HOUR, expiring, row, upsert

INTEGERS = st.integers(0, 200)
KINDS: list[tuple[pa.DataType, pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.uint32(), pa.int64(), st.integers(0, 2**32 - 1)),
    (pa.uint8(), pa.int16(), INTEGERS),
    (pa.large_string(), pa.string(), st.text()),
    (pa.binary(2), pa.binary(), st.binary(min_size=2, max_size=2)),
    (pa.dictionary(pa.int32(), pa.string()), pa.string(), st.sampled_from("abc")),
    (pa.decimal128(9, 2), pa.decimal128(9, 2), st.decimals(0, 999, places=2)),
    (pa.decimal256(9, 2), pa.decimal128(9, 2), st.decimals(0, 999, places=2)),
    (pa.timestamp("ms"), pa.timestamp("us"), st.datetimes().map(lambda t: t.replace(microsecond=0))),
]
WRAPPERS = {
    "plain": (lambda kind: kind, lambda kind: kind, lambda values: values),
    "fixed": (
        lambda k: pa.list_(k, 2),
        lambda k: pa.list_(pa.field("element", k)),
        lambda v: st.lists(v, min_size=2, max_size=2),
    ),
    "large": (pa.large_list, lambda k: pa.list_(pa.field("element", k)), lambda v: st.lists(v, max_size=3)),
    "struct": (
        lambda k: pa.struct([pa.field("x", k)]),
        lambda k: pa.struct([pa.field("x", k)]),
        lambda v: st.fixed_dictionaries({"x": st.none() | v}),
    ),
    "map": (
        lambda k: pa.map_(pa.large_string(), k),
        lambda k: pa.map_(pa.string(), pa.field("value", k)),
        lambda v: st.lists(st.tuples(st.text(), v), max_size=2),
    ),
}


@given(data=st.data(), wrapper=st.sampled_from(sorted(WRAPPERS)), kind=st.sampled_from(KINDS))
def test_values_keep_under_the_types_of_spark(data: st.DataObject, wrapper: str, kind: Any) -> None:
    stored, ours, values = kind
    wrap, unwrap, strategy = WRAPPERS[wrapper]
    found = data.draw(st.lists(st.none() | strategy(values), min_size=1, max_size=6))
    start = data.draw(st.integers(0, len(found)))
    batch = pa.record_batch([pa.array(found, wrap(stored))], names=["a"]).slice(start)

    schema = spark_schema(batch.schema)
    converted = spark_batch(batch, schema)

    assert schema.field("a").type == unwrap(ours)
    converted.validate(full=True)
    assert converted.schema.equals(schema)
    assert converted.column("a").to_pylist() == found[start:]


def test_a_required_field_stays_required_at_every_depth() -> None:
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    column = pa.field("a", pa.list_(pa.field("item", inner, nullable=False)), nullable=False)

    (found,) = spark_schema(pa.schema([column]))

    assert (found.nullable, found.type.value_field.nullable, found.type.value_type.field(0).nullable) == (False,) * 3


@pytest.mark.parametrize("kind", [pa.time64("us"), pa.decimal256(50, 2), pa.list_(pa.time32("s"))])
def test_a_type_that_spark_lacks_is_refused_by_column(kind: pa.DataType) -> None:
    with pytest.raises(Invalid, match="Leave the column out") as caught:
        spark_schema(pa.schema([pa.field("a", kind)]))

    assert caught.value.where["field"] == "a"


def test_a_time_with_nanoseconds_is_refused_not_cut() -> None:
    batch = pa.record_batch([pa.array([1], pa.timestamp("ns"))], names=["a"])

    with pytest.raises(Invalid, match="can't be converted"):
        spark_batch(batch, spark_schema(batch.schema))


def test_groups_of_fragments_have_each_row_once() -> None:
    fragments = [Fragment(id=n, physical_rows=4, deleted_rows=0) for n in range(5)]
    large = [Fragment(id=7, physical_rows=30, deleted_rows=4), *fragments]

    assert grouped(fragments, rows=8) == [((0, 1), None), ((2, 3), None), ((4,), None)]
    assert grouped([], rows=8) == []
    assert grouped(large, rows=9)[:4] == [((7,), (0, 8)), ((7,), (8, 9)), ((7,), (17, 9)), ((0, 1, 2), None)]
    assert grouped(large, rows=9, cut=False)[0] == ((7,), None)


def test_regions_with_few_entries_share_a_task() -> None:
    levels = {"a": (3, 0), "b": (0, 0), "c": (1, 3), "d": (0, 1), "e": (99, 0), "f": (1, 0)}

    groups = grouped_regions({RegionId(name): found for name, found in levels.items()})

    assert groups == [("a", "c"), ("d",), ("e",), ("f",)]


def test_workers_read_no_directory_of_a_zip_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shipped.zip"
    with zipfile.ZipFile(path, "w") as shipped:
        shipped.writestr("shipped_first.py", "")
        shipped.writestr("shipped_second.py", "")
    monkeypatch.syspath_prepend(str(path))
    importlib.import_module("shipped_first")

    forget_zip_importers()

    assert not [one for one in sys.path_importer_cache.values() if isinstance(one, zipimport.zipimporter)]
    importlib.import_module("shipped_second")


@pytest.mark.parametrize(("where", "ttl", "tasks"), [(None, None, 5), ("v < 9", None, 2), (None, "1d on at", 2)])
def test_tasks_of_one_fragment_have_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str | None, ttl: str | None, tasks: int
) -> None:
    monkeypatch.setattr(batch_read, "grouped", partial(grouped, rows=6))
    old, new = map(datetime.fromisoformat, ("2000-01-01", "2100-01-01"))
    rows = [{"id": n, "v": n, "at": old if n == 20 else new} for n in range(30)]
    table = lancelsm.create(tmp_path / "table", rows, primary_key="id", regions="bucket(id, 2)")
    table.upsert([{**rows[7], "v": 1}])
    table.delete([3, 4])
    table.flush()
    table.merge()
    table.upsert([{**rows[8], "v": 2}])
    table.set_ttl(ttl)
    request = ReadRequest(uri=table.uri, columns=("id", "v"), where=where)

    found = by_key(read(request))

    assert len([part for part in parts(request) if part.fragments is not None]) == tasks
    assert found == by_key(table.scan(columns=["id", "v"], where=where).to_arrow())
    assert read(request).num_rows == len(found) == {None: 28, "v < 9": 7}[where] - (ttl is not None)


def read(request: ReadRequest) -> pa.Table:
    schema = declared_schema(request)
    found = [batch for part in parts(request) for batch in read_part(request, part, schema)]
    return pa.Table.from_batches(found, schema)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return three_levels(tmp_path / "table")


def test_the_parts_have_each_row_of_the_view_once(table: Table) -> None:
    rows = read(ReadRequest(uri=table.uri))

    assert by_key(rows) == NEWEST
    assert rows.num_rows == len(NEWEST)


def test_all_parts_read_the_view_of_the_plan(table: Table) -> None:
    request = ReadRequest(uri=table.uri)
    schema, planned = declared_schema(request), parts(request)
    table.upsert([{"id": n, "v": 9} for n in range(20)])
    table.flush()
    table.merge()
    table.collect(yes=True, interval_seconds=0)

    found = [batch for part in planned for batch in read_part(request, part, schema)]

    assert by_key(pa.Table.from_batches(found, schema)) == NEWEST


def test_columns_condition_and_snapshot_are_read(table: Table) -> None:
    table.snapshot("before")
    table.upsert([{"id": 0, "v": 7}])

    rows = read(ReadRequest(uri=table.uri, columns=("v", "id"), where="v > 1", at="before"))

    assert rows.to_pylist() == [{"v": 2, "id": 0}]


def test_many_queries_use_few_names_and_read_without_one(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_read, "SNAPSHOT_NAMES", 3)

    points = [parts(ReadRequest(uri=table.uri))[0].point for _ in range(5)]

    assert [one.snapshot is not None for one in points] == [True] * 3 + [False] * 2
    assert len(table.snapshots()) == 3
    assert by_key(read(ReadRequest(uri=table.uri))) == NEWEST


def test_a_reader_that_may_drop_nothing_takes_another_name(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise Unavailable("denied")

    monkeypatch.setattr(batch_read, "drop_snapshot", refused)
    request = ReadRequest(uri=table.uri, ttl_seconds=1e-6)

    points = [parts(request)[0].point for _ in range(5)]

    assert [one.snapshot and one.snapshot.name for one in points] == [f"spark-{n}" for n in range(5)]


def test_an_old_read_without_a_snapshot_is_refused(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_read, "SNAPSHOT_NAMES", 0)
    request = ReadRequest(uri=table.uri)
    schema, planned = declared_schema(request), parts(request)
    monkeypatch.setattr("lancelsm.common.clock.SystemClock.now", lambda _: planned[0].point.taken + 4_000)

    with pytest.raises(Invalid, match="without a snapshot"):
        list(read_part(request, planned[0], schema))


def test_spark_finds_a_module_that_imports_nothing_slow() -> None:
    script = (
        "import sys; sys.modules['pyspark'] = None; import pyspark_lancelsm; "
        "assert pyspark_lancelsm.DefaultSource.name() == 'lancelsm'; "
        "assert not {'lancelsm', 'pyarrow', 'lance'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_all_tasks_leave_out_what_had_expired_when_the_query_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    table = expiring(tmp_path / "t", clock)
    upsert(table, [row(clock, 1, -2), row(clock, 2, 0), row(clock, 3, 0)])
    table.flush()
    table.merge(engine="inprocess")
    upsert(table, [row(clock, 3, -2), row(clock, 4, 0), row(clock, 5, -2)])
    monkeypatch.setattr(batch_read, "open_table", lambda _: table._handle)
    request = ReadRequest(uri=table.uri, columns=("id",), ttl_seconds=86_400.0)
    schema = declared_schema(request)

    made = parts(request)
    clock.advance(2 * HOUR)
    found = [key for part in made for batch in read_part(request, part, schema) for key in batch["id"].to_pylist()]

    assert sorted(found) == [2, 4]
    assert table.count() == 0
