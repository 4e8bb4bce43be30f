"""Routing agrees with Lance: its evaluator returns the same region values, its index describes the same spec."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.mem_wal import ShardingField, ShardingSpec, evaluate_sharding_spec

from lancelsm.record.schema import FIELD_ID, TableSchema, declare_primary_key
from lancelsm.routing.route import route, values_json
from lancelsm.routing.spec import from_lance, parse_regions, to_json
from lancelsm.routing.transforms import bucket, unsharded

pytestmark = pytest.mark.interop

# Each example has many values and calls Lance, so few examples are enough.
few = settings(max_examples=settings().max_examples // 5)

HASHED = [
    pa.bool_(),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.utf8(), pa.large_utf8(), pa.date32()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Zurich")),
]
ROUTED = [kind for kind in HASHED if not (pa.types.is_floating(kind) or pa.types.is_time(kind))]
INDEXED = [kind for kind in ROUTED if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind))]


def values_of(kind):
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return st.text(max_size=11)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width) | st.sampled_from([0.0, -0.0, float("nan"), float("inf")])
    if pa.types.is_unsigned_integer(kind):
        return st.integers(0, (1 << kind.bit_width) - 1)
    return st.integers(-(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1)


def column_of(kind, values):
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return pa.array(values, kind)


@pytest.fixture(scope="module")
def lance_schemas(tmp_path_factory):
    """Lance's schema of a table with one column `k`, for each type."""
    schemas = {}
    for kind in [*HASHED, pa.binary()]:
        empty = pa.table({"k": pa.array([], kind)})
        schemas[kind] = lance.write_dataset(empty, tmp_path_factory.mktemp("table") / "t").lance_schema
    return schemas


def by_lance(column, schemas, **field):
    spec = ShardingSpec(1, [ShardingField("f", [0], **field)])
    batch = pa.record_batch({"k": column})
    return evaluate_sharding_spec(batch, spec, schemas[column.type]).column(0)


@pytest.mark.one_case
@pytest.mark.parametrize("kind", HASHED, ids=str)
@few
@given(data=st.data())
def test_buckets_equal_those_of_lance_for_every_type_that_it_hashes(kind, data, lance_schemas):
    column = column_of(kind, data.draw(st.lists(st.none() | values_of(kind), max_size=60)))
    buckets = data.draw(st.integers(1, 1024))

    expected = by_lance(
        column, lance_schemas, transform="bucket", result_type="int32", parameters={"num_buckets": str(buckets)}
    )

    assert bucket(column, buckets) == expected


@pytest.mark.parametrize("kind", [*ROUTED, pa.binary()], ids=str)
@few
@given(data=st.data())
def test_identity_regions_equal_those_of_lance_for_every_key_type(kind, data, lance_schemas):
    values = st.binary(max_size=5) if pa.types.is_binary(kind) else values_of(kind)
    column = column_of(kind, data.draw(st.lists(values, min_size=1, max_size=60)))
    schema = TableSchema(columns=pa.schema([pa.field("k", kind, metadata={FIELD_ID: "0"})]), primary_key=("k",))
    spec = parse_regions("identity(k)", schema=schema)

    expected = by_lance(column, lance_schemas, transform="identity", result_type=spec.fields[0].result_type)

    assert expected.equals(column)
    found = [(one.values[0][1], one.rows["k"].combine_chunks()) for one in route(pa.table({"k": column}), spec)]
    assert len({raw for raw, _ in found}) == len(found)
    assert all(len(rows.unique()) == 1 for _, rows in found)
    assert sum(len(rows) for _, rows in found) == len(expected)


def test_the_single_region_has_the_same_value_as_in_lance(lance_schemas):
    spec = ShardingSpec(1, [ShardingField("f", [], transform="unsharded", result_type="int32")])
    batch = pa.record_batch({"k": pa.array([1, 2, 3], pa.int64())})

    assert evaluate_sharding_spec(batch, spec, lance_schemas[pa.int64()]).column(0) == unsharded(3)


def table_with_index(path, kinds, key, **index):
    """Create a Lance table with a MemWAL index. Returns our schema of it, and the specs in Lance's index."""
    columns = declare_primary_key(pa.schema(list(kinds.items())), key)
    dataset = lance.write_dataset(columns.empty_table(), path)
    fields = [
        field.with_metadata({FIELD_ID: str(found.id())})
        for field, found in zip(columns, dataset.lance_schema.fields(), strict=True)
    ]
    dataset.initialize_mem_wal(**index)
    schema = TableSchema(columns=pa.schema(fields), primary_key=key)
    return schema, dataset.mem_wal_index_details()["sharding_specs"]


@pytest.mark.parametrize("kind", INDEXED, ids=str)
@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("bucket(k, 7)", {"bucket_column": "k", "num_buckets": 7}),
        ("identity(k)", {"identity_column": "k"}),
        ("unsharded", {"unsharded": True}),
    ],
)
def test_lances_index_describes_the_same_spec(kind, text, index, tmp_path):
    kinds = {"v": pa.struct([("x", pa.int8()), ("y", pa.int8())]), "j": pa.int32(), "k": kind}
    schema, specs = table_with_index(tmp_path / "t", kinds, ("j", "k"), **index)

    spec = parse_regions(text, schema=schema)

    ours = to_json(spec)
    for field in ours["fields"]:
        del field["columns"]
    assert specs == [ours]
    assert from_lance(specs[0], schema=schema) == spec


@pytest.mark.parametrize(
    ("kinds", "text", "index"),
    [
        ({"k": pa.date32()}, "unsharded", {"unsharded": True}),
        ({"k": pa.timestamp("us")}, "bucket(k, 4)", {"bucket_column": "k", "num_buckets": 4}),
        ({"k": pa.int32(), "d": pa.date32()}, "bucket(k, 4)", {"bucket_column": "k", "num_buckets": 4}),
        ({"k": pa.binary()}, "bucket(k, 4)", {"bucket_column": "k", "num_buckets": 4}),
        ({"k": pa.binary()}, "identity(k)", {"identity_column": "k"}),
    ],
)
def test_a_spec_that_lance_refuses_gets_spec_id_zero(kinds, text, index, tmp_path):
    columns = [pa.field(name, kind, metadata={FIELD_ID: str(i)}) for i, (name, kind) in enumerate(kinds.items())]
    schema = TableSchema(columns=pa.schema(columns), primary_key=tuple(kinds))

    with pytest.raises(OSError, match=r"unsupported type|cannot be used as a shard key"):
        table_with_index(tmp_path / "t", kinds, tuple(kinds), **index)

    assert parse_regions(text, schema=schema).spec_id == 0


def test_lance_accepts_a_binary_key_in_a_single_region(tmp_path):
    schema, specs = table_with_index(tmp_path / "t", {"k": pa.binary()}, ("k",), unsharded=True)

    spec = parse_regions(None, schema=schema)

    assert from_lance(specs[0], schema=schema) == spec
    assert values_json(route(pa.table({"k": [b"x"]}), spec)[0].values, spec) == {"bucket": 0}
