"""Clones, backups, restored tables and drops: whole, or not there, after a crash at any call."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pytest

import lancelsm
from lancelsm import backup
from lancelsm.admin import clone, drop
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.drop import drop_table
from lancelsm.admin.rebuild import rebuild
from lancelsm.backup import back_up, restore
from lancelsm.common.layout import SQLITE, Key, head_key, pin_key, snapshots
from lancelsm.dataset.cleanup import clean_versions, stored_versions
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.gc.collect import collect
from lancelsm.region import config as configs
from lancelsm.region.catalog import TableContext, regions
from lancelsm.region.handle import Ports, open_table
from lancelsm.registry import SwapLost
from lancelsm.registry.sqlite import SqliteRegistry
from lancelsm.table import Table
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, FAIL_AFTER, Crash, FakeClock, FaultPlan
from tests.unit.tables import faulty

NEWEST = {0: 2, 1: 1, 2: 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made") / "source"
    table = lancelsm.create(
        place,
        [{"id": n, "v": 0} for n in range(4)],
        primary_key="id",
        regions="bucket(id, 2)",
        settings={"flush_rows": 7},
    )
    table.upsert([{"id": n, "v": 1} for n in range(3)])
    table.flush()
    table.upsert([{"id": 0, "v": 2}])
    table.delete([3])
    table.snapshot("monday", "never")
    table.upsert([{"id": 5, "v": 5}])
    return place


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Table:
    return lancelsm.open(shutil.copytree(made, tmp_path / "source"))


def values(table: Table) -> dict[int, int]:
    rows = table.scan().to_arrow()
    return dict(sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)))


def cloned(source: Table, to: Path, *, at: str = "monday", ports: Ports | None = None) -> Table:
    done = clone_snapshot(open_table(source.uri), at, to, ports=ports)
    assert done.rows == len(values(source.at(at)))
    return lancelsm.open(to)


def test_a_clone_that_lands_while_it_is_made_again_has_no_older_row_in_front(source, tmp_path, monkeypatch):
    """The answer to the last write was lost, and it lands when the next call has appended everything and crashed."""
    to, late, create = tmp_path / "clone", [], configs.create

    def unanswered(*given: Any, **how: Any) -> None:
        late.append(partial(create, *given, **how))
        raise Unavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(configs, "create", unanswered)
        for _ in range(2):
            with pytest.raises(Unavailable):
                cloned(source, to)
    late[0]()

    assert values(lancelsm.open(to)) == NEWEST
    appended = sum(region.head().wal_rows for region in regions(open_table(to).context))
    assert appended == len(NEWEST) + 2  # once: with a row that was updated, and a tombstone


@pytest.mark.parametrize("stalls_at", [1, 2, 3])
def test_a_maker_that_stalls_while_another_makes_the_clone_puts_no_older_row_in_front(
    source, tmp_path, monkeypatch, stalls_at
):
    to, encode, asked = tmp_path / "clone", clone.draft, []

    def stalls(*given: Any, **how: Any) -> Any:
        asked.append(given)
        if len(asked) == stalls_at:
            cloned(source, to).upsert([{"id": n, "v": 9} for n in range(-4, 4)])
        return encode(*given, **how)

    with monkeypatch.context() as patch:
        patch.setattr(clone, "draft", stalls)
        with pytest.raises(Invalid, match="a table exists there already"):
            cloned(source, to)

    assert len(asked) > stalls_at, "the other had nothing left to append"
    assert values(lancelsm.open(to)) == NEWEST | dict.fromkeys(range(-4, 4), 9)


def test_a_clone_is_a_table_of_its_own_with_the_rows_of_the_snapshot_and_without_its_files(source, tmp_path):
    clone = cloned(source, tmp_path / "clone")

    assert values(clone) == NEWEST
    assert not (tmp_path / "clone" / "data").exists()
    assert clone.config.table != source.config.table
    assert {region.id for region in clone.regions()}.isdisjoint(region.id for region in source.regions())
    assert clone.config.settings == source.config.settings
    assert clone.snapshots() == []
    assert clone.cursors() == []


def test_a_clone_begins_without_counters_of_the_source(source, tmp_path):
    source.run()
    source.snapshot("folded")
    clone = cloned(source, tmp_path / "clone", at="folded")

    assert open_table(source.uri).read_base().counters
    assert open_table(clone.uri).read_base().counters == {}


def test_a_collector_that_judged_the_snapshot_before_the_clone_was_pinned_does_not_remove_it(source, tmp_path):
    context = open_table(source.uri).context
    key = pin_key(snapshots(context.table), "monday")
    judged = context.registry.read(key)
    cloned(source, tmp_path / "clone")

    witness = {"version": judged["version"], "nonce": judged["nonce"]}
    assert isinstance(context.registry.delete(key, expect=witness), SwapLost)


def test_a_clone_of_a_snapshot_that_is_collected_meanwhile_is_refused_and_pins_nothing(source, tmp_path, monkeypatch):
    keep_standing = lancelsm.admin.clone.keep_standing

    def collected_before(*arguments):
        source.drop_snapshot("monday")
        return keep_standing(*arguments)

    monkeypatch.setattr("lancelsm.admin.clone.keep_standing", collected_before)
    with pytest.raises(Invalid, match="dropped or has expired"):
        cloned(source, tmp_path / "clone")

    assert source.snapshots() == []
    with pytest.raises(Invalid, match="no table is there"):
        lancelsm.open(tmp_path / "clone")
    drop_table(tmp_path / "clone")


def test_clone_and_source_are_written_folded_and_collected_apart(source, tmp_path):
    clone = cloned(source, tmp_path / "clone")
    clone.upsert([{"id": 0, "v": 70}, {"id": 9, "v": 70}])
    clone.delete([2])
    source.upsert([{"id": 1, "v": 80}])
    source.delete([0])
    for table in (clone, source):
        table.run()
        table.collect(yes=True, interval_seconds=0)

    assert values(clone) == {0: 70, 1: 1, 9: 70}
    assert values(source) == {1: 80, 2: 1, 5: 5}
    assert values(source.at("monday")) == NEWEST


def test_the_source_keeps_the_files_of_a_clone_whatever_becomes_of_the_snapshot(source, tmp_path):
    clone = cloned(source, tmp_path / "clone")
    source.drop_snapshot("monday")
    for value in range(3):
        source.upsert([{"id": n, "v": value} for n in range(6)])
        source.run()
    versions = [one.version for one in stored_versions(uri=source.uri)]
    assert clean_versions(uri=source.uri, versions=versions) > 0

    (pin,) = source.snapshots()
    assert (pin.clone, pin.expires) == (clone.uri, None)
    assert values(clone) == NEWEST
    with pytest.raises(Invalid, match="no view of the table"):
        source.at(pin.name)
    for end in (lambda: source.drop_snapshot(pin.name), lambda: drop_table(source.uri)):
        with pytest.raises(Invalid, match=r"a clone shares (its|the) files"):
            end()

    drop_table(clone.uri)
    assert source.snapshots() == []
    drop_table(source.uri)


def test_what_a_clone_cleans_up_is_its_own(source, tmp_path):
    clone = cloned(source, tmp_path / "clone")
    clone.upsert([{"id": n, "v": 7} for n in range(6)])
    clone.run()
    versions = [one.version for one in stored_versions(uri=clone.uri)]
    assert clean_versions(uri=clone.uri, versions=versions) > 0

    assert values(clone) == dict.fromkeys(range(6), 7)
    assert values(source) == {**NEWEST, 5: 5}
    assert values(source.at("monday")) == NEWEST


def test_a_clone_can_be_cloned(source, tmp_path):
    clone = cloned(source, tmp_path / "clone")
    clone.upsert([{"id": 0, "v": 70}])
    clone.run()
    clone.snapshot("again")
    other = cloned(clone, tmp_path / "other", at="again")
    other.upsert([{"id": 1, "v": 71}])
    other.run()

    assert values(other) == {0: 70, 1: 71, 2: 1}
    assert values(clone) == {0: 70, 1: 1, 2: 1}
    with pytest.raises(Invalid, match="a clone shares its files"):
        drop_table(clone.uri)


def test_a_clone_is_not_made_over_anything_nor_of_a_snapshot_that_is_gone(source, tmp_path):
    cloned(source, tmp_path / "clone")
    with pytest.raises(Invalid, match="a table exists there already"):
        cloned(source, tmp_path / "clone")
    with pytest.raises(Invalid, match="no such snapshot"):
        clone_snapshot(open_table(source.uri), "tuesday", tmp_path / "other")


def each_crash(do: Callable[[int, Ports], Any], *, step: int = 1) -> None:
    """`do` with a crash or a lost reply at every call in turn, each time once more without."""
    plan = FaultPlan()
    do(0, faulty(plan, process="undisturbed"))
    number = len(plan.calls)
    assert number > 10
    for attempt, index in enumerate(range(0, number, step), start=1):
        fault = (CRASH_BEFORE, CRASH_AFTER, FAIL_AFTER)[index % 3]
        try:
            do(attempt, faulty(FaultPlan.at(index, fault), process=f"crashing-{attempt}"))
        except (Crash, LsmError):
            later = FakeClock(FakeClock().now() + 120)  # the lease of who crashed has run out
            do(attempt, faulty(FaultPlan(), process=f"repeated-{attempt}", clock=later))


def test_a_clone_whose_making_ended_at_any_call_is_no_table_until_the_same_call_finishes_it(source, tmp_path):
    def clone(attempt: int, ports: Ports) -> None:
        place = tmp_path / f"clone-{attempt}"
        if not (place / "_lancelsm" / "config.json").exists():  # else only the last reply was lost
            clone_snapshot(open_table(source.uri), "monday", place, ports=ports)
        assert values(lancelsm.open(place)) == NEWEST

    each_crash(clone, step=4)
    clones = {pin.clone for pin in source.snapshots() if pin.clone}
    assert clones == {str(place) for place in tmp_path.glob("clone-*")}


def test_a_backup_survives_its_source_and_becomes_a_table_of_its_own(source, tmp_path):
    old = {region.id for region in source.regions()}
    assert back_up(source.at("monday"), tmp_path / "monday").rows == 3
    assert back_up(source, tmp_path / "today").rows == 4
    assert [pin.name for pin in source.snapshots()] == ["monday"]
    shutil.rmtree(source.uri)

    assert restore(tmp_path / "monday", tmp_path / "restored").rows == 3
    restored = lancelsm.open(tmp_path / "restored")
    assert values(restored) == NEWEST
    assert old.isdisjoint(region.id for region in restored.regions())
    assert (restored.settings.flush_rows, restored.config.regions.describe()) == (7, "bucket(id, 2)")
    restore(tmp_path / "today", tmp_path / "other")
    assert values(lancelsm.open(tmp_path / "other")) == {**NEWEST, 5: 5}
    restored.upsert([{"id": 0, "v": 9}])
    restored.run()
    assert values(restored) == {**NEWEST, 0: 9}


def test_a_backup_that_was_not_finished_is_not_restored(source, tmp_path):
    back_up(source, tmp_path / "backup")
    (tmp_path / "backup" / "backup.json").unlink()

    with pytest.raises(Invalid, match="no finished backup is there"):
        restore(tmp_path / "backup", tmp_path / "restored")
    back_up(source, tmp_path / "backup")
    with pytest.raises(Invalid, match="a backup is there already"):
        back_up(source, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")


def test_a_backup_that_another_finished_first_is_told_from_one_that_had_no_answer(source, tmp_path, monkeypatch):
    to = tmp_path / "backup"
    with monkeypatch.context() as patch:
        patch.setattr(backup, "put_once", lambda *_, **__: None)
        with pytest.raises(Unavailable, match="could not be finished"):
            back_up(source, to)

    def overtaken(**how: Any) -> None:
        monkeypatch.undo()
        back_up(source.at("monday"), to)
        backup.write_copy(**how)

    monkeypatch.setattr(backup, "write_copy", overtaken)
    with pytest.raises(Invalid, match="a backup is there already"):
        back_up(source, to)
    restore(to, tmp_path / "restored")
    assert values(lancelsm.open(tmp_path / "restored")) == NEWEST


def test_a_backup_whose_rows_are_not_those_that_were_backed_up_makes_no_table(source, tmp_path):
    back_up(source, tmp_path / "backup")
    note = tmp_path / "backup" / "backup.json"
    document = json.loads(note.read_text())
    other = lancelsm.create(tmp_path / "other", [{"id": n, "v": 1} for n in range(4)], primary_key="id")
    back_up(other, tmp_path / "foreign")
    rows = json.loads((tmp_path / "foreign" / "backup.json").read_text())["path"]
    shutil.rmtree(tmp_path / "backup" / document["path"])
    shutil.copytree(tmp_path / "foreign" / rows, tmp_path / "backup" / document["path"])

    with pytest.raises(Corrupt, match="are not the 4 that were backed up"):
        restore(tmp_path / "backup", tmp_path / "restored")
    with pytest.raises(Invalid, match="no table is there"):
        lancelsm.open(tmp_path / "restored")
    drop_table(tmp_path / "restored")
    lancelsm.create(tmp_path / "restored", [{"id": 1}], primary_key="id")


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"format": 1', b'{"format": 9}'])
def test_an_unreadable_backup_is_told(source, tmp_path, damage):
    back_up(source, tmp_path / "backup")
    (tmp_path / "backup" / "backup.json").write_bytes(damage)

    with pytest.raises((Corrupt, Invalid), match=r"unreadable|newer release"):
        restore(tmp_path / "backup", tmp_path / "restored")


def test_a_restore_that_ended_at_any_call_is_no_table_until_the_same_call_finishes_it(source, tmp_path):
    back_up(source, tmp_path / "backup")

    def restored(attempt: int, ports: Ports) -> None:
        place = tmp_path / f"restored-{attempt}"
        if not (place / "_lancelsm" / "config.json").exists():
            restore(tmp_path / "backup", place, ports=ports)
        assert values(lancelsm.open(place)) == {**NEWEST, 5: 5}

    each_crash(restored, step=2)


def test_a_dropped_table_is_gone_and_its_place_free(source):
    place = Path(source.uri)
    (place / "notes.txt").write_text("not of the table")
    context = open_table(place).context

    assert drop_table(place) > 10

    with pytest.raises(Invalid, match="no table is there"):
        lancelsm.open(place)
    with pytest.raises(Invalid, match="no table is there"):
        drop_table(place)
    for partition in ("S", "C", "T", "L"):
        assert context.registry.list(f"{partition}#{context.table}") == []
    left = {path.relative_to(place).parts[0] for path in place.rglob("*") if path.is_file()}
    assert left == {"notes.txt", "_lancelsm"}
    assert {path.name.partition("-")[0] for path in (place / "_lancelsm").iterdir()} == {"lock", "registry.sqlite"}
    again = lancelsm.create(place, [{"id": 1, "v": 1}], primary_key="id")
    assert values(again) == {1: 1}


def test_a_drop_that_ended_at_any_call_is_finished_by_the_same_call_and_nothing_is_made_before(made, tmp_path):
    def dropped(attempt: int, ports: Ports) -> None:
        place = tmp_path / f"table-{attempt}"
        if place not in there:
            there.append(Path(shutil.copytree(made, place)))
        elif (place / "_lancelsm" / "dropping.json").exists():
            with pytest.raises(Invalid, match=r"being dropped|exists there already"):
                lancelsm.create(place, [{"id": 1, "v": 1}], primary_key="id")
        elif not (place / "_lancelsm" / "config.json").exists():
            return  # the reply alone was lost
        drop_table(place, ports=ports)
        assert not (place / "_versions").exists()
        assert not (place / "_mem_wal").exists()

    there: list[Path] = []
    each_crash(dropped)
    assert values(lancelsm.create(there[-1], [{"id": 1, "v": 1}], primary_key="id")) == {1: 1}


def test_a_head_that_could_not_be_deleted_is_found_by_the_next_drop(source):
    """Heads are found by the catalog alone: that goes only once they are gone, however many threads delete."""
    context = open_table(source.uri).context
    heads = [head_key(context.table, region.id) for region in source.regions()]
    others = threading.Event()

    class Failing(SqliteRegistry):
        def delete(self, key: Key, **witness: Any) -> Any:
            if key == heads[0]:
                others.wait(0.5)
                raise Unavailable("no answer")
            if key.partition.startswith("T#"):
                others.set()
            return super().delete(key, **witness)

    def failing(kind: str, *, uri: str, **_: Any) -> Failing:
        return Failing(Path(uri, SQLITE))

    with pytest.raises(Unavailable):
        drop_table(source.uri, ports=Ports(registry=failing))
    assert context.registry.read(heads[0]) is not None
    drop_table(source.uri)

    assert [context.registry.read(key) for key in heads] == [None, None]


def test_a_drop_that_another_finished_leaves_alone_what_is_made_there_since(source, monkeypatch):
    place, finished = Path(source.uri), []

    def overtaken(context: TableContext) -> int:
        monkeypatch.undo()
        later = replace(Ports(), clock=FakeClock(context.clock.now() + 120))  # the first one's lease has run out
        finished.append(drop_table(place, ports=later))
        lancelsm.create(place, [{"id": 1, "v": 1}], primary_key="id").upsert([{"id": 2, "v": 2}])
        return drop.delete_objects(context)

    monkeypatch.setattr(drop, "delete_objects", overtaken)
    with pytest.raises(Contended, match="another process has finished the drop"):
        drop_table(place)

    assert finished[0] > 10
    assert values(lancelsm.open(place)) == {1: 1, 2: 2}


def test_a_clone_that_is_made_while_its_source_is_dropped_keeps_it_or_is_not_made(source, tmp_path, monkeypatch):
    handle, place = open_table(source.uri), Path(source.uri)
    unshared = drop._check_unshared

    def cloned_before(context: TableContext, options: None) -> None:  # the drop is noted, and has not looked at pins
        with pytest.raises(Invalid, match="being dropped"):
            clone_snapshot(handle, "monday", tmp_path / "late")
        monkeypatch.undo()
        unshared(context, options)

    with monkeypatch.context() as patched:
        patched.setattr(drop, "read_origin", lambda _: cloned(source, tmp_path / "early") and None)
        with pytest.raises(Invalid, match="a clone shares its files"):
            drop_table(place)
    assert values(lancelsm.open(place)) == {**NEWEST, 5: 5}
    assert not (place / "_lancelsm" / "dropping.json").exists()
    drop_table(tmp_path / "early")

    monkeypatch.setattr(drop, "_check_unshared", cloned_before)
    drop_table(place)
    with pytest.raises(Invalid, match="no table is there"):
        lancelsm.open(tmp_path / "late")


def test_a_source_that_lost_its_registry_still_keeps_what_its_clone_shares(source, tmp_path):
    copy = cloned(source, tmp_path / "clone")
    version = open_table(copy.uri).read_base()
    shared = source.snapshots()[-1].base_version
    for file in Path(source.uri, "_lancelsm").glob("registry.sqlite*"):
        file.unlink()
    handle = open_table(source.uri, settings={"keep_versions_seconds": 1e-3})
    rebuild(handle)
    for number in range(2):  # the first collection removes the tags of pins that are gone, and any may be the second
        for again in range(16):
            lance.dataset(source.uri).update_config({"more": f"{number} {again}"})
        collect(handle, yes=True, interval_seconds=0)

    assert next(iter(stored_versions(uri=source.uri))).version == shared
    assert values(lancelsm.open(copy.uri)) == NEWEST
    with pytest.raises(Invalid, match="a clone shares its files") as raised:
        drop_table(source.uri)
    assert version.facts is not None
    assert version.facts.table in raised.value.remedy
    drop_table(copy.uri)
    drop_table(source.uri)
