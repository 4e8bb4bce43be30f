"""What LanceDB and Lance do to a table is reported by `open`, `status` and `doctor`, and stops what could not go on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.layout import published_version
from lancelsm.dataset import base_reads, newest_base
from lancelsm.errors import Corrupt, Invalid, LsmWarning, Unavailable
from lancelsm.read.problems import ProblemKind
from lancelsm.region.handle import open_configured
from lancelsm.stack.doctor.table_checks import OTHER_TOOLS, table_checks
from lancelsm.table import Table
from tests.interop.lancedb_writes import ROWS, change, connected, create, kinds, lancedb_merges, shard_writes

pytestmark = pytest.mark.interop


def opened(table: Table) -> tuple[Table, list[str]]:
    """Open a table again. Return it with its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = lancelsm.open(table.uri)
    return again, [str(one.message) for one in caught if issubclass(one.category, LsmWarning)]


def reported(table: Table, kind: ProblemKind) -> str:
    """Assert that open, status and doctor report one problem of this kind. Return its text."""
    again, messages = opened(table)
    problems = again.status().problems
    (problem,) = [one for one in problems if one.kind is not ProblemKind.COMMIT]  # comes with many others
    assert problem.kind is kind
    assert messages == [f"{table.uri}: {'; '.join(map(str, problems))}"]
    checks = [(check.name, check.found, check.remedy) for check in table_checks(table.uri) if not check.ok]
    assert checks == [(OTHER_TOOLS, one.message, one.remedy) for one in problems]
    return str(problem)


