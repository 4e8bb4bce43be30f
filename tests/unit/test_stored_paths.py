"""A path in a record, a manifest or a document that leads out of its table is `Corrupt`, and the error names it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.dataset import DatasetBasePath

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.rebuild import rebuild
from lancelsm.common.layout import (
    BACKUP,
    CLONE,
    CONFIG,
    DROPPING,
    RESTORED,
    Key,
    Nonce,
    RegionId,
    TableId,
    head_key,
    is_id,
    is_round_list,
    is_staged_manifest,
    pin_key,
    region_key,
    region_pin_prefix,
    round_list,
    snapshots,
    staged_manifest,
    table_key,
)
from lancelsm.errors import Corrupt, Invalid
from lancelsm.gc import base, sweep
from lancelsm.gc import collect as collection
from lancelsm.gc.lists import GarbageItem, GarbageKind, read_list
from lancelsm.gc.scopes import scopes_of
from lancelsm.objects.keys import is_key
from lancelsm.region import manifest_codec
from lancelsm.region.catalog import regions
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.handle import TableHandle, open_table
from lancelsm.region.manifest import FlushedGeneration, Manifest
from lancelsm.stack.dispatch import _table_uri
from lancelsm.stack.merge_request import MergeRequest, plan_request
from lancelsm.table import Table
from tests.simulation.faults import MemoryRegistry
from tests.unit.tables import NEWEST, by_key, three_levels
from tests.unit.test_damaged_records import change, region_record_of

OTHER = RegionId("00000000-0000-4000-8000-000000000000")
NONCE = Nonce("0" * 32)


def paths(own: str) -> list[str]:
    """Paths that are not `own`: absolute, with dots or empty segments, of another region, and `own` in disguise."""
    parent, _, name = own.rpartition("/")
    return [
        f"/{own}",
        f"/etc/{name}",
        f"../other/{own}",
        f"{parent}/../{parent.rpartition('/')[2]}/{name}",
        f"{parent}/./{name}",
        f"{parent}//{name}",
        f"{own}/",
        f"x/{own}",
        f"{parent}/{name}\n",
        "s3://bucket/x",
        "_lancelsm/config.json",
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(three_levels(tmp_path_factory.mktemp("source") / "table").uri)


@pytest.fixture
def table(source: Path, tmp_path: Path) -> Table:
    return lancelsm.open(shutil.copytree(source, tmp_path / "table"))


def handle_of(table: Table) -> TableHandle:
    return open_table(table.uri)


def rows_of(location: Path | str) -> dict[int, Any]:
    return by_key(lancelsm.open(location).scan().to_arrow())


def named(call: Callable[[], object], *, field: str, mentions: str, **where: str) -> Corrupt:
    with pytest.raises(Corrupt) as raised:
        call()
    assert raised.value.where["field"] == field
    assert mentions in str(raised.value)
    assert {name: raised.value.where[name] for name in where} == where
    return raised.value


# Names


def test_only_the_own_name_of_an_object_is_accepted() -> None:
    staged, listed = staged_manifest(OTHER, 3, NONCE), round_list(OTHER, 3, NONCE)  # type: ignore[arg-type]
    another = RegionId(OTHER.replace("0", "1"))

    assert is_staged_manifest(staged, OTHER)
    assert is_round_list(listed, OTHER)
    assert is_round_list(round_list(None, 3, NONCE), None)
    for wrong in (*paths(staged), *paths(listed), staged_manifest(another, 3, NONCE), round_list(another, 3, NONCE)):  # type: ignore[arg-type]
        assert not is_staged_manifest(wrong, OTHER), wrong
        assert not is_round_list(wrong, OTHER), wrong
        assert not is_round_list(wrong, None), wrong
    assert is_id(OTHER)
    for text in ("", "x", OTHER.upper().replace("0", "A"), f"{OTHER}/", f"../{OTHER}", f"{OTHER}\n", 7, None):
        assert not is_id(text), text
    assert is_key("a/b..c/...")
    assert not any(is_key(key) for key in ("", "/a", "a/", "a//b", "a/../b", ".", "a/."))


# Records


@pytest.mark.one_case
@pytest.mark.parametrize("number", range(11))
def test_the_manifest_that_a_head_names_is_one_of_its_region(table: Table, number: int) -> None:
    context, (one, other) = handle_of(table).context, [region.id for region in table.list_regions()]
    key, head = head_key(context.table, one), open_table(table.uri).context.registry
    own = str((head.read(key) or {})["manifest_key"])
    wrong = [*paths(own)[:-1], staged_manifest(other, 3, NONCE)][number]  # type: ignore[arg-type]
    change(table, key, manifest_key=wrong)

    for use in (
        lambda: rows_of(table.uri),
        lambda: table.upsert([{"id": n, "v": 9} for n in range(9)]),
        table.flush,
        table.status,
        lambda: table.collect(yes=True),
    ):
        error = named(use, field="manifest_key", mentions=wrong.strip(), object=wrong, region=one, table=table.uri)
    assert "registry rebuild" in error.remedy
    assert any(wrong.strip() in problem.problem for problem in table.scrub().problems)

    rebuild(handle_of(table))
    assert rows_of(table.uri).keys() >= NEWEST.keys()


@pytest.mark.one_case
@pytest.mark.parametrize("number", range(11))
def test_the_manifest_that_a_snapshot_names_is_one_of_its_region(table: Table, number: int) -> None:
    table.snapshot("monday", "never")
    context = handle_of(table).context
    key = region_record_of(table, snapshots(context.table))
    own = str((context.registry.read(key) or {})["manifest_key"])
    wrong = [*paths(own)[:-1], staged_manifest(OTHER, 3, NONCE)][number]  # type: ignore[arg-type]
    change(table, key, manifest_key=wrong)

    for use in (lambda: lancelsm.open(table.uri, at="monday"), lambda: table.collect(yes=True), table.snapshots):
        named(use, field="manifest_key", mentions="snapshot 'monday'", object=wrong)
    assert not table.scrub().ok
    table.drop_snapshot("monday")
    assert table.collect(yes=True, interval_seconds=0).corrupt == ()


@pytest.mark.parametrize("region", ["x", "../../other", "/", OTHER.replace("0", "A")])
def test_a_snapshot_names_regions_by_ids(table: Table, region: str) -> None:
    table.snapshot("monday", "never")
    context = handle_of(table).context
    partition = snapshots(context.table)
    record = context.registry.read(region_record_of(table, partition)) or {}
    sort = f"{region_pin_prefix('monday', Nonce(str(record['nonce'])))}{region}"
    context.registry.swap(Key(partition=partition, sort=sort), expect=None, change=record)

    named(table.snapshots, field="manifest_key", mentions=repr(region))


@pytest.mark.parametrize("clone", ["other", "../other", "./x"])
def test_the_pin_of_a_clone_names_an_absolute_location(table: Table, clone: str) -> None:
    table.snapshot("monday", "never")
    change(table, pin_key(snapshots(handle_of(table).context.table), "monday"), clone=clone)

    named(table.snapshots, field="clone", mentions=clone)


@pytest.mark.parametrize("region", ["x", "../../other/_mem_wal/x", OTHER.replace("0", "A")])
def test_the_catalog_names_regions_by_ids(table: Table, region: str) -> None:
    context = handle_of(table).context
    record = context.registry.read(region_key(context.table, table.list_regions()[0].id)) or {}
    context.registry.swap(region_key(context.table, RegionId(region)), expect=None, change=record)

    error = named(lambda: rows_of(table.uri), field="region", mentions=repr(region), table=table.uri)
    assert "remove it from the registry" in error.remedy
    assert not table.scrub().ok
    context.registry.discard(region_key(context.table, RegionId(region)))
    assert rows_of(table.uri) == NEWEST


@pytest.mark.one_case
@pytest.mark.parametrize("number", range(11))
def test_the_list_that_the_catalog_names_is_one_of_the_base(table: Table, number: int) -> None:
    own = round_list(None, 1, NONCE)
    wrong = [*paths(own)[:-1], round_list(OTHER, 1, NONCE)][number]
    change(table, table_key(handle_of(table).context.table), base_list=wrong, base_round=1)

    named(lambda: table.collect(yes=True), field="base_list", mentions=wrong.strip(), object=wrong)


# Manifests


@pytest.fixture(scope="module")
def found(source: Path) -> Manifest:
    """The manifest of a region with a generation."""
    flushed = next(one for one in regions(open_table(source).context) if one.head().current_generation > 1)
    return newest(flushed, flushed.head())[1]


@pytest.mark.parametrize("number", range(14))
def test_a_generation_is_a_directory_of_its_region_with_its_number(found: Manifest, number: int) -> None:
    own = found.generations[-1].path
    numbered = own.rpartition("_")[0]
    wrong = [*paths(f"x/{own}"), "", f"{numbered}_9", f"../{own}"][number]
    broken = replace(found.generations[-1], path=wrong)
    body = manifest_codec.encode(replace(found, generations=(*found.generations[:-1], broken)))

    named(
        lambda: manifest_codec.decode(body, key="k"),
        field=f"generations[{broken.generation}].path",
        mentions=wrong.strip(),
        object="k",
    )


@pytest.mark.parametrize("number", range(11))
def test_the_list_that_a_manifest_names_is_one_of_its_region(found: Manifest, number: int) -> None:
    own = round_list(found.region, 1, NONCE)
    wrong = [*paths(own)[:-1], round_list(None, 1, NONCE)][number]
    body = manifest_codec.encode(replace(found, collector_key=wrong))

    named(lambda: manifest_codec.decode(body, key="k"), field="collector_key", mentions=wrong.strip(), object="k")


def test_a_head_whose_manifest_has_a_wrong_path_stops_the_region_and_nothing_is_read(table: Table) -> None:
    context = handle_of(table).context
    region = next(one for one in regions(context) if one.head().current_generation > 1)
    head, found = newest(region, region.head())
    outside = FlushedGeneration(generation=found.newest, path="../../../other", rows=1, bytes=1, folded=None)
    Path(table.uri, head.manifest_key).write_bytes(
        manifest_codec.encode(replace(found, generations=(*found.generations[:-1], outside)))
    )

    for use in (lambda: rows_of(table.uri), table.merge, lambda: table.collect(yes=True)):
        named(use, field=f"generations[{found.newest}].path", mentions="../../../other", object=head.manifest_key)
    assert not table.scrub().ok


# Lists of rounds


def marked(table: Table, kind: str) -> tuple[TableHandle, str]:
    """A table with a marked round of a region or of the base, and the key of its list."""
    table.run()
    table.upsert([{"id": n, "v": 5} for n in range(9)])
    table.run()
    Path(table.uri, "data", "left.lance").write_text("left by a crash")
    handle = handle_of(table)
    rounds = collection.mark(handle).rounds
    return handle, next(key for key in rounds if key.startswith("_lancelsm/") == (kind == "base"))


@pytest.mark.one_case
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../other/data/x.lance", "data/../config", "data//x", "_lancelsm/config.json", "", "tree/x"]
)
@pytest.mark.parametrize("kind", ["region", "base"])
def test_a_sweep_deletes_no_path_out_of_its_part_of_the_table(
    table: Table, kind: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, key = marked(table, kind)
    collection.verify(handle, [key])
    collection.commit(handle, [key])
    listed = read_list(handle.context, key)
    item = GarbageItem(
        kind=GarbageKind.BASE_FILE if kind == "base" else GarbageKind.ENTRY, path=path, number=0, bytes=1, why="a bug"
    )
    forged = replace(listed, round=replace(listed.round, items=(*listed.round.items, item)))
    deleted: list[str] = []
    monkeypatch.setattr(type(handle.context.objects), "delete", lambda _, keys: deleted.extend(keys))
    (scope,) = scopes_of(handle, [key])
    confirmed = scope.confirm(key)

    for module in (sweep, base):
        monkeypatch.setattr(module, "find_list", lambda *_, **__: forged)
    named(lambda: confirmed(()), field="items.path", mentions=path, object=key)
    assert deleted == []


@pytest.mark.one_case
@pytest.mark.parametrize("number", range(11))
def test_a_round_is_named_by_the_key_of_its_list(table: Table, number: int) -> None:
    handle, key = marked(table, "region")

    with pytest.raises(Invalid, match="is not a round of the table"):
        collection.verify(handle, [paths(key)[number]])


@pytest.mark.parametrize("uri", ["", "orders", "../orders"])
def test_the_catalog_names_the_location_of_a_table_for_schedules(uri: str) -> None:
    registry = MemoryRegistry()
    registry.swap(table_key(TableId(OTHER)), expect=None, change={"uri": uri})

    named(lambda: _table_uri(registry, TableId(OTHER)), field="uri", mentions=repr(uri), table=OTHER)  # type: ignore[arg-type]


# Configuration, marker files, backups, plans


def rewritten(document: Path, **fields: Any) -> None:
    document.write_text(json.dumps({**json.loads(document.read_text()), **fields}))


IDS = ["x", "../other", "a#b", f"{OTHER}\n", OTHER.replace("0", "A")]


@pytest.mark.parametrize("wrong", IDS)
def test_a_configuration_names_its_table_by_an_id(table: Table, wrong: Any) -> None:
    rewritten(Path(table.uri, CONFIG), table=wrong)

    for use in (lambda: lancelsm.open(table.uri), lambda: lancelsm.drop(table.uri)):
        named(use, field="table", mentions=repr(wrong), object=CONFIG, table=table.uri)


@pytest.mark.parametrize("wrong", ["x", "../other", "a#b", ""])
def test_a_marker_file_names_its_table_by_an_id(table: Table, tmp_path: Path, wrong: str) -> None:
    marker = json.dumps({"table": wrong, "registry": "sqlite"})
    Path(table.uri, DROPPING).write_text(marker)
    named(lambda: lancelsm.drop(table.uri), field="table", mentions=repr(wrong), object=DROPPING)
    Path(table.uri, DROPPING).unlink()

    for number, name in enumerate((CLONE, RESTORED)):
        location = tmp_path / f"{number}"
        (location / "_lancelsm").mkdir(parents=True)
        (location / name).write_text(marker)
        named(lambda at=location: lancelsm.drop(at), field="table", mentions=repr(wrong), object=name)  # type: ignore[misc]


@pytest.mark.parametrize("wrong", ["", "other", "../source", "./x"])
def test_the_source_of_a_clone_is_an_absolute_location(table: Table, tmp_path: Path, wrong: str) -> None:
    table.snapshot("monday", "never")
    clone_snapshot(handle_of(table), "monday", tmp_path / "clone")
    rewritten(tmp_path / "clone" / CLONE, source=wrong)

    named(lambda: lancelsm.drop(tmp_path / "clone"), field="source", mentions=repr(wrong), object=CLONE)
    assert [pin.clone for pin in table.snapshots() if pin.clone] == [str(tmp_path / "clone")]


@pytest.mark.one_case
@pytest.mark.parametrize("number", range(11))
def test_a_backup_names_rows_below_its_own_directory(table: Table, tmp_path: Path, number: int) -> None:
    lancelsm.backup(table, tmp_path / "backup")
    document = tmp_path / "backup" / BACKUP
    wrong = [*paths(json.loads(document.read_text())["path"])[:-1], ""][number]
    rewritten(document, path=wrong)

    named(
        lambda: lancelsm.restore(tmp_path / "backup", tmp_path / "restored"),
        field="path",
        mentions=repr(wrong),
        object=BACKUP,
        table=str(tmp_path / "backup"),
    )
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("table", ""),
        ("table", "orders"),
        ("table", "../orders"),
        ("table", 7),
        ("regions", [{"region": "../x", "after": 0, "through": 1}]),
        ("regions", [{"region": 7, "after": 0, "through": 1}]),
        ("token", "../x"),
        ("token", ""),
        ("token", None),
    ],
)
def test_a_plan_of_a_merge_names_no_other_place(table: Table, field: str, wrong: Any) -> None:
    document = json.loads(plan_request(handle_of(table), execution="one").to_json())

    named(lambda: MergeRequest.from_json(json.dumps({**document, field: wrong}).encode()), field=field, mentions=field)
    assert MergeRequest.from_json(json.dumps(document).encode()).table == table.uri


# Lance's own paths


def test_a_base_that_reads_files_of_another_place_is_corrupt_unless_it_is_a_clone(table: Table, tmp_path: Path) -> None:
    other = lance.write_dataset(lance.dataset(table.uri).to_table(), tmp_path / "other")
    lance.dataset(table.uri).add_bases([DatasetBasePath(str(tmp_path / "other"), name="other", is_dataset_root=True)])

    with pytest.raises(Corrupt, match="reads files outside of the table") as raised:
        lancelsm.open(table.uri)
    assert str(tmp_path / "other") in raised.value.message
    assert raised.value.where["object"] == f"{table.uri}/_versions"
    assert other.count_rows() == 4


def test_a_generation_that_reads_files_of_another_place_is_corrupt(table: Table, tmp_path: Path) -> None:
    found = next((Path(table.uri) / "_mem_wal").glob("*/*_gen_1"))
    moved = found.rename(tmp_path / "moved")
    lance.dataset(str(moved), version=1).shallow_clone(str(found), 1)
    Path(moved, "bloom_filter.bin").rename(found / "bloom_filter.bin")

    with pytest.raises(Corrupt, match="reads files outside of the table"):
        rows_of(table.uri)


def test_lance_leads_no_path_of_a_data_file_out_of_the_dataset(tmp_path: Path) -> None:
    """Lance escapes the slashes in the name of a data file. So lancelsm need not check these names."""
    ours = lance.write_dataset(lance.write_dataset(_numbers(0), tmp_path / "x").to_table(), tmp_path / "ours")
    theirs = lance.write_dataset(_numbers(100), tmp_path / "theirs")
    described = ours.get_fragments()[0].metadata.to_json()
    described["files"][0]["path"] = f"../../theirs/data/{theirs.get_fragments()[0].metadata.files[0].path}"
    fragment = lance.FragmentMetadata.from_json(json.dumps(described))
    operation = lance.LanceOperation.Overwrite(ours.schema, [fragment])
    changed = lance.LanceDataset.commit(str(tmp_path / "ours"), operation, read_version=ours.version)

    with pytest.raises(Exception, match=r"theirs%2Fdata%2F"):
        changed.to_table()


def _numbers(start: int) -> pa.Table:
    return pa.table({"id": range(start, start + 5)})
