"""SQL expressions as region fields: which are accepted, which are refused, and what values they have."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from lancelsm.errors import Invalid
from lancelsm.routing.expression import analyze, evaluate

KEY = pa.schema([("a", pa.int64()), ("Name", pa.utf8()), ("t", pa.timestamp("us"))])


@pytest.mark.parametrize(
    ("sql", "sources", "kind"),
    [
        ("abs(a) % 4", ("a",), pa.int64()),
        ("lower(Name)", ("Name",), pa.utf8()),
        ("CASE WHEN a > 0 THEN Name ELSE 'none' END", ("a", "Name"), pa.utf8()),
        ("cast(date_trunc('month', t) as date)", ("t",), pa.date32()),
        ("Name LIKE 'x%'", ("Name",), pa.bool_()),
        ("a in (1, 2) and t is not null", ("a", "t"), pa.bool_()),
        ("Name::varchar", ("Name",), pa.utf8()),
        ("col0 % 4", ("a",), pa.int64()),
        ("upper(col1)", ("a", "Name"), pa.utf8()),
        ("coalesce(nullif(\"Name\", ''), 'x')", ("Name",), pa.utf8()),
    ],
)
def test_the_analysis_of_an_expression_finds_its_source_columns_and_its_type(sql, sources, kind):
    assert analyze(sql, KEY) == (sources, kind)


@pytest.mark.parametrize(
    "sql",
    [
        "random()",
        "rand()",
        "now()",
        "uuid()",
        "current_date",
        "current_timestamp",
        "current_time",
        "today()",
        "version()",
    ],
)
@pytest.mark.parametrize(
    "context",
    [
        "concat(Name, cast({} as varchar))",
        "case when a > 0 then cast({} as varchar) else 'x' end",
        "case when cast({} as varchar) = 'x' then a else 1 end",
        "case cast({} as varchar) when 'x' then a end",
        "case Name when 'x' then 'y' else cast({} as varchar) end",
        "Name like cast({} as varchar)",
        "Name in ('x', cast({} as varchar))",
        "Name between 'a' and cast({} as varchar)",
        "not (Name = cast({} as varchar))",
        "Name || cast({} as varchar)",
    ],
)
def test_a_function_that_is_not_deterministic_is_refused_anywhere_in_an_expression(sql, context):
    with pytest.raises(Invalid, match="same value"):
        analyze(context.format(sql), KEY)


@pytest.mark.parametrize(
    "sql",
    [
        "sum(a)",
        "row_number() over (order by a)",
        "(select 1)",
        "exists(select 1)",
        "a in (select 1)",
        "unnest(make_array(a))",
        "$1 + a",
        "a as b",
        "ln(a)",
        "Name ~ 'x'",
        "regexp_like(Name, 'x')",
        "to_timestamp(a)",
    ],
)
def test_an_expression_that_is_not_an_exact_function_of_one_row_is_refused(sql):
    with pytest.raises(Invalid, match="same value"):
        analyze(sql, KEY)


@pytest.mark.parametrize("sql", ["", "a, a", "a from t", "a; drop table t", "abs(", "b", "name", "nothing(a)", "col3"])
def test_an_expression_that_does_not_parse_with_the_key_columns_is_refused(sql):
    with pytest.raises(Invalid, match="not valid"):
        analyze(sql, KEY)


@pytest.mark.parametrize("sql", ["a / 2.5", "a + interval '1 day'", "cast(a as decimal(10, 2))", "cast(a as double)"])
def test_a_result_type_that_region_values_cannot_have_is_refused(sql):
    with pytest.raises(Invalid):
        analyze(sql, KEY)


def test_a_constant_is_refused():
    with pytest.raises(Invalid, match="no key column"):
        analyze("1 + 1", KEY)


def test_values_keep_the_order_of_rows_over_many_batches():
    numbers = pa.array(range(100_000))

    found = evaluate("abs(a - 50000) % 7", [("a", numbers)], pa.int64())

    assert found.to_pylist() == [abs(n - 50_000) % 7 for n in range(100_000)]


def test_numbered_columns_are_the_source_columns_in_their_order():
    sources = [("a", pa.array([1, 2])), ("Name", pa.array(["x", None]))]

    assert evaluate("concat(col1, cast(col0 as varchar))", sources, pa.utf8()).to_pylist() == ["x1", "2"]


def test_the_name_col1_means_the_column_of_that_name_if_there_is_one():
    key = pa.schema([("col1", pa.int64()), ("x", pa.int64())])

    sources, _ = analyze("col1 + col0 + x", key)
    found = evaluate("col1 + col0 + x", [("col1", pa.array([1])), ("x", pa.array([10]))], pa.int64())

    assert (sources, found.to_pylist()) == (("col1", "x"), [12])


def test_no_rows_give_no_values():
    assert evaluate("a % 2", [("a", pa.array([], pa.int64()))], pa.int64()) == pa.array([], pa.int64())


def test_a_row_on_which_the_expression_fails_is_refused():
    with pytest.raises(Invalid, match="fails on a row"):
        evaluate("1 / a", [("a", pa.array([1, 0]))], pa.int64())


def test_without_datafusion_the_error_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datafusion", None)

    with pytest.raises(Invalid, match=r"lancelsm\[expression\]"):
        analyze("a % 2", KEY)
