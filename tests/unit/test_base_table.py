"""The base: creating and opening it, its markers for Lance, and the translation of Lance's errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancelsm.common.layout import RegionId, TableId
from lancelsm.dataset.base_table import (
    BaseFacts,
    Sharding,
    VersionGone,
    create_base,
    ensure_mem_wal,
    find_base,
    open_base,
)
from lancelsm.dataset.cleanup import named_files
from lancelsm.dataset.deletions import every_row
from lancelsm.dataset.merged_generations import read_markers, repair_markers
from lancelsm.dataset.native import native_errors
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.objects.filesystem import LocalStore
from lancelsm.record.schema import FIELD_ID, field_id
from tests.unit.merge_environment import A, B, Environment, row

FACTS = BaseFacts(
    table=TableId("0d9c7c5e-0000-4000-8000-000000000001"), registry="sqlite", owner="default", regions='{"a": 1}'
)
NESTED = pa.schema([
    pa.field("id", pa.int64()),
    pa.field("point", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.int32())])),
    pa.field("points", pa.list_(pa.struct([pa.field("x", pa.int32())]))),
    pa.field("long", pa.large_list(pa.int8())),
    pa.field("ages", pa.map_(pa.string(), pa.int32())),
    pa.field("vector", pa.list_(pa.float32(), 4)),
    pa.field("name", pa.string()),
])  # fmt: skip


def test_a_created_base_has_its_facts_primary_key_and_field_ids(tmp_path: Path) -> None:
    base = create_base(uri=str(tmp_path / "t"), columns=NESTED, primary_key=("name", "id"), facts=FACTS)

    assert base.facts == FACTS
    assert base.schema.primary_key == ("name", "id")
    assert (base.counters, base.fence, base.rows) == ({}, 0, 0)
    assert [field_id(column) for column in base.schema.columns] == [0, 1, 4, 7, 9, 13, 14]
    point, points = base.schema.columns.field("point"), base.schema.columns.field("points")
    assert [field_id(point.type.field(i)) for i in range(2)] == [2, 3]
    assert field_id(points.type.value_field) == 5
    assert field_id(points.type.value_field.type.field(0)) == 6
    assert field_id(base.schema.columns.field("ages").type.item_field) == 12
    assert not base.schema.columns.field("id").nullable


def test_field_ids_match_lances_after_columns_were_dropped_and_added(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    create_base(uri=uri, columns=NESTED, primary_key=("id",), facts=FACTS)
    lance.dataset(uri).drop_columns(["point"])
    lance.dataset(uri).add_columns(pa.field("new", pa.string()))

    columns = open_base(uri=uri).schema.columns

    native = lance.dataset(uri).lance_schema.fields()
    assert [(c.name, int(c.metadata[FIELD_ID])) for c in columns] == [(f.name(), f.id()) for f in native]


def test_rows_given_at_creation_are_version_1_of_the_base(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "v": [3, 4]})

    create_base(
        uri=str(tmp_path), columns=rows.schema, primary_key=["id"], facts=FACTS, rows=rows.to_batches(max_chunksize=1)
    )

    assert lance.dataset(str(tmp_path), version=1).to_table().to_pylist() == rows.to_pylist()


def test_creating_a_base_does_not_replace_an_existing_dataset(tmp_path: Path) -> None:
    existing = Environment(tmp_path, rows=[row(1, 1)])

    with pytest.raises(Contended, match="another process is creating a table there"):
        create_base(uri=existing.uri, columns=existing.columns, primary_key=["id"], facts=FACTS)

    existing.check()


def test_rows_that_do_not_fit_are_invalid_and_leave_no_base(tmp_path: Path) -> None:
    batch = pa.record_batch({"other": [1]})

    with pytest.raises(Invalid, match="columns"):
        create_base(uri=str(tmp_path / "t"), columns=NESTED, primary_key=["id"], facts=FACTS, rows=[batch])

    assert find_base(uri=str(tmp_path / "t")) is None


def test_a_dataset_of_another_tool_has_no_facts(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "t"))

    base = open_base(uri=str(tmp_path / "t"))

    assert base.facts is None
    assert base.schema.primary_key == ()


def test_opening_a_missing_base_or_version_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no Lance dataset"):
        open_base(uri=str(tmp_path / "t"))
    existing = Environment(tmp_path)
    with pytest.raises(VersionGone, match="version 99"):
        open_base(uri=existing.uri, version=99)


def test_a_version_without_read_permission_is_not_mistaken_for_a_removed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    existing = Environment(tmp_path)
    with pytest.raises(Contended, match="version 99 of the base was removed"):
        named_files(uri=existing.uri, version=99)

    def denied(*_: Any, **__: Any) -> None:
        raise OSError("LanceError(IO): access denied: the bucket is gone")

    monkeypatch.setattr(lance, "dataset", denied)
    for read in (open_base, named_files):
        with pytest.raises(Invalid, match="access denied") as raised:
            read(uri=existing.uri, version=1)
        assert not isinstance(raised.value, VersionGone)


@pytest.mark.parametrize(
    ("sharding", "transforms"),
    [
        (Sharding(), []),
        (Sharding(unsharded=True), ["unsharded"]),
        (Sharding(bucket_column="id", buckets=4), ["bucket"]),
        (Sharding(identity_column="id"), ["identity"]),
    ],
)
def test_the_sharding_of_a_table_is_recorded_in_lances_index(
    tmp_path: Path, sharding: Sharding, transforms: list[str]
) -> None:
    uri = str(tmp_path / "t")
    create_base(uri=uri, columns=NESTED, primary_key=["id"], facts=FACTS, sharding=sharding)
    version = lance.dataset(uri).version

    ensure_mem_wal(uri=uri, sharding=sharding)  # the index is there already: no new version

    details = lance.dataset(uri).mem_wal_index_details()
    assert [field["transform"] for spec in details["sharding_specs"] for field in spec["fields"]] == transforms
    assert lance.dataset(uri).version == version


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("ns")])
def test_a_table_whose_key_lance_cannot_hash_still_has_markers(tmp_path: Path, kind: pa.DataType) -> None:
    columns = pa.schema([pa.field("id", kind), pa.field("v", pa.int64())])
    table = Environment(tmp_path, columns=columns)
    key = pa.array([1]).cast(pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)[0].as_py()
    table.flush(A, [{"id": key, "v": 1}])

    table.merge()

    table.check()
    found = read_markers(objects=table.objects, version=table.dataset().version)
    assert found is not None
    assert found.merged == {A: 1}


def test_one_call_repairs_the_markers_and_it_raises_only_stale_ones(tmp_path: Path) -> None:
    table = Environment(tmp_path)
    table.flush(A, [row(1, 1)])
    table.merge()
    table.flush(B, [row(2, 2)])
    stale = table.base()
    table.merge()
    version = table.dataset().version

    repaired = repair_markers(base=table.base(), objects=table.objects)

    assert repaired.version == table.dataset().version == version
    assert repair_markers(base=stale, objects=table.objects).version == stale.version
    metadata = {**table.base().metadata, f"lancelsm.merged.{A}": "5"}
    table.dataset().update_schema_metadata(metadata)
    repair_markers(base=table.base(), objects=table.objects)
    found = read_markers(objects=table.objects, version=table.dataset().version)
    assert found is not None
    assert found.merged == {A: 5, B: 1}


def test_two_processes_that_repair_the_same_marker_both_succeed(tmp_path: Path) -> None:
    table = Environment(tmp_path)
    table.dataset().update_schema_metadata({**table.base().metadata, f"lancelsm.merged.{A}": "1"})
    stale = table.base()

    repair_markers(base=stale, objects=table.objects)
    late = repair_markers(base=stale, objects=table.objects)

    assert late.version == table.dataset().version
    assert late.counters == {RegionId(A): 1}


def test_a_base_that_lost_its_mem_wal_index_is_corrupt(tmp_path: Path) -> None:
    table = Environment(tmp_path)
    table.flush(A, [row(1, 1)])
    table.dataset().drop_index("__lance_mem_wal")
    assert read_markers(objects=table.objects, version=table.dataset().version) is None

    with pytest.raises(Corrupt, match="lost its index"):
        table.merge()


def test_an_unreadable_or_missing_manifest_of_the_base_is_corrupt(tmp_path: Path) -> None:
    table = Environment(tmp_path)
    version = table.dataset().version
    (newest,) = [name for name in os.listdir(f"{table.uri}/_versions") if name.startswith(str(2**64 - 1 - version))]
    path = Path(table.uri, "_versions", newest)

    for body in (b"", b"junk", b"\xff" * 64):
        path.write_bytes(body)
        with pytest.raises(Corrupt, match="can't be read"):
            read_markers(objects=LocalStore(Path(table.uri)), version=version)
    path.unlink()
    with pytest.raises(Corrupt, match="manifest of version"):
        read_markers(objects=LocalStore(Path(table.uri)), version=version)


@pytest.mark.parametrize(
    ("native", "kind"),
    [
        (OSError("Retryable commit conflict for version 3: This Merge transaction was preempted"), Contended),
        (OSError("Stale SSTable compaction for shard x"), Contended),
        (OSError("LanceError(IO): Generic S3 error: HTTP error: error sending"), Unavailable),
        (ValueError("LanceError(IO): Generic S3 error: Client error with status 403 Forbidden"), Invalid),
        (OSError("Not found: t/data/x.lance, /lance/rust/lance-io/src/local.rs:403:40"), Corrupt),
        (OSError("Permission denied (os error 13)"), Invalid),
        (OSError("Dataset already exists: t"), Invalid),
        (TimeoutError("timed out"), Unavailable),
    ],
)  # fmt: skip
def test_errors_of_lance_become_errors_of_lancelsm(native: Exception, kind: type[LsmError]) -> None:
    with pytest.raises(LsmError) as caught, native_errors("the base can't be read", table="t"):
        raise native

    assert type(caught.value) is kind
    assert caught.value.__cause__ is native
    assert ".rs:" not in str(caught.value)


@pytest.mark.parametrize("error", [ValueError("a bug of ours"), KeyError("x"), Invalid("ours")])
def test_errors_that_are_not_lances_pass_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, native_errors("the base can't be read", table="t"):
        raise error

    assert caught.value is error


@pytest.mark.parametrize("rows", [0, -1, 2**32 + 1])
def test_a_bitmap_of_all_rows_refuses_an_impossible_number_of_rows(rows: int) -> None:
    with pytest.raises(ValueError, match="2\\^32"):
        every_row(rows)
