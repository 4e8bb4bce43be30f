"""Collection rounds as values: what mark selects in a base, how lists are encoded, and which code may delete."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import lancelsm
from lancelsm.common.layout import Generation, Nonce, RegionId, table_key
from lancelsm.common.setsum import Setsum
from lancelsm.dataset import cleanup
from lancelsm.dataset.base_rows import Preempted
from lancelsm.dataset.cleanup import StoredVersion
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.gc import base, lists, mark, sweep
from lancelsm.gc.base import Floor, mark_base
from lancelsm.gc.lists import GarbageItem, GarbageKind, Round
from lancelsm.gc.mark import Progress
from lancelsm.history.pin_records import Pin
from lancelsm.objects import Listed
from lancelsm.region.handle import open_table
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.whole_table_env import WholeTableEnv
from tests.unit.tables import create, row

REGION = RegionId("d00cc65e-1b58-41a4-a929-5096334c8657")
ITEM = GarbageItem(
    kind=GarbageKind.ENTRY, path="_mem_wal/x/wal/1.arrow", number=1, bytes=7, why="it is in a generation"
)
ROUND = Round(region=REGION, number=3, floor=9, items=(ITEM,), marked=1.5, discarded=Setsum.of([b"entry"]), fence=0)
SOURCE = Path(lancelsm.__file__).parent


def test_a_list_is_decoded_as_it_was_encoded() -> None:
    base = replace(ROUND, region=None, fence=4, items=tuple(replace(ITEM, kind=kind) for kind in GarbageKind))
    for found in (ROUND, base):
        assert lists.decode(lists.encode(found), key="x") == found


@pytest.mark.parametrize("body", [b"\xff", lists.encode(ROUND)[:-3], b""])
def test_bytes_that_are_not_a_list_are_corrupt(body: bytes) -> None:
    with pytest.raises(Corrupt, match="not the list of a round"):
        lists.decode(body, key="x")


def test_a_list_of_a_newer_format_is_refused() -> None:
    with pytest.raises(Invalid, match="Install a newer"):
        lists.decode(lists.encode(ROUND).replace(b"\x08\x02", b"\x08\x03", 1), key="x")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"counters": {REGION: 2}}, "not merged yet"),
        ({"counters": {}}, "not merged yet"),
        ({"markers": {REGION: 2}}, "marker is behind"),
        ({"markers": {}}, "marker is behind"),
        ({"caught_up": {"v": {REGION: 2}}}, "index v has not caught up"),
        ({"caught_up": {"a": {REGION: 3}, "v": {}}}, "index v has not caught up"),
        ({"caught_up": {}}, ""),
    ],
)
def test_a_generation_can_be_deleted_once_counter_marker_and_every_index_have_passed_it(
    change: dict[str, Any], why: str
) -> None:
    third = {REGION: Generation(3)}
    progress = Progress(version=9, counters=third, checked=third, markers=third, caught_up={"v": third})

    reason = replace(progress, **change).reason_to_keep(REGION, Generation(3))
    assert (why in reason) if why else reason == ""


def fail_listings(monkeypatch: pytest.MonkeyPatch, gone: Iterator[int]) -> None:
    """Each listing of versions by Lance fails over the next missing version of `gone`; then it finds no versions."""

    def versions() -> list[Any]:
        number = next(gone, None)
        if number is not None:
            raise OSError(f"Not found: _versions/{number}.manifest")
        return []

    monkeypatch.setattr(cleanup, "open_dataset", lambda **_: SimpleNamespace(versions=versions))


def test_a_listing_during_which_versions_are_removed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_listings(monkeypatch, iter((7, 8, 9)))
    assert cleanup.stored_versions(uri="x") == ()


def test_a_listing_is_contended_if_versions_keep_being_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_listings(monkeypatch, count(7))
    with pytest.raises(Contended, match="kept removing versions"):
        cleanup.stored_versions(uri="x")


def test_a_listing_that_fails_twice_over_the_same_version_is_corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_listings(monkeypatch, repeat(7))
    with pytest.raises(Corrupt, match=r"7\.manifest"):
        cleanup.stored_versions(uri="x")


def pin_of_version(version: int | None) -> Pin:
    return Pin(
        kind="snapshot",
        name="s",
        nonce=Nonce("0" * 32),
        version=1,
        created=0.0,
        expires=None,
        confirmed=True,
        base_version=version,
        regions={},
    )


def base_round(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "base": SimpleNamespace(version=20, fence=6),
        "versions": [StoredVersion(version=number, committed=float(number)) for number in range(1, 21)],
        "tagged": frozenset(),
        "unnamed": [],
        "lists": [],
        "floor": Floor(version=0, round=4, key="_lancelsm/gc/4-x", setsum=Setsum.ZERO),
        "pins": [],
        "keep_seconds": 3.0,
        "now": 20.0,
    }
    return mark_base(**{**arguments, **changes})


def versions_of(marked: Any) -> list[int]:
    return [item.number for item in marked.round.items if item.kind is GarbageKind.BASE_VERSION]


def test_old_versions_of_a_base_are_collected_but_never_the_newest() -> None:
    assert versions_of(base_round()) == list(range(1, 17))
    assert versions_of(base_round(now=1e9)) == list(range(1, 20))
    assert versions_of(base_round(keep_seconds=1e9)) == []


def test_pinned_and_tagged_versions_are_kept_and_versions_between_them_are_collected() -> None:
    marked = base_round(
        pins=[pin_of_version(9), pin_of_version(None), pin_of_version(12)], tagged=frozenset({3, 9, 18})
    )

    assert versions_of(marked) == [1, 2, 4, 5, 6, 7, 8, 10, 11, 13, 14, 15, 16]
    assert marked.round.floor == 17
    assert [(kept.path, kept.why) for kept in marked.kept] == [
        ("version 3", "it is tagged"),
        ("version 9", "snapshot s needs it"),
        ("version 12", "snapshot s needs it"),
    ]


def test_a_bounded_round_of_the_base_takes_lists_then_versions_then_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark, "ITEMS_MAX", 18)
    lists = [Listed(key=f"_lancelsm/gc/{number}-{'0' * 32}.binpb", size=1) for number in (10, 9)]
    found = base_round(
        lists=lists,
        unnamed=[Listed(key="data/x.lance", size=1)],
        floor=Floor(version=0, round=11, key="", setsum=Setsum.ZERO),
    )

    assert [item.number for item in found.round.items] == [9, 10, *range(1, 17)]
    assert [kept.why for kept in found.kept] == ["a round takes at most 18 objects; later rounds take 1 more"]
    assert found.worthwhile


def test_the_floor_of_a_base_never_falls() -> None:
    floor = Floor(version=18, round=4, key="", setsum=Setsum.ZERO)
    assert base_round(floor=floor, pins=[pin_of_version(2)]).round.floor == 18


def test_a_round_of_the_base_is_not_worthwhile_for_only_a_few_versions() -> None:
    assert not base_round(now=15.0, keep_seconds=1.0).worthwhile
    assert base_round().worthwhile
    assert base_round(keep_seconds=1e9, unnamed=[Listed(key="data/x.lance", size=1)]).worthwhile
    assert base_round().round.fence == 7


@pytest.mark.parametrize(
    ("last", "kind", "message"),
    [
        (Unavailable("the store did not answer"), Unavailable, "did not answer"),
        (Preempted(reason="an index was built"), Contended, "kept changing the base"),
    ],
)
def test_a_fence_that_cannot_be_raised_reports_the_last_cause_after_the_budget(
    last: Any, kind: type[LsmError], message: str
) -> None:
    table_env = WholeTableEnv()
    handle = table_env.handle("committer", faulty=False)
    key = lists.write_list(handle.context, replace(ROUND, region=None, number=1, items=(), fence=1)).key
    outcomes = iter((Preempted(reason="a merge was faster"), Unavailable("no answer")))
    start = handle.context.clock.monotonic()

    def refused(*_: Any, **__: Any) -> Any:
        outcome = next(outcomes, last)
        if isinstance(outcome, Unavailable):
            raise outcome
        return outcome

    with (
        in_place_of_lance(table_env.base),
        mock.patch.object(base, "commit", refused),
        pytest.raises(kind, match=message),
    ):
        base.commit_base(handle, key)
    assert handle.context.clock.monotonic() - start >= handle.context.budget_seconds


def test_lists_of_finished_rounds_of_the_base_are_collected_but_not_the_current_one() -> None:
    names = [f"_lancelsm/gc/{number}-{'0' * 32}.binpb" for number in (3, 4, 5)]
    found = base_round(
        lists=[Listed(key=name, size=1) for name in names],
        floor=Floor(version=0, round=4, key=names[1], setsum=Setsum.ZERO),
    )
    assert [item.path for item in found.round.items if item.kind is GarbageKind.LIST] == names[:1]


def test_only_the_collector_deletes_objects() -> None:
    calls = re.compile(r"(objects|store)\.delete\(")
    files = {path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if calls.search(path.read_text())}
    callers = {path.parts[0] for path in files - {Path("cli", "request_log.py")}}  # it passes calls on
    assert callers == {"gc", "objects", "registry"}, "only the collector and the adapters delete objects"
    steps = {path.name for path in (SOURCE / "gc").glob("*.py") if ".delete(" in path.read_text()}
    assert steps == {"sweep.py", "delete_table.py"}


def test_a_collection_keeps_all_rows_and_reports_what_it_deleted(tmp_path: Path) -> None:
    table = create(tmp_path)
    for key in range(4):
        table.upsert([row(key)])
        table.flush()
    table.merge(engine="inprocess")
    table.upsert([row(9)])

    marked = table.collect()
    generations = {one.path: one.bytes for one in marked.candidates if one.kind == GarbageKind.GENERATION}
    files = {path: [file for file in (Path(table.uri) / path).rglob("*") if file.is_file()] for path in generations}
    assert generations == {path: sum(file.stat().st_size for file in found) for path, found in files.items()}
    assert len(generations) == 4
    swept = table.collect(yes=True, interval_seconds=0)

    assert (marked.phase, marked.deleted, swept.phase) == ("marked", 0, "swept")
    assert swept.candidates == marked.candidates
    assert swept.deleted == len(swept.candidates)
    assert any("from position 5 on" in kept.why for kept in swept.kept)
    assert table.scan().to_arrow().num_rows == 5
    assert table.collect(yes=True, interval_seconds=0).phase == "idle"
    assert table.collect().phase == "marked"


def test_a_region_without_a_merge_is_collected(tmp_path: Path) -> None:
    table = create(tmp_path)
    for key in range(4):
        table.upsert([row(key)])
        table.flush()

    swept = table.collect(yes=True, interval_seconds=0)

    assert GarbageKind.GENERATION not in {one.kind for one in swept.candidates}
    assert (swept.phase, swept.deleted) == ("swept", len(swept.candidates))
    assert table.scan().to_arrow().num_rows == 4


def test_files_of_rows_and_of_deletions_that_no_version_names_are_collected(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path / "table", [row(1), row(2)], primary_key="id")
    table.delete([1])
    table.run()
    orphans = []
    for directory in ("data", "_deletions"):
        named = next((Path(table.uri) / directory).iterdir())
        orphans.append(named.with_stem(f"{named.stem}0"))
        orphans[-1].write_bytes(named.read_bytes())

    swept = table.collect(yes=True, interval_seconds=0)

    found = {one.path for one in swept.candidates if one.kind == GarbageKind.BASE_FILE}
    assert found == {str(path.relative_to(table.uri)) for path in orphans}
    assert not any(path.exists() for path in orphans)
    assert table.scan().to_arrow().to_pylist() == [row(2)]


def test_a_sweep_of_the_base_refuses_a_list_that_was_not_committed(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path / "table", [row(1)], primary_key="id")
    orphan = Path(table.uri) / "data" / "orphan.lance"
    orphan.write_bytes(b"rows")
    table.collect(yes=True, interval_seconds=3600)
    handle = open_table(table.uri)
    committed = base.read_floor(handle)
    path = Path(table.uri) / committed.key
    path.write_bytes(lists.encode(replace(lists.decode(path.read_bytes(), key=""), marked=1.0)))

    with pytest.raises(Corrupt, match="not the one that was committed"):
        base.sweep_base(handle, committed, (), ())
    assert orphan.exists()


def test_a_sweep_of_the_base_removes_no_pinned_version(monkeypatch: pytest.MonkeyPatch) -> None:
    items = tuple(
        GarbageItem(kind=GarbageKind.BASE_VERSION, path=f"version {one}", number=one, bytes=0, why="") for one in (3, 4)
    )
    found = lists.RoundList(key="k", setsum=Setsum.ZERO, round=replace(ROUND, region=None, fence=4, items=items))
    monkeypatch.setattr(base, "find_base_list", lambda *_, **__: found)
    removed: list[int] = []
    monkeypatch.setattr(base, "clean_versions", lambda *, versions, **_: removed.extend(versions) or len(removed))
    handle: Any = SimpleNamespace(
        context=SimpleNamespace(uri="t"), storage_options=None, read_base=lambda: SimpleNamespace(fence=4, version=9)
    )

    swept = base.sweep_base(handle, Floor(version=5, round=3, key="k", setsum=Setsum.ZERO), (), [pin_of_version(4)])

    assert (removed, swept.deleted, [one.path for one in swept.kept]) == ([3], 1, ["version 4"])


def test_a_collection_that_only_removes_an_expired_snapshot_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    table.snapshot("monday", "1h")
    monkeypatch.setattr(sweep, "has_expired", lambda *_, **__: True)

    swept = table.collect(yes=True)

    assert (swept.phase, swept.deleted, [one.path for one in swept.candidates]) == ("swept", 1, ["monday"])


def test_a_listing_that_fails_is_reported_after_its_objects_are_deleted() -> None:
    def listing(prefix: str) -> Iterator[Listed]:
        yield Listed(key=f"{prefix}a", size=1)
        raise Unavailable("the store is down", remedy="Retry")

    deleted: list[str] = []
    context: Any = SimpleNamespace(objects=SimpleNamespace(list=listing, delete=deleted.extend))

    with pytest.raises(Unavailable, match="the store is down"):
        sweep.delete_below(context, "x/")
    assert deleted == ["x/a"]


@pytest.mark.parametrize("yes", [False, True])
@pytest.mark.parametrize("seconds", [-1, -0.5, float("nan")])
def test_an_invalid_interval_is_refused(tmp_path: Path, seconds: float, yes: bool) -> None:
    with pytest.raises(Invalid, match=r"the interval is|interval_seconds is nan") as raised:
        create(tmp_path).collect(yes=yes, interval_seconds=seconds)

    assert raised.value.where["field"] == "interval_seconds"
    assert raised.value.remedy in ("Give 0 seconds or more", "Give a number or None")


@pytest.mark.parametrize("damage", [{"base_floor": "x"}, {"base_round": -1}, {"base_committed": 10**17}])
def test_a_damaged_record_of_the_rounds_of_a_base_is_corrupt(tmp_path: Path, damage: dict[str, Any]) -> None:
    handle = open_table(create(tmp_path).uri)
    key = table_key(handle.context.table)
    damaged = {**(handle.context.registry.read(key) or {}), **damage}
    with (
        mock.patch.object(type(handle.context.registry), "read", return_value=damaged),
        pytest.raises(Corrupt, match="the record of the table in the catalog is unreadable"),
    ):
        base.read_floor(handle)
