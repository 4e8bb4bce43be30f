"""Each version of a base states its files. So scrub names a flipped bit, and a collection has proof."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from xxhash import xxh3_128_digest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.common.layout import STATEMENTS, Generation, RegionId, statement_version, table_key
from lancelsm.common.setsum import Setsum
from lancelsm.compaction.maintenance import optimize_table
from lancelsm.dataset import statement
from lancelsm.dataset.base_rows import Base, commit
from lancelsm.dataset.statement import FILES, StatedFile, Statement, Stating, decode, encode, files_of, read_statement
from lancelsm.errors import Contended, Corrupt, Invalid, LsmWarning
from lancelsm.gc import base_check
from lancelsm.gc.base import with_manifests
from lancelsm.gc.mark import Progress
from lancelsm.objects.filesystem import LocalStore
from lancelsm.read.problems import ProblemKind
from lancelsm.region.base_checked import read_checked
from lancelsm.table import Table
from tests.simulation.marks import changed, without
from tests.simulation.removal import with_and_without
from tests.unit.tables import create, row


def merged(path: Path, *, indexed: bool = False) -> Table:
    """Create a table whose base has data files, deletion files of both formats, and on request an index."""
    table = create(path)
    table.upsert([row(key) for key in range(2000)])
    merge(table)
    if indexed:
        lance.dataset(table.uri).create_scalar_index("v", "BTREE")
    table.upsert([row(key, "b") for key in (3, 5)])
    merge(table)
    table.upsert([row(key, "c") for key in range(0, 2000, 2)])
    table.delete([{"id": 7}])
    merge(table)
    return table


def merge(table: Table) -> None:
    table.flush()
    table.merge(engine="inprocess")


def statement_of(table: Table) -> Statement:
    base = table._handle.read_base()
    return read_statement(LocalStore(Path(table.uri)), base.metadata[FILES])


def base_files(table: Table) -> list[str]:
    """The files of the base that its newest version names, those of indexes included."""
    named = [one.key for one in files_of(table._handle.read_base())]
    inside = [f"{key}/{name}" for key in named if key.startswith("_ind") for name in os.listdir(f"{table.uri}/{key}")]
    return [*(key for key in named if not key.startswith("_ind")), *inside]


def flip(table: Table, key: str, at: int | None = None) -> None:
    file = Path(table.uri, key)
    body = bytearray(file.read_bytes())
    body[len(body) // 2 if at is None else at] ^= 4
    file.write_bytes(body)


def generations(table: Table) -> int:
    return len(list(Path(table.uri).glob("_mem_wal/*/*_gen_*")))


def collect(table: Table) -> Any:
    return table.collect(yes=True, interval_seconds=0)


def test_a_merge_states_each_file_of_its_version_by_size_rows_and_sum(tmp_path: Path) -> None:
    table = merged(tmp_path, indexed=True)

    stated = statement_of(table).files

    base = table._handle.read_base()
    data = {one.key for one in files_of(base) if not one.key.startswith("_ind")}
    assert data <= stated.keys()
    for key in data:
        body = Path(table.uri, key).read_bytes()
        assert stated[key].sum == Setsum.from_digest(_reduced(xxh3_128_digest(key.encode() + b"\0" + body)))
        assert stated[key].bytes == len(body)
        assert not stated[key].found
    fragments = [fragment.metadata for fragment in lance.dataset(table.uri).get_fragments()]
    rows = {f"data/{one.files[0].path}": one.physical_rows for one in fragments}
    assert {key: stated[key].rows for key in rows} == rows
    assert sum(stated[key].rows for key in data if key.startswith("_del")) == sum(f.num_deletions for f in fragments)
    assert any(one.path.startswith("_indices/") and one.found for one in stated.values())
    assert any(key.startswith("_versions/") for key in stated)


def _reduced(digest: bytes) -> bytes:
    return Setsum.of_columns(int.from_bytes(digest[at : at + 4], "little") for at in range(0, 16, 4)).digest()


def test_a_statement_takes_at_most_200_bytes_a_fragment() -> None:
    files = {
        path: StatedFile(path=path, bytes=1 << 30, sum=Setsum.of_item(path.encode()), rows=1 << 20)
        for number in range(1000)
        for path in (f"data/{number:050}.lance", f"_deletions/{number}-99999-{(1 << 63) - number}.bin")
    }
    body = encode(Statement(version=7, files=files))

    assert len(body) <= 200 * 1000
    assert decode(body, key="x") == Statement(version=7, files=files)


def test_a_commit_writes_one_statement(tmp_path: Path) -> None:
    table = merged(tmp_path)
    before = set(LocalStore(tmp_path / "table").list(STATEMENTS))
    table.upsert([row(1, "z")])

    merge(table)

    (made,) = set(LocalStore(tmp_path / "table").list(STATEMENTS)) - before
    assert made.key == table._handle.read_base().metadata[FILES]
    number = statement_version(made.key)
    assert number is not None
    assert number <= table._handle.read_base().version


@pytest.mark.rest
def test_scrub_names_a_flipped_bit_in_each_file_of_the_base(tmp_path: Path) -> None:
    table = merged(tmp_path, indexed=True)
    collect(table)  # states the newest manifest too
    manifests = sorted(
        f"_versions/{name}" for name in os.listdir(f"{table.uri}/_versions") if name.endswith(".manifest")
    )
    assert table.scrub().problems == ()
    assert table.scrub().unsummed == 0
    draw = random.Random("flips")
    for key in [*base_files(table), manifests[0]]:
        size = Path(table.uri, key).stat().st_size
        for at in [0, size - 1, *(draw.randrange(size) for _ in range(3))]:
            flip(table, key, at)
            found = [problem.path for problem in table.scrub().problems]
            flip(table, key, at)
            named = key.rpartition("/")[0] if key.startswith("_ind") else key
            expected = (named, "_versions") if key.startswith("_versions") else (named,)
            assert any(path in expected for path in found), (key, at, found)


@pytest.mark.rest
def test_a_flipped_bit_in_a_pinned_version_is_named(tmp_path: Path) -> None:
    table = merged(tmp_path)
    pinned = table.snapshot("kept").base_version
    table.upsert([row(key, "d") for key in range(100)])
    merge(table)
    collect(table)
    (name,) = [name for name in os.listdir(f"{table.uri}/_versions") if name == f"{2**64 - 1 - pinned}.manifest"]
    old = Path(table.uri, "_versions", name)
    body = bytearray(old.read_bytes())
    for at in range(0, len(body), 97):
        body[at] ^= 1
        old.write_bytes(body)
        assert not table.scrub().ok, at
        body[at] ^= 1
        old.write_bytes(body)
    assert table.scrub().ok


def append_rows(table: Table) -> None:
    schema = lance.dataset(table.uri).schema
    lance.write_dataset(pa.Table.from_pylist([{"id": 9001, "v": "x"}], schema=schema), table.uri, mode="append")


FOREIGN: dict[str, Callable[[Table], object]] = {
    "append": append_rows,
    "delete": lambda table: lance.dataset(table.uri).delete("id = 11"),
    "update": lambda table: lance.dataset(table.uri).update({"v": "'u'"}, where="id = 13"),
    "compaction": lambda table: lance.dataset(table.uri).optimize.compact_files(),
    "index": lambda table: lance.dataset(table.uri).create_scalar_index("v", "BTREE"),
}
STEPS: dict[str, Callable[[Table], object]] = {
    "merge": lambda table: (table.upsert([row(1, "m")]), merge(table)),
    "collection": collect,
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("change", FOREIGN)
def test_a_foreign_commit_is_reported_until_a_step_has_summed_what_it_added(
    change: str, step: str, tmp_path: Path
) -> None:
    table = merged(tmp_path)
    collect(table)
    assert table.scrub().unsummed == 0
    FOREIGN[change](table)

    reported = table.scrub()
    assert reported.ok
    assert reported.unsummed > 0
    assert ProblemKind.COMMIT in {one.kind for one in table.status().problems}
    with pytest.warns(LsmWarning, match="another tool committed"):
        lancelsm.open(table.uri)
    STEPS[step](table)

    assert table.scrub().unsummed == 0
    assert ProblemKind.COMMIT not in {one.kind for one in table.status().problems}
    for key in base_files(table):
        flip(table, key)
        assert not table.scrub().ok, key
        flip(table, key)
    assert table.scrub().ok


def flipped_base_keeps_generations(path: Path) -> None:
    """A collection deletes no generation while a base file that holds its rows is damaged."""
    table = merged(path)
    kept = generations(table)
    assert kept
    data = [key for key in base_files(table) if key.startswith("data/")]
    flip(table, data[0])
    with pytest.raises(Corrupt) as raised:
        collect(table)
    assert raised.value.where["object"] == data[0]
    assert generations(table) == kept
    flip(table, data[0])
    collect(table)
    assert generations(table) == 0


@pytest.mark.parametrize("folder", ["data/", "_deletions/", "_indices/"])
def test_a_collection_deletes_nothing_while_a_file_of_the_base_is_damaged(folder: str, tmp_path: Path) -> None:
    table = merged(tmp_path, indexed=True)
    optimize_table(table._handle)
    kept = generations(table)
    for key in [key for key in base_files(table) if key.startswith(folder)]:
        flip(table, key)
        with pytest.raises(Corrupt) as raised:
            collect(table)
        assert key.startswith(str(raised.value.where["object"]))
        flip(table, key)
        assert generations(table) == kept
    collect(table)
    assert generations(table) == 0


def test_a_collection_reads_each_file_of_the_base_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = merged(tmp_path)
    read: list[str] = []
    sum_file = statement.sum_file

    def counted(named: Any, **options: Any) -> StatedFile:
        read.append(named.path)
        return sum_file(named, **options)

    monkeypatch.setattr(base_check, "sum_file", counted)
    collect(table)
    assert sorted(read) == sorted(base_files(table))
    read.clear()
    collect(table)
    assert read == []
    table.upsert([row(1, "new")])
    merge(table)
    collect(table)
    assert len(read) == 2  # one new data file, one new deletion file


def test_a_lost_check_is_made_again(tmp_path: Path) -> None:
    table = merged(tmp_path)
    collect(table)
    checked = read_checked(table._handle)
    assert checked is not None
    os.unlink(f"{table.uri}/{checked.key}")
    assert [one.kind for one in table.scrub().problems] == ["statement"]

    table.upsert([row(1, "new")])
    merge(table)
    collect(table)

    assert table.scrub().ok


@pytest.mark.rest
@pytest.mark.parametrize("times", [1, 9])
def test_a_version_that_is_removed_while_it_is_checked_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    table, sum_file, left = merged(tmp_path), base_check.sum_file, [None] * times

    def removed_before(named: Any, **options: Any) -> StatedFile:
        if left:
            left.pop()
            table.upsert([row(key, "other") for key in range(2000)])
            merge(table)
            optimize_table(table._handle)
            lance.dataset(table.uri).cleanup_old_versions(retain_versions=1, delete_unverified=True)
        return sum_file(named, **options)

    monkeypatch.setattr(base_check, "sum_file", removed_before)
    if times > 1:
        with pytest.raises(Contended, match="kept removing versions"):
            base_check.check_files(table._handle, write=True)
        assert read_checked(table._handle) is None
        left.clear()
    base_check.check_files(table._handle, write=True)

    checked = read_checked(table._handle)
    assert checked is not None
    assert checked.version == table._handle.read_base().version


def foreign_file_that_does_not_decode(path: Path) -> None:
    """A collection decodes what another tool wrote before it deletes generations."""
    table = merged(path)
    kept = generations(table)
    append_rows(table)
    (added,) = set(base_files(table)) - statement_of(table).files.keys()
    flip(table, added, Path(table.uri, added).stat().st_size - 20)
    with pytest.raises(Corrupt) as raised:
        collect(table)
    assert raised.value.where["object"] == added
    assert generations(table) == kept


def merge_onto_a_flipped_deletion_file(path: Path) -> None:
    """A merge does not derive a new deletion file from a damaged one."""
    table = merged(path)
    (old,) = [key for key in base_files(table) if key.startswith("_deletions/")]
    file = Path(table.uri, old)
    offsets = pa.ipc.open_file(pa.py_buffer(file.read_bytes())).read_all()
    other = [11 if offset == 10 else offset for offset in offsets.column(0).to_pylist()]
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, offsets.schema) as writer:
        writer.write_table(pa.table([pa.array(other, pa.uint32())], schema=offsets.schema))
    before = table._handle.read_base().version
    table.upsert([row(1, "new"), row(9, "new")])
    with pytest.raises(Corrupt) as raised:
        merge(table)
    assert raised.value.where["object"] == old
    assert table._handle.read_base().version == before


def test_a_backup_of_a_damaged_base_is_refused(tmp_path: Path) -> None:
    table = merged(tmp_path)
    for key in base_files(table):
        flip(table, key)
        with pytest.raises(Corrupt) as raised:
            lancelsm.backup(table, tmp_path / "backup")
        assert raised.value.where["object"] == key
        flip(table, key)
    assert lancelsm.backup(table, tmp_path / "backup").rows == 1999


def test_a_wrong_statement_is_named_and_the_next_merge_replaces_it(tmp_path: Path) -> None:
    table = merged(tmp_path)
    key = table._handle.read_base().metadata[FILES]
    flip(table, key)
    found = {(problem.path, problem.kind) for problem in table.scrub().problems}
    assert found == {(key, "statement")}

    table.upsert([row(1, "new")])
    merge(table)

    assert table.scrub().ok
    assert table.scrub().unsummed == 0


def statement_with_another_sum(path: Path) -> None:
    table = merged(path)
    key = table._handle.read_base().metadata[FILES]
    for at in range(Path(table.uri, key).stat().st_size):
        flip(table, key, at)
        with pytest.raises(Corrupt):
            statement_of(table)
        flip(table, key, at)
    statement_of(table)


def test_a_clone_states_the_files_that_it_shares(tmp_path: Path) -> None:
    table = merged(tmp_path)
    table.snapshot("s")
    clone = lancelsm.open(clone_snapshot(table._handle, "s", tmp_path / "clone").uri)

    stated = statement_of(clone).files

    source = {f"{table.uri}/{one.key}" for one in files_of(table._handle.read_base())}
    assert source <= stated.keys()
    assert not any(one.found for one in stated.values())
    assert clone.scrub().unsummed == 0
    (data, *_) = [key for key in base_files(table) if key.startswith("data/")]
    flip(table, data)
    assert f"{table.uri}/{data}" in {problem.path for problem in clone.scrub().problems}
    flip(table, data)
    clone.upsert([row(5, "clone")])
    merge(clone)
    assert clone.scrub().ok
    assert clone.scrub().unsummed == 0


@pytest.mark.rest
def test_old_statements_are_collected_but_not_while_a_version_needs_them(tmp_path: Path) -> None:
    table = create(tmp_path, settings={"keep_versions_seconds": 0.001})
    for number in range(4):
        table.upsert([row(key, str(number)) for key in range(9)])
        merge(table)
    pinned = table.snapshot("kept").base_version
    for number in range(20):
        table.upsert([row(key, f"later {number}") for key in range(9)])
        merge(table)
    for _ in range(3):
        collect(table)

    keys = {one.key for one in LocalStore(tmp_path / "table").list(STATEMENTS)}

    at_pin = lance.dataset(table.uri, version=pinned).schema.metadata[FILES.encode()].decode()
    assert at_pin in keys
    assert table._handle.read_base().metadata[FILES] in keys
    assert len(keys) <= 8
    assert table.scrub().ok


def test_the_first_statement_above_each_version_stays() -> None:
    keys = [f"{STATEMENTS}{number}-{'0' * 31}{tail}.binpb" for number in (3, 5, 5, 9) for tail in "ab"]

    assert with_manifests(keys, [2]) == set(keys[:2])
    assert with_manifests(keys, [4, 3]) == {key for key in keys if "/5-" in key}
    assert with_manifests(keys, [9, 12]) == set()
    assert with_manifests(["_lancelsm/files/x"], [1]) == set()


@pytest.mark.parametrize(
    "text", ["", "x", "_lancelsm/files/0-aa.binpb", "../../_lancelsm/files/1-" + "0" * 32 + ".binpb"]
)
def test_a_key_that_is_not_the_key_of_a_statement_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="not the key"):
        read_statement(LocalStore(tmp_path), text)


def test_a_statement_of_a_newer_release_is_refused() -> None:
    body = bytearray(encode(Statement(version=1, files={})))
    assert body[:2] == b"\x08\x02"
    body[1] = 9
    with pytest.raises(Invalid, match="newer"):
        decode(bytes(body), key="x")


def round_is_committed_during_a_check(path: Path) -> None:
    """Its sweep may delete the statement of the check, which no record names yet."""
    table = merged(path)
    context = table._handle.context
    write = base_check.write_statement

    def overtaken(*arguments: Any) -> str:
        key = write(*arguments)
        context.registry.swap(table_key(context.table), expect={}, change={"base_round": 1})
        return key

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_check, "write_statement", overtaken)
        base_check.check_files(table._handle, write=True)
    assert read_checked(table._handle) is None
    base_check.check_files(table._handle, write=True)
    assert read_checked(table._handle) is not None


def version_records_other_rows(path: Path) -> None:
    """A statement is not carried on to a version that records another number of rows in a file."""
    table = merged(path)
    base = table._handle.read_base()
    lines = statement_of(table).files
    (key,) = [key for key in lines if key.startswith("_deletions/")]
    metadata = {name: value for name, value in base.metadata.items() if name != FILES}
    commit(Base.of(base), changed={}, new=(), metadata=metadata, properties={})
    base = table._handle.read_base()
    stating = Stating(objects=LocalStore(Path(table.uri)), known={key: replace(lines[key], rows=1)})
    with pytest.raises(Corrupt) as raised:
        commit(Base.of(base), changed={}, new=(), metadata=base.metadata, properties={}, stating=stating)
    assert raised.value.where["object"] == key
    assert table._handle.read_base().version == base.version


def unchecked_generation_stays(_: Path) -> None:
    region = RegionId("0d9c7c5e-0000-4000-8000-000000000001")
    counters = {region: Generation(3)}
    checked = {region: Generation(2)}
    progress = Progress(version=9, counters=counters, checked=checked, markers=counters, caught_up={})
    assert progress.reason_to_keep(region, Generation(2)) == ""
    assert "not checked yet" in progress.reason_to_keep(region, Generation(3))


GUARDS = {
    "collection sums the files of the base": (
        [without("collection sums the files of the base")],
        flipped_base_keeps_generations,
    ),
    "collection decodes foreign files of the base": (
        [without("collection decodes foreign files of the base")],
        foreign_file_that_does_not_decode,
    ),
    "merge relies on stated deletion files": (
        [without("merge relies on stated deletion files")],
        merge_onto_a_flipped_deletion_file,
    ),
    "check swaps on the round": (
        [changed("check swaps on the round", "{CHECKED: record.get(CHECKED)}")],
        round_is_committed_during_a_check,
    ),
    "statement has the rows that the version records": (
        [without("statement has the rows that the version records")],
        version_records_other_rows,
    ),
    "mark keeps generations that the checked base lacks": (
        [without("mark keeps generations that the checked base lacks")],
        unchecked_generation_stays,
    ),
    "statement has its sum": ([without("statement has its sum")], statement_with_another_sum),
}

test_a_guarded_scenario_passes, test_it_fails_without_the_guard = with_and_without(
    GUARDS, own=[scenario for _, scenario in GUARDS.values()]
)
