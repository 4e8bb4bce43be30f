"""A table gets other regions while writers, readers and crashes are in between."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.admin import reshard as resharding
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.rebuild import rebuild
from lancelsm.dataset.base_table import open_base
from lancelsm.errors import Contended, Corrupt, Invalid
from lancelsm.read import reader
from lancelsm.read.problems import find_problems
from lancelsm.region.catalog import SealedRegion
from lancelsm.region.handle import TableHandle
from lancelsm.region.resharding import begin_resharding, read_resharding
from lancelsm.routing.spec import parse_regions
from lancelsm.stack.doctor.table_checks import doctor
from lancelsm.table import Table
from lancelsm.wal.log_writer import open_log


def _create(path: Path, regions: str | None = "bucket(id, 2)", **more: Any) -> Table:
    rows = [{"id": key, "v": 0} for key in range(10)]
    return lancelsm.create(path / "orders", rows, primary_key="id", regions=regions, **more)


def _values(table: Table, **scan: Any) -> dict[int, int]:
    found = table.scan(**scan).to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), f"a key is there twice: {found}"
    return {row["id"]: row["v"] for row in found}


def _upsert(table: Any, keys: range, value: int) -> None:
    table.upsert([{"id": key, "v": value} for key in keys])


def _stop_at(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt(step)

    monkeypatch.setattr(resharding, step, crash)


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("bucket(id, 2)", "bucket(id, 5)"),
        (None, "bucket(id, 3)"),
        ("multi_bucket(id, 2)", "multi_bucket(id, 3)"),
        ("identity(id)", "expr(id % 3)"),
    ],
)
def test_a_table_has_all_rows_in_its_new_regions(tmp_path: Path, before: str | None, after: str) -> None:
    table = _create(tmp_path, before)
    _upsert(table, range(5, 15), 1)

    table.reshard(after)
    _upsert(table, range(12, 20), 2)

    wanted = {key: 0 if key < 5 else 1 if key < 12 else 2 for key in range(20)}
    for one in (table, lancelsm.open(table.uri)):
        assert _values(one) == wanted
        assert str(one.config.regions) == after
        assert not one.status().problems
        assert one.get(13).to_pylist() == [{"id": 13, "v": 2}]
        assert _values(one, where="id = 13") == {13: 2}
    table.reshard("bucket(id, 4)")
    table.merge()
    assert _values(lancelsm.open(table.uri)) == wanted


@pytest.mark.parametrize(
    ("act", "wanted"),
    [
        (lambda table: table.get(1)["v"].to_pylist(), [1]),
        (lambda table: table.scan(where="id = 1").to_arrow()["v"].to_pylist(), [1]),
        (lambda table: table.count(where="id = 1 and v = 1"), 1),
        (lambda table: table.update(where="id = 1 and v = 1", set={"v": "2"}).rows, 1),
        (lambda table: table.delete(where="id = 1 and v = 1").rows, 1),
    ],
)
def test_a_call_sees_the_new_regions_if_another_thread_of_the_table_met_the_reshard_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Table], Any], wanted: Any
) -> None:
    table = _create(tmp_path)
    other = lancelsm.open(table.uri)
    other.reshard("bucket(id, 3)")
    _upsert(other, range(10), 1)
    take, calls = table._views.take, list[None]()

    def overtaken(*args: Any, **more: Any) -> Any:
        view = take(*args, **more)
        calls.append(None)
        if len(calls) == 1:
            assert table.get(2)["v"].to_pylist() == [1]
        return view

    monkeypatch.setattr(table._views, "take", overtaken)
    assert act(table) == wanted


def test_a_read_that_starts_again_follows_a_reshard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _create(tmp_path)
    other, get, calls = lancelsm.open(table.uri), reader.get, list[None]()

    def collected(*args: Any, **more: Any) -> Any:
        calls.append(None)
        if len(calls) == 1:
            other.reshard("bucket(id, 3)")
            _upsert(other, range(10), 1)
            raise Corrupt("a generation is gone")
        return get(*args, **more)

    monkeypatch.setattr(reader, "get", collected)
    assert table.get(1)["v"].to_pylist() == [1]


def test_a_table_that_is_held_open_writes_and_reads_the_new_regions(tmp_path: Path) -> None:
    table = _create(tmp_path)
    held, other, log = lancelsm.open(table.uri), lancelsm.open(table.uri), open_log(table.uri)
    for one in (held, other, log):
        _upsert(one, range(3), 1)
    assert held.get(1).to_pylist()
    table.snapshot("before")
    before, first = table._handle, table._handle.read_base().version

    table.reshard("bucket(id, 7)")
    for version in range(first, table._handle.read_base().version + 1):
        found = find_problems(before, base=open_base(uri=table.uri, version=version))
        assert found == [], "the base may have been read before the reshard was done"
    _upsert(table, range(3), 2)

    assert held.get(1).to_pylist() == [{"id": 1, "v": 2}], "a read by key needs the new region"
    assert held.count(where="id = 1 AND v = 2") == 1
    with other.writer() as group:
        futures = [group.submit({"id": key, "v": 3}) for key in range(10)]
    assert {future.result().rows for future in futures} == {1}
    assert other.update(where="id < 3", set={"v": "v + 1"}).rows == 3
    _upsert(log, range(3, 5), 9)
    assert _values(held) == {key: 4 if key < 3 else 9 if key < 5 else 3 for key in range(10)}
    assert table.scrub().ok, "a snapshot has a base with the regions before"


def test_an_update_by_condition_is_applied_once(tmp_path: Path) -> None:
    table = _create(tmp_path)
    held, deleting = lancelsm.open(table.uri), lancelsm.open(table.uri)
    for one in (held, deleting):
        assert one.update(where="true", set={"v": "v + 1"}).rows == 10

    table.reshard("bucket(id, 3)")

    assert held.update(where="true", set={"v": "v + 1"}).rows == 10
    assert _values(table) == dict.fromkeys(range(10), 3)
    assert deleting.delete(where="id < 5").rows == 5
    assert _values(table) == dict.fromkeys(range(5, 10), 3)


def test_a_token_of_a_read_before_the_reshard_is_refused(tmp_path: Path) -> None:
    table = _create(tmp_path)
    held = lancelsm.open(table.uri)
    token = held.get(1, with_token=True).token

    table.reshard("bucket(id, 3)")
    _upsert(table, range(1, 2), 5)

    with pytest.raises(Contended, match="resharded"):
        held.upsert([{"id": 1, "v": 9}], if_unchanged=token)
    read = held.get(1, with_token=True)
    held.upsert([{"id": 1, "v": 9}], if_unchanged=read.token)
    assert _values(table)[1] == 9


STEPS = ["_seal", "_merge_rest", "_commit_spec", "install_spec", "create_region", "_retire", "finish_resharding"]


@pytest.mark.one_case
@pytest.mark.parametrize("step", STEPS)
def test_a_reshard_that_crashed_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    table = _create(tmp_path)
    _upsert(table, range(5), 1)
    held = lancelsm.open(table.uri)
    with monkeypatch.context() as patched:
        _stop_at(patched, step)
        with pytest.raises(KeyboardInterrupt):
            table.reshard("bucket(id, 3)")

    assert _values(lancelsm.open(table.uri)) == {key: int(key < 5) for key in range(10)}
    _upsert(held, range(10, 12), 2)  # its region may be sealed: it finishes the reshard
    other = lancelsm.open(table.uri)
    record = read_resharding(other._context)
    if record is None or not record.done:
        other.reshard()
    assert other.config.regions == lancelsm.open(table.uri).config.regions
    assert str(lancelsm.open(table.uri).config.regions) == "bucket(id, 3)"
    assert _values(other) == {key: 1 if key < 5 else 2 if key > 9 else 0 for key in range(12)}
    assert all(region.retired is not None for region in other.list_regions() if region.number == 1)


def test_sealed_regions_are_merged_again_if_a_merge_outlasts_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _create(tmp_path, settings={"retry_budget_seconds": 0.01})
    _upsert(table, range(5), 1)
    merge, calls = resharding.merge_table, list[TableHandle]()

    def idle_at_first(handle: TableHandle) -> None:
        calls.append(handle)
        time.sleep(0.02)
        if len(calls) > 2:  # the first one is before the regions are sealed
            merge(handle)

    monkeypatch.setattr(resharding, "merge_table", idle_at_first)
    table.reshard("bucket(id, 3)")
    assert len(calls) == 3
    assert _values(table) == {key: int(key < 5) for key in range(10)}


def test_merges_that_do_nothing_end_a_reshard_which_the_next_call_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _create(tmp_path, settings={"retry_budget_seconds": 0.01})
    _upsert(table, range(5), 1)
    monkeypatch.setattr(resharding, "merge_table", lambda _: time.sleep(0.02))
    with pytest.raises(Contended, match=r"sealed regions could not be merged.*run it again"):
        table.reshard("bucket(id, 3)")
    monkeypatch.undo()
    table.reshard()
    assert str(table.config.regions) == "bucket(id, 3)"
    assert _values(table) == {key: int(key < 5) for key in range(10)}


@pytest.mark.rest
def test_a_write_without_lance_waits_for_the_reshard_then_is_contended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _create(tmp_path, settings={"retry_budget_seconds": 1})
    log = open_log(table.uri)
    _stop_at(monkeypatch, "_merge_rest")
    with pytest.raises(KeyboardInterrupt):
        table.reshard("bucket(id, 3)")

    with pytest.raises(Contended, match="being resharded") as raised:
        _upsert(log, range(3), 1)

    assert "lancelsm reshard" in raised.value.remedy
    assert [one.remedy for one in doctor(table) if not one.ok] == [f"Finish it: lancelsm reshard {table.uri}"]
    monkeypatch.undo()
    table.reshard()
    _upsert(log, range(3), 1)
    assert _values(table)[2] == 1
    assert all(one.ok for one in doctor(table))


@pytest.mark.rest
def test_a_region_of_the_old_spec_is_not_created_any_more(tmp_path: Path) -> None:
    table = _create(tmp_path, "identity(id)", settings={"retry_budget_seconds": 1})
    log = open_log(table.uri)
    _upsert(log, range(2), 1)
    begin_resharding(table._context, parse_regions("bucket(id, 2)", schema=table.config.schema, number=2))

    with pytest.raises(Contended, match="being resharded"):
        _upsert(log, range(7, 8), 1)

    table.reshard()
    _upsert(log, range(7, 8), 1)
    assert {region.number for region in table.list_regions() if region.find_head() is not None} == {1, 2}
    assert _values(table)[7] == 1


def test_a_region_that_was_sealed_by_hand_takes_no_rows(tmp_path: Path) -> None:
    table = _create(tmp_path, None)
    table.seal(table.list_regions()[0])

    with pytest.raises(SealedRegion):
        _upsert(table, range(3), 1)
    assert table.reshard("bucket(id, 2)").sealed == 1
    _upsert(table, range(3), 1)
    assert _values(table)[0] == 1


@pytest.mark.parametrize("spec", ["bucket(v, 3)", "nonsense(id)", None])
def test_what_is_no_reshard_is_refused(tmp_path: Path, spec: str | None) -> None:
    table = _create(tmp_path)

    with pytest.raises(Invalid):
        table.reshard(spec)
    assert table.reshard("bucket(id, 2)").sealed == 0, "the table has these regions"
    assert read_resharding(table._context) is None


@pytest.mark.parametrize("follow", [False, True])
def test_a_stream_yields_old_regions_to_their_end_before_a_new_one(tmp_path: Path, follow: bool) -> None:
    table = _create(tmp_path, "bucket(id, 3)")
    for value in range(1, 21):
        table.upsert([{"id": 1, "v": value}, {"id": 2, "v": value}])
    stream = iter(table.changes(cursor="c", follow=follow, limit=80))
    yielded = [next(stream)] if follow else []

    table.reshard("bucket(id, 2)")
    for value in range(21, 41):
        table.upsert([{"id": 1, "v": value}, {"id": 2, "v": value}])
    yielded += list(stream)

    rows = [row for change in yielded for row in change.rows.to_pylist()]
    for key in (1, 2):
        assert [row["v"] for row in rows if row["id"] == key] == list(range(1, 41))


def test_a_read_does_not_ask_for_the_heads_of_retired_regions(tmp_path: Path) -> None:
    table = _create(tmp_path, "bucket(id, 8)")
    _upsert(table, range(20), 1)
    before = sum(one.count for one in lancelsm.open(table.uri).explain().requests if "registry" in one.kind)
    table.snapshot("old")

    table.reshard("bucket(id, 2)")
    _upsert(table, range(1), 2)

    found = lancelsm.open(table.uri).explain()
    assert sum(one.count for one in found.requests if "registry" in one.kind) < before
    assert {one.why for one in found.skipped_regions} == {"the base has all its rows"}
    assert _values(lancelsm.open(table.uri, at="old")) == dict.fromkeys(range(20), 1)
    assert lancelsm.open(table.uri, at="old").get([3]).num_rows == 1


@pytest.mark.rest
def test_copies_of_a_resharded_table_have_its_rows_and_regions(tmp_path: Path) -> None:
    table = _create(tmp_path, "identity(id)")
    _upsert(table, range(5), 1)
    table.snapshot("before")
    table.reshard("bucket(id, 3)")
    _upsert(table, range(2), 2)
    table.snapshot("after")
    wanted = {key: 2 if key < 2 else int(key < 5) for key in range(10)}

    clone_snapshot(table._handle, "before", to=tmp_path / "old")
    clone_snapshot(table._handle, "after", to=tmp_path / "new")
    lancelsm.backup(table, tmp_path / "copy")
    lancelsm.restore(tmp_path / "copy", tmp_path / "restored")

    assert _values(lancelsm.open(tmp_path / "old")) == {key: int(key < 5) for key in range(10)}
    for name in ("new", "restored"):
        copy = lancelsm.open(tmp_path / name)
        assert _values(copy) == wanted
        assert (str(copy.config.regions), copy.status().problems) == ("bucket(id, 3)", ())
        copy.reshard("bucket(id, 2)")
        _upsert(copy, range(10), 3)
        assert _values(copy) == dict.fromkeys(range(10), 3)


@pytest.mark.rest
def test_a_lost_registry_is_rebuilt_with_the_regions_of_both_specs(tmp_path: Path) -> None:
    table = _create(tmp_path, "multi_bucket(id, 2)", registry="object")
    _upsert(table, range(5), 1)
    table.reshard("multi_bucket(id, 3)")
    _upsert(table, range(2), 2)
    regions = {(one.id, one.number) for one in table.list_regions()}
    shutil.rmtree(tmp_path / "orders" / "_lancelsm" / "registry")

    rebuild(table._handle)

    found = lancelsm.open(table.uri)
    assert {(one.id, one.number) for one in found.list_regions()} == regions
    assert _values(found) == {key: 2 if key < 2 else int(key < 5) for key in range(10)}
    _upsert(found, range(3), 4)
    assert {one.status for one in found.status().regions} == {"sealed", "open"}
    assert found.scrub().ok


@pytest.mark.rest
def test_collections_of_a_resharded_table_leave_its_rows(tmp_path: Path) -> None:
    table = _create(tmp_path, settings={"collect_interval_seconds": 1})
    _upsert(table, range(5), 1)
    table.reshard("bucket(id, 3)")
    _upsert(table, range(2), 2)
    old = [one for one in table.list_regions() if one.number == 1]

    for _ in range(3):
        table.collect(yes=True)
        time.sleep(1.1)

    assert all(one.head().first_position > 1 for one in old if one.head().wal_rows)
    assert _values(lancelsm.open(table.uri)) == {key: 2 if key < 2 else int(key < 5) for key in range(10)}
    assert table.scrub().ok


def test_an_event_that_an_old_region_has_is_not_applied_again(tmp_path: Path) -> None:
    table = _create(tmp_path)
    held = lancelsm.open(table.uri)
    events = [{"id": 1, "v": 1}, {"id": 2, "v": 1}]
    assert held.apply_changes(events, source="s", offset=[1, 2]).written == 2

    table.reshard("bucket(id, 3)")
    _upsert(table, range(1, 2), 9)

    for one in (table, held, lancelsm.open(table.uri)):
        assert one.apply_changes(events, source="s", offset=[1, 2]).skipped == 2
    assert held.apply_changes([{"id": 2, "v": 3}], source="s", offset=3).written == 1
    assert (_values(table)[1], _values(table)[2]) == (9, 3)


@pytest.mark.parametrize("options", [{"exclusive": True}, {"pipeline_depth": 4}], ids=["exclusive", "pipelined"])
def test_a_writer_with_regions_of_its_own_goes_on_after_a_reshard(tmp_path: Path, options: dict[str, Any]) -> None:
    table = _create(tmp_path)
    held = lancelsm.open(table.uri)
    group = held.writer(**options)
    with suppress(Contended), group:  # a writer raises the first error of its entries at its end
        for key in range(10):
            group.upsert({"id": key, "v": 1})
        table.reshard("bucket(id, 3)")
        for key in range(5):
            try:
                group.upsert({"id": key, "v": 2})
            except Contended:  # once in each old region, if several entries may be in flight
                assert "pipeline_depth" in options
                group.upsert({"id": key, "v": 2})
        futures = [group.submit({"id": key, "v": 3}) for key in range(3, 8)]
    assert all(future.result().rows == 1 for future in futures)

    assert _values(table) == {key: 2 if key < 3 else 3 if key < 8 else 1 for key in range(10)}
    _upsert(table, range(10), 4)  # the regions are given back
    assert _values(held) == dict.fromkeys(range(10), 4)


def test_a_process_that_stalled_until_a_later_reshard_changes_nothing(tmp_path: Path) -> None:
    table = _create(tmp_path)
    before = table._handle
    table.reshard("bucket(id, 3)")
    begun = read_resharding(table._context)
    table.reshard("bucket(id, 4)")
    _upsert(table, range(3), 1)
    assert begun is not None

    resharding._complete(before, begun)

    found = lancelsm.open(table.uri)
    assert (str(found.config.regions), found.status().problems) == ("bucket(id, 4)", ())
    assert {one.status for one in found.status().regions if one.wal_rows} == {"open"}
    assert _values(found) == {key: int(key < 3) for key in range(10)}
