"""A registry that is lost, or behind: heads come back from storage, with every acknowledged row and no other."""

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
from lancelsm.admin.drop import drop_table
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
from lancelsm.errors import Corrupt, Fenced, Invalid, LsmError
from lancelsm.record.schema import TOMBSTONE, TableSchema, numbered
from lancelsm.region.catalog import Region
from lancelsm.region.handle import open_table
from lancelsm.registry.object import object_key
from lancelsm.table import Table
from lancelsm.wal.entry import decode, draft, encode
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, Call, Crash, Fault, FaultPlan
from tests.unit import test_adopt
from tests.unit.tables import COLUMNS, create, faulty, levels, merged, positions, row, rows_of


def lose_registry(place: Path) -> None:
    for path in (place / SQLITE).parent.glob("registry.sqlite*"):
        path.unlink()


def rebuilt(place: Path) -> Table:
    """The table behind a registry made anew."""
    for one in rebuild(open_table(place)):
        assert one.region.head() == one.head
        assert one.head.manifest_epoch == one.head.epoch
    return lancelsm.open(place)


def crashed(place: Path, plan: FaultPlan, process: str) -> Table:
    return lancelsm.open(place, ports=faulty(plan, process=process))


def at(method: str, part: str) -> FaultPlan:
    """A crash before the first call of this kind."""

    def decide(call: Call) -> Fault | None:
        return CRASH_BEFORE if call.method == method and part in call.key else None

    return FaultPlan(decide)


@pytest.mark.parametrize("regions", [None, "identity(id)"])
def test_a_lost_registry_is_corrupt_and_never_an_empty_log(tmp_path: Path, regions: str | None) -> None:
    table = create(tmp_path, [row(1)], regions=regions)
    table.upsert([row(2)])
    place = Path(table.uri)
    lose_registry(place)
    table = lancelsm.open(place)

    for read in (
        table.scan,
        lambda: table.get([2]),
        table.status,
        table.flush,
        table.merge,
        lambda: table.upsert([row(3)]),
    ):
        with pytest.raises(Corrupt, match="registry rebuild"):
            read()

    assert rows_of(rebuilt(place)) == [row(1), row(2)]


def test_the_registry_of_a_table_without_regions_is_rebuilt(tmp_path: Path) -> None:
    place = Path(create(tmp_path, [row(1)], regions="identity(id)").uri)
    lose_registry(place)

    table = rebuilt(place)

    table.upsert([row(2)])
    assert rows_of(table) == [row(1), row(2)]