def test_a_table_that_only_lancelsm_used_has_no_problem(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    table.upsert([{"id": 1, "v": 1}])
    table.flush()
    table.merge()
    table.upsert([{"id": 2, "v": 2}])

    again, messages = opened(table)

    assert (again.status().problems, messages) == ((), [])
    assert all(check.ok for check in table_checks(table.uri))


def test_lancedb_lists_and_opens_tables_in_directories_that_end_in_lance(tmp_path: Path) -> None:
    rows = [{"id": key, "v": key} for key in range(4)]
    docs = lancelsm.create(tmp_path / "docs.lance", rows, primary_key="id", regions="bucket(id, 2)")
    lancelsm.create(tmp_path / "other", rows, primary_key="id")
    docs.upsert([{"id": 1, "v": 10}, {"id": 9, "v": 9}])
    docs.delete([0])
    docs.flush()
    docs.merge()
    database = lancedb.connect(tmp_path)

    assert database.list_tables().tables == ["docs"]
    found = database.open_table("docs").to_arrow().to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [{"id": 1, "v": 10}, *rows[2:], {"id": 9, "v": 9}]


@pytest.mark.parametrize("close", [True, False], ids=["flushed", "in its log"])
@pytest.mark.parametrize("regions", [None, "bucket(id, 2)"])
def test_a_shard_of_lancedb_is_reported(tmp_path: Path, regions: str | None, close: bool) -> None:
    table = create(tmp_path, regions=regions)
    writer = lancedb_merges(table, [{"id": 2, "v": 50}], close=close)

    text = reported(table, ProblemKind.SHARD)

    (shard,) = {path.name for path in Path(table.uri, "_mem_wal").iterdir()} - {one.id for one in table.list_regions()}
    assert shard in text
    assert f"lancelsm region adopt {table.uri}" in text
    del writer


def test_flush_and_merge_warn_about_a_shard_and_go_on(tmp_path: Path) -> None:
    table = create(tmp_path)
    lancedb_merges(table, [{"id": 2, "v": 50}])
    table.upsert([{"id": 3, "v": 3}])

    with pytest.warns(LsmWarning, match="another tool writes to shard"):
        assert len(table.flush()) == 1
    with pytest.warns(LsmWarning, match="another tool writes to shard"):
        assert table.merge().generations == 1


def test_a_writer_that_never_reads_the_base_does_not_look(tmp_path: Path) -> None:
    table = create(tmp_path)
    lancedb_merges(table, [{"id": 2, "v": 50}])

    open_configured(table.uri).target()  # any warning is an error here


def test_a_writer_of_lance_in_a_region_is_reported(tmp_path: Path) -> None:
    table = create(tmp_path)
    (region,) = table.list_regions()
    shard_writes(table, region.id, [{"id": 2, "v": 50}])

    assert region.id in reported(table, ProblemKind.WRITER)


def test_an_entry_of_lance_without_its_manifest_is_reported(tmp_path: Path) -> None:
    table = create(tmp_path)
    (region,) = table.list_regions()
    shard_writes(table, region.id, [{"id": 2, "v": 50}], close=False)
    for path in Path(table.uri, "_mem_wal", region.id, "manifest").glob("*.binpb"):
        if published_version(path.name) != 1:
            path.unlink()

    assert f"entry 1 of region {region.id}" in reported(table, ProblemKind.WRITER)


def retyped(dataset: lance.LanceDataset) -> None:
    """Lance refuses this as long as there is a MemWAL index."""
    dataset.drop_index("__lance_mem_wal")
    dataset.alter_columns({"path": "v", "data_type": pa.int32()})


CHANGES: dict[str, tuple[Callable[[lance.LanceDataset], object], str]] = {
    "add": (lambda ds: ds.add_columns(pa.schema([pa.field("note", pa.string())])), "it added column 'note'"),
    "drop": (lambda ds: ds.drop_columns(["v"]), "column 'v' is gone"),
    "rename": (lambda ds: ds.alter_columns({"path": "v", "name": "w"}), "column 'v' is called 'w' now"),
    "change the type": (retyped, "column 'v' has type int32, not int64"),
    "drop the key": (lambda ds: ds.drop_columns(["id"]), "column 'id' is gone"),
    "drop the index": (lambda ds: ds.drop_index("__lance_mem_wal"), "dropped the MemWAL index"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_base_stops_merges_and_then_writers_until_it_is_restored(tmp_path: Path, name: str) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    table.upsert([{"id": key, "v": 1} for key in range(4)])
    table.flush()
    version = lance.dataset(table.uri).version
    by, expected = CHANGES[name]

    # When another tool changes the base
    change(table, by)
    text = reported(table, ProblemKind.BASE)
    assert expected in text
    assert "lancelsm region adopt" in text if "index" in name else f"version={lance_version(name, version)}" in text

    # Then what was acknowledged is flushed, but not merged
    lean = open_configured(table.uri)
    table.upsert([{"id": 9, "v": 9}])
    with pytest.warns(LsmWarning, match="another tool"):
        assert table.flush()
    with pytest.raises(Invalid, match="another tool"):
        table.merge()

    # And no writer gets anything acknowledged, not even one that reads only the configuration
    for write in (lambda: table.upsert([{"id": 9, "v": 10}]), lambda: Table(lean).upsert([{"id": 9, "v": 10}])):
        with pytest.raises(Invalid, match="takes no rows for now"):
            write()

    # Until the base is in order again
    lance.dataset(table.uri, version=version).restore()
    assert "is in order again" in reported(table, ProblemKind.BASE)
    table.merge()
    assert not kinds(table)
    table.upsert([{"id": 9, "v": 11}])
    Table(lean).upsert([{"id": 1, "v": 11}])
    table.flush()
    table.merge()
    assert {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()} == {
        **{row["id"]: 0 for row in ROWS}, **dict.fromkeys(range(4), 1), 1: 11, 9: 11
    }  # fmt: skip


def lance_version(name: str, before: int) -> int:
    """The last version with the columns of the table: a change of a type drops the index in a version of its own."""
    return before + (name == "change the type")


@pytest.mark.parametrize("name", ["drop the key"])
def test_a_read_without_the_key_says_so(tmp_path: Path, name: str) -> None:
    table = create(tmp_path)
    table.upsert([{"id": 1, "v": 1}])
    change(table, CHANGES[name][0])

    for read in (table.scan, lambda: table.get([1]), lambda: table.delete(where="v = 1")):
        with pytest.raises(Invalid, match="changed the key of the base"):
            read()


@pytest.mark.parametrize(
    "overwrite",
    [
        lambda ds: lance.write_dataset(pa.table({"x": [1]}), ds.uri, mode="overwrite"),
        lambda ds: ds.update_schema_metadata({}, replace=True),
    ],
    ids=["other rows", "no metadata"],
)
def test_an_overwritten_base_stops_writers_at_the_next_flush(
    tmp_path: Path, overwrite: Callable[[lance.LanceDataset], Any]
) -> None:
    table = create(tmp_path)
    version = lance.dataset(table.uri).version
    table.upsert([{"id": 1, "v": 1}])
    change(table, overwrite)

    with pytest.raises(Corrupt, match="another tool has overwritten it"):
        lancelsm.open(table.uri)
    with pytest.raises(Corrupt, match="another tool has overwritten it"):
        table.flush()
    with pytest.raises(Invalid, match="takes no rows for now"):
        table.upsert([{"id": 2, "v": 2}])
    assert kinds(table) == [ProblemKind.BASE]

    lance.dataset(table.uri, version=version).restore()
    table.merge()
    table.upsert([{"id": 2, "v": 2}])
    assert {row["id"]: row["v"] for row in table.get([1, 2]).to_pylist()} == {1: 1, 2: 2}


@pytest.mark.parametrize("by", ["lance", "lancedb"])
def test_rows_that_were_appended_to_the_base_are_reported_until_their_keys_are_written_again(
    tmp_path: Path, by: str
) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    rows = pa.Table.from_pylist([{"id": 2, "v": 99}, {"id": 100, "v": 1}], schema=lance.dataset(table.uri).schema)
    if by == "lance":
        lance.write_dataset(rows, table.uri, mode="append")
    else:
        connected(table).add(rows)

    assert "1 key is there twice, among them id=2" in reported(table, ProblemKind.KEYS)

    # A merge of other keys does not hide the problem
    table.upsert([{"id": 5, "v": 5}, {"id": 200, "v": 1}])
    table.delete([6])
    with pytest.warns(LsmWarning, match="twice"):
        table.flush()
    with pytest.warns(LsmWarning, match="twice"):
        table.merge()
    assert kinds(table) == [ProblemKind.KEYS]

    table.upsert([{"id": 2, "v": 3}])
    with pytest.warns(LsmWarning, match="twice"):
        table.run()
    assert not kinds(table)
    assert [row for row in table.scan().to_arrow().to_pylist() if row["id"] == 2] == [{"id": 2, "v": 3}]


def test_a_store_that_does_not_answer_is_no_problem_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path)
    lance.write_dataset(
        pa.table({"id": [2], "v": [99]}, schema=lance.dataset(table.uri).schema), table.uri, mode="append"
    )

    def unanswered(base: object, **options: object) -> Any:
        raise Unavailable("the store did not answer")

    monkeypatch.setattr(base_reads, "scan_base", unanswered)

    again, messages = opened(table)

    assert messages == []
    with pytest.raises(Unavailable, match="did not answer"):
        again.status()


def test_a_damaged_mem_wal_index_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(tmp_path)

    def damaged(dataset: lance.LanceDataset) -> Any:
        raise OSError("LanceError(IO): failed to decode Protobuf message: IndexSection.indices: buffer underflow")

    monkeypatch.setattr(lance.LanceDataset, "mem_wal_index_details", damaged)
    monkeypatch.setattr(newest_base, "decode_manifest", lambda _: None)  # it can't decode the index either

    again, messages = opened(table)

    assert messages == []
    with pytest.raises(Corrupt, match="MemWAL index can't be read"):
        again.status()


def test_rows_that_lance_merged_into_the_base_by_key_are_reported_until_a_merge_has_summed_them(tmp_path: Path) -> None:
    table = create(tmp_path)
    rows = pa.Table.from_pylist([{"id": 2, "v": 99}, {"id": 100, "v": 1}], schema=lance.dataset(table.uri).schema)
    merging = lance.dataset(table.uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merging.execute(rows)

    assert kinds(table) == [ProblemKind.COMMIT]
    table.upsert([{"id": 1, "v": 1}])
    table.run()
    assert not kinds(table)


@pytest.mark.parametrize("regions", ["bucket(id, 2)", "truncate(id, 10)"])
def test_a_replaced_mem_wal_index_is_reported(tmp_path: Path, regions: str) -> None:
    table = create(tmp_path, regions=regions)
    change(table, lambda ds: ds.drop_index("__lance_mem_wal"))
    change(table, lambda ds: ds.initialize_mem_wal(bucket_column="id", num_buckets=4))

    assert "replaced the MemWAL index" in reported(table, ProblemKind.INDEX)
    table.upsert([{"id": 1, "v": 1}])
    with pytest.warns(LsmWarning, match="replaced"):
        table.flush()
    with pytest.warns(LsmWarning, match="replaced"):
        assert table.merge().generations == 1
