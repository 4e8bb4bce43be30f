"""Lance reads the generations of lancelsm, and lancelsm those of Lance, in the same tables."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance.file import LanceFileReader

from lancelsm.dataset.bloom import build_bloom
from lancelsm.dataset.generation import lookup_generation, read_generation
from lancelsm.dataset.generation_writer import write_generation
from lancelsm.record.key import key_column
from lancelsm.record.schema import TOMBSTONE, TableSchema
from tests.interop import lance_oracle as oracle

pytestmark = pytest.mark.interop

PLAIN = pa.schema([pa.field("id", pa.int64()), pa.field("val", pa.utf8())])
DELETED = {TOMBSTONE: True}


def _base(
    uri: Path, columns: pa.Schema, key: tuple[str, ...], rows: list[dict[str, Any]], **mem_wal: Any
) -> TableSchema:
    oracle.make_table(uri, columns, key, pa.Table.from_pylist(rows, schema=columns), **mem_wal)
    return oracle.table_schema(uri)


def _write(uri: Path, number: int, schema: TableSchema, rows: list[dict[str, Any]], version: str = "2.2") -> str:
    at = oracle.fresh_generation(uri, number)
    table = oracle.stored(schema, rows)
    write_generation(uri=at, keys=table, rows=table.to_batches(), schema=schema, data_storage_version=version)
    return at


def _write_with_lance(uri: Path, *puts: list[dict[str, Any]] | tuple[str, list[dict[str, Any]]]) -> Path:
    """Write one generation with Lance's own writer. A list is a put, ("delete", keys) a delete."""
    dataset = lance.dataset(str(uri))
    with dataset.mem_wal_writer(oracle.SHARD) as writer:
        for put in puts:
            if isinstance(put, tuple):
                names = list(put[1][0])
                keys = pa.schema([dataset.schema.field(name) for name in names])
                writer.delete(pa.Table.from_pylist(put[1], schema=keys))
            else:
                writer.put(pa.Table.from_pylist(put, schema=dataset.schema))
    return oracle.generations(uri)[-1]


def _read(at: Path | str, schema: TableSchema, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in read_generation(uri=str(at), schema=schema, **options) for row in batch.to_pylist()]


# How values are stored


def test_texts_of_a_local_generation_are_not_compressed_unless_the_table_says_how(tmp_path: Path) -> None:
    lz4 = {b"lance-encoding:compression": b"lz4", b"lance-encoding:compression-level": b"1"}
    names = ("val", "chosen")
    columns = pa.schema([PLAIN.field("id"), PLAIN.field("val"), pa.field("chosen", pa.utf8(), metadata=lz4)])
    schema = _base(tmp_path, columns, ("id",), [])
    texts = [f"{number:08} some text that repeats itself, again and again" for number in range(20_000)]
    at = _write(tmp_path, 1, schema, [{"id": n, **dict.fromkeys(names, text)} for n, text in enumerate(texts)])

    (file,) = (Path(at) / "data").iterdir()
    size = {
        field.name: sum(buffer.size for page in column.pages for buffer in page.buffers)
        for field, column in zip(schema.stored, LanceFileReader(str(file)).metadata().columns, strict=True)
    }
    assert size["val"] >= sum(map(len, texts)) > 3 * size["chosen"]
    stored = lance.dataset(at).schema
    assert b"lance-encoding:compression" not in (stored.field("val").metadata or {})


