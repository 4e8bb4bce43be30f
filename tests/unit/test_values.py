"""A column of each type, alone and inside every nested type, is refused or keeps its values exactly, at every level."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.adopt import adopt
from lancelsm.admin.clone import clone_snapshot
from lancelsm.backup import back_up, restore
from lancelsm.compaction.optimize import optimize_base
from lancelsm.errors import Invalid
from lancelsm.record.admission import declared, refusal
from lancelsm.region.handle import open_table
from lancelsm.table import Table
from tests.interop import lance_oracle as oracle
from tests.unit.arrow_values import EVERYWHERE, EXTENSIONS, FIXED, NEVER, array, exact

KEY: Final = pa.field("id", pa.int64(), nullable=False)
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
            return [*EVERYWHERE, *EXTENSIONS, pa.null()]
        case "fixed_size_list":
            return [*FIXED, pa.list_(pa.int16(), 3)]
        case _:
            return [*EVERYWHERE, pa.list_(pa.float32(), 3)]


def refused(inside: str) -> list[pa.DataType]:
    match inside:
        case "alone":
            return NEVER
        case "fixed_size_list":
            texts = [kind for kind in EVERYWHERE if kind not in FIXED]
            return [*NEVER, *EXTENSIONS, pa.null(), *texts, pa.list_(pa.int8()), pa.struct([("x", pa.int8())])]
        case _:
            return [*NEVER, *EXTENSIONS, pa.null()]


def rows_of_all(columns: pa.Schema, keys: range, random: Random) -> pa.Table:
    values = [array(column.type, len(keys), random, nullable=column.nullable) for column in list(columns)[1:]]
    return pa.Table.from_arrays([pa.array(keys, pa.int64()), *values], schema=columns)


class Model:
    """The rows that a table must have, as exact values by key."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}

    def write(self, rows: pa.Table) -> None:
        self.rows.update(self.of(rows))

    def of(self, rows: pa.Table) -> dict[int, dict[str, Any]]:
        columns = {name: exact(rows.column(name)) for name in rows.schema.names if name != "id"}
        return {key: {name: column[at] for name, column in columns.items()} for at, key in enumerate(exact(rows["id"]))}

    def check(self, found: pa.Table, columns: pa.Schema, what: str, keys: set[int] | None = None) -> None:
        expected = {key: row for key, row in self.rows.items() if keys is None or key in keys}
        rows = self.of(found)
        assert rows.keys() == expected.keys(), what
        for column in columns:
            assert found.schema.field(column.name).type == column.type, f"{what}: {column.name}"
        for key, row in rows.items():
            for name, value in row.items():
                assert value == expected[key][name], f"{what}: {name} of type {columns.field(name).type}, row {key}"


def check_reads(table: Table, model: Model, what: str) -> None:
    model.check(table.scan().to_arrow(), table.schema, f"{what}, scan")
    model.check(table.get({"id": sorted(model.rows)}), table.schema, f"{what}, get")
    model.check(table.scan(where="id < 5").to_arrow(), table.schema, f"{what}, where", {k for k in model.rows if k < 5})


def check_levels(table: Table, directory: Path, batches: list[pa.Table], model: Model) -> None:
    """Write each batch, and compare all reads at each level, in copies and in the change stream."""
    for number, rows in enumerate(batches):
        table.upsert(rows)
        model.write(rows)
        check_reads(table, model, f"log {number}")
        if number != 1:
            table.flush()
            check_reads(table, model, f"generation {number}")
        if number > 2:
            table.merge(engine="inprocess")
            check_reads(table, model, f"base {number}")
    table.snapshot("now", "never")
    check_reads(table.at("now"), model, "snapshot")
    clone_snapshot(open_table(table.uri), "now", directory / "clone")
    check_reads(lancelsm.open(directory / "clone"), model, "clone")
    changed = Model()
    for change in table.changes():
        changed.write(change.rows.select(table.schema.names))
    assert {key: model.rows[key] for key in changed.rows} == changed.rows, "change stream"
    optimize_base(uri=table.uri, small_fragments=2, deleted_share=0.01)
    check_reads(table, model, "optimized base")
    back_up(table, directory / "backup")
    restore(directory / "backup", directory / "restored")
    check_reads(lancelsm.open(directory / "restored"), model, "restored backup")


def columns_of(kinds: list[pa.DataType], **options: Any) -> pa.Schema:
    return pa.schema([KEY, *(pa.field(f"v{number}", kind, **options) for number, kind in enumerate(kinds))])


@pytest.mark.one_case
@pytest.mark.parametrize("given", ["schema", "rows"])
@pytest.mark.parametrize("inside", INSIDE)
def test_values_of_every_type_are_kept_at_every_level(tmp_path: Path, inside: str, given: str) -> None:
    columns = columns_of([INSIDE[inside](kind) for kind in kept(inside)])
    random = Random(f"{inside} {given}")
    batches = [rows_of_all(columns, range(at, at + 12), random) for at in (0, 6, 12, 3, 0)]
    model = Model()
    first = columns
    if given == "rows":
        first = rows_of_all(columns, range(20, 30), random)
        model.write(first)

    table = lancelsm.create(tmp_path / "table", first, primary_key="id")

    assert [field.type for field in table.schema] == [field.type for field in declared(columns)]
    check_levels(table, tmp_path, batches, model)


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
@pytest.mark.parametrize("version", ["2.2", "2.0", "2.1", "2.3"])
def test_an_adopted_base_of_each_file_version_keeps_all_values(tmp_path: Path, version: str) -> None:
    kinds = [INSIDE[inside](kind) for inside in INSIDE for kind in kept(inside)]
    columns = [column for column in declared(columns_of(kinds)) if refusal(column, file_version=version) is None]
    structs = [column for column in columns if pa.types.is_struct(column.type)]
    assert bool(structs) == (version != "2.0")
    table = Table(adopt(lance_wrote(tmp_path, pa.schema(columns), version)))
    assert lance.dataset(table.uri).data_storage_version == version
    random = Random(f"version {version}")
    batches = [rows_of_all(table.schema, range(at, at + 12), random) for at in (0, 6, 12, 3, 0)]

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
