"""Test the undocumented behaviour of pylance that lancelsm relies on. A failure names the broken assumption."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.commit import CommitConflictError
from lance.file import LanceFileSession
from lance.fragment import DataFile, DeletionFile, FragmentMetadata, write_fragments
from lance.mem_wal import CompactedSsTable
from lance.schema import LanceSchema

from lancelsm.dataset.deletions import every_row
from lancelsm.dataset.merged_generations import Markers, read_markers
from lancelsm.objects.filesystem import LocalStore
from tests.interop import lance_oracle as oracle

pytestmark = pytest.mark.interop


# Generations


def test_lance_assigns_field_ids_itself_and_ignores_arrow_metadata(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.int8(), metadata={"lance:field_id": "5"}), pa.field("b", pa.int8())])

    dataset = lance.write_dataset(schema.empty_table(), str(tmp_path))

    assert [field.id() for field in dataset.lance_schema.fields()] == [0, 1]
    assert [field.metadata for field in dataset.schema] == [None, None]


def test_a_lance_schema_consists_of_protobuf_fields_and_the_last_value_of_a_field_wins() -> None:
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


def test_a_merge_onto_an_empty_dataset_can_set_its_own_field_ids(tmp_path: Path) -> None:
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


def test_row_ids_of_one_fragment_are_offsets_and_a_filter_on_them_skips_deleted_rows(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"a": [10, 11, 12, 13]}), str(tmp_path))
    dataset.delete("a = 11")

    found = lance.dataset(str(tmp_path)).scanner(filter="_rowid IN (0, 1, 3)").to_table()

    assert found.to_pylist() == [{"a": 10}, {"a": 13}]


def test_a_missing_file_is_reported_as_not_found(tmp_path: Path) -> None:
    files = LanceFileSession(str(tmp_path))

    with pytest.raises(OSError, match=r"[Nn]ot found"):
        files.read_range("bloom_filter.bin", 0, 10)
    with pytest.raises(ValueError, match=r"[Nn]ot found"):
        files.open_reader("_pk_index/page_lookup.lance")


def test_lance_flushes_one_version_with_one_fragment_and_the_field_ids_of_the_base(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("gone", pa.int8()), pa.field("val", pa.utf8())])
    dataset = oracle.make_table(tmp_path, columns, ("id",))
    dataset.drop_columns(["gone"])
    rows = pa.table({"id": [1, 1], "val": ["a", "b"]}, schema=lance.dataset(str(tmp_path)).schema)
    with lance.dataset(str(tmp_path)).mem_wal_writer(oracle.SHARD) as writer:
        writer.put(rows)

    flushed = lance.dataset(str(oracle.generations(tmp_path)[0]))

    assert {field.name(): field.id() for field in flushed.lance_schema.fields()} == {"id": 0, "val": 2, "_tombstone": 3}
    assert (flushed.version, len(flushed.get_fragments()), flushed.get_fragments()[0].num_deletions) == (1, 1, 1)


def test_lances_vector_search_finds_only_indexed_rows(tmp_path: Path) -> None:
    """So it misses rows of a generation without an index until they are merged and indexed."""
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


# Merge


def merge_base(path: Path) -> lance.LanceDataset:
    """Write eight rows in two fragments."""
    return lance.write_dataset(pa.table({"id": range(8), "v": [0] * 8}), str(path), max_rows_per_file=4)


def merge_of(
    dataset: lance.LanceDataset, fragments: list[FragmentMetadata] | None = None, **metadata: str
) -> lance.Transaction:
    """Build a `Merge` of these fragments (default: those of the dataset and a new one) with more schema metadata."""
    from_protos, (present, *fields) = dataset.lance_schema.__reduce__()
    encoded = json.loads(present) | {name: list(value.encode()) for name, value in metadata.items()}
    if fragments is None:
        new = write_fragments(pa.table({"id": [100], "v": [1]}), dataset, mode="append")
        fragments = [fragment.metadata for fragment in dataset.get_fragments()] + list(new)
    operation = lance.LanceOperation.Merge(fragments, from_protos(json.dumps(encoded), *fields))
    return lance.Transaction(dataset.version, operation, transaction_properties={"why": "test"})


CONFLICTING = {
    "append": lambda uri: lance.write_dataset(pa.table({"id": [7], "v": [7]}), uri, mode="append"),
    "delete": lambda uri: lance.dataset(uri).delete("id = 1"),
    "update": lambda uri: lance.dataset(uri).update({"v": "1"}, where="id = 1"),
    "upsert": lambda uri: (
        lance.dataset(uri)
        .merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute(pa.table({"id": [1, 50], "v": [1, 1]}))
    ),
    "compaction": lambda uri: lance.dataset(uri).optimize.compact_files(),
    "added column": lambda uri: lance.dataset(uri).add_columns({"w": "v + 1"}),
    "dropped column": lambda uri: lance.dataset(uri).drop_columns(["v"]),
    "renamed column": lambda uri: lance.dataset(uri).alter_columns({"path": "v", "name": "w"}),
    "overwrite": lambda uri: lance.write_dataset(pa.table({"id": [7]}), uri, mode="overwrite"),
    "restore": lambda uri: lance.dataset(uri, version=1).restore(),
    "schema metadata": lambda uri: lance.dataset(uri).update_schema_metadata({"a": "b"}),
    "merge of metadata alone": lambda uri: lance.LanceDataset.commit(
        uri, merge_of(lance.dataset(uri), [one.metadata for one in lance.dataset(uri).get_fragments()], fence="1")
    ),
}


@pytest.mark.parametrize("change", CONFLICTING)
def test_a_merge_is_refused_after_any_change_of_data_or_schema(tmp_path: Path, change: str) -> None:
    uri = str(tmp_path)
    transaction = merge_of(merge_base(tmp_path))
    CONFLICTING[change](uri)
    version = lance.dataset(uri).version

    with pytest.raises(CommitConflictError):
        lance.LanceDataset.commit(uri, transaction)

    assert lance.dataset(uri).version == version


def test_a_merge_does_not_conflict_with_changes_of_indexes_and_configuration(tmp_path: Path) -> None:
    transaction = merge_of(merge_base(tmp_path), counter="1")
    lance.dataset(str(tmp_path)).create_scalar_index("id", "BTREE")
    lance.dataset(str(tmp_path)).update_config({"a": "b"})

    merged = lance.LanceDataset.commit(str(tmp_path), transaction)

    assert merged.schema.metadata == {b"counter": b"1"}
    assert merged.count_rows() == 9
    assert [index.name for index in merged.describe_indices()] == ["id_idx"]
    assert merged.config() == {"a": "b"}


def test_a_merge_cannot_be_committed_twice(tmp_path: Path) -> None:
    transaction = merge_of(merge_base(tmp_path))
    lance.LanceDataset.commit(str(tmp_path), transaction)

    with pytest.raises(CommitConflictError):
        lance.LanceDataset.commit(str(tmp_path), transaction)


def test_a_merge_needs_every_fragment_that_has_rows(tmp_path: Path) -> None:
    dataset = merge_base(tmp_path)

    with pytest.raises(OSError, match="fragment"):
        lance.LanceDataset.commit(str(tmp_path), merge_of(dataset, [dataset.get_fragments()[1].metadata]))


def test_schema_metadata_survives_all_other_commits(tmp_path: Path) -> None:
    uri = str(tmp_path)
    dataset = lance.LanceDataset.commit(uri, merge_of(merge_base(tmp_path), counter="5"))
    dataset.create_scalar_index("id", "BTREE")
    for change in ("append", "compaction", "delete", "update", "upsert", "added column"):
        if change == "append":
            CONFLICTING[change](uri)
        elif change == "upsert":
            rows = pa.table({"id": [60], "v": [1]})
            lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)
        else:
            CONFLICTING[change](uri)
        assert lance.dataset(uri).schema.metadata[b"counter"] == b"5", change
    lance.dataset(uri).optimize.optimize_indices()
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0))
    assert lance.dataset(uri).schema.metadata[b"counter"] == b"5"


def test_a_merge_with_an_arrow_schema_is_refused_after_a_column_was_dropped(tmp_path: Path) -> None:
    """So a merge uses the Lance schema: with an Arrow schema, Lance would assign new field ids."""
    dataset = lance.write_dataset(pa.table({"x": [1], "id": [1]}), str(tmp_path))
    dataset.drop_columns(["x"])
    dataset = lance.dataset(str(tmp_path))
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]

    with pytest.warns(DeprecationWarning, match="LanceSchema"):
        operation = lance.LanceOperation.Merge(fragments, dataset.schema)
    with pytest.raises(OSError, match="ids up to 1 are already used"):
        lance.LanceDataset.commit(str(tmp_path), operation, read_version=dataset.version)

    merged = lance.LanceDataset.commit(str(tmp_path), merge_of(dataset, fragments, counter="1"))
    assert [field.id() for field in merged.lance_schema.fields()] == [1]


def test_deleting_every_row_of_a_fragment_writes_no_file(tmp_path: Path) -> None:
    dataset = merge_base(tmp_path)

    assert dataset.get_fragments()[0].delete_rows([3, 2, 1, 0]) is None
    assert not (tmp_path / "_deletions").exists()


def test_deleted_rows_are_added_to_earlier_deletions(tmp_path: Path) -> None:
    merge_base(tmp_path).delete("id = 0")
    dataset = lance.dataset(str(tmp_path))

    changed = dataset.get_fragments()[0].delete_rows([2, 2, 1])

    assert changed.num_deletions == 3
    fragments = [changed, dataset.get_fragments()[1].metadata]
    merged = lance.LanceDataset.commit(str(tmp_path), merge_of(dataset, fragments))
    assert merged.to_table()["id"].to_pylist() == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("hidden", [1, 65_536, 65_537, 4 * 65_536, 300_000])
def test_a_run_length_bitmap_hides_its_rows(tmp_path: Path, hidden: int) -> None:
    dataset = lance.write_dataset(pa.table({"id": range(hidden + 1)}), str(tmp_path))
    file = DeletionFile(1, 2**62 - 1, "bitmap", hidden, None)
    (tmp_path / "_deletions").mkdir()
    (tmp_path / file.path(0)).write_bytes(every_row(hidden))
    fragment = replace(dataset.get_fragments()[0].metadata, deletion_file=file)

    merged = lance.LanceDataset.commit(str(tmp_path), merge_of(dataset, [fragment]))

    merged.validate()
    assert merged.to_table()["id"].to_pylist() == [hidden]


def test_a_merge_omits_a_fragment_without_rows(tmp_path: Path) -> None:
    dataset = merge_base(tmp_path)
    file = DeletionFile(1, 7, "bitmap", 4, None)
    (tmp_path / "_deletions").mkdir()
    (tmp_path / file.path(0)).write_bytes(every_row(4))
    first, second = (fragment.metadata for fragment in dataset.get_fragments())

    merged = lance.LanceDataset.commit(str(tmp_path), merge_of(dataset, [replace(first, deletion_file=file), second]))

    merged.validate()
    assert [fragment.fragment_id for fragment in merged.get_fragments()] == [1]
    appended = lance.write_dataset(pa.table({"id": [9], "v": [9]}), str(tmp_path), mode="append")
    assert [fragment.fragment_id for fragment in appended.get_fragments()] == [1, 2]  # ids of fragments are not reused


def mark(dataset: lance.LanceDataset, marks: dict[str, int]) -> None:
    operation = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    compacted = [CompactedSsTable(region, generation) for region, generation in marks.items()]
    operation.mark_sstables_as_compacted(compacted).execute(MARKED_COLUMNS.empty_table())


MARKED_COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
OTHER = "5f0b2f3e-9a0a-4c4c-8f7e-000000000002"


def test_one_stale_marker_fails_the_call_and_an_empty_source_moves_only_markers(tmp_path: Path) -> None:
    dataset = oracle.make_table(tmp_path, MARKED_COLUMNS, ("id",))
    mark(dataset, {oracle.SHARD: 1})

    with pytest.raises(OSError, match="Stale SSTable"):
        mark(lance.dataset(str(tmp_path)), {oracle.SHARD: 1, OTHER: 4})

    found = read_markers(objects=LocalStore(tmp_path), version=lance.dataset(str(tmp_path)).version)
    assert found == Markers(merged={oracle.SHARD: 1}, caught_up={})


def test_indexes_catch_up_only_by_optimize_and_compaction_undoes_it(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "v": [1, 2]}, schema=MARKED_COLUMNS)
    dataset = oracle.make_table(tmp_path, MARKED_COLUMNS, ("id",), rows)
    lance.write_dataset(pa.table({"id": [3], "v": [3]}, schema=MARKED_COLUMNS), str(tmp_path), mode="append")
    lance.dataset(str(tmp_path)).create_scalar_index("id", "BTREE", name="by_id")
    mark(lance.dataset(str(tmp_path)), {oracle.SHARD: 3})

    def caught_up() -> dict[str, dict[str, int]]:
        dataset = lance.dataset(str(tmp_path))
        found = read_markers(objects=LocalStore(tmp_path), version=dataset.version)
        assert found is not None
        return {name: dict(marks) for name, marks in found.caught_up.items()}

    assert caught_up() == {}
    lance.dataset(str(tmp_path)).optimize.optimize_indices()
    assert caught_up() == {"by_id": {oracle.SHARD: 3}}
    version = lance.dataset(str(tmp_path)).version
    dataset = lance.dataset(str(tmp_path))
    dataset.optimize.optimize_indices()
    assert lance.dataset(str(tmp_path)).version == version  # an optimize without work commits nothing
    dataset.optimize.compact_files()
    assert caught_up() == {}


# Queries


NESTED = """
import sys
import lance, pyarrow as pa
from lance.query import BooleanQuery, MatchQuery, Occur

rows = lance.write_dataset(pa.table({"text": ["merge tree"]}), sys.argv[1])
rows.create_scalar_index("text", "INVERTED")
query = MatchQuery("merge", "text")
for _ in range(int(sys.argv[2])):
    query = BooleanQuery([(Occur.MUST, query)])
assert not any(name for name in dir(query.inner) if not name.startswith("__") and not name.endswith("_query"))
print(rows.scanner(full_text_query=query).to_table().num_rows)
"""


@pytest.mark.rest
@pytest.mark.parametrize(("depth", "ends"), [(300, False), (3_000, True)])
def test_lance_ends_the_process_on_a_deep_query_and_shows_no_part_of_one(
    tmp_path: Path, depth: int, ends: bool
) -> None:
    """`Table.search` warns of it. If this fails, its depth can be limited, or need not be."""
    arguments = [sys.executable, "-c", NESTED, str(tmp_path / "rows"), str(depth)]

    done = subprocess.run(arguments, capture_output=True, text=True, check=False)

    assert (done.returncode < 0, done.stdout.strip()) == ((True, "") if ends else (False, "1"))
