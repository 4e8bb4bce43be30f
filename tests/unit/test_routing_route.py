"""Split rows by region."""

from __future__ import annotations

import base64
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancelsm.record.schema import FIELD_ID, TableSchema
from lancelsm.routing.route import Routed, all_values, route, values_json
from lancelsm.routing.spec import parse_regions


def schema_of(key, **kinds):
    columns = [pa.field(name, kind, metadata={FIELD_ID: str(i)}) for i, (name, kind) in enumerate(kinds.items())]
    return TableSchema(columns=pa.schema(columns), primary_key=key)


PLAIN = schema_of(("a", "b"), a=pa.int32(), b=pa.utf8(), v=pa.int64())


def table_of(pairs):
    rows = list(pairs)
    return pa.table(
        {"a": [a for a, _ in rows], "b": [b for _, b in rows], "v": list(range(len(rows)))},
        schema=pa.schema([("a", pa.int32()), ("b", pa.utf8()), ("v", pa.int64())]),
    )


def test_rows_are_routed_to_the_published_buckets_and_keep_their_order():
    rows = table_of([(1, "x"), (2, "x"), (1, "y"), (3, "x"), (1, "z")])

    found = route(rows, parse_regions("bucket(a, 8)", schema=PLAIN))

    buckets = [(values_json(one.values, parse_regions("bucket(a, 8)", schema=PLAIN)), one.rows["v"]) for one in found]
    assert [(value, numbers.to_pylist()) for value, numbers in buckets] == [
        ({"bucket": 2}, [0, 2, 4]),
        ({"bucket": 7}, [1]),
        ({"bucket": 1}, [3]),
    ]


pairs = st.lists(st.tuples(st.integers(-9, 9), st.text(max_size=2)), max_size=60)
specs = st.sampled_from(
    [
        "unsharded",
        "bucket(b, 5)",
        "identity(b)",
        "truncate(a, 4), bucket(b, 3)",
        "identity(a), identity(b), bucket(a, 2)",
    ]
)


@given(rows=pairs, text=specs, cut=st.integers(0, 60))
def test_every_row_is_in_exactly_one_region_and_rows_of_a_region_keep_their_order(rows, text, cut):
    spec = parse_regions(text, schema=PLAIN)
    whole = table_of(rows)
    chunked = pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])

    found = route(chunked, spec)

    assert sorted(number for one in found for number in one.rows["v"].to_pylist()) == list(range(len(rows)))
    assert len({one.values for one in found}) == len(found)
    firsts = [one.rows["v"][0].as_py() for one in found]
    assert firsts == sorted(firsts)
    for one in found:
        numbers = one.rows["v"].to_pylist()
        assert numbers == sorted(numbers)
        assert one.rows.schema == whole.schema


@given(rows=st.lists(st.tuples(st.integers(-9, 9), st.text(max_size=2)), min_size=1, max_size=40), text=specs)
def test_a_key_alone_is_routed_to_the_region_of_its_row(rows, text):
    spec = parse_regions(text, schema=PLAIN)
    whole = table_of(rows)

    region = {n: one.values for one in route(whole, spec) for n in one.rows["v"].to_pylist()}

    for number in range(len(rows)):
        (alone,) = route(whole.select(["a", "b"]).slice(number, 1), spec)
        assert alone.values == region[number]


