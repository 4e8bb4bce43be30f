"""The region spec: its text, its ids, its JSON, and what it refuses."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from lancelsm.errors import Invalid
from lancelsm.record.schema import FIELD_ID, TableSchema
from lancelsm.routing.spec import from_json, parse_regions, to_json
from lancelsm.routing.transforms import Transform

KINDS = {"v": pa.int8(), "a": pa.int64(), "b": pa.utf8(), "c d": pa.int32(), "raw": pa.binary()}
TIMES = {"a": pa.int64(), "t": pa.timestamp("us", "UTC"), "d": pa.date32()}


def schema_of(key, kinds):
    columns = [pa.field(name, kind, metadata={FIELD_ID: str(10 + i)}) for i, (name, kind) in enumerate(kinds.items())]
    return TableSchema(columns=pa.schema(columns), primary_key=key)


PLAIN = schema_of(("a", "b", "c d", "raw"), KINDS)
TIMED = schema_of(("a", "t", "d"), TIMES)

FORMS = [
    (PLAIN, "unsharded"),
    (PLAIN, "bucket(a, 4)"),
    (PLAIN, "bucket(raw, 1024)"),
    (PLAIN, "identity(b)"),
    (PLAIN, "multi_bucket(a, b, 8)"),
    (PLAIN, "truncate(a, 10)"),
    (PLAIN, 'truncate("c d", 9223372036854775807)'),
    (PLAIN, "bucket(a, 4), truncate(b, 2), bucket(a, 8)"),
    (PLAIN, "expr(abs(a) % 4)"),
    (PLAIN, "expr(replace(b, '), (', '\")')), identity(a)"),
    (TIMED, "year(t), month(t), day(t), hour(t)"),
    (TIMED, "bucket(a, 4), day(d)"),
    (TIMED, "identity(t)"),
    (TIMED, "expr(date_trunc('hour', t))"),
]


@pytest.mark.parametrize(("schema", "text"), FORMS)
def test_a_spec_survives_a_round_trip_through_text_and_json(schema, text):
    spec = parse_regions(text, schema=schema)

    assert spec.describe() == str(spec) == text
    assert parse_regions(spec.describe(), schema=schema) == spec
    assert from_json(json.loads(json.dumps(to_json(spec)))) == spec


def test_blanks_in_a_spec_are_ignored():
    spec = parse_regions('  bucket( a,4 ) ,truncate("b" , 2)', schema=PLAIN)

    assert spec.describe() == "bucket(a, 4), truncate(b, 2)"


@pytest.mark.parametrize("text", [None, "", "  ", "unsharded"])
def test_without_a_spec_there_is_one_region_in_the_form_that_lance_writes(text):
    spec = parse_regions(text, schema=PLAIN)

    assert to_json(spec) == {
        "spec_id": 1,
        "fields": [
            {
                "field_id": "bucket",
                "columns": [],
                "source_ids": [],
                "transform": "unsharded",
                "expression": None,
                "result_type": "int32",
                "parameters": {},
            }
        ],
    }


@pytest.mark.parametrize(
    ("schema", "text", "spec_id", "names", "types"),
    [
        (PLAIN, "bucket(a, 4)", 1, ["bucket"], ["int32"]),
        (PLAIN, "identity(b)", 1, ["bucket"], ["utf8"]),
        (PLAIN, "identity(raw)", 0, ["bucket"], ["binary"]),
        (PLAIN, "bucket(a, 4), bucket(a, 8)", 0, ["a_bucket", "a_bucket_2"], ["int32", "int32"]),
        (PLAIN, "multi_bucket(a, b, 8)", 0, ["a_b_multi_bucket"], ["int32"]),
        (PLAIN, "truncate(b, 2)", 0, ["b_truncate"], ["utf8"]),
        (PLAIN, "expr(a > 0)", 0, ["a_expr"], ["boolean"]),
        (TIMED, "bucket(a, 4)", 0, ["bucket"], ["int32"]),
        (TIMED, "identity(t)", 0, ["bucket"], ["timestamp[us, tz=UTC]"]),
    ],
)
def test_the_spec_id_is_0_unless_lance_can_compute_the_field_and_hash_the_key(schema, text, spec_id, names, types):
    spec = parse_regions(text, schema=schema)

    assert spec.spec_id == spec_id
    assert [field.field_id for field in spec.fields] == names
    assert [field.result_type for field in spec.fields] == types


def test_a_field_names_its_source_columns_by_name_and_by_lance_field_id():
    bucket, expression = parse_regions("multi_bucket(b, a, 8), expr(upper(b))", schema=PLAIN).fields

    assert (bucket.transform, bucket.columns, bucket.source_ids) == (Transform.MULTI_BUCKET, ("b", "a"), (12, 11))
    assert bucket.parameters == {"num_buckets": "8"}
    assert (expression.expression, expression.columns, expression.source_ids) == ("upper(b)", ("b",), (12,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bucket(v, 4)", "'v' is not a key column"),
        ("bucket(missing, 4)", "'missing' is not a key column"),
        ("expr(v % 4)", "not valid"),
        ("expr(random() + a)", "same value"),
        ("bucket(a, 0)", "num_buckets of bucket is 0"),
        ("bucket(a, 1025)", "num_buckets of bucket is 1025"),
        ("multi_bucket(a, b, 1025)", "num_buckets"),
        ("truncate(a, 0)", "width of truncate is 0"),
        ("truncate(a, 9223372036854775808)", "width"),
        ("bucket(a)", "num_buckets, not 'a'"),
        ("bucket(a, -1)", "num_buckets, not '-1'"),
        ("bucket(a, b, 4)", "arguments"),
        ("bucket(4)", "arguments"),
        ("multi_bucket(4)", "arguments"),
        ("identity(a, b)", "arguments"),
        ("bucket()", "not a list of columns"),
        ("bucket(a,, 4)", "not a list of columns"),
        ("identity(a,)", "not a list of columns"),
        ("year(a)", "year doesn't support a column of type int64"),
        ("day(b)", "day doesn't support"),
        ("unsharded(a)", "unknown transform"),
        ("hash(a, 4)", "unknown transform 'hash'"),
        ("bucket", "no transform at"),
        ("bucket(a, 4", "no transform at"),
        ("bucket(a, 4) day(a)", "expected a comma"),
        ("bucket(a, 4),", "no transform at"),
        ("unsharded, bucket(a, 4)", "no transform at"),
    ],
)
def test_an_invalid_spec_is_refused(text, message):
    with pytest.raises(Invalid) as raised:
        parse_regions(text, schema=PLAIN)

    assert message in str(raised.value)


def test_truncate_refuses_timestamps():
    with pytest.raises(Invalid, match="truncate doesn't support"):
        parse_regions("truncate(t, 10)", schema=TIMED)


@pytest.mark.parametrize("change", [{"transform": "zorder"}, {"parameters": {}}, {"columns": None}])
def test_json_of_another_release_is_refused(change):
    document = to_json(parse_regions("bucket(a, 4)", schema=PLAIN))
    document["fields"][0] |= change

    with pytest.raises(Invalid, match="not supported"):
        from_json(document)