# Lance reads generations of lancelsm


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2", "legacy"])
def test_lance_scans_counts_filters_and_looks_up_our_generations(tmp_path: Path, version: str) -> None:
    schema = _base(tmp_path, PLAIN, ("id",), [{"id": i, "val": f"base {i}"} for i in range(1, 6)])
    _write(tmp_path, 1, schema, [{"id": 2, "val": "old"}, {"id": 6, "val": "old"}, {"id": 1, **DELETED}], version)
    _write(tmp_path, 2, schema, [{"id": 6, "val": "new"}, {"id": 3, **DELETED}, {"id": 1, "val": "again"}], version)

    logical = {1: "again", 2: "old", 4: "base 4", 5: "base 5", 6: "new"}
    assert {row["id"]: row["val"] for row in oracle.scan(tmp_path).to_pylist()} == logical
    assert oracle.count(tmp_path) == len(logical)
    # A newer row hides an older one, even if only the older one matches.
    assert oracle.scan(tmp_path, where="val = 'old' OR val = 'base 1'").to_pylist() == [{"id": 2, "val": "old"}]
    for number in range(1, 8):
        found = oracle.lookup(tmp_path, pa.array([number], pa.int64()))
        assert [row["val"] for row in found] == ([logical[number]] if number in logical else [])


def test_lance_reads_our_generations_of_a_composite_key(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("b", pa.utf8()), pa.field("v", pa.int32()), pa.field("a", pa.int64())])
    schema = _base(tmp_path, columns, ("a", "b"), [{"a": a, "b": b, "v": 0} for a in (-1, 1) for b in ("", "x\0y")])
    _write(
        tmp_path, 1, schema, [{"a": -1, "b": "", "v": 1}, {"a": 1, "b": "x\0y", **DELETED}, {"a": 1, "b": "x", "v": 2}]
    )

    assert oracle.by_key(oracle.scan(tmp_path), "a", "b") == [
        {"b": "", "v": 1, "a": -1},
        {"b": "x\0y", "v": 0, "a": -1},
        {"b": "", "v": 0, "a": 1},
        {"b": "x", "v": 2, "a": 1},
    ]


def test_lance_reads_our_generation_with_many_index_pages(tmp_path: Path) -> None:
    rows = 20_000
    schema = _base(tmp_path, PLAIN, ("id",), [{"id": i, "val": "base"} for i in range(0, 3 * rows, 500)])
    order = pa.array([(i * 7919) % rows for i in range(rows)])
    table = pa.table(
        [pc.multiply(order, 3), order.cast(pa.utf8()), pc.equal(pc.bit_wise_and(order, 1), 1)], schema=schema.stored
    )
    at = oracle.fresh_generation(tmp_path, 1)
    write_generation(uri=at, keys=table, rows=table.to_batches(), schema=schema, data_storage_version="2.2")

    found = {row["id"]: row["val"] for row in oracle.scan(tmp_path).to_pylist()}

    alive = {3 * i: str(i) for i in range(0, rows, 2)}
    base = {i: "base" for i in range(0, 3 * rows, 500) if i % 3}
    assert found == alive | base
    for key in (0, 3, 3 * 8192, 3 * 8191, 3 * 16384, 3 * (rows - 2), 500):
        values = [row["val"] for row in oracle.lookup(tmp_path, pa.array([key], pa.int64()))]
        assert values == [found[key]] if key in found else values == []


def test_lance_reads_nested_columns_of_our_generations(tmp_path: Path) -> None:
    columns = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("of", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.list_(pa.utf8()))])),
            pa.field("kind", pa.dictionary(pa.int32(), pa.utf8())),
            pa.field("vec", pa.list_(pa.float32(), 2)),
        ]
    )
    rows = [{"id": i, "of": {"x": i, "y": ["a", None]}, "kind": f"k{i}", "vec": [i, -0.0]} for i in range(4)]
    changed = [rows[1] | {"of": None, "kind": None}, rows[3] | {"id": 9, "of": {"x": None, "y": []}}]
    schema = _base(tmp_path, columns, ("id",), rows)
    _write(tmp_path, 1, schema, [*changed, {"id": 2, **DELETED}])

    assert oracle.by_key(oracle.scan(tmp_path), "id") == [rows[0], changed[0], rows[3], changed[1]]


