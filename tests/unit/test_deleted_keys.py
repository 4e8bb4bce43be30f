"""An event of a key whose delete was merged is compared with the delete, or with the highest one that is forgotten."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin import backup
from lancelsm.admin import restore_point as restoring
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.rebuild import rebuild
from lancelsm.common.layout import STATEMENTS
from lancelsm.compaction import merge as merging
from lancelsm.dataset import deleted_keys
from lancelsm.dataset.base_table import DELETES, LATE
from lancelsm.errors import Corrupt, LsmError
from lancelsm.gc import base
from lancelsm.objects.filesystem import LocalStore
from lancelsm.read.transact.change_capture import Applied
from lancelsm.region.handle import Ports
from lancelsm.table import Table
from tests.simulation.faults import CRASH_BEFORE, FAIL_AFTER, Call, Crash, FakeClock, Fault, FaultPlan, FaultyStore
from tests.simulation.marks import changed, without
from tests.simulation.removal import with_and_without
from tests.unit.test_restore_point import History

DAY = 86_400
COLUMNS = pa.schema([("a", pa.string()), ("v", pa.int64()), ("id", pa.int64()), ("gone", pa.bool_())])


def event(key: int, v: int, *, gone: bool = False) -> dict[str, Any]:
    return {"id": key, "a": "x", "v": v, "gone": gone}


def apply(table: Table, *events: dict[str, Any]) -> Applied:
    return table.apply_changes(events, sequence_by=["v"], apply_as_deletes="gone")


def merge(table: Table) -> None:
    table.flush()
    table.merge(engine="inprocess")


def created(path: Path, clock: FakeClock | None = None, **settings: Any) -> Table:
    ports = Ports(clock=clock or FakeClock())
    options = {"primary_key": ("id", "a"), "regions": "bucket(id, 2)", "registry": "object"}
    return lancelsm.create.on(ports)(path / "table", COLUMNS, **options, settings=settings)


def deleted(path: Path, clock: FakeClock | None = None, **settings: Any) -> Table:
    """Keys 0 to 3; 0 and 3, of different regions, are deleted with sequences 5 and 6, and that is merged."""
    table = created(path, clock, **settings)
    apply(table, *(event(key, 1) for key in range(4)))
    merge(table)
    apply(table, event(0, 5, gone=True), event(3, 6, gone=True))
    merge(table)
    return table


def key_of(table: Table) -> str:
    return table._handle.read_base().metadata.get(DELETES, "")


def late(table: Table, *events: dict[str, Any]) -> int:
    return apply(table, *events).late


def merged_delete(path: Path) -> None:
    """A delete is merged into the base, which forgets it, and events from before it arrive."""
    table = deleted(path)
    assert late(table, event(0, 4), event(0, 3, gone=True), event(3, 5)) == 3
    assert apply(table, event(7, 1), event(8, 2)).written == 2  # older than the deletes of other keys
    assert late(table, event(0, 5), event(3, 7)) == 0
    assert table.count() == 6


def wrong_file(path: Path) -> None:
    """The bytes of the file change."""
    table = deleted(path)
    file = Path(table.uri, key_of(table))
    body = file.read_bytes()
    file.write_bytes(body.replace(b"\x05", b"\x00"))
    with pytest.raises(Corrupt) as raised:
        late(table, event(0, 4))
    assert raised.value.where["object"] == key_of(table)
    assert [(one.path, one.kind) for one in table.scrub().problems] == [(key_of(table), "deleted_keys")]


def lying_store(path: Path) -> None:
    """The store keeps other bytes than it got."""

    class Lying(LocalStore):
        def create(self, key: str, body: Any) -> Any:
            return super().create(key, bytes(body)[:-1] if "deletes-" in key else body)

    created(path)
    ports = Ports(store=lambda *_: Lying(path / "table"), clock=FakeClock())
    table = lancelsm.open.on(ports)(path / "table")
    apply(table, event(0, 5, gone=True))
    with pytest.raises(Corrupt, match="reads back"):
        merge(table)
    merge(lancelsm.open(path / "table"))
    assert late(lancelsm.open(path / "table"), event(0, 4)) == 1


def cloned(path: Path) -> None:
    """A clone has other regions than its source, and knows the same deletes, also after their source drops them."""
    clock = FakeClock()
    table = deleted(path, clock)
    clock.advance(8 * DAY)
    apply(table, event(2, 7, gone=True))
    merge(table)
    table.snapshot("s")
    clone_snapshot(table._handle, "s", path / "clone", registry="object", ports=Ports(clock=clock))
    clone = lancelsm.open.on(Ports(clock=clock))(path / "clone")
    shutil.rmtree(Path(table.uri, STATEMENTS))
    assert late(clone, event(2, 6), event(9, 6), event(10, 7)) == 2
    assert clone.scrub().ok


def crashes(*_: Any, **__: Any) -> None:
    raise Crash


def backed_up(path: Path) -> None:
    """A backup has deletes of all levels: forgotten ones, merged ones, and those that no merge has seen."""
    clock = FakeClock()
    table = deleted(path, clock)
    clock.advance(8 * DAY)
    apply(table, event(2, 7, gone=True))
    merge(table)
    apply(table, event(1, 8, gone=True), event(2, 9))
    table.flush()
    apply(table, event(5, 10, gone=True))
    lancelsm.backup.on(Ports(clock=clock))(table, path / "backup")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup, "register_table", crashes)
        with pytest.raises(Crash):
            lancelsm.restore.on(Ports(clock=clock))(path / "backup", path / "restored", registry="object")
    lancelsm.restore.on(Ports(clock=clock))(path / "backup", path / "restored", registry="object")
    restored = lancelsm.open.on(Ports(clock=clock))(path / "restored")
    assert late(restored, event(2, 8), event(1, 7), event(5, 9), event(9, 6)) == 4
    assert late(restored, event(1, 8), event(5, 10), event(10, 7)) == 0
    assert restored.scrub().ok
    apply(restored, event(10, 11, gone=True))
    merge(restored)
    assert late(restored, event(10, 10), event(5, 9), event(8, 6)) == 3


def resharded(path: Path) -> None:
    """The table gets other regions. Some deletes are forgotten before that, and some later."""
    clock = FakeClock()
    table = deleted(path, clock)
    clock.advance(8 * DAY)
    apply(table, event(2, 7, gone=True))
    merge(table)
    table.reshard("bucket(id, 3)")
    table = lancelsm.open.on(Ports(clock=clock))(table.uri)
    assert late(table, event(2, 6), event(3, 6), event(0, 5), event(9, 7)) == 3
    clock.advance(8 * DAY)
    apply(table, event(1, 9, gone=True))
    merge(table)
    assert late(table, event(2, 7), event(20, 7), event(21, 8)) == 2


test_scenarios_pass, test_scenarios_fail_without_their_guard = with_and_without(
    {
        "a merge keeps the sequences of its deletes": (
            [changed("merge keeps the sequences of its deletes", "deletes = {}")],
            merged_delete,
        ),
        "an event is compared with merged deletes": (
            [changed("event is compared with merged deletes", "deletes = schema.stored.empty_table()")],
            merged_delete,
        ),
        "a file of deleted keys has its sum": ([without("file of deleted keys has its sum")], wrong_file),
        "a file of deleted keys is read back": ([without("file of deleted keys is read back")], lying_store),
        "a clone keeps the sequences": (
            [changed("clone keeps merged deletes", "metadata = base.metadata")],
            cloned,
        ),
        "a backup keeps them": ([without("restored table has the sequences of deletes")], backed_up),
        "a reshard keeps them": ([changed("reshard keeps merged deletes", "deletes = {}")], resharded),
    },
    own=(merged_delete, wrong_file, lying_store, cloned, resharded, backed_up),
)


def test_a_table_of_an_earlier_time_and_a_rebuilt_one_know_the_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, kept = FakeClock(), tmp_path / "kept"
    table = deleted(tmp_path, clock)
    clock.advance(8 * DAY)
    apply(table, event(2, 7, gone=True))
    merge(table)
    kept.mkdir()
    history = History(Path(table.uri), kept)
    history.record()
    monkeypatch.setattr(restoring, "VersionedBucket", history.bucket(skew=lambda: 0))
    at = datetime.now(UTC).isoformat()
    restoring.restore_point(table.uri, str(tmp_path / "restored"), at=at, registry="object", margin_seconds=0)
    for uri in (tmp_path / "restored", Path(table.uri)):
        rebuild(lancelsm.open(uri)._handle)
        assert late(lancelsm.open(uri), event(2, 6), event(3, 6), event(0, 5)) == 3, uri


def test_deletes_that_are_too_old_become_the_late_floor_of_their_region(tmp_path: Path) -> None:
    clock = FakeClock()
    table = deleted(tmp_path, clock)
    clock.advance(6 * DAY)
    apply(table, event(2, 8, gone=True))
    merge(table)
    assert late(table, event(20, 1)) == 0

    clock.advance(2 * DAY)
    apply(table, event(1, 9, gone=True))
    merge(table)

    floors = {text for name, text in table._handle.read_base().metadata.items() if name.startswith(LATE)}
    assert floors == {'{"v": 5}', '{"v": 6}'}
    assert late(table, *(event(key, 5) for key in range(30, 40))) == 10
    assert late(table, *(event(key, 7) for key in range(30, 40))) == 0
    assert late(table, event(2, 7), event(1, 8)) == 2


def test_a_file_that_is_full_drops_the_lowest_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = created(tmp_path)
    apply(table, *(event(key, 100 + key, gone=True) for key in range(60)))
    monkeypatch.setattr(deleted_keys, "MOST_BYTES", 2000)
    merge(table)

    file = Path(table.uri, key_of(table))
    assert 500 < file.stat().st_size < 4000
    rows = deleted_keys.read_deletes(LocalStore(Path(table.uri)), key_of(table), table._schema, ["v"])
    kept = rows["of.v"].to_pylist()
    assert sorted(kept) == list(range(160 - len(kept), 160))
    floors = [text for name, text in table._handle.read_base().metadata.items() if name.startswith(LATE)]
    assert max(floors) == f'{{"v": {159 - len(kept)}}}'
    assert late(table, *(event(key, 99 + key) for key in range(60))) == 60


def test_a_lost_file_is_named_by_scrub_reads_and_merges_until_it_is_given_up(tmp_path: Path) -> None:
    table = deleted(tmp_path)
    Path(table.uri, key_of(table)).unlink()

    assert [(one.path, one.kind) for one in table.scrub().problems] == [(key_of(table), "deleted_keys")]
    apply(table, event(2, 8, gone=True))
    merges: list[Callable[[], object]] = [lambda: late(lancelsm.open(table.uri), event(0, 4)), lambda: merge(table)]
    for call in merges:
        with pytest.raises(Corrupt, match="keep_delete_sequences_seconds to 0") as raised:
            call()
        assert raised.value.where["object"] == key_of(table)
    given_up = lancelsm.open(table.uri, settings={"keep_delete_sequences_seconds": 0})
    merge(given_up)

    assert given_up.scrub().ok
    assert late(given_up, event(0, 4), event(3, 6), event(2, 7)) == 3
    assert late(given_up, event(0, 9), event(50, 9)) == 0


def test_a_collection_deletes_the_files_that_no_version_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_VERSIONS_MIN", 1)
    table = deleted(tmp_path, keep_versions_seconds=1e-3, collect_interval_seconds=1e-3)
    apply(table, event(2, 8, gone=True))
    merge(table)
    assert len(list(Path(table.uri, STATEMENTS).glob("deletes-*"))) == 2
    orphan = Path(table.uri, STATEMENTS, f"deletes-1-{'0' * 32}.arrow")
    orphan.write_bytes(b"of a merge that crashed")
    for _ in range(3):
        lancelsm.open(table.uri).collect(yes=True, interval_seconds=0)

    assert [str(one.relative_to(table.uri)) for one in Path(table.uri, STATEMENTS).glob("deletes-*")] == [key_of(table)]
    assert late(table, event(0, 4), event(2, 7)) == 2


def test_a_merge_that_loses_its_race_keeps_the_deletes_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = deleted(tmp_path)
    apply(table, event(2, 8, gone=True), event(1, 9, gone=True))
    table.flush()
    commit, races = merging._commit, []

    def raced(*given: Any, **named: Any) -> Any:
        if not races:
            races.append(1)
            merging._carry_out(*given[:3])
        return commit(*given, **named)

    monkeypatch.setattr(merging, "_commit", raced)
    table.merge(engine="inprocess")

    assert races
    assert late(table, event(0, 4), event(3, 5), event(2, 7), event(1, 8)) == 4


def test_tables_without_a_sequence_write_and_read_no_file(tmp_path: Path) -> None:
    table = created(tmp_path)
    table.apply_changes([event(0, 5, gone=True)], apply_as_deletes="gone")
    merge(table)
    table.apply_changes([event(0, 4)])
    assert key_of(table) == ""
    assert not list(Path(table.uri, STATEMENTS).glob("deletes-*"))


@pytest.mark.rest
@pytest.mark.parametrize("fault", [FAIL_AFTER, CRASH_BEFORE], ids=lambda fault: fault.kind)
def test_a_merge_that_ends_at_any_request_for_a_file_forgets_no_delete(tmp_path: Path, fault: Fault) -> None:
    table = deleted(tmp_path)
    apply(table, event(2, 8, gone=True))
    table.flush()
    at, injected = 0, True
    while injected:
        path = tmp_path / str(at)
        shutil.copytree(table.uri, path)
        seen: list[Call] = []

        def decide(call: Call, seen: list[Call] = seen, at: int = at) -> Fault | None:
            seen += [call] if call.key.startswith(STATEMENTS) else []
            return fault if len(seen) == at + 1 and seen[-1] is call else None

        plan = FaultPlan(decide)
        store = FaultyStore(LocalStore(path), plan, process="victim")
        ports = Ports(store=lambda *_, store=store: store, clock=FakeClock())  # type: ignore[misc]
        with contextlib.suppress(LsmError, Crash):
            lancelsm.open.on(ports)(path).merge(engine="inprocess")
        plan.stop()
        injected = bool(plan.injected)
        again = lancelsm.open(path)
        again.merge(engine="inprocess")
        assert late(again, event(0, 4), event(3, 5), event(2, 7)) == 3, at
        at += 1
    assert at > 5
