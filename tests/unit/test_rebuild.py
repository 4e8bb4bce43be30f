"""Rebuild a registry that is lost or stale: heads come from storage, with every acknowledged row and no other."""

from __future__ import annotations

import contextlib
import gc
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.adopt import adopt
from lancelsm.admin.rebuild import newest_published, rebuild
from lancelsm.common.layout import (
    MEM_WAL,
    SQLITE,
    Epoch,
    Key,
    Position,
    Version,
    head_key,
    published_manifest,
    region_key,
    table_key,
    wal_entry,
)
from lancelsm.errors import Corrupt, Fenced, Invalid, LsmError, LsmWarning
from lancelsm.record.schema import TOMBSTONE, TableSchema, numbered
from lancelsm.region.catalog import Region
from lancelsm.region.handle import open_table
from lancelsm.registry.object import object_key
from lancelsm.table import Table
from lancelsm.wal.entry import decode, draft, encode
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, Call, Crash, Fault, FaultPlan
from tests.unit.adopt_scenarios import ROWS as LANCE_ROWS
from tests.unit.adopt_scenarios import lance_wrote
from tests.unit.tables import COLUMNS, create, faulty, levels, merged, positions, row, rows_of


def lose_registry(location: Path) -> None:
    for path in (location / SQLITE).parent.glob("registry.sqlite*"):
        path.unlink()


def rebuild_and_open(location: Path) -> Table:
    """Rebuild the registry and open the table."""
    for one in rebuild(open_table(location)):
        assert one.region.head() == one.head
        assert one.head.manifest_epoch == one.head.epoch
    return lancelsm.open(location)


def open_with(location: Path, plan: FaultPlan, process: str) -> Table:
    return lancelsm.open.on(faulty(plan, process=process))(location)


def crash_before(method: str, part: str) -> FaultPlan:
    """A plan that crashes before the first call of `method` on a key with `part`."""

    def decide(call: Call) -> Fault | None:
        return CRASH_BEFORE if call.method == method and part in call.key else None

    return FaultPlan(decide)


@pytest.mark.parametrize("regions", [None, "identity(id)"])
def test_a_lost_registry_is_corrupt_and_never_an_empty_log(tmp_path: Path, regions: str | None) -> None:
    table = create(tmp_path, [row(1)], regions=regions)
    table.upsert([row(2)])
    location = Path(table.uri)
    lose_registry(location)
    table = lancelsm.open(location)

    for read in (
        table.scan,
        lambda: table.get([2]),
        table.status,
        table.flush,
        table.merge,
        lambda: table.upsert([row(3)]),
    ):
        with pytest.raises(Corrupt, match=f"registry rebuild {location}"):
            read()

    assert rows_of(rebuild_and_open(location)) == [row(1), row(2)]


def test_the_registry_of_a_table_without_regions_can_be_rebuilt(tmp_path: Path) -> None:
    location = Path(create(tmp_path, [row(1)], regions="identity(id)").uri)
    lose_registry(location)

    table = rebuild_and_open(location)

    table.upsert([row(2)])
    assert rows_of(table) == [row(1), row(2)]


