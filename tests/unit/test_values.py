"""A column of each type, alone and inside every nested type, is refused or keeps its values exactly, at every level."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.adopt import adopt
from lancelsm.client.encoding import encode_rows, event
from lancelsm.errors import Invalid
from lancelsm.record.admission import declared, refusal
from lancelsm.record.casts import as_schema, storage_type
from lancelsm.record.export import write_file
from lancelsm.record.files import read_file
from lancelsm.record.schema import FIELD_ID, TableSchema, numbered
from lancelsm.region.handle import open_table
from lancelsm.stack.delivery.message import packed, unpacked
from lancelsm.stack.delivery.request import RowsInput, stored_rows
from lancelsm.stack.delivery.table_cache import Inbox
from lancelsm.stack.query import answer as answer_rows
from lancelsm.table import Table
from tests.interop import lance_oracle as oracle
from tests.unit.arrow_values import EVERYWHERE, EXTENSIONS, FIXED, LIST_VIEWS, NEVER
from tests.unit.value_levels import KEY, Model, check_levels, check_reads, columns_of, rows_of

INSIDE: Final[dict[str, Callable[[pa.DataType], pa.DataType]]] = {
    "alone": lambda kind: kind,
    "struct": lambda kind: pa.struct([pa.field("f", kind), pa.field("g", pa.int8())]),
    "list": pa.list_,
    "large_list": pa.large_list,
    "fixed_size_list": lambda kind: pa.list_(kind, 2),
    "map": lambda kind: pa.map_(pa.string(), kind),
}


def kept(inside: str) -> list[pa.DataType]:
    """The types that a table can have inside a type."""
    match inside:
        case "alone":
            return [*EVERYWHERE, *LIST_VIEWS, *EXTENSIONS, pa.null()]
        case "fixed_size_list":
            return [*FIXED, pa.list_(pa.int16(), 3)]
        case _:
            return [*EVERYWHERE, *LIST_VIEWS, pa.list_(pa.float32(), 3)]


def refused(inside: str) -> list[pa.DataType]:
    match inside:
        case "alone":
            return NEVER
        case "fixed_size_list":
            texts = [kind for kind in EVERYWHERE if kind not in FIXED]
            return [
                *NEVER,
                *LIST_VIEWS,
                *EXTENSIONS,
                pa.null(),
                *texts,
                pa.list_(pa.int8()),
                pa.struct([("x", pa.int8())]),
            ]
        case _:
            return [*NEVER, *EXTENSIONS, pa.null()]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("inside", "given"),
    [
        *((inside, "schema") for inside in INSIDE),
        ("alone", "rows"),
        *(pytest.param(inside, "rows", marks=pytest.mark.long) for inside in INSIDE if inside != "alone"),
    ],
)
def test_values_of_every_type_are_kept_at_every_level(tmp_path: Path, inside: str, given: str) -> None:
    columns = columns_of([INSIDE[inside](kind) for kind in kept(inside)])
    random = Random(f"{inside} {given}")
    batches = [rows_of(columns, range(at, at + 12), random) for at in (0, 6, 12, 3)]
    model = Model()
    first = columns
    if given == "rows":
        first = rows_of(columns, range(20, 30), random)
        model.write(first)

    table = lancelsm.create(tmp_path / "table", first, primary_key="id")

    assert [field.type for field in table.schema] == [field.type for field in declared(columns)]
    check_levels(table, tmp_path, batches, model)


@pytest.mark.long
def test_long_lists_are_kept_at_every_level(tmp_path: Path) -> None:
    long = 70_000  # more items than 16 bits count
    lists = {
        pa.list_(pa.bool_()): [True, None] * (long // 2),
        pa.list_(pa.list_(pa.int8())): [[], None] * (long // 2),
        pa.list_(pa.struct([("a", pa.string())])): [{"a": "x"}, None] * (long // 2),
        pa.list_(pa.dictionary(pa.int32(), pa.string())): [str(item) for item in range(long)],
        pa.map_(pa.string(), pa.int8()): [(str(item), None) for item in range(long)],
    }
    columns = columns_of(lists)
    values = [pa.array([items, None, []], kind) for kind, items in lists.items()]
    batches = [pa.Table.from_arrays([pa.array(range(at, at + 3)), *values], schema=columns) for at in (0, 1, 3, 2)]

    check_levels(lancelsm.create(tmp_path / "table", columns, primary_key="id"), tmp_path, batches, Model())


@pytest.mark.rest
@pytest.mark.parametrize("sizes", [(15_000,), (1_875,), (7, 257), (1, 8_192), (91, 88), (901, 1), (513, 1, 1, 1)])
def test_as_many_bools_as_a_fixed_size_list_can_have_are_kept(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    kind = pa.bool_()
    for size in reversed(sizes):
        kind = pa.list_(kind, size)
    columns = columns_of([kind, pa.list_(kind), pa.struct([("f", kind)])])
    random = Random(str(sizes))

    check_levels(
        lancelsm.create(tmp_path / "table", columns, primary_key="id"),
        tmp_path,
        [rows_of(columns, range(at, at + 3), random) for at in (0, 1, 3, 2)],
        Model(),
    )


def test_columns_after_a_nested_fixed_size_list_have_the_ids_that_lance_gives_them(tmp_path: Path) -> None:
    columns = columns_of([pa.list_(pa.list_(pa.int16(), 3), 2), pa.string(), pa.int8()])
    table = lancelsm.create(tmp_path / "table", columns, primary_key="id")
    table.upsert(rows := rows_of(columns, range(9), Random("ids")))
    model = Model()
    model.write(rows)

    check_reads(table, model, "log")


def nested(kind: str, levels: int) -> tuple[pa.DataType, Any]:
    """A type with so many types inside each other, and a value."""
    inner, value = pa.int64(), 5
    for _ in range(levels):
        match kind:
            case "list":
                inner, value = pa.list_(inner), [value]
            case "struct":
                inner, value = pa.struct([("f", inner)]), {"f": value}
            case "map":
                inner, value = pa.map_(pa.string(), inner), [("k", value)]
    return inner, value


@pytest.mark.rest
@pytest.mark.parametrize(
    ("kind", "levels"), [("struct", 62), ("map", 31), pytest.param("list", 62, marks=pytest.mark.long)]
)
def test_as_many_types_inside_each_other_as_a_table_can_have_are_kept(tmp_path: Path, kind: str, levels: int) -> None:
    deep, value = nested(kind, levels)
    table = lancelsm.create(tmp_path / "table", columns_of([deep]), primary_key="id")
    batches = [
        pa.Table.from_pylist([{"id": at, "v0": value}, {"id": at + 1, "v0": None}], schema=table.schema)
        for at in (0, 1, 2, 5)
    ]

    check_levels(table, tmp_path, batches, Model())

    write_file(str(tmp_path / "rows.parquet"), table.schema, table.scan().to_arrow().to_batches())
    assert read_file(str(tmp_path / "rows.parquet"), schema=None)["v0"].to_pylist().count(value) == 4


@pytest.mark.parametrize("name", ["select", "NULL", "a b", "a'b", "_score", "ID", "%s", "a/b", "\\", "日本", "value"])
def test_a_column_may_have_any_other_name(tmp_path: Path, name: str) -> None:
    columns = pa.schema(
        [KEY, pa.field(name, pa.string()), pa.field("s", pa.struct([(name, pa.int8()), ("", pa.int8())]))]
    )
    table = lancelsm.create(tmp_path / "table", columns, primary_key="id")
    row = {"id": 1, name: "x", "s": {name: 1, "": 2}}

    table.upsert([row])
    for step in (table.flush, table.merge):
        step()
        assert table.scan(columns=[name, "s", "id"]).to_arrow().to_pylist() == [row]
    assert table.get([1]).to_pylist() == [row]
    assert table.scan(where=f"`{name}` = 'x'").to_arrow().to_pylist() == [row]


@pytest.mark.parametrize("name", ["*", "", "a.b", '"', "`", "_rowid", "_rowaddr", "_rowoffset", "_tombstone"])
def test_a_name_that_readers_take_for_something_else_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Invalid, match=r"reserved|can't be the name") as raised:
        lancelsm.create(tmp_path / "table", pa.schema([KEY, pa.field(name, pa.int8())]), primary_key="id")

    assert raised.value.where["field"] == name
    assert not list(tmp_path.iterdir())


def test_schemas_with_other_field_ids_differ() -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.struct([("x", pa.int8())]))])
    schema = TableSchema(columns=numbered(columns), primary_key=("id",))
    inner = pa.struct([pa.field("x", pa.int8(), metadata={FIELD_ID: "7"})])
    other = schema.columns.set(1, schema.columns.field(1).with_type(inner))

    assert schema == TableSchema(columns=numbered(columns), primary_key=("id",))
    assert schema != TableSchema(columns=other, primary_key=("id",))
    assert schema != TableSchema(columns=schema.columns, primary_key=("v",))


@pytest.mark.parametrize("inside", INSIDE)
def test_a_type_that_can_lose_values_is_refused_and_another_one_is_named(tmp_path: Path, inside: str) -> None:
    for kind in refused(inside):
        try:
            column = pa.field("v", INSIDE[inside](kind))
        except (pa.ArrowException, TypeError, ValueError):
            continue  # there is no such type
        with pytest.raises(Invalid, match="a table can't have column 'v'") as raised:
            lancelsm.create(tmp_path / "table", pa.schema([KEY, column]), primary_key="id")
        assert raised.value.where["field"] == "v", kind
        assert raised.value.remedy.startswith(("Use ", "Give ")), kind
        assert not list(tmp_path.iterdir()), kind


@pytest.mark.parametrize("inside", INSIDE)
def test_no_type_that_is_kept_is_refused(inside: str) -> None:
    for kind in kept(inside):
        (column,) = declared(pa.schema([pa.field("v", INSIDE[inside](kind))]))
        assert refusal(column) is None, kind


METADATA: Final[dict[str, tuple[pa.DataType, dict[str, str]]]] = {
    "blob": (pa.large_binary(), {"lance-encoding:blob": "true"}),
    "blob of version 2": (pa.large_binary(), {"ARROW:extension:name": "lance.blob.v2"}),
    "packed": (pa.struct([("x", pa.int8())]), {"lance-encoding:packed": "true"}),
    "narrow": (pa.binary(70_000), {"lance-encoding:structural-encoding": "miniblock"}),
    "JSON": (pa.string(), {"ARROW:extension:name": "arrow.json"}),
    "stored JSON": (pa.large_binary(), {"ARROW:extension:name": "lance.json"}),
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata_that_changes_what_lance_stores_is_refused(tmp_path: Path, name: str) -> None:
    kind, metadata = METADATA[name]
    column = pa.field("v", kind, metadata=metadata)
    for kind in (None, pa.struct([column]), pa.list_(column), pa.list_(pa.list_(column)), pa.map_(pa.string(), column)):
        outer = column if kind is None else pa.field("v", kind)
        with pytest.raises(Invalid, match="a table can't have column 'v'"):
            lancelsm.create(tmp_path / "table", pa.schema([KEY, outer]), primary_key="id")
    assert not list(tmp_path.iterdir())


def test_other_metadata_of_a_column_is_kept(tmp_path: Path) -> None:
    metadata = {"unit": "km", "lance-encoding:compression": "zstd"}
    columns = pa.schema([KEY, pa.field("v", pa.string(), metadata=metadata)])

    table = lancelsm.create(tmp_path / "table", columns, primary_key="id")

    found = lance.dataset(table.uri).schema.field("v").metadata
    assert {key.encode(): value.encode() for key, value in metadata.items()}.items() <= found.items()


# Bases that Lance wrote


def lance_wrote(directory: Path, columns: pa.Schema, version: str) -> Path:
    oracle.make_table(directory / "lance", columns, ("id",), version=version, unsharded=True)
    return directory / "lance"


@pytest.mark.rest
@pytest.mark.interop
@pytest.mark.parametrize(
    "version", ["2.0", "2.3", *(pytest.param(one, marks=pytest.mark.long) for one in ("2.1", "2.2"))]
)
def test_an_adopted_base_of_each_file_version_keeps_all_values(tmp_path: Path, version: str) -> None:
    kinds = [INSIDE[inside](kind) for inside in INSIDE for kind in kept(inside)]
    columns = [column for column in declared(columns_of(kinds)) if refusal(column, file_version=version) is None]
    structs = [column for column in columns if pa.types.is_struct(column.type)]
    assert bool(structs) == (version != "2.0")
    table = Table(adopt(lance_wrote(tmp_path, pa.schema(columns), version)))
    assert lance.dataset(table.uri).data_storage_version == version
    random = Random(f"version {version}")
    batches = [rows_of(table.schema, range(at, at + 12), random) for at in (0, 6, 12, 3)]

    check_levels(table, tmp_path, batches, Model())


@pytest.mark.interop
@pytest.mark.parametrize(
    ("version", "column", "what"),
    [
        ("0.1", pa.field("id", pa.int64(), nullable=False), "files of version 0.1 lose nulls"),
        ("2.0", pa.field("v", pa.struct([("x", pa.int8())])), "files of version 2.0 have no null structs"),
        ("2.0", pa.field("v", pa.list_(pa.struct([("x", pa.int8())]))), "files of version 2.0 have no null structs"),
        ("2.2", pa.field("v", pa.json_()), "Lance changes JSON"),
        ("2.2", pa.field("v", pa.list_(pa.json_())), "can't be read"),
        ("2.2", pa.field("v", pa.dictionary(pa.int8(), pa.string())), "more values than int8 counts"),
        ("2.2", pa.field("v", pa.list_(pa.string(), 2)), "fixed_size_list of string"),
        ("2.2", pa.field("v", pa.list_(pa.uuid())), "an extension type inside another type"),
        (
            "2.1",
            pa.field("v", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
            "changes what Lance stores",
        ),
    ],
    ids=str,
)
def test_a_base_with_a_column_that_can_lose_values_cannot_be_adopted(
    tmp_path: Path, version: str, column: pa.Field, what: str
) -> None:
    location = lance_wrote(tmp_path, pa.schema({KEY.name: KEY, column.name: column}.values()), version)
    before = sorted(location.rglob("*"))

    with pytest.raises(Invalid, match=f"a table can't have column '{column.name}' .*{what}") as raised:
        adopt(location)

    assert raised.value.where == {"table": str(location), "field": column.name}
    assert sorted(location.rglob("*")) == before


# Files


def without_nan_payload(value: Any, kind: pa.DataType) -> Any:
    """The exact value, with one NaN for all: text has no payload of a NaN."""
    if value is None:
        return None
    if pa.types.is_floating(kind):
        (number,) = struct.unpack({2: "<e", 4: "<f", 8: "<d"}[len(value)], value)
        return "NaN" if math.isnan(number) else value
    if isinstance(kind, pa.BaseExtensionType):
        return without_nan_payload(value, kind.storage_type)
    if pa.types.is_struct(kind):
        return [without_nan_payload(one, field.type) for one, field in zip(value, kind, strict=True)]
    if pa.types.is_map(kind):
        return [(without_nan_payload(k, kind.key_type), without_nan_payload(v, kind.item_type)) for k, v in value]
    if hasattr(kind, "value_field"):
        return [without_nan_payload(one, kind.value_type) for one in value]
    return value


PARQUET_LACKS: Final = [pa.decimal128(5, -2), pa.decimal128(3, 10), pa.timestamp("s"), pa.timestamp("s", "UTC")]
DATES: Final = [kind for kind in FIXED if pa.types.is_date(kind) or pa.types.is_timestamp(kind)]
_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3))
CSV_LACKS: Final = [*LIST_VIEWS, *(kind for kind in EVERYWHERE if storage_type(kind) in _BYTES)]


@pytest.mark.parametrize(
    ("inside", "suffix"),
    [("alone", "csv"), *((inside, suffix) for suffix in ("jsonl", "parquet", "arrow", "arrows") for inside in INSIDE)],
)
def test_values_of_every_type_are_kept_in_files(tmp_path: Path, inside: str, suffix: str) -> None:
    lacks = {"parquet": PARQUET_LACKS, "csv": [*CSV_LACKS, *EXTENSIONS, *DATES]}.get(suffix, [])
    kinds = [kind for kind in kept(inside) if kind not in (*lacks, pa.binary(70_000))]
    table = lancelsm.create(tmp_path / "table", columns_of(map(INSIDE[inside], kinds)), primary_key="id")
    random = Random(f"{inside} {suffix}")
    model = Model()
    for at in (0, 20, 40):
        rows = rows_of(table.schema, range(at, at + 20), random)
        table.upsert(rows)
        model.write(rows)

    write_file(str(tmp_path / f"rows.{suffix}"), table.schema, table.scan().to_arrow().to_batches())
    again = lancelsm.create(tmp_path / "again", table.schema, primary_key="id")
    again.upsert(read_file(str(tmp_path / f"rows.{suffix}"), schema=table.schema))

    found = Model()
    found.write(again.scan().to_arrow())
    assert found.rows.keys() == model.rows.keys()
    for key, row in model.rows.items():
        for name, value in row.items():
            kind = table.schema.field(name).type
            expected, actual = value, found.rows[key][name]
            if suffix in ("jsonl", "csv"):
                expected, actual = without_nan_payload(value, kind), without_nan_payload(actual, kind)
            assert actual == expected, f"{name} of type {kind}, row {key}"


@pytest.mark.parametrize(
    ("suffix", "values"),
    [
        ("parquet", pa.nulls(1, pa.decimal128(5, -2))),
        ("parquet", pa.nulls(1, pa.list_(pa.decimal128(3, 10)))),
        ("parquet", pa.array([1 << 60], pa.timestamp("s"))),
        ("csv", pa.array([b"\xff"])),
        ("csv", pa.array([[1]])),
        ("csv", pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16)))),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_values_that_a_file_cannot_have_are_refused_when_it_is_written(
    tmp_path: Path, suffix: str, values: pa.Array
) -> None:
    rows = pa.table({"v": values})

    with pytest.raises(
        Invalid, match=r"can't be written.* Write (Parquet, )?JSON lines or Arrow, or leave the column out"
    ):
        write_file(str(tmp_path / f"rows.{suffix}"), rows.schema, rows.to_batches())

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["json", "arrow"])
@pytest.mark.parametrize("inside", INSIDE)
def test_values_of_every_type_are_kept_by_functions_and_the_queue(tmp_path: Path, inside: str, form: str) -> None:
    columns = columns_of([INSIDE[inside](kind) for kind in kept(inside) if kind != pa.binary(70_000)])
    table = lancelsm.create(tmp_path / "table", columns, primary_key="id")
    rows = rows_of(columns, range(20), Random(inside))
    model = Model()
    model.write(rows)

    if form == "json":  # as the query function answers
        answer = answer_rows(as_schema(rows, table.schema).to_batches(), keep=lambda _: pytest.fail("too large"))
        given = RowsInput(table=table.uri, upserts=json.loads(json.dumps(answer["rows"])))
    else:
        (sent,) = encode_rows(rows, op="upsert", limit=1 << 30)
        given = RowsInput(table=table.uri, arrow=json.loads(event("table", sent))["arrow"])
    inbox = Inbox.below(str(tmp_path))
    stored = unpacked(packed(stored_rows(given, handle=open_table(table.uri), inbox=inbox)))

    for key, row in model.of(stored.select(table.schema.names)).items():
        for name, value in row.items():
            kind, expected, found = table.schema.field(name).type, model.rows[key][name], value
            if form == "json":
                expected, found = without_nan_payload(expected, kind), without_nan_payload(found, kind)
            assert found == expected, f"{name} of type {kind}, row {key}"


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("s"), pa.timestamp("us", "UTC")], ids=str)
def test_a_year_that_csv_cannot_have_is_refused_when_the_file_is_written(tmp_path: Path, kind: pa.DataType) -> None:
    counts = pa.int32() if kind.bit_width == 32 else pa.int64()
    rows = pa.table({"v": pa.array([0, None, (1 << (counts.bit_width - 1)) - 1], counts).view(kind)})

    with pytest.raises(Invalid, match="column 'v', row 2: the year can't be written to CSV") as raised:
        write_file(str(tmp_path / "rows.csv"), rows.schema, rows.to_batches(max_chunksize=1))

    assert raised.value.where == {"field": "v", "row": 2}
    assert not list(tmp_path.iterdir())
