"""Manifests that are decoded without Lance: the same as Lance reads, or left to Lance."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lancelsm.admin.adopt import adopt
from lancelsm.dataset import newest_base
from lancelsm.dataset.base_manifest import decode_manifest
from lancelsm.dataset.base_table import BaseTable, open_base
from lancelsm.dataset.newest_base import read_newest_base
from lancelsm.dataset.statement import files_of
from lancelsm.objects.filesystem import LocalStore
from lancelsm.record.schema import declare_primary_key
from lancelsm.table import Table
from tests.interop import lance_oracle as oracle
from tests.unit.arrow_values import EVERYWHERE, EXTENSIONS
from tests.unit.tables import create, row, three_levels

_ITEM = pa.field("element", pa.float32(), nullable=False)
_POINT = pa.struct([pa.field("x", pa.int8(), metadata={"unit": "m"}), pa.field("y", pa.list_(pa.string()))])
NESTED = [
    pa.null(),
    _POINT,
    pa.list_(_POINT),
    pa.list_(_ITEM),
    pa.large_list(_POINT),
    pa.large_list(pa.list_(_ITEM)),
    pa.map_(pa.string(), _POINT),
    *(pa.list_(kind, 2) for kind in (pa.float32(), pa.binary(3), pa.timestamp("us", "+02:00"), pa.list_(pa.int8(), 3))),
]


def newest(uri: Path | str) -> BaseTable | None:
    return read_newest_base(uri=str(uri), objects=LocalStore(Path(uri)), storage_options=None)


def check_same(uri: Path | str) -> BaseTable:
    """Read the newest version in both ways and compare everything that a manifest tells."""
    decoded, by_lance = newest(uri), open_base(uri=str(uri))
    assert decoded is not None
    assert decoded == by_lance  # version, schema, metadata, fragments, file format
    assert decoded.schema.columns.equals(by_lance.schema.columns, check_metadata=True)
    assert decoded.mem_wal_index() == by_lance.mem_wal_index()
    assert [(one.path, one.rows, one.bytes) for one in files_of(decoded)] == [
        (one.path, one.rows, one.bytes) for one in files_of(by_lance)
    ]
    return decoded


def test_every_type_of_a_column_is_decoded_as_lance_does(tmp_path: Path) -> None:
    columns = pa.schema([
        pa.field("id", pa.int64(), nullable=False),
        *(pa.field(f"c{number}", kind) for number, kind in enumerate((*EVERYWHERE, *NESTED))),
    ])  # fmt: skip
    oracle.make_table(tmp_path, columns, ["id"], bucket_column="id", num_buckets=4)

    check_same(tmp_path)


@pytest.mark.parametrize("kind", [*EXTENSIONS, pa.json_(), pa.list_(pa.struct([("x", pa.int8())]), 2)], ids=str)
def test_other_types_are_left_to_lance(tmp_path: Path, kind: pa.DataType) -> None:
    oracle.make_table(tmp_path, pa.schema([("id", pa.int64()), ("v", kind)]), ["id"], unsharded=True)

    assert newest(tmp_path) is None


@pytest.mark.parametrize("release", oracle.FROZEN)
@pytest.mark.parametrize("name", ["orders", "parts"])
def test_tables_of_older_releases_are_decoded_as_lance_does(tmp_path: Path, release: str, name: str) -> None:
    oracle.frozen(release, tmp_path)

    check_same(tmp_path / name)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_changed_columns_deletions_and_old_names_are_decoded_as_lance_does(tmp_path: Path, version: str) -> None:
    columns = declare_primary_key(pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", _POINT)]), ("b", "a"))
    rows = [{"a": n, "b": "x", "v": {"x": n, "y": None}} for n in range(9)]
    dataset = lance.write_dataset(
        pa.Table.from_pylist(rows, schema=columns),
        tmp_path,
        data_storage_version=version,
        enable_v2_manifest_paths=False,
    )
    for n in range(9):  # version 10 is newer than version 9
        dataset.insert(pa.Table.from_pylist(rows[n:], schema=columns))
    dataset.delete("a = 3")
    dataset.add_columns({"late": "a + 1"})
    dataset.alter_columns({"path": "v", "name": "point"}, {"path": "late", "nullable": True})
    dataset.drop_columns(["point.x"])
    dataset.update_config({"theirs": "1"})

    base = check_same(tmp_path)

    assert base.version > 10
    assert any(one.path.startswith("_deletions/") for one in files_of(base))
    dataset.delete("true")
    assert check_same(tmp_path).rows == 0


def indexed(path: Path) -> str:
    table = create(path, [row(1)])
    table.create_index("v", kind="BITMAP")
    return table.uri


def clone(path: Path) -> str:
    source = lance.write_dataset(pa.table({"id": [1]}), path / "source")
    return str(source.shallow_clone(path / "clone", source.version).uri)


def legacy(path: Path) -> str:
    return str(lance.write_dataset(pa.table({"id": [1]}), path / "legacy", data_storage_version="legacy").uri)


def linked(path: Path) -> str:
    table = create(path, [row(1)])
    Path(table.uri, "_versions").rename(path / "elsewhere")
    Path(table.uri, "_versions").symlink_to(path / "elsewhere")
    return table.uri


def bad_number(path: Path) -> str:
    table = create(path, [row(1)])
    lance.dataset(table.uri).update_schema_metadata({"lancelsm.fence": "one"})
    return table.uri


def nothing(path: Path) -> str:
    return str(path)


@pytest.mark.parametrize("make", [indexed, clone, legacy, linked, bad_number, nothing])
def test_what_lance_must_decide_is_left_to_it(tmp_path: Path, make: Callable[[Path], str]) -> None:
    assert newest(make(tmp_path)) is None


def test_a_manifest_that_is_too_large_is_left_to_lance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = create(tmp_path).uri
    check_same(uri)
    monkeypatch.setattr(newest_base, "_BYTES", 100)

    assert newest(uri) is None


def test_no_part_of_a_manifest_is_decoded(tmp_path: Path) -> None:
    (path,) = Path(create(tmp_path).uri, "_versions").glob("*3.manifest")  # version 2
    body = path.read_bytes()

    assert decode_manifest(body) is not None
    assert {decode_manifest(body[:length]) for length in range(len(body))} == {None}
    assert {decode_manifest(body[start:]) for start in range(1, len(body))} == {None}


# Status


def merged(path: Path) -> Table:
    table = three_levels(path / "table")
    table.flush()
    table.merge()
    table.upsert([{"id": 9, "v": 9}])
    return table


def changed_by(act: Callable[[lance.LanceDataset], object]) -> Callable[[Path], Table]:
    def make(path: Path) -> Table:
        table = merged(path)
        act(lance.dataset(table.uri))
        return table

    return make


def with_foreign_shard(path: Path) -> Table:
    table = merged(path)
    rows = pa.Table.from_pylist([{"id": 1, "v": 1}], schema=lance.dataset(table.uri).schema)
    with lance.dataset(table.uri).mem_wal_writer(oracle.SHARD) as writer:
        writer.put(rows)
    return table


def with_index(path: Path) -> Table:
    table = merged(path)
    table.create_index("v", kind="BTREE")
    return table


def adopted(path: Path) -> Table:
    columns = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    rows = pa.Table.from_pylist([{"id": 1, "v": 1}], schema=columns)
    oracle.make_table(path / "table", columns, ["id"], rows, bucket_column="id", num_buckets=2)
    return Table(adopt(path / "table"))


STATUS: dict[str, tuple[Callable[[Path], Table], list[str]]] = {
    "new": (create, []),
    "merged": (merged, []),
    "adopted": (adopted, []),
    "indexed": (with_index, []),
    "a foreign shard": (with_foreign_shard, ["foreign_shard"]),
    "added rows": (
        changed_by(lambda base: base.insert(pa.table({"id": [1], "v": [1]}, schema=base.schema))),
        ["duplicate_keys", "foreign_commit"],
    ),
    "deleted rows": (changed_by(lambda base: base.delete("id = 1")), ["foreign_commit"]),
    "a dropped column": (changed_by(lambda base: base.drop_columns(["v"])), ["base"]),
    "a renamed column": (changed_by(lambda base: base.alter_columns({"path": "v", "name": "w"})), ["base"]),
    "an added column": (changed_by(lambda base: base.add_columns(pa.field("w", pa.int8()))), ["base"]),
    "a lost index": (changed_by(lambda base: base.drop_index("__lance_mem_wal")), ["base"]),
}


@pytest.mark.one_case
@pytest.mark.parametrize("name", STATUS)
def test_the_status_is_the_same_with_and_without_lance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make, problems = STATUS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = make(tmp_path)

    found = table.status()
    monkeypatch.setattr(newest_base, "read_newest_base", lambda **_: None)

    assert [one.kind for one in found.problems] == problems
    assert table.status() == found