@pytest.mark.rest
@pytest.mark.parametrize("seed", range(6))
def test_rebuilds_between_random_steps_lose_no_acknowledged_row_and_duplicate_none(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    table = create(tmp_path, [row(100)], regions="bucket(id, 2)")
    written = [row(100)]
    location = Path(table.uri)
    for n in range(12):
        match dice.randrange(6):
            case 0:
                table.flush()
            case 1:
                table.merge(engine="inprocess")
            case 2:
                table.claim(dice.choice(table.list_regions()))
            case 3:
                epochs = {region.region: region.epoch for region in table.status().regions}
                lose_registry(location)
                table = rebuild_and_open(location)
                assert all(region.epoch > epochs[region.region] for region in table.status().regions)
            case _:
                batch = [row(dice.randrange(8), f"{n} {i}") for i in range(dice.randint(1, 3))]
                table.upsert(batch)
                written += batch
        assert rows_of(table) == merged(written), (seed, n)
    lose_registry(location)
    table = rebuild_and_open(location)
    for level in levels(table):
        assert rows_of(table) == merged(written), level


def test_a_rebuild_restores_every_region_with_its_values(tmp_path: Path) -> None:
    table = create(tmp_path, regions="identity(v), bucket(id, 2)", primary_key=("v", "id"))
    table.upsert([{"id": key, "v": value} for key in range(4) for value in ("a", "")])
    before = {region.id: (region.spec_id, region.values) for region in table.list_regions()}
    lose_registry(Path(table.uri))

    table = rebuild_and_open(Path(table.uri))

    assert {region.id: (region.spec_id, region.values) for region in table.list_regions()} == before
    table.upsert([{"id": key, "v": "a"} for key in range(4)])
    assert len(table.list_regions()) == len(before)


def test_a_rebuild_brings_an_older_copy_of_the_registry_up_to_date(tmp_path: Path) -> None:
    table = create(tmp_path)
    location = Path(table.uri)
    table.upsert([row(1)])
    shutil.copy(location / SQLITE, tmp_path / "backup")
    table.upsert([row(1, "b"), row(2)])
    table.flush()
    table.merge(engine="inprocess")
    table.upsert([row(3)])
    lose_registry(location)
    shutil.copy(tmp_path / "backup", location / SQLITE)

    table = rebuild_and_open(location)

    assert rows_of(table) == [row(1, "b"), row(2), row(3)]
    table.upsert([row(4)])
    assert rows_of(lancelsm.open(location)) == [row(1, "b"), row(2), row(3), row(4)]


@pytest.mark.one_case
@pytest.mark.parametrize("merges", [False, True])
def test_rows_acknowledged_under_an_older_copy_of_the_registry_never_count_as_merged(
    tmp_path: Path, merges: bool
) -> None:
    # Given a table whose registry is restored to a copy from before a flush, and perhaps a merge
    table = create(tmp_path)
    location = Path(table.uri)
    table.upsert([row(1)])
    backup = [(path, path.read_bytes()) for path in (location / SQLITE).parent.glob("registry.sqlite*")]
    table.upsert([row(2)])
    table.flush()
    if merges:
        table.merge(engine="inprocess")
    lose_registry(location)
    for path, content in backup:
        path.write_bytes(content)
    with pytest.warns(LsmWarning, match="manifest 2 .* or the registry is an older copy"):
        behind = lancelsm.open(location)

    # When a writer continues, and a flush of its rows needs a generation number that is taken
    behind.upsert([row(3)])
    with pytest.warns(LsmWarning), pytest.raises(Corrupt, match=r"older copy.*region adopt"):
        behind.flush()
    head = behind.list_regions()[0].head()

    if merges:
        with pytest.raises(Corrupt, match=f"registry rebuild {behind.uri}"):
            rows_of(behind)

    # Then nothing was committed, and the remedy restores all rows
    assert head.current_generation == 1
    assert rows_of(Table(adopt(location))) == [row(1), row(2), row(3)]


def test_a_rebuild_of_a_complete_registry_raises_the_epochs(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    held = lancelsm.open(table.uri)
    held.upsert([row(2)])

    for epoch in (2, 3):
        rebuild(open_table(table.uri))
        assert [region.epoch for region in table.status().regions] == [epoch]
    held.upsert([row(3)])  # of the same owner
    assert rows_of(table) == [row(1), row(2), row(3)]


def test_a_rebuilt_region_belongs_to_the_ordinary_writers(tmp_path: Path) -> None:
    table = create(tmp_path)
    loader = lancelsm.open(table.uri, owner="loader")
    loader.upsert([row(1)])
    lose_registry(Path(table.uri))

    table = rebuild_and_open(Path(table.uri))
    table.upsert([row(2)])

    with pytest.raises(Fenced):
        loader.upsert([row(3)])
    assert rows_of(table) == [row(1), row(2)]


def test_a_rebuild_ignores_a_manifest_that_was_committed_but_not_published(tmp_path: Path) -> None:
    """Its staged copy proves nothing, so its entries are in the tail again."""
    table = create(tmp_path)
    location = Path(table.uri)
    table.upsert([row(1), row(2)])
    with pytest.raises(Crash):
        open_with(location, crash_before("create", "/manifest/0"), "flusher").flush()
    (region,) = table.list_regions()
    published = newest_published(region)
    assert published is not None
    assert (region.head().manifest_version, published.manifest.version) == (2, 1)
    lose_registry(location)

    table = rebuild_and_open(location)

    for level in levels(table):
        assert rows_of(table) == [row(1), row(2)], level


def test_a_rebuild_counts_a_merged_generation_whose_manifest_was_not_published(tmp_path: Path) -> None:
    table = create(tmp_path)
    location = Path(table.uri)
    table.upsert([row(1), row(2)])
    with pytest.raises(Crash):
        open_with(location, crash_before("create", "/manifest/0"), "flusher").flush()
    table.merge(engine="inprocess")
    (region,) = table.list_regions()
    (location / published_manifest(region.id, Version(2))).unlink(
        missing_ok=True
    )  # as if the merge had never published it
    lose_registry(location)

    table = rebuild_and_open(location)
    assert rows_of(table) == [row(1), row(2)]
    table.delete([1])
    assert [one.generation for one in table.flush()] == [2]
    table.merge(engine="inprocess")
    assert rows_of(table) == [row(2)]


def put_orphan(region: Region, position: int, *, epoch: int, key: int) -> None:
    """Put an object into the log that was never acknowledged."""
    stored = TableSchema(columns=numbered(COLUMNS), primary_key=("id",)).stored
    rows = draft(pa.table({"id": [key], "v": ["orphan"], TOMBSTONE: [False]}, schema=stored))
    nonce = region.context.ids.nonce()
    body = encode(rows, position=Position(position), epoch=Epoch(epoch), nonce=nonce).body
    region.context.objects.create(wal_entry(region.id, Position(position)), body)


def test_a_rebuild_leaves_out_orphans_of_an_earlier_epoch_above_the_head(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    (region,) = table.list_regions()
    head = table.claim(region)
    put_orphan(region, head.next_position, epoch=1, key=66)
    put_orphan(region, head.next_position + 1, epoch=1, key=67)
    lose_registry(Path(table.uri))

    table = rebuild_and_open(Path(table.uri))

    assert rows_of(table) == [row(1)]
    for n in range(3):
        table.upsert([row(10 + n)])
    assert rows_of(table) == [row(1), *(row(10 + n) for n in range(3))]


def test_a_rebuild_leaves_out_an_entry_behind_a_seal(tmp_path: Path) -> None:
    table = create(tmp_path)
    stalled = lancelsm.open(table.uri)
    stalled.upsert([row(1)])
    (region,) = table.list_regions()
    head = table.seal(region)
    with pytest.raises(Invalid, match="sealed"):
        stalled.upsert([row(2)])
    assert region.context.objects.get(wal_entry(region.id, head.next_position)) is not None
    for _ in range(2):
        lose_registry(Path(table.uri))
        table = rebuild_and_open(Path(table.uri))
        assert rows_of(table) == [row(1)]
        assert [one.status for one in table.status().regions] == ["sealed"]
        with pytest.raises(Invalid, match="sealed"):
            table.upsert([row(3)])
    table.flush()
    table.merge(engine="inprocess")
    assert rows_of(table) == [row(1)]


def test_a_seal_whose_manifest_was_not_committed_survives_a_rebuild(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    sealer = open_with(Path(table.uri), crash_before("create", "/staged/"), "sealer")
    (region,) = sealer.list_regions()
    with pytest.raises(Crash):
        sealer.seal(region)
    assert [one.status for one in table.status().regions] == ["sealed"]

    table = rebuild_and_open(Path(table.uri))

    assert [one.status for one in table.status().regions] == ["sealed"]
    assert rows_of(table) == [row(1)]


@pytest.mark.parametrize("damage", [b"", b"rubbish", None])
def test_a_damaged_entry_in_the_middle_of_the_log_stops_a_rebuild(tmp_path: Path, damage: bytes | None) -> None:
    table = create(tmp_path)
    for key in range(3):
        table.upsert([row(key)])
    (region,) = table.list_regions()
    key = wal_entry(region.id, Position(2))
    path = Path(table.uri) / key
    body = path.read_bytes()
    path.write_bytes(body[:-20] + b"\1" + body[-19:] if damage is None else damage)
    lose_registry(Path(table.uri))

    with pytest.raises(Corrupt, match="damaged") as error:
        rebuild_and_open(Path(table.uri))

    assert (error.value.where["position"], error.value.where["object"]) == (2, key)
    path.write_bytes(body)
    assert rows_of(rebuild_and_open(Path(table.uri))) == [row(0), row(1), row(2)]


def four_entries(tmp_path: Path) -> tuple[Table, Region]:
    table = create(tmp_path)
    for key in range(4):
        table.upsert([row(key)])
    (region,) = table.list_regions()
    return table, region


def a_claim(table: Table, region: Region) -> None:
    """A fence at position 5, and a manifest that records it."""
    table.claim(region)


def an_older_fence(table: Table, region: Region) -> None:
    """A fence at position 5 whose manifest was not published."""
    claimer = open_with(Path(table.uri), crash_before("create", "/staged/"), "claimer")
    (held,) = claimer.list_regions()
    with pytest.raises(Crash):
        claimer.claim(held)


def an_entry_of_lances(table: Table, region: Region) -> None:
    dataset = lance.dataset(table.uri)
    with dataset.mem_wal_writer(region.id) as writer:
        writer.put(pa.Table.from_pylist([row(9)], schema=dataset.schema))
    for path in Path(table.uri).glob("_mem_wal/*/manifest/*.binpb"):  # its flush at the close is lost too
        if path.name != Path(published_manifest(region.id, Version(1))).name:
            path.unlink()


def rubbish(table: Table, region: Region) -> None:
    (Path(table.uri) / wal_entry(region.id, Position(5))).write_bytes(b"rubbish")


@pytest.mark.parametrize("proof", [a_claim, an_older_fence, an_entry_of_lances, rubbish])
def test_the_error_names_a_hole_if_an_object_proves_that_the_log_went_on(
    tmp_path: Path, proof: Callable[[Table, Region], None]
) -> None:
    table, region = four_entries(tmp_path)
    proof(table, region)
    lost = Path(table.uri) / wal_entry(region.id, Position(3))
    body = lost.read_bytes()
    lost.unlink()
    lose_registry(Path(table.uri))
    before = {path: path.read_bytes() for path in lost.parent.iterdir()}

    with pytest.raises(Corrupt, match="hole") as error:
        rebuild(open_table(table.uri))

    where = error.value.where
    assert (where["region"], where["position"], where["object"]) == (region.id, 3, wal_entry(region.id, Position(3)))
    assert {path: path.read_bytes() for path in lost.parent.iterdir()} == before
    lost.write_bytes(body)
    if proof is not rubbish:
        assert {found["id"] for found in rows_of(rebuild_and_open(Path(table.uri)))} >= {0, 1, 2, 3}


@pytest.mark.parametrize("lost", [2, 4])
def test_a_rebuild_with_a_head_names_an_entry_that_was_lost_below_it(tmp_path: Path, lost: int) -> None:
    table, region = four_entries(tmp_path)
    (Path(table.uri) / wal_entry(region.id, Position(lost))).unlink()

    with pytest.raises(Corrupt, match="committed through 4") as error:
        rebuild(open_table(table.uri))

    assert error.value.where["region"] == region.id
    assert (error.value.where["position"], error.value.where["object"]) == (lost, wal_entry(region.id, Position(lost)))


def test_objects_above_an_unproven_hole_are_fenced_off_and_reported(tmp_path: Path) -> None:
    # Given objects above a hole: the first of several puts in flight failed, or an entry was lost. Both look alike.
    table, region = four_entries(tmp_path)
    (Path(table.uri) / wal_entry(region.id, Position(2))).unlink()
    lose_registry(Path(table.uri))

    (one,) = rebuild(open_table(table.uri))

    assert one.orphans == (3, 4)
    assert one.head.next_position == 5
    assert rows_of(table) == [row(0)]
    for position in (2, 3, 4):
        body = (Path(table.uri) / wal_entry(region.id, Position(position))).read_bytes()
        assert decode(body, position=Position(position), key="").fence


def test_a_truncated_entry_at_the_end_was_never_acknowledged(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    (region,) = table.list_regions()
    (Path(table.uri) / wal_entry(region.id, Position(2))).write_bytes(b"half")
    lose_registry(Path(table.uri))

    table = rebuild_and_open(Path(table.uri))

    assert rows_of(table) == [row(1)]
    table.upsert([row(2)])
    assert rows_of(table) == [row(1), row(2)]


@pytest.mark.rest
def test_a_rebuild_that_crashed_at_any_call_is_finished_by_the_next_rebuild(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    table.upsert([row(key) for key in range(6)])
    table.flush()
    table.upsert([row(key, "b") for key in range(3)])
    expected = rows_of(table)
    location = Path(table.uri)
    lose_registry(location)
    shutil.copytree(location, tmp_path / "lost")
    plan = FaultPlan()
    rebuild(open_table(location, ports=faulty(plan)))
    for call in plan.calls:
        for fault in (CRASH_BEFORE, CRASH_AFTER) if call.writes else (CRASH_BEFORE,):
            print(call, fault)
            shutil.rmtree(location)
            shutil.copytree(tmp_path / "lost", location)
            with pytest.raises(Crash):
                rebuild(open_table(location, ports=faulty(FaultPlan.at(call.index, fault))))
            table = rebuild_and_open(location)
            assert rows_of(table) == expected
            table.upsert([row(0, "c"), row(1, "c")])
            assert rows_of(table) == [row(0, "c"), row(1, "c"), *expected[2:]]


def test_a_region_that_only_the_catalog_has_is_not_rebuilt(tmp_path: Path) -> None:
    table = create(tmp_path, regions="identity(id)")
    table.upsert([row(1)])
    plan = crash_before("create", "/staged/")
    with pytest.raises(Crash):
        open_with(Path(table.uri), plan, "creator").upsert([row(2)])
    assert len(table.list_regions()) == 2

    assert len(rebuild(open_table(table.uri))) == 1
    assert rows_of(table) == [row(1)]
    table.upsert([row(2)])
    assert rows_of(table) == [row(1), row(2)]


def test_a_head_that_is_ahead_of_storage_is_never_moved_back(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    table.upsert([row(2)])
    (region,) = table.list_regions()
    before = region.context.registry.read(head_key(table.config.table, region.id))
    (Path(table.uri) / wal_entry(region.id, Position(2))).unlink()

    with pytest.raises(LsmError):
        rebuild(open_table(table.uri))

    assert region.context.registry.read(head_key(table.config.table, region.id)) == before
    assert set(positions(table).values()) == {3}


def test_a_handle_of_a_dropped_table_does_not_rebuild_the_table_that_replaced_it(tmp_path):
    table = create(tmp_path, [row(1)])
    location, stale = Path(table.uri), open_table(table.uri)
    lancelsm.drop(location)
    lancelsm.create(location, COLUMNS, primary_key="id").upsert([row(2)])

    with pytest.raises(Invalid, match="the table was dropped and another one was created there"):
        rebuild(stale)

    again = lancelsm.open(location)
    again.upsert([row(3)])
    again.flush()
    assert rows_of(again) == [row(2), row(3)]


@pytest.mark.parametrize("regions", ["bucket(id, 2)", "identity(id)"])
def test_a_rebuild_does_not_adopt_a_region_of_a_dropped_table(tmp_path: Path, regions: str) -> None:
    table, other = create(tmp_path, regions=regions), create(tmp_path / "other", regions=regions)
    table.upsert([row(1, "ours")])
    other.upsert([row(key, "theirs") for key in range(4)])
    for left in (Path(other.uri) / MEM_WAL).iterdir():
        shutil.copytree(left, Path(table.uri) / MEM_WAL / left.name)

    assert table.scrub().ok
    assert rows_of(rebuild_and_open(Path(table.uri))) == [row(1, "ours")]
    lose_registry(Path(table.uri))
    assert rows_of(rebuild_and_open(Path(table.uri))) == [row(1, "ours")]


@pytest.mark.interop
@pytest.mark.parametrize("spec", [{"unsharded": True}, {}], ids=["with a spec", "without a spec"])
def test_a_rebuild_restores_regions_that_lance_named(tmp_path: Path, spec: dict[str, bool]) -> None:
    location = lance_wrote(tmp_path / "table", **spec)
    adopt(location)
    lose_registry(location)

    assert rows_of(rebuild_and_open(location)) == LANCE_ROWS
    assert lancelsm.open(location).scrub().ok


@pytest.mark.parametrize("registry", ["sqlite", "object"])
def test_a_rebuild_replaces_an_unreadable_table_record(tmp_path: Path, registry: str) -> None:
    table = create(tmp_path, registry=registry)
    table.upsert([row(1)])
    damage_record(Path(table.uri), table_key(open_table(table.uri).context.table))

    assert not table.scrub().ok
    again = rebuild_and_open(Path(table.uri))
    assert again.scrub().ok
    assert rows_of(again) == [row(1)]


RECORDS = {"head": head_key, "catalog": region_key}


@pytest.mark.one_case
@pytest.mark.parametrize("registry", ["sqlite", "object"])
@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("damage", ["another type", "a field is missing", "truncated"])
def test_a_rebuild_replaces_an_unreadable_head_or_catalog_record(
    tmp_path: Path, registry: str, kind: str, damage: str
) -> None:
    table = create(tmp_path, regions="bucket(id, 2)", registry=registry)
    table.upsert([row(key) for key in range(8)])
    context = table.list_regions()[0].context
    key = RECORDS[kind](context.table, table.list_regions()[0].id)
    name = {"head": "entry_setsum", "catalog": "values"}[kind]
    if damage == "truncated":
        damage_record(Path(table.uri), key)
    else:
        change = {name: "zz" if damage == "another type" else None}
        context.registry.swap(key, expect={}, change=change)
    with pytest.raises(Corrupt):
        lancelsm.open(table.uri).scan().to_arrow()

    assert rows_of(rebuild_and_open(Path(table.uri))) == [row(key) for key in range(8)]


def damage_record(location: Path, key: Key) -> None:
    """Truncate a record of either registry."""
    if (location / SQLITE).exists():
        with contextlib.closing(sqlite3.connect(location / SQLITE, isolation_level=None)) as file:
            file.execute("UPDATE records SET fields = '{' WHERE partition = ? AND sort = ?", (key.partition, key.sort))
    else:
        (location / object_key(key)).write_bytes(b"{")


def test_a_registry_file_that_is_not_sqlite_is_replaced_as_the_error_says(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    file = Path(table.uri) / SQLITE
    del table
    gc.collect()
    for beside in file.parent.glob(f"{file.name}-*"):
        beside.unlink()
    file.write_bytes(b"no registry" * 1000)

    with pytest.raises(Corrupt, match="the registry can't be read") as raised:
        rebuild(open_table(tmp_path / "table"))
    assert "move this file and all files whose names start with its name" in raised.value.remedy
    file.unlink()

    assert rows_of(rebuild_and_open(tmp_path / "table")) == [row(1)]