def test_lance_finds_vectors_in_our_generations_once_they_are_indexed(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("vec", pa.list_(pa.float32(), 4))])
    rows = [{"id": i, "vec": [float(i), 0.0, 0.0, 1.0]} for i in range(300)]
    declared = oracle.declare_primary_key(columns, ("id",))
    base = lance.write_dataset(pa.Table.from_pylist(rows, schema=declared), str(tmp_path))
    base.create_index("vec", "IVF_FLAT", num_partitions=1, name="near")
    lance.dataset(str(tmp_path)).initialize_mem_wal(maintained_indexes=["near"])
    moved, added = rows[300 - 1] | {"id": 3}, {"id": 500, "vec": [3.25, 0.0, 0.0, 1.0]}
    at = _write(tmp_path, 1, oracle.table_schema(tmp_path), [moved, added, {"id": 4, **DELETED}])
    lance.dataset(at).create_index("vec", "IVF_FLAT", num_partitions=1, name="near")

    found = oracle.nearest(tmp_path, "vec", pa.array(rows[3]["vec"], pa.float32()), 20, ["id"])

    numbers = [row["id"] for row in found]
    assert numbers[:2] == [500, 2]  # not 3, whose vector is now far away, and not 4, which is deleted
    assert 4 not in numbers


def test_lance_reads_our_generations_after_the_bases_columns_changed(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("gone", pa.int8()), pa.field("val", pa.utf8())])
    oracle.make_table(tmp_path, columns, ("id",), pa.table({"id": [1, 2], "gone": [1, 2], "val": ["a", "b"]}))
    dataset = lance.dataset(str(tmp_path))
    dataset.drop_columns(["gone"])
    dataset.add_columns(pa.field("late", pa.int32()))
    schema = oracle.table_schema(tmp_path)
    _write(tmp_path, 1, schema, [{"id": 2, "val": "B", "late": 7}, {"id": 3, "val": "C"}])

    # Then the columns change again: only the second generation knows them.
    lance.dataset(str(tmp_path)).add_columns(pa.field("later", pa.utf8()))
    lance.dataset(str(tmp_path)).alter_columns({"path": "val", "name": "text"})
    _write(tmp_path, 2, oracle.table_schema(tmp_path), [{"id": 4, "text": "D", "later": "x"}])

    expected = [
        {"id": 1, "text": "a", "late": None, "later": None},
        {"id": 2, "text": "B", "late": 7, "later": None},
        {"id": 3, "text": "C", "late": None, "later": None},
        {"id": 4, "text": "D", "late": None, "later": "x"},
    ]
    assert oracle.by_key(oracle.scan(tmp_path), "id") == expected
    ours = [row for at in oracle.generations(tmp_path) for row in _read(at, oracle.table_schema(tmp_path))]
    assert [{name: row[name] for name in expected[0]} for row in ours] == expected[1:]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.bool_(), [True, False]),
        (pa.int8(), [-1, 2]),
        (pa.int16(), [-1, 2]),
        (pa.int32(), [-1, 2]),
        (pa.uint8(), [1, 255]),
        (pa.uint16(), [1, 255]),
        (pa.uint32(), [1, 255]),
        (pa.uint64(), [1, (1 << 64) - 1]),
        (pa.utf8(), ["", "b"]),
        (pa.large_utf8(), ["", "b"]),
        (pa.binary(), [b"", b"\0"]),
    ],
    ids=str,
)
def test_lance_reads_our_generations_of_every_key_type_that_it_supports(
    tmp_path: Path, kind: pa.DataType, values: list[Any]
) -> None:
    columns = pa.schema([pa.field("id", kind), pa.field("val", pa.utf8())])
    schema = _base(tmp_path, columns, ("id",), [{"id": value, "val": "base"} for value in values])
    _write(tmp_path, 1, schema, [{"id": values[0], "val": "new"}, {"id": values[1], **DELETED}])

    assert oracle.scan(tmp_path).to_pylist() == [{"id": values[0], "val": "new"}]
    assert oracle.lookup(tmp_path, pa.array([values[0]], kind)) == [{"id": values[0], "val": "new"}]
    assert oracle.lookup(tmp_path, pa.array([values[1]], kind)) == []


