"""Manifest commits: once or never, published without a hole, the hint never down."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Position, Version, manifest_prefix, published_manifest, version_hint
from lancelsm.errors import Ambiguous, Contended, Corrupt, Fenced, Invalid, Unavailable
from lancelsm.region import compare_and_swap as commits
from lancelsm.region import manifest as manifests
from lancelsm.region.compare_and_swap import commit, newest
from lancelsm.region.manifest import Dead
from tests.simulation.faults import FAIL_AFTER, FAIL_BEFORE, Crash, FaultPlan, late
from tests.simulation.situations import COMMITS, calls, interruptions, one_fault_each, outages
from tests.simulation.world import World, collect, told

SITUATION = COMMITS["commit"]


def test_a_commit_takes_one_read_one_swap_and_seven_calls_of_the_store():
    assert [(call.port, call.method) for call in calls(SITUATION)] == [
        ("registry", "read"),
        ("objects", "get"),  # what the head names
        ("objects", "get"),  # its publication
        ("objects", "get"),  # the next one's, which nobody may have published
        ("objects", "create"),  # stage
        ("registry", "swap"),
        ("objects", "create"),  # publish
        ("objects", "get"),  # the hint
        ("objects", "replace"),
    ]


def test_one_fault_at_any_call_commits_once_or_never():
    heard = {type(error) for _, error in one_fault_each(SITUATION)}
    assert heard <= {type(None), Crash, Unavailable, Ambiguous}


def test_an_outage_from_any_call_on_is_told_as_what_it_did():
    heard = {type(error) for _, error in outages(SITUATION)}
    assert heard == {type(None), Unavailable, Ambiguous}


def test_another_operation_between_any_two_calls_commits_once_or_never():
    for _, error in interruptions(SITUATION, before=(None, FAIL_AFTER, FAIL_BEFORE, late(3), late(99))):
        assert error is None or isinstance(error, (Ambiguous, Unavailable))


def test_a_manifest_whose_swap_lost_is_never_published():
    # chroma 4972: files of a lost compare-and-swap were taken for committed ones.
    world = World()

    def another_commits_before_the_swap(call):
        if call.process == "slow" and call.method == "swap" and len(world.rounds) < 3:
            world.commit(world.region("fast", faulty=False))

    world.plan = FaultPlan(another_commits_before_the_swap)
    done = world.commit(world.region("slow"))

    staged = [line.key for line in world.store.list(manifest_prefix(world.id) + "staged/")]
    assert (done.manifest.version, done.head.manifest_version, len(staged)) == (4, 4, 6)
    world.audit()


def test_a_reply_that_is_lost_until_others_committed_more_is_recognised_by_the_published_manifest():
    world = World()

    def swap_without_reply(call):
        if call.process == "slow" and call.method == "swap":
            return FAIL_AFTER
        if call.process == "slow" and world.plan.calls[call.index - 1].method == "swap":
            for _ in range(2):
                world.commit(world.region("fast", faulty=False))
        return None

    world.plan = FaultPlan(swap_without_reply)
    done = world.commit(world.region("slow"))

    assert done.manifest.version == 2
    assert done.head.manifest_version == 4
    world.audit()


def test_a_commit_whose_publication_failed_is_published_by_the_next_committer_before_its_own():
    world = World()

    def no_publication(call):
        return FAIL_BEFORE if call.process == "first" and call.key.endswith(".binpb") and call.writes else None

    def unpublished(call):
        return no_publication(call) if "/staged/" not in call.key else None

    world.plan = FaultPlan(unpublished)
    world.commit(world.region("first"))
    assert world.store.get(published_manifest(world.id, Version(2))) is None

    world.commit(world.region("second"))  # the watching registry asserts the order

    assert world.store.get(published_manifest(world.id, Version(2))) is not None
    world.audit()


def test_a_published_manifest_that_is_not_the_registry_s_stops_the_committers():
    world = World()
    key = published_manifest(world.id, Version(2))
    world.store.create(key, b"Lance's")

    with pytest.raises(Corrupt, match=r"outside the registry.*adopt"):
        commit(world.region("a"), lambda m: manifests.with_seal(m, epoch=m.epoch, last_seen=m.replay_after))
    with pytest.raises(Corrupt, match=r"outside the registry.*adopt"):
        world.commit(world.region("b"))

    assert world.store.get(key).body == b"Lance's"
    assert world.region("reader").head().manifest_version == 1


def test_a_transition_that_is_dead_or_done_commits_nothing():
    world = World()
    region = world.region("a")

    assert commit(region, lambda _: Dead(why="another came first")) == Dead(why="another came first")
    done = commit(region, lambda manifest: manifest)

    assert (done.manifest.version, done.head.manifest_version) == (1, 1)
    assert not [call for call in world.plan.calls if call.writes]


def test_a_transition_that_breaks_an_invariant_is_not_staged():
    world = World()
    with pytest.raises(Corrupt, match=r"manifest 2 would break: .*replay point"):
        commit(world.region("a"), lambda m: manifests.replace(m, first_position=Position(9)))
    assert not [call for call in world.plan.calls if call.writes]


def test_a_manifest_that_was_swept_since_the_head_was_read_is_looked_for_anew():
    world = World()
    region = world.region("reader")
    stale = region.head()
    head = world.commit(world.region("committer")).head
    world.store.remove(stale.manifest_key)

    assert newest(region, stale) == (head, commits.load(region, head.manifest_key).manifest)


def test_a_named_manifest_that_is_gone_is_corrupt():
    world = World()
    head = world.region("reader").head()
    world.store.remove(head.manifest_key)

    for act in (lambda: newest(world.region("reader"), head), lambda: world.commit(world.region("committer"))):
        with pytest.raises(Corrupt, match=f"gone.*{head.manifest_key}.*lancelsm registry rebuild"):
            act()


def test_an_unreadable_hint_is_replaced():
    world = World()
    world.store.remove(version_hint(world.id))
    world.store.create(version_hint(world.id), b"{}")
    world.commit(world.region("a"))
    world.audit()


def test_appends_do_not_disturb_a_commit_nor_a_commit_appends():
    world = World()
    head = world.write(world.region("writer"), 1).head

    def appends_before_the_swap(call):
        if call.process == "committer" and call.method == "swap":
            world.write(world.region("writer", faulty=False), 2)

    world.plan = FaultPlan(appends_before_the_swap)
    world.commit(world.region("committer"))
    appended = world.write(world.region("writer"), 3, held=world.region("x", faulty=False).head())
    assert [call.method for call in world.plan.calls if call.process == "committer"].count("swap") == 1
    assert (appended.summary.position, appended.head.manifest_version, head.manifest_version) == (3, 2, 1)
    collect(world, world.region("collector"))
    world.audit()


def test_others_that_are_faster_all_the_time_end_in_contended_and_nothing_is_committed():
    world = World(budget_seconds=0.5)

    def another_commits_before_each_swap(call):
        if call.process == "slow" and call.method == "swap":
            world.commit(world.region("fast", faulty=False))

    world.plan = FaultPlan(another_commits_before_each_swap)
    error = told(lambda: world.commit(world.region("slow")))
    assert isinstance(error, Contended)
    assert not isinstance(error, (Fenced, Invalid))
    world.audit()
