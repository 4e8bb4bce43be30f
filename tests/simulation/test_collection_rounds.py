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
from tests.simulation.whole_table_env import WholeTableEnv


@pytest.mark.parametrize("most", [5, 8])
def test_a_round_takes_so_many_objects_and_the_next_ones_the_rest(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    whole, table_env = filled(), filled()
    for one in (whole, table_env):
        for number in range(4):
            one.environment.store.create(
                f"_mem_wal/{one.environment.id}/manifest/staged/1-{number:032x}.binpb", b"never named"
            )
        one.merge()
    assert whole.collect().deleted > 2 * most
    finish(whole)
    monkeypatch.setattr(mark, "ITEMS_MAX", most)
    floor = table_env.audit().first_position

    rounds = 0
    while (done := table_env.collect()).deleted:
        head = table_env.audit()
        assert done.deleted <= most
        assert head.first_position <= floor + most
        floor, rounds = head.first_position, rounds + 1

    assert rounds > 2
    assert head.first_position == whole.audit().first_position
    monkeypatch.undo()
    finish(table_env)
    left = [[key for key in one.stored() if "_gen_" in key or "wal/" in key] for one in (table_env, whole)]
    assert left[0] == left[1]


def test_a_round_takes_half_of_a_large_log_and_the_next_ones_the_rest() -> None:
    table_env = filled(flushed=8, merged=8, tail_rows=0)
    size = sum(line.size for line in table_env.environment.store.list(f"_mem_wal/{table_env.environment.id}/wal/"))
    table_env.settings = Settings(collect_floor_bytes=size // 8)
    left = []
    for _ in range(8):
        table_env.collect()
        table_env.audit()
        left.append(sum("wal/" in key for key in table_env.stored()))

    assert left[0] == 8
    assert left[-1] <= 2
    assert left == sorted(left, reverse=True)


def test_a_round_of_which_only_what_a_pin_holds_is_left_waits_for_nothing() -> None:
    table_env = small()
    needed = table_env.needs(table_env.region("holder"))
    table_env.merge()
    handle = table_env.handle("collector", faulty=False)
    with table_env.collecting():
        first = collection.mark(handle)
        collection.verify(handle, first.rounds)
        assert table_env.end_pin(table_env.begin_pin("held", needed))
        collection.commit(handle, first.rounds)
        assert collection.mark(handle).rounds == first.rounds
        assert collection.sweep(handle, first.rounds).kept
        for number in range(4):
            table_env.environment.store.create(
                f"_mem_wal/{table_env.environment.id}/manifest/staged/1-{number:032x}.binpb", b"never named"
            )
        second = collection.mark(handle)

        assert (second.phase, len(second.rounds)) == ("marked", 1)
        assert second.rounds != first.rounds
        for step in (collection.verify, collection.commit, collection.sweep):
            step(handle, second.rounds)
        table_env.unpin("held")
        assert collection.mark(handle).rounds != second.rounds, "what it held is found by rank"
    finish(table_env)


def test_a_dry_run_shows_a_committed_round_that_waits() -> None:
    table_env = filled()
    committed = table_env.collect(interval=TTL)

    looked = table_env.look()

    assert (looked.rounds, looked.phase, looked.deleted) == (committed.rounds, "committed", 0)
    assert [one.path for one in looked.candidates] == [one.path for one in committed.candidates]
    assert {one.why.partition("; ")[2] for one in looked.candidates} == {
        "its round is committed and waits for its sweep"
    }


def test_a_dry_run_asks_and_writes_nothing() -> None:
    table_env = expired(filled())
    records = table_env.environment.registry.list(snapshots(table_env.region("x").context.table))
    before = table_env.stored()

    looked = table_env.look()

    assert (looked.rounds, looked.phase, looked.deleted) == ((), "marked", 0)
    assert looked.candidates[0].kind == "snapshot"
    assert table_env.stored() == before
    assert table_env.environment.registry.list(snapshots(table_env.region("x").context.table)) == records
    done = table_env.collect()
    assert done.candidates == looked.candidates
    assert done.deleted == len(done.candidates)


def test_a_sweep_begins_once_the_manifest_of_its_round_is_published() -> None:
    table_env = filled()

    def unpublished(call: Call) -> Fault | None:
        published = call.method == "create" and "/manifest/" in call.key and "/staged/" not in call.key
        return FAIL_BEFORE if published and call.process == "collector" else None

    table_env.environment.plan = FaultPlan(unpublished)
    key = table_env.collect("collector", faulty=True, interval=TTL).rounds[0]
    head = table_env.region("x").head()
    assert (
        table_env.environment.store.get(published_manifest(table_env.environment.id, Version(head.manifest_version)))
        is None
    )

    with pytest.raises(Unavailable):
        table_env.sweep(key, "collector", faulty=True)
    table_env.audit()
    assert sum("_gen_" in k for k in table_env.stored()) == 8

    table_env.sweep(key)
    assert (
        table_env.environment.store.get(published_manifest(table_env.environment.id, Version(head.manifest_version)))
        is not None
    )
    table_env.audit()


def test_within_the_interval_a_round_waits_and_after_it_the_next_call_sweeps() -> None:
    table_env = filled()
    before = len(table_env.stored())
    committed = table_env.collect(interval=TTL)
    assert (committed.phase, committed.deleted) == ("committed", 0)
    assert len(table_env.stored()) == before + 3, "its list, its manifest, published too"

    waiting = table_env.collect(interval=TTL)
    assert (waiting.phase, waiting.rounds, waiting.deleted) == ("committed", committed.rounds, 0)
    table_env.environment.schedule.clock.advance(TTL + 1)
    swept = table_env.collect(interval=TTL)

    assert swept.deleted == len(committed.candidates)
    table_env.audit()


def test_the_interval_runs_from_the_commit_not_from_the_mark() -> None:
    table_env = filled()
    handle, clock = table_env.handle("collector", faulty=False), table_env.environment.schedule.clock
    with table_env.collecting():
        marked = collection.mark(handle)
        clock.advance(50 * 60)
        collection.verify(handle, marked.rounds)
        collection.commit(handle, marked.rounds)
    clock.advance(15 * 60)

    assert table_env.collect(interval=TTL).deleted == 0, "readers of the manifest before began 15 minutes ago"
    clock.advance(45 * 60)
    assert table_env.collect(interval=TTL).deleted == len(marked.candidates)


def test_the_interval_of_a_round_whose_commit_was_not_noted_runs_from_its_mark() -> None:
    table_env = filled()
    committed = table_env.collect(interval=TTL)
    commit(table_env.region("older"), lambda manifest: replace(manifest, collector_committed=0.0))
    table_env.environment.schedule.clock.advance(TTL - 1)

    assert table_env.collect(interval=TTL).deleted == 0
    table_env.environment.schedule.clock.advance(1)
    assert table_env.collect(interval=TTL).deleted == len(committed.candidates)


def test_the_interval_of_a_round_of_the_base_runs_from_its_commit() -> None:
    table_env = WholeTableEnv(settings=Settings(keep_versions_seconds=0))
    clock = table_env.environment.schedule.clock
    with in_place_of_lance(table_env.base), table_env.collecting():
        for _ in range(3):
            table_env.optimize(table_env.region("merger"))
        clock.advance(1)
        handle = table_env.handle("collector", faulty=False)
        marked = collection.mark(handle)
        clock.advance(50 * 60)
        collection.verify(handle, marked.rounds)
        collection.commit(handle, marked.rounds)
        before = len(table_env.base.versions)
        clock.advance(15 * 60)

        collection.collect(handle, yes=True, interval_seconds=TTL)
        assert len(table_env.base.versions) == before
        clock.advance(45 * 60)
        collection.collect(handle, yes=True, interval_seconds=TTL)
        assert len(table_env.base.versions) < before


def test_a_list_that_is_not_the_committed_one_deletes_nothing() -> None:
    table_env = filled()
    key = table_env.collect(interval=TTL).rounds[0]
    context = table_env.region("x").context
    found = table_env.environment.store.get(key)
    table_env.environment.store.remove(key)
    table_env.environment.store.create(key, found.body + b"\0")

    with pytest.raises(Corrupt, match="not the one that was committed") as error:
        table_env.sweep(key)
    assert error.value.where["object"] == key
    assert context.objects.get(key) is not None
