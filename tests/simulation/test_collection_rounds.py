"""Rounds of collection: how much one deletes, what a dry run shows, and when a sweep begins."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Version, published_manifest, snapshots
from lancelsm.common.settings import Settings
from lancelsm.errors import Unavailable
from lancelsm.gc import collect as collection
from lancelsm.gc import mark
from tests.simulation import collection_scenarios
from tests.simulation.collecting import TTL, filled
from tests.simulation.collection_faults import finish, small, with_expired_pin
from tests.simulation.faults import FAIL_BEFORE, Call, Fault, FaultPlan


@pytest.mark.parametrize("most", [5, 8])
def test_a_round_deletes_a_limited_number_of_objects_and_later_rounds_the_rest(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
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


def test_a_round_deletes_half_of_a_large_log_and_later_rounds_the_rest() -> None:
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


def test_a_round_with_only_pinned_objects_left_does_not_block_the_next_round() -> None:
    table_env = small()
    needed = table_env.needs(table_env.region("holder"))
    table_env.merge()
    handle = table_env.handle("collector", faulty=False)
    with table_env.collecting():
        first = collection.mark(handle)
        collection.verify(handle, first.rounds)
        assert table_env.confirm_pin(table_env.begin_pin("held", needed))
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
        assert collection.mark(handle).rounds != second.rounds, "the released objects are not in a new round"
    finish(table_env)


def test_a_dry_run_shows_a_committed_round_that_waits() -> None:
    table_env = filled()
    committed = table_env.collect(interval=TTL)

    shown = table_env.dry_run()

    assert (shown.rounds, shown.phase, shown.deleted) == (committed.rounds, "committed", 0)
    assert [one.path for one in shown.candidates] == [one.path for one in committed.candidates]
    assert {one.why.partition("; ")[2] for one in shown.candidates} == {
        "its round is committed and waits for its sweep"
    }


def test_a_dry_run_writes_nothing() -> None:
    table_env = with_expired_pin(filled())
    records = table_env.environment.registry.list(snapshots(table_env.region("x").context.table))
    before = table_env.stored()

    shown = table_env.dry_run()

    assert (shown.rounds, shown.phase, shown.deleted) == ((), "marked", 0)
    assert shown.candidates[0].kind == "snapshot"
    assert table_env.stored() == before
    assert table_env.environment.registry.list(snapshots(table_env.region("x").context.table)) == records
    done = table_env.collect()
    assert done.candidates == shown.candidates
    assert done.deleted == len(done.candidates)


def test_a_sweep_waits_until_the_manifest_of_its_round_is_published() -> None:
    table_env = filled()

    def fails_to_publish(call: Call) -> Fault | None:
        publishes = call.method == "create" and "/manifest/" in call.key and "/staged/" not in call.key
        return FAIL_BEFORE if publishes and call.process == "collector" else None

    table_env.environment.plan = FaultPlan(fails_to_publish)
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


def test_a_round_waits_within_its_interval_and_the_next_call_after_it_sweeps() -> None:
    collection_scenarios.round_within_its_interval()


def test_the_interval_starts_at_the_commit_and_not_at_the_mark() -> None:
    collection_scenarios.late_commit()


def test_the_interval_of_a_round_without_the_time_of_its_commit_starts_at_its_mark() -> None:
    collection_scenarios.commit_without_its_time()


def test_the_interval_of_a_round_of_the_base_starts_at_its_commit() -> None:
    collection_scenarios.late_commit_of_the_base()


def test_a_list_that_differs_from_the_committed_one_deletes_nothing() -> None:
    collection_scenarios.changed_list()
