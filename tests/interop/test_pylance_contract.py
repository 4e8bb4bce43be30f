"""What we rely on beyond pylance's documentation. A failure here says which assumption a new release has broken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileSession
from lance.fragment import DataFile, write_fragments
from lance.schema import LanceSchema

from tests.interop import lance_oracle as oracle

pytestmark = pytest.mark.interop


# Generations


def test_lance_numbers_a_new_datasets_columns_itself_whatever_arrow_metadata_says(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.int8(), metadata={"lance:field_id": "5"}), pa.field("b", pa.int8())])

    dataset = lance.write_dataset(schema.empty_table(), str(tmp_path))

    assert [field.id() for field in dataset.lance_schema.fields()] == [0, 1]
    assert [field.metadata for field in dataset.schema] == [None, None]


def test_a_lance_schema_comes_apart_into_protobuf_fields_whose_last_value_counts() -> None:
    schema = LanceSchema.from_pyarrow(
        pa.schema([pa.field("a", pa.int8()), pa.field("b", pa.struct([("c", pa.int8())]))])
    )

    _, (metadata, *fields) = schema.__reduce__()
    ids, parents = (
        (9, 200, 7),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xc8\x01"),
    )
    numbers = (b"\x09", b"\xc8\x01", b"\x07")
    changed = [field + b"\x18" + n + b"\x20" + p for field, n, p in zip(fields, numbers, parents, strict=True)]
    a, b = LanceSchema._from_protos(metadata, *changed).fields()

    assert (a.id(), b.id(), b.children()[0].id()) == ids
    assert LanceSchema._from_protos(metadata, *changed).to_pyarrow() == schema.to_pyarrow()


def test_a_merge_onto_an_empty_dataset_brings_columns_with_ids_of_its_own(tmp_path: Path) -> None:
    rows = pa.table({"a": pa.array([1, 2])})
    schema = LanceSchema.from_pyarrow(rows.schema)
    _, (metadata, field) = schema.__reduce__()
    (fragment,) = write_fragments(rows, str(tmp_path), mode="create")
    lance.write_dataset(pa.schema([pa.field("other", pa.bool_())]).empty_table(), str(tmp_path))
    file = fragment.files[0]
    file = DataFile(
        str(file.path), [5], file.column_indices, file.file_major_version, file.file_minor_version, file.file_size_bytes
    )

    merge = lance.LanceOperation.Merge(
        [replace(fragment, files=[file])], LanceSchema._from_protos(metadata, field + b"\x18\x05")
    )
    dataset = lance.LanceDataset.commit(str(tmp_path), merge, read_version=1)

    assert (dataset.version, [field.id() for field in dataset.lance_schema.fields()]) == (2, [5])
    assert dataset.to_table() == rows


def test_row_ids_of_one_fragment_are_offsets_and_a_filter_on_them_skips_masked_rows(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"a": [10, 11, 12, 13]}), str(tmp_path))
    dataset.delete("a = 11")

    found = lance.dataset(str(tmp_path)).scanner(filter="_rowid IN (0, 1, 3)").to_table()

    assert found.to_pylist() == [{"a": 10}, {"a": 13}]


def test_a_file_that_is_missing_is_said_to_be_not_found(tmp_path: Path) -> None:
    files = LanceFileSession(str(tmp_path))

    with pytest.raises(OSError, match=r"[Nn]ot found"):
        files.read_range("bloom_filter.bin", 0, 10)
    with pytest.raises(ValueError, match=r"[Nn]ot found"):
        files.open_reader("_pk_index/page_lookup.lance")


def test_lance_flushes_version_1_of_one_fragment_with_the_bases_field_ids(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("gone", pa.int8()), pa.field("val", pa.utf8())])
    dataset = oracle.make_table(tmp_path, columns, ("id",))
    dataset.drop_columns(["gone"])
    rows = pa.table({"id": [1, 1], "val": ["a", "b"]}, schema=lance.dataset(str(tmp_path)).schema)
    with lance.dataset(str(tmp_path)).mem_wal_writer(oracle.SHARD) as writer:
        writer.put(rows)

    flushed = lance.dataset(str(oracle.generations(tmp_path)[0]))

    assert {field.name(): field.id() for field in flushed.lance_schema.fields()} == {"id": 0, "val": 2, "_tombstone": 3}
    assert (flushed.version, len(flushed.get_fragments()), flushed.get_fragments()[0].num_deletions) == (1, 1, 1)


def test_lances_vector_search_sees_only_what_is_indexed(tmp_path: Path) -> None:
    """So rows of a generation without an index of its own are missing there until they are merged and indexed."""
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("vec", pa.list_(pa.float32(), 2))])
    oracle.make_table(
        tmp_path, columns, ("id",), pa.table({"id": [1], "vec": pa.array([[0, 0]], columns.field(1).type)})
    )
    with lance.dataset(str(tmp_path)).mem_wal_writer(oracle.SHARD) as writer:
        writer.put(
            pa.table(
                {"id": [2], "vec": pa.array([[1, 1]], columns.field(1).type)},
                schema=lance.dataset(str(tmp_path)).schema,
            )
        )

    assert oracle.nearest(tmp_path, "vec", pa.array([0, 0], pa.float32()), 2, ["id"]) == []
