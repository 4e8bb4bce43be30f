"""Rows that expire: at each level, in a merge and in `optimize`, in searches, copies and change streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.set_ttl import set_ttl
from lancelsm.compaction import expired
from lancelsm.compaction.maintenance import optimize_table
from lancelsm.dataset.base_rows import Base, commit
from lancelsm.dataset.base_table import TTL
from lancelsm.errors import Corrupt, Invalid, Unavailable
from lancelsm.region.handle import Ports
from tests.simulation.faults import (
    FakeClock,
)
from tests.unit.tables import levels
from tests.unit.ttl_scenarios import COLUMNS, HOUR, expiring, ids, row, ttl_is_removed_during_a_merge, upsert


def test_an_expired_row_hides_older_rows_of_its_key_and_a_newer_row_shows_it_again(tmp_path: Path) -> None:
    clock = FakeClock()
    table = expiring(tmp_path / "t", clock)
    upsert(table, [row(clock, 1, 100, "old"), row(clock, 2, 100, "old")])
    table.flush()
    table.merge(engine="inprocess")
    upsert(table, [row(clock, 1, -1, "expired")])
    for _ in levels(table):
        assert ids(table) == [2]
        assert table.get([1]).num_rows == 0
        assert table.count(where="id = 1") == 0
        clock.advance(400)
    assert table._handle.read_base().rows == 1
    upsert(table, [row(clock, 1, 100, "new")])
    assert table.get([1])["v"].to_pylist() == ["new"]


def test_what_a_scan_keeps_does_not_depend_on_the_time(tmp_path: Path) -> None:
    clock = FakeClock()
    table = expiring(tmp_path / "t", clock)
    upsert(table, [row(clock, 1, 0), row(clock, 2, None), row(clock, 3, None), row(clock, 4, 0)])
    table.flush()
    table.merge(engine="inprocess")
    upsert(table, [row(clock, 2, None, "new"), row(clock, 5, 0)])
    table.flush()
    for _ in range(2):
        assert ids(table) == [1, 2, 3, 4, 5]
    clock.advance(2 * HOUR)
    for _ in range(2):
        assert sorted(table.scan().to_arrow()["v"].to_pylist()) == ["a", "new"]
        assert ids(table) == [2, 3]


def test_a_transaction_takes_an_expired_row_of_a_faster_writer_for_a_delete(tmp_path: Path) -> None:
    clock = FakeClock()
    table, other = (expiring(tmp_path / "t", clock, exist_ok=True) for _ in range(2))
    upsert(table, [row(clock, 1, 9)])
    seen: list[list[int]] = []

    def fn(rows: pa.Table) -> pa.Table:
        if not seen:
            upsert(other, [row(clock, 1, -5)])
        seen.append(rows["id"].to_pylist())
        return rows

    table.transact([1], fn)
    assert seen == [[1], []]
    assert ids(table) == []


def properties_of(table: lancelsm.Table) -> list[dict[str, str]]:
    """The properties of the commits of the base."""
    dataset = lance.dataset(table.uri)
    return [
        (found.transaction_properties or {}) if (found := dataset.read_transaction(one["version"])) else {}
        for one in dataset.versions()
    ]


def test_a_row_is_removed_once_it_has_expired_by_every_clock(tmp_path: Path) -> None:
    clock = FakeClock()
    table = expiring(tmp_path / "t", clock, settings={"skew_allowance_seconds": 300})
    upsert(table, [row(clock, 1, -1), row(clock, 2, None)])
    table.flush()
    clock.advance(299)
    assert table.merge(engine="inprocess").rows_upserted == 2
    assert ids(table) == [2]
    assert optimize_table(table._handle).rows_expired == 0
    clock.advance(1)
    assert optimize_table(table._handle).rows_expired == 1
    assert table._handle.read_base().rows == 1
    assert optimize_table(table._handle).rows_expired == 0
    assert ids(table) == [2]
    assert table.scrub().problems == ()


@pytest.mark.rest
@pytest.mark.parametrize("most", [1, expired.MOST_ROWS], ids=["several commits", "one commit"])
def test_all_rows_of_a_fragment_can_expire(tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expired, "MOST_ROWS", most)
    clock = FakeClock()
    table = expiring(tmp_path / "t", clock)
    upsert(table, [row(clock, 1, 0), row(clock, 2, 0)])
    table.flush()
    table.merge(engine="inprocess")
    upsert(table, [row(clock, 3, 100), row(clock, 4, 0)])
    table.flush()
    table.merge(engine="inprocess")
    clock.advance(2 * HOUR)
    assert optimize_table(table._handle).rows_expired == 3
    assert lance.dataset(table.uri).count_rows() == table.count() == 1
    commits = [one.get("lancelsm.expired") for one in properties_of(table)]
    assert [one for one in commits if one] == (["2", "1"] if most == 1 else ["3"])
    assert table.scrub().problems == ()


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_merge_is_planned_again_if_the_ttl_is_removed_meanwhile(tmp_path: Path, step: int) -> None:
    ttl_is_removed_during_a_merge(tmp_path, step)


def test_rows_that_were_not_removed_are_visible_again_under_a_longer_ttl(tmp_path: Path) -> None:
    clock = FakeClock()
    table, other = expiring(tmp_path / "t", clock), lancelsm.open.on(Ports(clock=clock))(tmp_path / "t")
    upsert(table, [row(clock, 1, -5)])
    assert (ids(table), ids(other)) == ([], [])
    table.set_ttl("10h ON at")
    assert (ids(table), ids(other)) == ([1], [1])
    assert other.status().ttl == "10h on at"
    table.set_ttl(None)
    assert other.status().ttl is None
    version = table._handle.read_base().version
    table.set_ttl(None)
    assert table._handle.read_base().version == version


@pytest.mark.parametrize(("ttl", "kept"), [("1h on at", [3]), (None, [1, 2, 3])])
def test_a_restore_deletes_no_row_that_lives_under_the_present_ttl(
    tmp_path: Path, ttl: str | None, kept: list[int]
) -> None:
    clock = FakeClock()
    table = expiring(tmp_path / "t", clock)
    upsert(table, [row(clock, 1, 0), row(clock, 2, 0), row(clock, 3, None)])
    table.snapshot("s", ttl="never")
    table.delete([2])
    clock.advance(2 * HOUR)
    table.set_ttl(ttl)
    upsert(table, [row(clock, 4, None)])
    done = table.restore("s")
    assert ids(table) == kept
    assert (done.written, done.deleted) == (int(ttl is None), 1)


@pytest.mark.parametrize("lost", [False, True])
def test_set_ttl_tries_again_if_another_commit_was_faster_or_its_reply_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    table = expiring(tmp_path / "t", FakeClock())
    handle, calls = table._handle, [0]

    def raced(base: Base, **arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            newest = handle.read_base()
            commit(Base.of(newest), changed={}, new=(), metadata={**newest.metadata, "x": "1"}, properties={})
        done = commit(base, **arguments)
        if lost and calls[0] == 2:
            raise Unavailable("no answer")
        return done

    monkeypatch.setattr("lancelsm.admin.set_ttl.commit", raced)
    set_ttl(handle, "2d on at")
    metadata = handle.read_base().metadata
    assert (calls[0], metadata["x"], metadata[TTL]) == (2, "1", "2d on at")


@pytest.mark.parametrize(
    ("ttl", "message"),
    [
        ("7d", "is no time to live"),
        ("7 d on at", "is no time to live"),
        ("7x on at", "is not a duration"),
        ("-1s on at", "is not a duration"),
        ("7d on created", "no column"),
        ("7d on v", "has no times"),
    ],
)
def test_another_ttl_is_refused_before_anything_is_written(tmp_path: Path, ttl: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        lancelsm.create(tmp_path / "t", COLUMNS, primary_key="id", ttl=ttl)
    assert not (tmp_path / "t").exists() or not list((tmp_path / "t").iterdir())
    table = lancelsm.create(tmp_path / "u", COLUMNS, primary_key="id")
    with pytest.raises(Invalid, match=message):
        table.set_ttl(ttl)


def test_an_interrupted_creation_with_another_ttl_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("lancelsm.admin.create.register_table", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lancelsm.create(tmp_path / "t", COLUMNS, primary_key="id", ttl="1h on at")
    with pytest.raises(Invalid, match="another time to live"):
        lancelsm.create(tmp_path / "t", COLUMNS, primary_key="id", ttl="2h on at")
    assert lancelsm.create(tmp_path / "t", COLUMNS, primary_key="id", ttl="1h on at").status().ttl == "1h on at"
    for ttl in (None, "60m on at", "3600s on at"):
        assert lancelsm.create(tmp_path / "t", COLUMNS, primary_key="id", ttl=ttl, exist_ok=True).count() == 0
    with pytest.raises(Invalid, match="another time to live exists there: 1h on at"):
        lancelsm.create(tmp_path / "t", COLUMNS, primary_key="id", ttl="2h on at", exist_ok=True)


def test_a_table_whose_column_is_gone_says_so_and_can_be_repaired(tmp_path: Path) -> None:
    table = expiring(tmp_path / "t", FakeClock())
    lance.dataset(table.uri).drop_columns(["at"])
    with pytest.raises(Corrupt, match="by column 'at', which is gone"):
        table.count()
    table.set_ttl(None)
    assert table.count() == 0


def test_the_change_stream_has_expired_rows_and_no_event_of_the_expiry(tmp_path: Path) -> None:
    clock = FakeClock()
    table = expiring(tmp_path / "t", clock)
    upsert(table, [row(clock, 1, -5), row(clock, 2, 5)])
    clock.advance(20 * HOUR)
    table.flush()
    table.merge(engine="inprocess")
    optimize_table(table._handle)
    assert table.count() == 0
    found = [one for change in table.changes(start="earliest") for one in change.rows["id"].to_pylist()]
    assert found == [1, 2]


@pytest.mark.rest
def test_copies_of_a_table_keep_its_ttl(tmp_path: Path) -> None:
    clock = FakeClock()
    ports = Ports(clock=clock)
    table = expiring(tmp_path / "t", clock)
    upsert(table, [row(clock, 1, -5), row(clock, 2, 0), row(clock, 3, None)])
    table.snapshot("s", ttl="never")
    clock.advance(2 * HOUR)
    assert ids(table.at("s")) == [2, 3]
    assert clone_snapshot(table._handle, "s", tmp_path / "clone", ports=ports).rows == 2
    lancelsm.backup.on(ports)(table.at("s"), tmp_path / "backup")
    assert lancelsm.restore.on(ports)(tmp_path / "backup", tmp_path / "restored").rows == 2
    lancelsm.copy.on(ports)(table.uri, tmp_path / "copied", at="s", primary_key=["id", "v"])
    for name in ("clone", "restored", "copied"):
        copy = lancelsm.open.on(ports)(tmp_path / name)
        assert (copy.status().ttl, ids(copy)) == ("1h on at", [3])


@pytest.mark.rest
def test_an_expired_row_is_found_by_no_search(tmp_path: Path) -> None:
    clock = FakeClock()
    columns = pa.schema([*COLUMNS, ("x", pa.list_(pa.float32(), 2))])
    table = lancelsm.create.on(Ports(clock=clock, threads=1))(
        tmp_path / "t",
        columns,
        primary_key="id",
        ttl="1h on at",
        indexes={"v": "INVERTED"},
    )
    times = [row(clock, key, hours)["at"] for key, hours in enumerate([-2, 0, None, 5])]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8), pa.float32()), 2)
    rows = pa.table([range(4), pa.array(times).cast(pa.timestamp("s")), ["word"] * 4, vectors], schema=columns)
    table.upsert(rows)
    expected = {1, 2, 3}
    for _ in levels(table):
        for _ in range(2):  # a view that is searched again has some rows in memory
            found = [
                table.search([0.0, 1.0], k=1),
                table.search([0.0, 1.0], k=9, where="id >= 0"),
                table.search(text="word", k=9),
                table.search(vector=[0.0, 1.0], text="word", k=9),
            ]
            near, *others = [set(one.to_arrow()["id"].to_pylist()) for one in found]
            assert near == {min(expected)}
            assert others == [expected] * 3
        clock.advance(2 * HOUR)
        expected = {2, 3} if len(expected) == 3 else {2} if clock.now() >= times[3] + HOUR else expected


def ordered(path: Path, ports: Ports, **options: Any) -> lancelsm.Table:
    """A table of two regions whose events are ordered by `n`, and whose rows expire an hour after `at`."""
    columns = pa.schema([("id", pa.int64()), ("at", pa.timestamp("s")), ("n", pa.int64())])
    return lancelsm.create.on(ports)(
        path, columns, primary_key="id", ttl="1h on at", regions="bucket(id, 2)", **options
    )


def apply(table: lancelsm.Table, clock: FakeClock, key: int, hours: float, sequence: int) -> Any:
    """Apply an event of a row with a time that lies this many hours from now."""
    at = pa.array([int(clock.now() + hours * HOUR)]).cast(pa.timestamp("s"))
    return table.apply_changes(pa.table([[key], at, [sequence]], names=["id", "at", "n"]), sequence_by="n")


@pytest.mark.rest
def test_a_late_event_does_not_bring_an_expired_row_back(tmp_path: Path) -> None:
    clock = FakeClock()
    table = ordered(tmp_path / "t", Ports(clock=clock, threads=1))
    for key in (1, 2, 3):
        apply(table, clock, key, 0, 10)
    table.flush()
    table.merge(engine="inprocess")
    apply(table, clock, 2, -5, 20)  # in the merge of expired rows
    table.flush()
    clock.advance(2 * HOUR)
    for step in ("expired in its level", "merged", "optimized"):
        if step == "merged":
            table.merge(engine="inprocess")
        elif step == "optimized":
            assert optimize_table(table._handle).rows_expired == 2
        assert table.count() == 0
        assert (apply(table, clock, 1, 9, 9).late, apply(table, clock, 2, 9, 19).late) == (1, 1), step
        assert table.count() == 0
    assert apply(table, clock, 3, 9, 11).late == 0
    assert ids(table) == [3]


@pytest.mark.rest
def test_a_late_event_is_known_in_a_table_that_was_restored_from_a_backup(tmp_path: Path) -> None:
    clock = FakeClock()
    ports = Ports(clock=clock, threads=1)
    table = ordered(tmp_path / "t", ports)
    for key in range(2):
        apply(table, clock, key, 0, 10)
    table.flush()
    table.merge(engine="inprocess")
    apply(table, clock, 2, 0, 10)
    apply(table, clock, 1, 0, 20)
    clock.advance(2 * HOUR)
    lancelsm.backup.on(ports)(table, tmp_path / "backup")
    assert lancelsm.restore.on(ports)(tmp_path / "backup", tmp_path / "restored").rows == 0
    restored = lancelsm.open.on(ports)(tmp_path / "restored")
    assert [apply(restored, clock, key, 9, 15).late for key in range(3)] == [0, 1, 0]
    assert [apply(restored, clock, key, 9, 9).late for key in range(3)] == [1, 1, 1]


@pytest.mark.rest
def test_a_late_event_is_known_in_the_regions_of_a_reshard(tmp_path: Path) -> None:
    clock = FakeClock()
    ports = Ports(clock=clock, threads=1)
    table = ordered(tmp_path / "t", ports, settings={"keep_delete_sequences_seconds": 0})
    for key in range(4):
        apply(table, clock, key, 0, 10)
    table.flush()
    table.merge(engine="inprocess")
    lancelsm.open.on(ports)(tmp_path / "t").reshard("bucket(id, 3)")
    clock.advance(2 * HOUR)
    assert optimize_table(table._handle).rows_expired == 4  # by a process that has not heard of the reshard
    later = lancelsm.open.on(ports)(tmp_path / "t")
    assert [apply(later, clock, key, 9, 9).late for key in range(4)] == [1, 1, 1, 1]


def test_expired_rows_are_looked_up_again_if_another_commit_was_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    table = expiring(tmp_path / "t", clock)
    upsert(table, [row(clock, 1, 0), row(clock, 2, 0)])
    table.flush()
    table.merge(engine="inprocess")
    clock.advance(2 * HOUR)
    calls = [0]

    def raced(base: Base, **arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            set_ttl(table._handle, "10h on at")
        return commit(base, **arguments)

    monkeypatch.setattr(expired, "commit", raced)
    assert optimize_table(table._handle).rows_expired == 0
    assert calls == [1]
    assert ids(table) == [1, 2]