# lancelsm reads generations of Lance


def test_rows_that_lance_deleted_stay_hidden_and_its_tombstones_are_read(tmp_path: Path) -> None:
    schema = _base(tmp_path, PLAIN, ("id",), [{"id": 1, "val": "base"}, {"id": 2, "val": "base"}])
    at = _write_with_lance(
        tmp_path,
        [{"id": 2, "val": "x"}, {"id": 3, "val": "first"}, {"id": 3, "val": "last"}],
        ("delete", [{"id": 2}, {"id": 1}]),
        [{"id": 4, "val": None}],
    )

    rows = oracle.by_key(_read(at, schema), "id")
    assert rows == [
        {"id": 1, "val": None, TOMBSTONE: True},
        {"id": 2, "val": None, TOMBSTONE: True},
        {"id": 3, "val": "last", TOMBSTONE: False},
        {"id": 4, "val": None, TOMBSTONE: False},
    ]
    for number in range(6):
        found = lookup_generation(uri=str(at), schema=schema, keys=pa.table({"id": [number]}))
        assert found.to_pylist() == [row for row in rows if row["id"] == number]
    assert oracle.scan(tmp_path).num_rows == 2


def test_lookups_in_a_large_generation_of_lance_find_every_row(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("a", pa.utf8()), pa.field("b", pa.int32()), pa.field("v", pa.int64())])
    schema = _base(tmp_path, columns, ("a", "b"), [])
    dataset = lance.dataset(str(tmp_path))
    count = 9_000  # written twice, so the index has more than one page
    keys = [{"a": f"k{(i * 31) % count}", "b": i % 7 - 3, "v": i} for i in range(count)]
    with dataset.mem_wal_writer(oracle.SHARD) as writer:
        for version in (0, 1):
            rows = [row | {"v": row["v"] + version * count} for row in keys]
            writer.put(pa.Table.from_pylist(rows, schema=dataset.schema))
    at = oracle.generations(tmp_path)[-1]

    wanted = pa.Table.from_pylist([*keys[::5], {"a": "k1", "b": 99, "v": 0}])
    found = lookup_generation(uri=str(at), schema=schema, keys=wanted, columns=["v"])

    assert oracle.by_key(found, "v") == [row | {"v": row["v"] + count, TOMBSTONE: False} for row in keys[::5]]
    assert oracle.by_key(_read(at, schema, columns=["v"]), "v") == [
        row | {TOMBSTONE: False} for row in oracle.by_key(oracle.scan(tmp_path), "v")
    ]


def test_a_lookup_works_in_a_generation_without_key_index_and_bloom_filter(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("a", pa.utf8()), pa.field("b", pa.int32()), pa.field("v", pa.int64())])
    schema = _base(tmp_path, columns, ("b", "a"), [])
    at = _write_with_lance(
        tmp_path, [{"a": "x", "b": 1, "v": 1}, {"a": "x", "b": 1, "v": 2}, {"a": "y", "b": 1, "v": 3}]
    )
    shutil.rmtree(at / "_pk_index")
    (at / "bloom_filter.bin").unlink()

    wanted = pa.table({"b": pa.array([1, 1], pa.int32()), "a": ["z", "x"]})
    found = lookup_generation(uri=str(at), schema=schema, keys=wanted)

    assert found.to_pylist() == [{"a": "x", "b": 1, "v": 2, TOMBSTONE: False}]


# Single files

