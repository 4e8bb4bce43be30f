"""A table as a source of duckdb, DataFusion and polars: the same rows as of a table in memory, and few of them read."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.read.sources.arrow_filters import pushed
from lancelsm.table import Table

DAYS = [datetime.datetime(2026, 1, day, tzinfo=datetime.UTC) for day in range(1, 9)]
NAN = float("nan")
ROWS = pa.table(
    {
        "id": range(8),
        "x": [1.0, NAN, 7.5, -0.0, None, 0.0, -3.0, 5.0],
        "f": pa.array([0.1, 0.5, None, NAN, 2.0, -0.0, 7.0, 0.25], pa.float32()),
        "i": [-(2**63), 2**63 - 1, 10**18, None, 0, 1, 2, 3],
        "u": pa.array([2**64 - 1, 2**63, 2, 3, None, 0, 7, 8], pa.uint64()),
        "s": ["a", "b'c", 'd"e', None, "z", "", "ä\\n", "a"],
        "b": [True, False, None, True, True, False, False, None],
        "d": [one.date() for one in DAYS],
        "t": pa.array(DAYS, pa.timestamp("us", "UTC")),
        "n": pa.array(["1.5", "2.5", None, "0", "-1", "7", "8", "9"]).cast(pa.decimal128(5, 2)),
    }
)
# In the dialects of both engines.
CONDITIONS = (
    "id = 2",
    "id > 2 and id <= 6",
    "2 < id",
    "id in (1, 3, 99)",
    "id not in (1, 3)",
    "not (id = 3)",
    "id in (1, 3) or x is null",
    f"id in ({', '.join(map(str, range(5, 60)))})",
    "x not in (1, 2, 3, 4, 5)",
    "i not in (1, 2, 3, 4, 5) or n = 9",  # no condition of the scan: the source itself filters the rows of DataFusion
    "x not in (1, 2, 3, 4, 5) or n = 9",
    "not (x <= 5 and n > 1)",
    "(x > 5 or f > 5 or x = 0) and n <> 7",
    "i not in (1, 2, 3, 4, 5)",
    "s not in ('a', 'b', 'c', 'd', 'e')",
    "x > 5",
    "x >= 0",
    "x < 0",
    "x = 0",
    "x > -0.0 or x = -0.0",
    "i <= -9223372036854775808 or i = 9223372036854775807",
    "u > 9223372036854775808",
    "u > -1",
    "x <> 5",
    "not (x > 5)",
    "x > 5 and s = 'd\"e'",
    "x >= 0 and s like 'a%'",
    "f > 0.25",
    "f > 0.1",
    "s = 'b''c'",
    "s in ('a', 'z') and x is not null",
    "s >= 'a' or b",
    "s = ''",
    "b",
    "not b",
    "b = false",
    "d > '2026-01-03'",
    "t >= '2026-01-03T00:00:00Z'",
    "n = 1.5",
    "x > f",
    "id + 1 > 3",
    "s like 'a%'",
)


class Recorded:
    """A table that records what is read of it."""

    def __init__(self, table: Table) -> None:
        self.schema = table.schema
        self.scans: list[dict[str, Any]] = []
        self.rows = 0
        self._table = table

    def scan(self, **arguments: Any) -> lancelsm.Rows:
        self.scans.append(arguments)
        found = self._table.scan(**arguments).to_arrow()
        self.rows += found.num_rows
        return lancelsm.Rows(found.to_reader())


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    old = ROWS.set_column(0, "id", [pa.array(range(1, 9))])
    table = lancelsm.create(tmp_path_factory.mktemp("sources") / "table", old, primary_key="id")
    table.delete([8])
    table.flush()
    table.upsert(ROWS)
    return table


@pytest.fixture
def recorded(table: Table) -> Recorded:
    return Recorded(table)


@pytest.mark.rest
def test_duckdb_finds_the_rows_of_a_table_in_memory(recorded: Recorded) -> None:
    ours, theirs = lancelsm.duckdb_relation(recorded), duckdb.from_arrow(ROWS)

    for condition in CONDITIONS:
        found, wanted = (one.filter(condition).project("id").order("id").fetchall() for one in (ours, theirs))
        assert found == wanted, condition
    assert ours.count("*").fetchall() == [(8,)]
    assert len(ours.limit(2).fetchall()) == 2


@pytest.mark.rest
def test_datafusion_finds_the_rows_of_a_table_in_memory(recorded: Recorded) -> None:
    ours, theirs = datafusion.SessionContext(), datafusion.SessionContext()
    ours.register_table("t", lancelsm.datafusion_table(recorded))
    theirs.from_arrow(ROWS, "t")

    for condition in CONDITIONS:
        query = f"select id from t where {condition} order by id"
        assert ours.sql(query).to_pydict() == theirs.sql(query).to_pydict(), condition
    assert ours.sql("select count(*) as n from t").to_pydict() == {"n": [8]}
    assert len(ours.sql("select s from t limit 2").to_pydict()["s"]) == 2


@pytest.mark.rest
def test_polars_finds_the_rows_of_a_frame_in_memory(recorded: Recorded) -> None:
    ours, theirs = lancelsm.polars_frame(recorded), pl.from_arrow(ROWS).lazy()  # type: ignore[union-attr]
    id_, x, f, s, b = (pl.col(name) for name in ("id", "x", "f", "s", "b"))
    conditions = [
        id_ == 2,
        (id_ > 2) & (id_ <= 6),
        id_.is_in([1, 3]),
        ~(id_ == 3),
        id_.is_between(2, 4) | x.is_null(),
        id_.is_between(2, 4, closed="none"),
        id_.ne_missing(3),
        pl.col("u") > -1,
        pl.col("i") >= 2**63 - 1,
        x > 5,
        (x >= 0) & (s == "a"),
        ~(x > 5) & (id_ > 1),
        f > 0.1,
        s == "b'c",
        (s >= "a") | b,
        s.is_not_null() & s.str.starts_with("a"),
        b,
        pl.col("d") > DAYS[3].date(),
        pl.col("n") == pl.lit("1.5").cast(pl.Decimal(5, 2)),
        (id_ == 2) | (id_ + 1 == 2),
    ]

    for condition in conditions:
        found, wanted = (one.filter(condition).collect().sort("id") for one in (ours, theirs))
        assert found.equals(wanted), condition
        assert ours.filter(condition).head(1).collect().height == min(wanted.height, 1), condition
    assert ours.collect().sort("id").equals(theirs.collect())
    assert ours.select(pl.len()).collect().item() == 8
    assert ours.head(3).filter(id_ >= 0).collect().height == 3


def test_engines_read_the_columns_and_rows_that_they_need(recorded: Recorded) -> None:
    context = datafusion.SessionContext()
    context.register_table("t", lancelsm.datafusion_table(recorded))
    wanted = {"columns": ["s"], "where": "(`id` >= 2) AND (`id` < 4)", "limit": None}

    context.sql("select s from t where id >= 2 and id < 4").collect()
    lancelsm.duckdb_relation(recorded).filter("id >= 2 and id < 4").project("s").fetchall()
    frame = lancelsm.polars_frame(recorded)
    frame.filter((pl.col("id") >= 2) & (pl.col("id") < 4)).select("s").collect()

    assert recorded.scans == [wanted, wanted, {**wanted, "columns": ["id", "s"]}]
    assert recorded.rows == 3 * 2
    frame.select("s").head(3).collect()
    lancelsm.arrow_dataset(recorded).head(3, columns=["s"])
    assert recorded.scans[3:] == 2 * [{"columns": ["s"], "where": None, "limit": 3}]


def test_a_dataset_applies_filters_of_pyarrow(table: Table) -> None:
    dataset = lancelsm.arrow_dataset(table)
    id_, s, x = pc.field("id"), pc.field("s"), pc.field("x")

    for condition in (
        id_ > 4,
        (id_ > 4) & (s == 'd"e'),
        ~id_.isin([1, 2]),
        x > 5,
        s.isin(["a", None]),
        pc.scalar(True),
    ):
        wanted = ROWS.filter(condition)
        found = dataset.to_table(filter=condition, columns=["id"])
        assert sorted(found.column("id").to_pylist()) == wanted.column("id").to_pylist()
        assert dataset.count_rows(filter=condition) == wanted.num_rows
        assert dataset.head(2, filter=condition).num_rows == min(2, wanted.num_rows)
    for unsupported in (dataset.take, dataset.filter, dataset.sort_by, dataset.join, dataset.replace_schema):
        with pytest.raises(Invalid):
            unsupported([0])


@pytest.mark.parametrize("field", [pc.field, pl.col])
def test_a_filter_of_any_length_and_depth_is_applied(recorded: Recorded, field: Any) -> None:
    values = range(2, 60)
    flat = reduce(or_, (field("id") == value for value in values))
    from_right = reduce(lambda one, other: other | one, (field("id") == value for value in values))
    deep = reduce(lambda one, value: (one | (field("id") == value)) & (field("id") != -value), values, field("id") == 1)

    for condition, is_pushed in ((flat, True), (from_right, True), (deep, False)):
        if field is pc.field:
            found = lancelsm.arrow_dataset(recorded).count_rows(filter=condition)
        else:
            found = lancelsm.polars_frame(recorded).filter(condition).collect().height
        assert found == sum(key in values or (key == 1 and condition is deep) for key in ROWS["id"].to_pylist())
        assert (recorded.scans[-1]["where"] is not None) == is_pushed


def test_a_column_of_a_type_that_a_peer_lacks_is_named(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "half": pa.array([None], pa.float16()), "long": pa.array([1], pa.decimal256(50, 2))})
    table = lancelsm.create(tmp_path / "t", rows, primary_key="id")
    reads: dict[str, list[Callable[[], object]]] = {
        "polars has no type for column 'long'": [table.to_polars, lambda: lancelsm.polars_frame(table)],
        "duckdb has no type for column 'half'": [table.to_duckdb, table.scan().to_duckdb],
    }
    for message, calls in reads.items():
        for call in calls:
            with pytest.raises(Invalid, match=message):
                call()
    assert table.scan(columns=["id", "half"]).to_polars().height == 1
    connection = duckdb.connect()
    connection.close()
    for given, message in ((connection, "closed"), (5, "connection is of type int")):
        rows_read = table.scan(columns=["id"])
        with pytest.raises(Invalid, match=message):
            rows_read.to_duckdb(given)
    with pytest.raises(Invalid, match="connection is of type int"):
        table.to_duckdb(5)


@pytest.mark.parametrize("source", ["arrow_dataset", "duckdb_relation", "datafusion_table", "polars_frame"])
def test_a_source_needs_an_open_table(source: str) -> None:
    with pytest.raises(Invalid, match="table is of type str"):
        getattr(lancelsm, source)("directory/of/a/table")


@pytest.mark.parametrize(
    "arguments",
    [
        {"columns": ["nope"]},
        {"columns": [0]},
        {"columns": "id"},
        {"columns": {"twice": pc.field("id") * 2}},
        {"filter": pc.field("nope") > 1},
        {"filter": pc.starts_with(pc.field("id"), "a")},
        {"filter": [True]},
    ],
)
def test_what_a_dataset_can_not_read_is_invalid(table: Table, arguments: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        lancelsm.arrow_dataset(table).to_table(**arguments)


number, text, byte, moment, odd = (pc.field(name) for name in ("x", "s", "u", "t", "a == 1) and (b"))


@pytest.mark.parametrize(
    ("condition", "where", "whole"),
    [
        (number == pa.scalar(None, pa.float64()), None, False),
        (number.is_null(nan_is_null=True), None, False),
        (text == 1, None, False),
        (text == "a\0b", None, False),
        (byte > -1, None, False),
        (byte == 256, None, False),
        (byte.isin([1, None]), None, False),
        (pc.field("f") > 0.1, None, False),
        (pc.field(("x", "y")) == 1, None, False),
        (pc.field("no") == 1, None, False),
        (pc.field("`") == 1, None, False),
        (moment > DAYS[0].replace(tzinfo=None), None, False),
        (moment > pa.scalar(1, pa.timestamp("us", "UTC")), None, False),
        (moment > pa.scalar(1_000_000, pa.timestamp("us", "UTC")), "`t` > '1970-01-01T00:00:01Z'", True),
        ((byte == 1) & (pc.field(("x", "y")) == 1), "(`u` = 1)", False),
        ((byte == 1) | (pc.field(("x", "y")) == 1), None, False),
        (pc.scalar(5) >= byte, "`u` <= 5", True),
        (odd == True, "`a == 1) and (b` = true", True),  # noqa: E712
        (~byte.isin(list(range(100))), f"NOT (`u` IN ({', '.join(map(str, range(100)))}))", True),
        (number >= -0.0, "`x` >= -0.0", True),
    ],
)
def test_a_filter_is_converted_only_if_it_means_the_same(condition: Any, where: str | None, whole: bool) -> None:
    kinds = {"x": pa.float64(), "f": pa.float32(), "s": pa.string(), "u": pa.uint8(), "t": pa.timestamp("s", "UTC")}
    schema = pa.schema([*kinds.items(), ("`", pa.int64()), ("a == 1) and (b", pa.bool_())])

    found = pushed(condition, schema, as_sql=True)

    assert (found.where, found.whole) == (where, whole)
    if where is not None and "`x`" in where:  # pyarrow compares floats otherwise
        assert pushed(condition, schema).where is None
