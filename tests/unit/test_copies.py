"""Clones, backups, restores and drops: after a crash at any call they are complete or absent, and can be repeated."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pytest

import lancelsm
from lancelsm.admin import backup, drop
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.rebuild import rebuild
from lancelsm.common.layout import SQLITE, Key, head_key, scheduled_key
from lancelsm.dataset.cleanup import clean_versions, stored_versions
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
from lancelsm.gc.collect import collect
from lancelsm.region import config as configs
from lancelsm.region.catalog import TableContext, regions
from lancelsm.region.handle import Ports, open_table
from lancelsm.registry.sqlite import SqliteRegistry
from lancelsm.table import Table
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, FAIL_AFTER, Crash, FakeClock, FaultPlan
from tests.unit.copies_scenarios import (
    NEWEST,
    cloned,
    create_source,
    finished_drop_leaves_a_new_table_alone,
    snapshot_judged_before_its_clone_was_pinned_stays,
    stalled_clone_adds_no_older_row,
    values_by_id,
)
from tests.unit.tables import faulty

pytestmark = pytest.mark.rest


@pytest.fixture(scope="module")
def source_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_source(tmp_path_factory.mktemp("copies") / "source")


@pytest.fixture
def source(source_directory: Path, tmp_path: Path) -> Table:
    return lancelsm.open(shutil.copytree(source_directory, tmp_path / "source"))


def test_a_late_write_of_a_clones_configuration_brings_back_no_older_row(source, tmp_path, monkeypatch):
    """The write of the configuration got no reply; it lands after the next call has appended all rows and crashed."""
    location, late, create = tmp_path / "clone", [], configs.create

    def unanswered(*arguments: Any, **options: Any) -> None:
        late.append(partial(create, *arguments, **options))
        raise Unavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(configs, "create", unanswered)
        for _ in range(2):
            with pytest.raises(Unavailable):
                cloned(source, location)
    late[0]()

    assert values_by_id(lancelsm.open(location)) == NEWEST
    appended = sum(region.head().wal_rows for region in regions(open_table(location).context))
    assert appended == len(NEWEST) + 2  # once: the rows, an updated row and a tombstone


@pytest.mark.parametrize("stalls_at", [1, 2, 3])
def test_a_clone_that_another_process_finishes_gets_no_older_row_from_the_stalled_process(
    source, tmp_path, monkeypatch, stalls_at
):
    stalled_clone_adds_no_older_row(source, tmp_path, monkeypatch, stalls_at=stalls_at)


def test_a_clone_has_the_rows_of_the_snapshot_but_no_files_of_its_own(source, tmp_path):
    clone = cloned(source, tmp_path / "clone")

    assert values_by_id(clone) == NEWEST
    assert not (tmp_path / "clone" / "data").exists()
    assert clone.config.table != source.config.table
    assert {region.id for region in clone.list_regions()}.isdisjoint(region.id for region in source.list_regions())
    assert clone.config.settings == source.config.settings
    assert clone.snapshots() == []
    assert clone.cursors() == []


def test_a_clone_starts_without_the_counters_of_its_source(source, tmp_path):
    source.run()
    source.snapshot("merged")
    clone = cloned(source, tmp_path / "clone", at="merged")

    assert open_table(source.uri).read_base().counters
    assert open_table(clone.uri).read_base().counters == {}


def test_a_collector_cannot_remove_a_snapshot_that_it_read_before_a_clone_pinned_it(source, tmp_path):
    snapshot_judged_before_its_clone_was_pinned_stays(source, tmp_path)


def test_a_clone_of_a_snapshot_that_is_dropped_meanwhile_is_refused_and_pins_nothing(source, tmp_path, monkeypatch):
    ensure_kept = lancelsm.admin.clone.ensure_kept

    def collected_before(*arguments):
        source.drop_snapshot("monday")
        return ensure_kept(*arguments)

    monkeypatch.setattr("lancelsm.admin.clone.ensure_kept", collected_before)
    with pytest.raises(Invalid, match="dropped or have expired"):
        cloned(source, tmp_path / "clone")

    assert source.snapshots() == []
    with pytest.raises(Invalid, match="there is no table at this location"):
        lancelsm.open(tmp_path / "clone")
    lancelsm.drop(tmp_path / "clone")


def test_a_clone_and_its_source_are_written_merged_and_collected_independently(source, tmp_path):
    clone = cloned(source, tmp_path / "clone")
    clone.upsert([{"id": 0, "v": 70}, {"id": 9, "v": 70}])
    clone.delete([2])
    source.upsert([{"id": 1, "v": 80}])
    source.delete([0])
    for table in (clone, source):
        table.run()
        table.collect(yes=True, interval_seconds=0)

    assert values_by_id(clone) == {0: 70, 1: 1, 9: 70}
    assert values_by_id(source) == {1: 80, 2: 1, 5: 5}
    assert values_by_id(source.at("monday")) == NEWEST


def test_a_source_keeps_the_files_of_its_clone_after_the_snapshot_is_dropped(source, tmp_path):
    clone = cloned(source, tmp_path / "clone")
    source.drop_snapshot("monday")
    for value in range(3):
        source.upsert([{"id": n, "v": value} for n in range(6)])
        source.run()
    versions = [one.version for one in stored_versions(uri=source.uri)]
    assert clean_versions(uri=source.uri, versions=versions) > 0

    (pin,) = source.snapshots()
    assert (pin.clone, pin.expires) == (clone.uri, None)
    assert values_by_id(clone) == NEWEST
    with pytest.raises(Invalid, match="not a view of the table"):
        source.at(pin.name)
    for end in (lambda: source.drop_snapshot(pin.name), lambda: lancelsm.drop(source.uri)):
        with pytest.raises(Invalid, match="a clone shares the table's files"):
            end()

    lancelsm.drop(clone.uri)
    assert source.snapshots() == []
    lancelsm.drop(source.uri)


def test_a_clone_cleans_up_only_its_own_files(source, tmp_path):
    clone = cloned(source, tmp_path / "clone")
    clone.upsert([{"id": n, "v": 7} for n in range(6)])
    clone.run()
    versions = [one.version for one in stored_versions(uri=clone.uri)]
    assert clean_versions(uri=clone.uri, versions=versions) > 0

    assert values_by_id(clone) == dict.fromkeys(range(6), 7)
    assert values_by_id(source) == {**NEWEST, 5: 5}
    assert values_by_id(source.at("monday")) == NEWEST


def test_a_clone_can_be_cloned(source, tmp_path):
    clone = cloned(source, tmp_path / "clone")
    clone.upsert([{"id": 0, "v": 70}])
    clone.run()
    clone.snapshot("again")
    other = cloned(clone, tmp_path / "other", at="again")
    other.upsert([{"id": 1, "v": 71}])
    other.run()

    assert values_by_id(other) == {0: 70, 1: 71, 2: 1}
    assert values_by_id(clone) == {0: 70, 1: 1, 2: 1}
    with pytest.raises(Invalid, match="a clone shares the table's files"):
        lancelsm.drop(clone.uri)


def test_a_clone_over_an_existing_table_or_of_a_missing_snapshot_is_refused(source, tmp_path):
    cloned(source, tmp_path / "clone")
    with pytest.raises(Invalid, match="a table already exists at this location"):
        cloned(source, tmp_path / "clone")
    with pytest.raises(Invalid, match="snapshot not found"):
        clone_snapshot(open_table(source.uri), "tuesday", tmp_path / "other")


def each_crash(do: Callable[[int, Ports], Any], *, step: int = 1) -> None:
    """Run `do` with a crash or a lost reply at each call in turn, and then once more without a fault."""
    plan = FaultPlan()
    do(0, faulty(plan, process="undisturbed"))
    number = len(plan.calls)
    assert number > 10
    for attempt, index in enumerate(range(0, number, step), start=1):
        fault = (CRASH_BEFORE, CRASH_AFTER, FAIL_AFTER)[index % 3]
        try:
            do(attempt, faulty(FaultPlan.at(index, fault), process=f"crashing-{attempt}"))
        except (Crash, LsmError):
            later = FakeClock(FakeClock().now() + 120)  # the lease of the crashed process has expired
            do(attempt, faulty(FaultPlan(), process=f"repeated-{attempt}", clock=later))


@pytest.mark.rest
def test_a_clone_interrupted_at_any_call_is_no_table_until_the_same_call_finishes_it(source, tmp_path):
    def clone(attempt: int, ports: Ports) -> None:
        location = tmp_path / f"clone-{attempt}"
        if not (location / "_lancelsm" / "config.json").exists():  # otherwise only the last reply was lost
            clone_snapshot(open_table(source.uri), "monday", location, ports=ports)
        assert values_by_id(lancelsm.open(location)) == NEWEST

    each_crash(clone, step=4)
    clones = {pin.clone for pin in source.snapshots() if pin.clone}
    assert clones == {str(location) for location in tmp_path.glob("clone-*")}


def test_a_backup_survives_its_source_and_is_restored_as_an_independent_table(source, tmp_path):
    old = {region.id for region in source.list_regions()}
    assert lancelsm.backup(source.at("monday"), tmp_path / "monday").rows == 3
    assert lancelsm.backup(source, tmp_path / "today").rows == 4
    assert [pin.name for pin in source.snapshots()] == ["monday"]
    shutil.rmtree(source.uri)

    assert lancelsm.restore(tmp_path / "monday", tmp_path / "restored").rows == 3
    restored = lancelsm.open(tmp_path / "restored")
    assert values_by_id(restored) == NEWEST
    assert old.isdisjoint(region.id for region in restored.list_regions())
    assert (restored.settings.flush_rows, restored.config.regions.describe()) == (7, "bucket(id, 2)")
    lancelsm.restore(tmp_path / "today", tmp_path / "other")
    assert values_by_id(lancelsm.open(tmp_path / "other")) == {**NEWEST, 5: 5}
    restored.upsert([{"id": 0, "v": 9}])
    restored.run()
    assert values_by_id(restored) == {**NEWEST, 0: 9}


def test_an_unfinished_backup_is_not_restored_and_can_be_finished(source, tmp_path):
    lancelsm.backup(source, tmp_path / "backup")
    (tmp_path / "backup" / "backup.json").unlink()

    with pytest.raises(Invalid, match="no finished backup found"):
        lancelsm.restore(tmp_path / "backup", tmp_path / "restored")
    lancelsm.backup(source, tmp_path / "backup")
    with pytest.raises(Invalid, match="a backup already exists there"):
        lancelsm.backup(source, tmp_path / "backup")
    lancelsm.restore(tmp_path / "backup", tmp_path / "restored")


def test_a_backup_finished_by_another_process_is_distinguished_from_a_lost_reply(source, tmp_path, monkeypatch):
    location = tmp_path / "backup"
    with monkeypatch.context() as patch:
        patch.setattr(backup, "put_once", lambda *_, **__: None)
        with pytest.raises(Unavailable, match="could not be finished"):
            lancelsm.backup(source, location)

    def overtaken(**options: Any) -> None:
        monkeypatch.undo()
        lancelsm.backup(source.at("monday"), location)
        backup.write_copy(**options)

    monkeypatch.setattr(backup, "write_copy", overtaken)
    with pytest.raises(Invalid, match="a backup already exists there"):
        lancelsm.backup(source, location)
    lancelsm.restore(location, tmp_path / "restored")
    assert values_by_id(lancelsm.open(tmp_path / "restored")) == NEWEST


def test_a_backup_with_other_rows_than_were_backed_up_is_not_restored(source, tmp_path):
    lancelsm.backup(source, tmp_path / "backup")
    marker = tmp_path / "backup" / "backup.json"
    document = json.loads(marker.read_text())
    other = lancelsm.create(tmp_path / "other", [{"id": n, "v": 1} for n in range(4)], primary_key="id")
    lancelsm.backup(other, tmp_path / "foreign")
    rows = json.loads((tmp_path / "foreign" / "backup.json").read_text())["path"]
    shutil.rmtree(tmp_path / "backup" / document["path"])
    shutil.copytree(tmp_path / "foreign" / rows, tmp_path / "backup" / document["path"])

    with pytest.raises(Corrupt, match="are not the 4 that were backed up"):
        lancelsm.restore(tmp_path / "backup", tmp_path / "restored")
    with pytest.raises(Invalid, match="there is no table at this location"):
        lancelsm.open(tmp_path / "restored")
    lancelsm.drop(tmp_path / "restored")
    lancelsm.create(tmp_path / "restored", [{"id": 1}], primary_key="id")


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"format": 1', b'{"format": 9}'])
def test_an_unreadable_backup_is_reported(source, tmp_path, damage):
    lancelsm.backup(source, tmp_path / "backup")
    (tmp_path / "backup" / "backup.json").write_bytes(damage)

    with pytest.raises((Corrupt, Invalid), match=r"unreadable|format 9, this release"):
        lancelsm.restore(tmp_path / "backup", tmp_path / "restored")


def test_a_restore_interrupted_at_any_call_is_no_table_until_the_same_call_finishes_it(source, tmp_path):
    lancelsm.backup(source, tmp_path / "backup")

    def restored(attempt: int, ports: Ports) -> None:
        location = tmp_path / f"restored-{attempt}"
        if not (location / "_lancelsm" / "config.json").exists():
            lancelsm.restore.on(ports)(tmp_path / "backup", location)
        assert values_by_id(lancelsm.open(location)) == {**NEWEST, 5: 5}

    each_crash(restored, step=2)


def test_a_dropped_table_is_gone_and_its_directory_can_be_used_again(source):
    location = Path(source.uri)
    (location / "notes.txt").write_text("not part of the table")
    context = open_table(location).context
    context.registry.swap(scheduled_key(context.table), expect=None, change={"sample": "aa"})

    assert lancelsm.drop(location) > 10

    with pytest.raises(Invalid, match="there is no table at this location"):
        lancelsm.open(location)
    with pytest.raises(Invalid, match="there is no table at this location"):
        lancelsm.drop(location)
    for partition in ("S", "C", "T", "L"):
        assert context.registry.list(f"{partition}#{context.table}") == []
    assert context.registry.list("scrub") == []
    left = {path.relative_to(location).parts[0] for path in location.rglob("*") if path.is_file()}
    assert left == {"notes.txt", "_lancelsm"}
    assert {path.name.partition("-")[0] for path in (location / "_lancelsm").iterdir()} == {"lock", "registry.sqlite"}
    again = lancelsm.create(location, [{"id": 1, "v": 1}], primary_key="id")
    assert values_by_id(again) == {1: 1}


@pytest.mark.rest
def test_a_drop_interrupted_at_any_call_is_finished_by_the_same_call_before_a_create_succeeds(
    source_directory, tmp_path
):
    def dropped(attempt: int, ports: Ports) -> None:
        location = tmp_path / f"table-{attempt}"
        if location not in dropped_tables:
            dropped_tables.append(Path(shutil.copytree(source_directory, location)))
        elif (location / "_lancelsm" / "dropping.json").exists():
            with pytest.raises(Invalid, match=r"being dropped|already exists at this location"):
                lancelsm.create(location, [{"id": 1, "v": 1}], primary_key="id")
        elif not (location / "_lancelsm" / "config.json").exists():
            return  # only the reply was lost
        lancelsm.drop.on(ports)(location)
        assert not (location / "_versions").exists()
        assert not (location / "_mem_wal").exists()

    dropped_tables: list[Path] = []
    each_crash(dropped)
    assert values_by_id(lancelsm.create(dropped_tables[-1], [{"id": 1, "v": 1}], primary_key="id")) == {1: 1}


def test_a_head_that_could_not_be_deleted_is_deleted_by_the_next_drop(source):
    """Only the catalog lists the heads, so it is deleted after all heads are gone, also with many threads."""
    context = open_table(source.uri).context
    heads = [head_key(context.table, region.id) for region in source.list_regions()]
    catalog_deleted = threading.Event()

    class Failing(SqliteRegistry):
        def delete(self, key: Key, **witness: Any) -> Any:
            if key == heads[0]:
                catalog_deleted.wait(0.5)
                raise Unavailable("no answer")
            if key.partition.startswith("T#"):
                catalog_deleted.set()
            return super().delete(key, **witness)

    def failing(kind: str, *, uri: str, **_: Any) -> Failing:
        return Failing(Path(uri, SQLITE))

    with pytest.raises(Unavailable):
        lancelsm.drop.on(Ports(registry=failing))(source.uri)
    assert context.registry.read(heads[0]) is not None
    lancelsm.drop(source.uri)

    assert [context.registry.read(key) for key in heads] == [None, None]


def test_a_drop_that_another_process_finished_leaves_a_new_table_there_alone(source, monkeypatch):
    finished_drop_leaves_a_new_table_alone(source, monkeypatch)


def test_a_clone_created_during_a_drop_of_its_source_stops_the_drop_or_is_refused(source, tmp_path, monkeypatch):
    handle, location = open_table(source.uri), Path(source.uri)
    check_no_clones = drop._check_no_clones

    def cloned_before(context: TableContext, options: None) -> None:
        # The marker file exists, but the drop has not read the pins yet
        with pytest.raises(Invalid, match="being dropped"):
            clone_snapshot(handle, "monday", tmp_path / "late")
        monkeypatch.undo()
        check_no_clones(context, options)

    with monkeypatch.context() as patched:
        patched.setattr(drop, "read_lineage", lambda _: cloned(source, tmp_path / "early") and None)
        with pytest.raises(Invalid, match="a clone shares the table's files"):
            lancelsm.drop(location)
    assert values_by_id(lancelsm.open(location)) == {**NEWEST, 5: 5}
    assert not (location / "_lancelsm" / "dropping.json").exists()
    lancelsm.drop(tmp_path / "early")

    monkeypatch.setattr(drop, "_check_no_clones", cloned_before)
    lancelsm.drop(location)
    with pytest.raises(Invalid, match="there is no table at this location"):
        lancelsm.open(tmp_path / "late")


def test_a_source_that_lost_its_registry_still_keeps_the_files_of_its_clone(source, tmp_path):
    copy = cloned(source, tmp_path / "clone")
    version = open_table(copy.uri).read_base()
    shared = source.snapshots()[-1].base_version
    for file in Path(source.uri, "_lancelsm").glob("registry.sqlite*"):
        file.unlink()
    handle = open_table(source.uri, settings={"keep_versions_seconds": 1e-3})
    rebuild(handle)
    for number in range(2):  # the first collection removes the tags of lost pins; later ones may delete the versions
        for again in range(16):
            lance.dataset(source.uri).update_config({"more": f"{number} {again}"})
        collect(handle, yes=True, interval_seconds=0)

    assert next(iter(stored_versions(uri=source.uri))).version == shared
    assert values_by_id(lancelsm.open(copy.uri)) == NEWEST
    with pytest.raises(Invalid, match="a clone shares the table's files") as raised:
        lancelsm.drop(source.uri)
    assert version.facts is not None
    assert version.facts.table in raised.value.remedy
    lancelsm.drop(copy.uri)
    lancelsm.drop(source.uri)