_KEYS = {
    "int32": (pa.schema([pa.field("k", pa.int32())]), [{"k": k} for k in (-1, 0, 5, 2**31 - 1)]),
    "int64": (pa.schema([pa.field("k", pa.int64())]), [{"k": k} for k in (-5, 0, 1 << 40)]),
    "utf8": (pa.schema([pa.field("k", pa.utf8())]), [{"k": k} for k in ("", "a", "bcdefghi", "ä" * 30)]),
    "binary": (pa.schema([pa.field("k", pa.binary())]), [{"k": k} for k in (b"", b"\x00\xff", b"x" * 64)]),
    "composite": (
        pa.schema([pa.field("k", pa.utf8()), pa.field("n", pa.int64()), pa.field("b", pa.binary())]),
        [{"k": k, "n": n, "b": b} for k in ("", "x\0") for n in (-1, 1) for b in (b"", b"\0\xff")],
    ),
}


@pytest.mark.parametrize("name", _KEYS)
def test_bloom_filter_and_key_index_equal_those_of_lance(tmp_path: Path, name: str) -> None:
    key, keys = _KEYS[name]
    columns = pa.schema([*key, pa.field("v", pa.int32())])
    schema = _base(tmp_path / "t", columns, tuple(key.names), [])
    theirs = _write_with_lance(tmp_path / "t", [row | {"v": 1} for row in keys])
    ours = Path(_write(tmp_path / "t", 2, schema, [row | {"v": 1} for row in keys]))

    assert (ours / "bloom_filter.bin").read_bytes() == (theirs / "bloom_filter.bin").read_bytes()
    for file in ("page_data.lance", "page_lookup.lance"):
        mine, lances = (LanceFileReader(str(at / "_pk_index" / file)) for at in (ours, theirs))
        assert mine.read_all().to_table().equals(lances.read_all().to_table())
        assert mine.metadata().schema.equals(lances.metadata().schema, check_metadata=True)
        assert _format(mine) == _format(lances)
        sizes = [(at / "_pk_index" / file).stat().st_size for at in (ours, theirs)]
        assert sizes[0] == sizes[1]
    fields = [lance.dataset(str(at)).schema.remove_metadata() for at in (ours, theirs)]
    assert fields[0].equals(fields[1], check_metadata=True)


def _format(file: LanceFileReader) -> tuple[int, int]:
    return file.metadata().major_version, file.metadata().minor_version


def test_an_overfull_bloom_filter_equals_lances(tmp_path: Path) -> None:
    _base(tmp_path, PLAIN, ("id",), [])
    dataset = lance.dataset(str(tmp_path))
    with dataset.mem_wal_writer(oracle.SHARD) as writer:
        rows = pa.table(
            {"id": pa.array(range(0, 60_000, 3)), "val": pa.nulls(20_000, pa.utf8())}, schema=dataset.schema
        )
        writer.put(rows)

    theirs = (oracle.generations(tmp_path)[0] / "bloom_filter.bin").read_bytes()

    assert theirs == build_bloom(rows.select(["id"]))


def test_composite_keys_are_encoded_as_lance_encodes_them(tmp_path: Path) -> None:
    kinds = [
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.uint8(),
        pa.uint16(),
        pa.uint32(),
        pa.uint64(),
        pa.large_utf8(),
    ]
    columns = pa.schema([pa.field(f"k{i}", kind) for i, kind in enumerate(kinds)] + [pa.field("v", pa.int8())])
    key = tuple(columns.names[:-1])
    _base(tmp_path, columns, key, [])
    rows = [
        dict(zip(key, [True, -1, 2, -3, 4, 5, 6, (1 << 64) - 1, "z\0z"], strict=True)),
        dict.fromkeys(key[:-1], 1) | {"k0": False, "k8": ""},
    ]
    at = _write_with_lance(tmp_path, rows)

    theirs = LanceFileReader(str(at / "_pk_index" / "page_data.lance")).read_all().to_table()["values"].to_pylist()

    assert theirs == sorted(key_column(pa.Table.from_pylist(rows, schema=columns), key).to_pylist())