@pytest.mark.parametrize(
    ("kind", "value", "raw", "shown"),
    [
        (pa.bool_(), True, b"\x01", True),
        (pa.int8(), -2, b"\xfe", -2),
        (pa.int64(), -2, b"\xfe" + b"\xff" * 7, -2),
        (pa.uint16(), 513, b"\x01\x02", 513),
        (pa.uint64(), (1 << 64) - 1, b"\xff" * 8, (1 << 64) - 1),
        (pa.utf8(), "é", "é".encode(), "é"),
        (pa.large_utf8(), "", b"", ""),
        (pa.binary(), b"\x00\xff", b"\x00\xff", base64.b64encode(b"\x00\xff").decode()),
        (pa.date32(), 1, b"\x01\x00\x00\x00", "1970-01-02"),
        (pa.timestamp("ns"), 1, b"\x01" + b"\x00" * 7, "1970-01-01 00:00:00.000000001"),
        (pa.timestamp("ms", "Asia/Tokyo"), -1, b"\xff" * 8, "1969-12-31 23:59:59.999Z"),
    ],
)
def test_a_region_value_is_the_raw_little_endian_scalar(kind, value, raw, shown):
    schema = schema_of(("k",), k=kind)
    spec = parse_regions("identity(k)", schema=schema)
    stored = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    temporal = pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    column = pa.array([value], stored).view(kind) if temporal else pa.array([value], kind)

    (found,) = route(pa.table({"k": column}), spec)

    assert found.values == (("bucket", raw),)
    assert values_json(found.values, spec) == {"bucket": shown}


def test_null_is_a_region_value_of_its_own():
    spec = parse_regions("expr(nullif(a, 1)), bucket(a, 1)", schema=PLAIN)

    found = route(table_of([(1, "x"), (2, "x"), (1, "y")]), spec)

    assert [(one.values[0][1], one.rows["v"].to_pylist()) for one in found] == [
        (None, [0, 2]),
        ((2).to_bytes(8, "little"), [1]),
    ]
    assert values_json(found[0].values, spec) == {"a_expr": None, "a_bucket": 0}


def test_no_rows_have_no_region():
    assert route(table_of([]), parse_regions("bucket(a, 4)", schema=PLAIN)) == []


def test_a_single_region_gets_the_table_without_a_copy():
    rows = table_of([(1, "x"), (2, "y")])

    (found,) = route(rows, parse_regions(None, schema=PLAIN))

    assert found == Routed(values=(("bucket", b"\0\0\0\0"),), rows=rows)
    assert found.rows is rows


@pytest.mark.parametrize(("text", "count"), [(None, 1), ("bucket(a, 4)", 4), ("multi_bucket(a, b, 1024)", 1024)])
def test_all_regions_of_a_single_bucket_field_or_of_no_spec_are_known_in_advance(text, count):
    spec = parse_regions(text, schema=PLAIN)

    known = all_values(spec)

    assert known is not None
    assert len(set(known)) == count
    rows = table_of((n, str(n)) for n in range(5_000))
    assert {one.values for one in route(rows, spec)} <= set(known)


@pytest.mark.parametrize("text", ["identity(a)", "truncate(a, 2)", "expr(a % 2)", "bucket(a, 4), bucket(b, 4)"])
def test_regions_of_other_specs_are_not_known_in_advance(text):
    assert all_values(parse_regions(text, schema=PLAIN)) is None


SCRIPT = """
import sys
{blocked}
import pyarrow as pa
from lancelsm.record.schema import FIELD_ID, TableSchema
from lancelsm.routing.route import route
from lancelsm.routing.spec import parse_regions

loaded = {{name.partition(".")[0] for name in sys.modules}} | set(sys.modules)
print(sorted(loaded & {{"lance", "datafusion", "pydantic", "pandas", "pyarrow.dataset"}}))
columns = pa.schema([pa.field("k", pa.utf8(), metadata={{FIELD_ID: "0"}}), pa.field("n", pa.float64())])
schema = TableSchema(columns=columns, primary_key=("k",))
spec = parse_regions("bucket(k, 5), truncate(k, 1), identity(k)", schema=schema)
rows = pa.table({{"k": [f"key {{n}}" for n in range(100)], "n": [n / 2 for n in range(100)]}})
print([(one.values, one.rows["k"].to_pylist()) for one in route(rows, spec)])
"""


@pytest.mark.rest
def test_routing_needs_no_numpy_and_imports_nothing_heavy():
    def run(blocked):
        done = subprocess.run([sys.executable, "-c", SCRIPT.format(blocked=blocked)], capture_output=True, check=True)
        return done.stdout.decode().splitlines()

    plain, blocked = run(""), run("sys.modules['numpy'] = None")

    assert plain[0] == "[]"
    assert plain == blocked
