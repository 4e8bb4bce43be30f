"""What a round takes and a dry run says of it, and what a sweep waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lancelsm.common.layout import Version, published_manifest, snapshots
from lancelsm.common.settings import Settings
from lancelsm.errors import Corrupt, Unavailable
from lancelsm.gc import collect as collection
from lancelsm.gc import mark
from lancelsm.region.compare_and_swap import commit
from tests.simulation.collected import expired, finish, small
from tests.simulation.collecting import TTL, filled
from tests.simulation.faults import FAIL_BEFORE, Call, Fault, FaultPlan
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.whole_lake import WholeLake


@pytest.mark.parametrize("most", [5, 8])
def test_a_round_takes_so_many_objects_and_the_next_ones_the_rest(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    whole, lake = filled(), filled()
    for one in (whole, lake):
        for number in range(4):
            one.world.store.create(f"_mem_wal/{one.world.id}/manifest/staged/1-{number:032x}.binpb", b"never named")
        one.merge()
    assert whole.collect().deleted > 2 * most
    finish(whole)
    monkeypatch.setattr(mark, "ITEMS_MAX", most)
    floor = lake.audit().first_position

    rounds = 0
    while (done := lake.collect()).deleted:
        head = lake.audit()
        assert done.deleted <= most
        assert head.first_position <= floor + most
        floor, rounds = head.first_position, rounds + 1

    assert rounds > 2
    assert head.first_position == whole.audit().first_position
    monkeypatch.undo()
    finish(lake)
    left = [[key for key in one.stored() if "_gen_" in key or "wal/" in key] for one in (lake, whole)]
    assert left[0] == left[1]


def test_a_round_takes_half_of_a_large_log_and_the_next_ones_the_rest() -> None:
    lake = filled(flushed=8, merged=8, tail_rows=0)
    size = sum(line.size for line in lake.world.store.list(f"_mem_wal/{lake.world.id}/wal/"))
    lake.settings = Settings(collect_floor_bytes=size // 8)
    left = []
    for _ in range(8):
        lake.collect()
        lake.audit()
        left.append(sum("wal/" in key for key in lake.stored()))

    assert left[0] == 8
    assert left[-1] <= 2
    assert left == sorted(left, reverse=True)


def test_a_round_of_which_only_what_a_pin_holds_is_left_waits_for_nothing() -> None:
    lake = small()
    needed = lake.needs(lake.region("holder"))
    lake.merge()
    opened = lake.opened("collector", faulty=False)
    with lake.collecting():
        first = collection.mark(opened)
        collection.verify(opened, first.rounds)
        assert lake.end_pin(lake.begin_pin("held", needed))
        collection.commit(opened, first.rounds)
        assert collection.mark(opened).rounds == first.rounds
        assert collection.sweep(opened, first.rounds).kept
        for number in range(4):
            lake.world.store.create(f"_mem_wal/{lake.world.id}/manifest/staged/1-{number:032x}.binpb", b"never named")
        second = collection.mark(opened)

        assert (second.phase, len(second.rounds)) == ("marked", 1)
        assert second.rounds != first.rounds
        for step in (collection.verify, collection.commit, collection.sweep):
            step(opened, second.rounds)
        lake.unpin("held")
        assert collection.mark(opened).rounds != second.rounds, "what it held is found by rank"
    finish(lake)


def test_a_dry_run_shows_a_committed_round_that_waits() -> None:
    lake = filled()
    committed = lake.collect(interval=TTL)

    looked = lake.look()

    assert (looked.rounds, looked.phase, looked.deleted) == (committed.rounds, "committed", 0)
    assert [one.path for one in looked.candidates] == [one.path for one in committed.candidates]
    assert {one.why.partition("; ")[2] for one in looked.candidates} == {
        "its round is committed and waits for its sweep"
    }


def test_a_dry_run_asks_and_writes_nothing() -> None:
    lake = expired(filled())
    records = lake.world.registry.list(snapshots(lake.region("x").storage.table))
    before = lake.stored()

    looked = lake.look()

    assert (looked.rounds, looked.phase, looked.deleted) == ((), "marked", 0)
    assert looked.candidates[0].kind == "snapshot"
    assert lake.stored() == before
    assert lake.world.registry.list(snapshots(lake.region("x").storage.table)) == records
    done = lake.collect()
    assert done.candidates == looked.candidates
    assert done.deleted == len(done.candidates)


def test_a_sweep_begins_once_the_manifest_of_its_round_is_published() -> None:
    lake = filled()

    def unpublished(call: Call) -> Fault | None:
        published = call.method == "create" and "/manifest/" in call.key and "/staged/" not in call.key
        return FAIL_BEFORE if published and call.process == "collector" else None

    lake.world.plan = FaultPlan(unpublished)
    key = lake.collect("collector", faulty=True, interval=TTL).rounds[0]
    head = lake.region("x").head()
    assert lake.world.store.get(published_manifest(lake.world.id, Version(head.manifest_version))) is None

    with pytest.raises(Unavailable):
        lake.sweep(key, "collector", faulty=True)
    lake.audit()
    assert sum("_gen_" in k for k in lake.stored()) == 8

    lake.sweep(key)
    assert lake.world.store.get(published_manifest(lake.world.id, Version(head.manifest_version))) is not None
    lake.audit()


def test_within_the_interval_a_round_waits_and_after_it_the_next_call_sweeps() -> None:
    lake = filled()
    before = len(lake.stored())
    committed = lake.collect(interval=TTL)
    assert (committed.phase, committed.deleted) == ("committed", 0)
    assert len(lake.stored()) == before + 3, "its list, its manifest, published too"

    waiting = lake.collect(interval=TTL)
    assert (waiting.phase, waiting.rounds, waiting.deleted) == ("committed", committed.rounds, 0)
    lake.world.schedule.clock.advance(TTL + 1)
    swept = lake.collect(interval=TTL)

    assert swept.deleted == len(committed.candidates)
    lake.audit()


def test_the_interval_runs_from_the_commit_not_from_the_mark() -> None:
    lake = filled()
    opened, clock = lake.opened("collector", faulty=False), lake.world.schedule.clock
    with lake.collecting():
        marked = collection.mark(opened)
        clock.advance(50 * 60)
        collection.verify(opened, marked.rounds)
        collection.commit(opened, marked.rounds)
    clock.advance(15 * 60)

    assert lake.collect(interval=TTL).deleted == 0, "readers of the manifest before began 15 minutes ago"
    clock.advance(45 * 60)
    assert lake.collect(interval=TTL).deleted == len(marked.candidates)


def test_the_interval_of_a_round_whose_commit_was_not_noted_runs_from_its_mark() -> None:
    lake = filled()
    committed = lake.collect(interval=TTL)
    commit(lake.region("older"), lambda manifest: replace(manifest, collector_committed=0.0))
    lake.world.schedule.clock.advance(TTL - 1)

    assert lake.collect(interval=TTL).deleted == 0
    lake.world.schedule.clock.advance(1)
    assert lake.collect(interval=TTL).deleted == len(committed.candidates)


def test_the_interval_of_a_round_of_the_base_runs_from_its_commit() -> None:
    lake = WholeLake(settings=Settings(keep_versions_seconds=0))
    clock = lake.world.schedule.clock
    with in_place_of_lance(lake.base), lake.collecting():
        for _ in range(3):
            lake.optimize(lake.region("merger"))
        clock.advance(1)
        opened = lake.opened("collector", faulty=False)
        marked = collection.mark(opened)
        clock.advance(50 * 60)
        collection.verify(opened, marked.rounds)
        collection.commit(opened, marked.rounds)
        before = len(lake.base.versions)
        clock.advance(15 * 60)

        collection.collect(opened, yes=True, interval_seconds=TTL)
        assert len(lake.base.versions) == before
        clock.advance(45 * 60)
        collection.collect(opened, yes=True, interval_seconds=TTL)
        assert len(lake.base.versions) < before


def test_a_list_that_is_not_the_committed_one_deletes_nothing() -> None:
    lake = filled()
    key = lake.collect(interval=TTL).rounds[0]
    storage = lake.region("x").storage
    found = lake.world.store.get(key)
    lake.world.store.remove(key)
    lake.world.store.create(key, found.body + b"\0")

    with pytest.raises(Corrupt, match="not the one that was committed") as error:
        lake.sweep(key)
    assert error.value.where["object"] == key
    assert storage.objects.get(key) is not None