@pytest.mark.parametrize("seed", range(6))
def test_no_acknowledged_row_is_lost_and_none_doubled(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    table = create(tmp_path, [row(100)], regions="bucket(id, 2)")
    written = [row(100)]
    place = Path(table.uri)
    for n in range(12):
        match dice.randrange(6):
            case 0:
                table.flush()
            case 1:
                table.merge(engine="inprocess")
            case 2:
                table.claim(dice.choice(table.regions()))
            case 3:
                epochs = {region.region: region.epoch for region in table.status().regions}
                lose_registry(place)
                table = rebuilt(place)
                assert all(region.epoch > epochs[region.region] for region in table.status().regions)
            case _:
                batch = [row(dice.randrange(8), f"{n} {i}") for i in range(dice.randint(1, 3))]
                table.upsert(batch)
                written += batch
        assert rows_of(table) == merged(written), (seed, n)
    lose_registry(place)
    table = rebuilt(place)
    for level in levels(table):
        assert rows_of(table) == merged(written), level


def test_every_region_comes_back_under_its_values(tmp_path: Path) -> None:
    table = create(tmp_path, regions="identity(v), bucket(id, 2)", primary_key=("v", "id"))
    table.upsert([{"id": key, "v": value} for key in range(4) for value in ("a", "")])
    before = {region.id: (region.spec_id, region.values) for region in table.regions()}
    lose_registry(Path(table.uri))

    table = rebuilt(Path(table.uri))

    assert {region.id: (region.spec_id, region.values) for region in table.regions()} == before
    table.upsert([{"id": key, "v": "a"} for key in range(4)])
    assert len(table.regions()) == len(before)


def test_an_older_copy_of_the_registry_is_brought_forward(tmp_path: Path) -> None:
    table = create(tmp_path)
    place = Path(table.uri)
    table.upsert([row(1)])
    shutil.copy(place / SQLITE, tmp_path / "backup")
    table.upsert([row(1, "b"), row(2)])
    table.flush()
    table.merge(engine="inprocess")
    table.upsert([row(3)])
    lose_registry(place)
    shutil.copy(tmp_path / "backup", place / SQLITE)

    table = rebuilt(place)

    assert rows_of(table) == [row(1, "b"), row(2), row(3)]
    table.upsert([row(4)])
    assert rows_of(lancelsm.open(place)) == [row(1, "b"), row(2), row(3), row(4)]


@pytest.mark.parametrize("merges", [False, True])
def test_what_is_acknowledged_under_an_older_copy_of_the_registry_is_never_taken_for_merged(
    tmp_path: Path, merges: bool
) -> None:
    # Given a table whose registry is put back to before a flush, and perhaps the merge of its generation
    table = create(tmp_path)
    place = Path(table.uri)
    table.upsert([row(1)])
    backup = [(path, path.read_bytes()) for path in (place / SQLITE).parent.glob("registry.sqlite*")]
    table.upsert([row(2)])
    table.flush()
    if merges:
        table.merge(engine="inprocess")
    lose_registry(place)
    for path, content in backup:
        path.write_bytes(content)
    behind = lancelsm.open(place)

    # When a writer goes on, and its rows are to become a generation whose number is taken
    behind.upsert([row(3)])
    with pytest.raises(Corrupt, match=r"older copy.*region adopt"):
        behind.flush()
    head = behind.regions()[0].head()

    if merges:
        with pytest.raises(Corrupt, match="registry rebuild"):
            rows_of(behind)

    # Then nothing was committed, and the remedy brings all rows back
    assert head.current_generation == 1
    assert rows_of(Table(adopt(place))) == [row(1), row(2), row(3)]


def test_a_registry_that_lacks_nothing_is_rebuilt_in_fresh_epochs(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    held = lancelsm.open(table.uri)
    held.upsert([row(2)])

    for epoch in (2, 3):
        rebuild(open_table(table.uri))
        assert [region.epoch for region in table.status().regions] == [epoch]
    held.upsert([row(3)])  # of the same owner
    assert rows_of(table) == [row(1), row(2), row(3)]


def test_a_rebuilt_region_is_the_ordinary_writers(tmp_path: Path) -> None:
    table = create(tmp_path)
    loader = lancelsm.open(table.uri, owner="loader")
    loader.upsert([row(1)])
    lose_registry(Path(table.uri))

    table = rebuilt(Path(table.uri))
    table.upsert([row(2)])

    with pytest.raises(Fenced):
        loader.upsert([row(3)])
    assert rows_of(table) == [row(1), row(2)]


def test_a_manifest_that_was_committed_and_not_published_is_done_again(tmp_path: Path) -> None:
    """Its staged copy proves nothing, so its entries are in the tail once more."""
    table = create(tmp_path)
    place = Path(table.uri)
    table.upsert([row(1), row(2)])
    with pytest.raises(Crash):
        crashed(place, at("create", "/manifest/0"), "flusher").flush()
    (region,) = table.regions()
    published = newest_published(region)
    assert published is not None
    assert (region.head().manifest_version, published.manifest.version) == (2, 1)
    lose_registry(place)

    table = rebuilt(place)

    for level in levels(table):
        assert rows_of(table) == [row(1), row(2)], level


def test_a_merge_of_a_generation_whose_manifest_was_not_published_is_counted(tmp_path: Path) -> None:
    table = create(tmp_path)
    place = Path(table.uri)
    table.upsert([row(1), row(2)])
    with pytest.raises(Crash):
        crashed(place, at("create", "/manifest/0"), "flusher").flush()
    table.merge(engine="inprocess")
    (region,) = table.regions()
    (place / published_manifest(region.id, Version(2))).unlink(missing_ok=True)  # as if it had not been read from there
    lose_registry(place)

    table = rebuilt(place)
    assert rows_of(table) == [row(1), row(2)]
    table.delete([1])
    assert [one.generation for one in table.flush()] == [2]
    table.merge(engine="inprocess")
    assert rows_of(table) == [row(2)]


def zombie(region: Region, position: int, *, epoch: int, key: int) -> None:
    """An object of the log that nobody ever acknowledged."""
    stored = TableSchema(columns=numbered(COLUMNS), primary_key=("id",)).stored
    rows = draft(pa.table({"id": [key], "v": ["zombie"], TOMBSTONE: [False]}, schema=stored))
    nonce = region.context.ids.nonce()
    body = encode(rows, position=Position(position), epoch=Epoch(epoch), nonce=nonce).body
    region.context.objects.create(wal_entry(region.id, Position(position)), body)


def test_leftovers_of_an_earlier_epoch_above_the_head_are_left_out(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    (region,) = table.regions()
    head = table.claim(region)
    zombie(region, head.next_position, epoch=1, key=66)
    zombie(region, head.next_position + 1, epoch=1, key=67)
    lose_registry(Path(table.uri))

    table = rebuilt(Path(table.uri))

    assert rows_of(table) == [row(1)]
    for n in range(3):
        table.upsert([row(10 + n)])
    assert rows_of(table) == [row(1), *(row(10 + n) for n in range(3))]


def test_an_entry_behind_a_seal_is_left_out(tmp_path: Path) -> None:
    table = create(tmp_path)
    stalled = lancelsm.open(table.uri)
    stalled.upsert([row(1)])
    (region,) = table.regions()
    head = table.seal(region)
    with pytest.raises(Invalid, match="sealed"):
        stalled.upsert([row(2)])
    assert region.context.objects.get(wal_entry(region.id, head.next_position)) is not None
    for _ in range(2):
        lose_registry(Path(table.uri))
        table = rebuilt(Path(table.uri))
        assert rows_of(table) == [row(1)]
        assert [one.status for one in table.status().regions] == ["sealed"]
        with pytest.raises(Invalid, match="sealed"):
            table.upsert([row(3)])
    table.flush()
    table.merge(engine="inprocess")
    assert rows_of(table) == [row(1)]


def test_a_seal_whose_manifest_was_not_committed_stays_a_seal(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    sealer = crashed(Path(table.uri), at("create", "/staged/"), "sealer")
    (region,) = sealer.regions()
    with pytest.raises(Crash):
        sealer.seal(region)
    assert [one.status for one in table.status().regions] == ["sealed"]

    table = rebuilt(Path(table.uri))

    assert [one.status for one in table.status().regions] == ["sealed"]
    assert rows_of(table) == [row(1)]


@pytest.mark.parametrize("damage", [b"", b"rubbish", None])
def test_a_damaged_entry_in_the_middle_stops_it(tmp_path: Path, damage: bytes | None) -> None:
    table = create(tmp_path)
    for key in range(3):
        table.upsert([row(key)])
    (region,) = table.regions()
    key = wal_entry(region.id, Position(2))
    path = Path(table.uri) / key
    body = path.read_bytes()
    path.write_bytes(body[:-20] + b"\1" + body[-19:] if damage is None else damage)
    lose_registry(Path(table.uri))

    with pytest.raises(Corrupt, match="damaged") as error:
        rebuilt(Path(table.uri))

    assert (error.value.where["position"], error.value.where["object"]) == (2, key)
    path.write_bytes(body)
    assert rows_of(rebuilt(Path(table.uri))) == [row(0), row(1), row(2)]


def four_entries(tmp_path: Path) -> tuple[Table, Region]:
    table = create(tmp_path)
    for key in range(4):
        table.upsert([row(key)])
    (region,) = table.regions()
    return table, region


def a_claim(table: Table, region: Region) -> None:
    """A fence at 5, and a manifest that knows of it."""
    table.claim(region)


def an_older_fence(table: Table, region: Region) -> None:
    """A fence at 5 whose manifest was not published."""
    claimer = crashed(Path(table.uri), at("create", "/staged/"), "claimer")
    (held,) = claimer.regions()
    with pytest.raises(Crash):
        claimer.claim(held)


def an_entry_of_lances(table: Table, region: Region) -> None:
    dataset = lance.dataset(table.uri)
    with dataset.mem_wal_writer(region.id) as writer:
        writer.put(pa.Table.from_pylist([row(9)], schema=dataset.schema))
    for path in Path(table.uri).glob("_mem_wal/*/manifest/*.binpb"):  # what it flushed on closing is lost too
        if path.name != Path(published_manifest(region.id, Version(1))).name:
            path.unlink()


def rubbish(table: Table, region: Region) -> None:
    (Path(table.uri) / wal_entry(region.id, Position(5))).write_bytes(b"rubbish")


@pytest.mark.parametrize("proof", [a_claim, an_older_fence, an_entry_of_lances, rubbish])
def test_a_hole_is_named_where_anything_proves_that_the_log_went_on(
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
        assert {found["id"] for found in rows_of(rebuilt(Path(table.uri)))} >= {0, 1, 2, 3}


@pytest.mark.parametrize("lost", [2, 4])
def test_a_head_that_is_there_names_what_was_lost_below_it(tmp_path: Path, lost: int) -> None:
    table, region = four_entries(tmp_path)
    (Path(table.uri) / wal_entry(region.id, Position(lost))).unlink()

    with pytest.raises(Corrupt, match="committed through 4") as error:
        rebuild(open_table(table.uri))

    assert error.value.where["region"] == region.id
    assert (error.value.where["position"], error.value.where["object"]) == (lost, wal_entry(region.id, Position(lost)))


def test_objects_above_a_hole_that_nothing_proves_are_fenced_off_and_reported(tmp_path: Path) -> None:
    # Given what several puts in flight leave when the first one fails, or a lost entry: nobody can tell which
    table, region = four_entries(tmp_path)
    (Path(table.uri) / wal_entry(region.id, Position(2))).unlink()
    lose_registry(Path(table.uri))

    (one,) = rebuild(open_table(table.uri))

    assert one.left == (3, 4)
    assert one.head.next_position == 5
    assert rows_of(table) == [row(0)]
    for position in (2, 3, 4):
        body = (Path(table.uri) / wal_entry(region.id, Position(position))).read_bytes()
        assert decode(body, position=Position(position), key="").fence


def test_a_cut_entry_at_the_very_end_was_never_acknowledged(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    (region,) = table.regions()
    (Path(table.uri) / wal_entry(region.id, Position(2))).write_bytes(b"half")
    lose_registry(Path(table.uri))

    table = rebuilt(Path(table.uri))

    assert rows_of(table) == [row(1)]
    table.upsert([row(2)])
    assert rows_of(table) == [row(1), row(2)]


def test_a_rebuild_that_crashes_at_any_call_is_finished_by_the_next(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    table.upsert([row(key) for key in range(6)])
    table.flush()
    table.upsert([row(key, "b") for key in range(3)])
    wanted = rows_of(table)
    place = Path(table.uri)
    lose_registry(place)
    shutil.copytree(place, tmp_path / "lost")
    plan = FaultPlan()
    rebuild(open_table(place, ports=faulty(plan)))
    for call in plan.calls:
        for fault in (CRASH_BEFORE, CRASH_AFTER) if call.writes else (CRASH_BEFORE,):
            print(call, fault)
            shutil.rmtree(place)
            shutil.copytree(tmp_path / "lost", place)
            with pytest.raises(Crash):
                rebuild(open_table(place, ports=faulty(FaultPlan.at(call.index, fault))))
            table = rebuilt(place)
            assert rows_of(table) == wanted
            table.upsert([row(0, "c"), row(1, "c")])
            assert rows_of(table) == [row(0, "c"), row(1, "c"), *wanted[2:]]


def test_regions_that_only_the_catalog_has_are_empty(tmp_path: Path) -> None:
    table = create(tmp_path, regions="identity(id)")
    table.upsert([row(1)])
    plan = at("create", "/staged/")
    with pytest.raises(Crash):
        crashed(Path(table.uri), plan, "creator").upsert([row(2)])
    assert len(table.regions()) == 2

    assert len(rebuild(open_table(table.uri))) == 1
    assert rows_of(table) == [row(1)]
    table.upsert([row(2)])
    assert rows_of(table) == [row(1), row(2)]


def test_a_head_that_is_ahead_of_storage_is_never_taken_back(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    table.upsert([row(2)])
    (region,) = table.regions()
    before = region.context.registry.read(head_key(table.config.table, region.id))
    (Path(table.uri) / wal_entry(region.id, Position(2))).unlink()

    with pytest.raises(LsmError):
        rebuild(open_table(table.uri))

    assert region.context.registry.read(head_key(table.config.table, region.id)) == before
    assert set(positions(table).values()) == {3}


def test_a_process_that_has_a_dropped_table_open_does_not_rebuild_the_one_that_was_made_there_since(tmp_path):
    table = create(tmp_path, [row(1)])
    place, stale = Path(table.uri), open_table(table.uri)
    drop_table(place)
    lancelsm.create(place, COLUMNS, primary_key="id").upsert([row(2)])

    with pytest.raises(Invalid, match="another table was made in its place"):
        rebuild(stale)

    again = lancelsm.open(place)
    again.upsert([row(3)])
    again.flush()
    assert rows_of(again) == [row(2), row(3)]


@pytest.mark.parametrize("regions", ["bucket(id, 2)", "identity(id)"])
def test_a_region_that_a_maker_left_for_a_table_that_was_dropped_is_not_taken_over(
    tmp_path: Path, regions: str
) -> None:
    table, other = create(tmp_path, regions=regions), create(tmp_path / "other", regions=regions)
    table.upsert([row(1, "ours")])
    other.upsert([row(key, "theirs") for key in range(4)])
    for left in (Path(other.uri) / MEM_WAL).iterdir():
        shutil.copytree(left, Path(table.uri) / MEM_WAL / left.name)

    assert table.scrub().ok
    assert rows_of(rebuilt(Path(table.uri))) == [row(1, "ours")]
    lose_registry(Path(table.uri))
    assert rows_of(rebuilt(Path(table.uri))) == [row(1, "ours")]


@pytest.mark.interop
@pytest.mark.parametrize("spec", [{"unsharded": True}, {}], ids=["with a spec", "without"])
def test_regions_that_lance_named_come_back(tmp_path: Path, spec: dict[str, bool]) -> None:
    place = test_adopt.lance_wrote(tmp_path / "table", **spec)
    adopt(place)
    lose_registry(place)

    assert rows_of(rebuilt(place)) == test_adopt.ROWS
    assert lancelsm.open(place).scrub().ok


@pytest.mark.parametrize("registry", ["sqlite", "object"])
def test_a_table_s_record_that_can_t_be_read_is_made_anew(tmp_path: Path, registry: str) -> None:
    table = create(tmp_path, registry=registry)
    table.upsert([row(1)])
    spoil(Path(table.uri), table_key(open_table(table.uri).context.table))

    assert not table.scrub().ok
    again = rebuilt(Path(table.uri))
    assert again.scrub().ok
    assert rows_of(again) == [row(1)]


RECORDS = {"head": head_key, "catalog": region_key}


@pytest.mark.parametrize("registry", ["sqlite", "object"])
@pytest.mark.parametrize("of", RECORDS)
@pytest.mark.parametrize("damage", ["another type", "a field is gone", "no record"])
def test_a_record_that_can_t_be_read_is_made_anew(tmp_path: Path, registry: str, of: str, damage: str) -> None:
    table = create(tmp_path, regions="bucket(id, 2)", registry=registry)
    table.upsert([row(key) for key in range(8)])
    context = table.regions()[0].context
    key = RECORDS[of](context.table, table.regions()[0].id)
    name = {"head": "entry_setsum", "catalog": "values"}[of]
    if damage == "no record":
        spoil(Path(table.uri), key)
    else:
        change = {name: "zz" if damage == "another type" else None}
        context.registry.swap(key, expect={}, change=change)
    with pytest.raises(Corrupt):
        lancelsm.open(table.uri).scan().to_arrow()

    assert rows_of(rebuilt(Path(table.uri))) == [row(key) for key in range(8)]


def spoil(place: Path, key: Key) -> None:
    """Cut a record of either registry."""
    if (place / SQLITE).exists():
        with contextlib.closing(sqlite3.connect(place / SQLITE, isolation_level=None)) as file:
            file.execute("UPDATE records SET fields = '{' WHERE partition = ? AND sort = ?", (key.partition, key.sort))
    else:
        (place / object_key(key)).write_bytes(b"{")


def test_a_registry_s_file_that_is_none_is_made_anew_as_the_error_says(tmp_path: Path) -> None:
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
    assert "move this file and those beside it" in raised.value.remedy
    file.unlink()

    assert rows_of(rebuilt(tmp_path / "table")) == [row(1)]
