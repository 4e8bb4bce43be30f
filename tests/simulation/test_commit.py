"""Manifest commits: once or never, published without a hole, the hint never down."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Position, Version, manifest_prefix, published_manifest, version_hint
from lancelsm.errors import Ambiguous, Contended, Corrupt, Fenced, Invalid, Unavailable
from lancelsm.region import compare_and_swap as commits
from lancelsm.region import manifest as manifests
from lancelsm.region.compare_and_swap import commit, newest
from lancelsm.region.manifest import Dead
from tests.simulation.environment import Environment, collect, raised
from tests.simulation.faults import FAIL_AFTER, FAIL_BEFORE, Crash, FaultPlan, late
from tests.simulation.situations import COMMITS, calls, interruptions, one_fault_each, outages

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
    environment = Environment()

    def another_commits_before_the_swap(call):
        if call.process == "slow" and call.method == "swap" and len(environment.rounds) < 3:
            environment.commit(environment.region("fast", faulty=False))

    environment.plan = FaultPlan(another_commits_before_the_swap)
    done = environment.commit(environment.region("slow"))

    staged = [line.key for line in environment.store.list(manifest_prefix(environment.id) + "staged/")]
    assert (done.manifest.version, done.head.manifest_version, len(staged)) == (4, 4, 6)
    environment.audit()


def test_a_reply_that_is_lost_until_others_committed_more_is_recognised_by_the_published_manifest():
    environment = Environment()

    def swap_without_reply(call):
        if call.process == "slow" and call.method == "swap":
            return FAIL_AFTER
        if call.process == "slow" and environment.plan.calls[call.index - 1].method == "swap":
            for _ in range(2):
                environment.commit(environment.region("fast", faulty=False))
        return None

    environment.plan = FaultPlan(swap_without_reply)
    done = environment.commit(environment.region("slow"))

    assert done.manifest.version == 2
    assert done.head.manifest_version == 4
    environment.audit()


def test_a_commit_whose_publication_failed_is_published_by_the_next_committer_before_its_own():
    environment = Environment()

    def no_publication(call):
        return FAIL_BEFORE if call.process == "first" and call.key.endswith(".binpb") and call.writes else None

    def unpublished(call):
        return no_publication(call) if "/staged/" not in call.key else None

    environment.plan = FaultPlan(unpublished)
    environment.commit(environment.region("first"))
    assert environment.store.get(published_manifest(environment.id, Version(2))) is None

    environment.commit(environment.region("second"))  # the watching registry asserts the order

    assert environment.store.get(published_manifest(environment.id, Version(2))) is not None
    environment.audit()


def test_a_published_manifest_that_is_not_the_registry_s_stops_the_committers():
    environment = Environment()
    key = published_manifest(environment.id, Version(2))
    environment.store.create(key, b"Lance's")

    with pytest.raises(Corrupt, match=r"outside the registry.*adopt"):
        commit(environment.region("a"), lambda m: manifests.with_seal(m, epoch=m.epoch, last_seen=m.replay_after))
    with pytest.raises(Corrupt, match=r"outside the registry.*adopt"):
        environment.commit(environment.region("b"))

    assert environment.store.get(key).body == b"Lance's"
    assert environment.region("reader").head().manifest_version == 1


def test_a_transition_that_is_dead_or_done_commits_nothing():
    environment = Environment()
    region = environment.region("a")

    assert commit(region, lambda _: Dead(why="another came first")) == Dead(why="another came first")
    done = commit(region, lambda manifest: manifest)

    assert (done.manifest.version, done.head.manifest_version) == (1, 1)
    assert not [call for call in environment.plan.calls if call.writes]


def test_a_transition_that_breaks_an_invariant_is_not_staged():
    environment = Environment()
    with pytest.raises(Corrupt, match=r"manifest 2 would break: .*replay point"):
        commit(environment.region("a"), lambda m: manifests.replace(m, first_position=Position(9)))
    assert not [call for call in environment.plan.calls if call.writes]


def test_a_manifest_that_was_swept_since_the_head_was_read_is_looked_for_anew():
    environment = Environment()
    region = environment.region("reader")
    stale = region.head()
    head = environment.commit(environment.region("committer")).head
    environment.store.remove(stale.manifest_key)

    assert newest(region, stale) == (head, commits.load(region, head.manifest_key).manifest)


def test_a_named_manifest_that_is_gone_is_corrupt():
    environment = Environment()
    head = environment.region("reader").head()
    environment.store.remove(head.manifest_key)

    for act in (
        lambda: newest(environment.region("reader"), head),
        lambda: environment.commit(environment.region("committer")),
    ):
        with pytest.raises(Corrupt, match=f"gone.*{head.manifest_key}.*lancelsm registry rebuild"):
            act()


def test_an_unreadable_hint_is_replaced():
    environment = Environment()
    environment.store.remove(version_hint(environment.id))
    environment.store.create(version_hint(environment.id), b"{}")
    environment.commit(environment.region("a"))
    environment.audit()


def test_appends_do_not_disturb_a_commit_nor_a_commit_appends():
    environment = Environment()
    head = environment.write(environment.region("writer"), 1).head

    def appends_before_the_swap(call):
        if call.process == "committer" and call.method == "swap":
            environment.write(environment.region("writer", faulty=False), 2)

    environment.plan = FaultPlan(appends_before_the_swap)
    environment.commit(environment.region("committer"))
    appended = environment.write(environment.region("writer"), 3, held=environment.region("x", faulty=False).head())
    assert [call.method for call in environment.plan.calls if call.process == "committer"].count("swap") == 1
    assert (appended.summary.position, appended.head.manifest_version, head.manifest_version) == (3, 2, 1)
    collect(environment, environment.region("collector"))
    environment.audit()


def test_others_that_are_faster_all_the_time_end_in_contended_and_nothing_is_committed():
    environment = Environment(budget_seconds=0.5)

    def another_commits_before_each_swap(call):
        if call.process == "slow" and call.method == "swap":
            environment.commit(environment.region("fast", faulty=False))

    environment.plan = FaultPlan(another_commits_before_each_swap)
    error = raised(lambda: environment.commit(environment.region("slow")))
    assert isinstance(error, Contended)
    assert not isinstance(error, (Fenced, Invalid))
    environment.audit()
