"""Manifest commits: once or never, published without a gap, and the hint never falls."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Version, published_manifest, version_hint
from lancelsm.errors import Ambiguous, Contended, Corrupt, Fenced, Invalid, Unavailable
from lancelsm.region import compare_and_swap as commits
from lancelsm.region.compare_and_swap import commit, newest
from lancelsm.region.manifest import Superseded
from tests.simulation import commit_scenarios
from tests.simulation.environment import Environment, collect, raised
from tests.simulation.faults import FAIL_AFTER, FAIL_BEFORE, Crash, FaultPlan, late
from tests.simulation.situations import COMMITS, calls, interruptions, one_fault_each, outages

SITUATION = COMMITS["commit"]


def test_a_commit_takes_one_read_one_swap_and_seven_calls_of_the_store():
    assert [(call.port, call.method) for call in calls(SITUATION)] == [
        ("registry", "read"),
        ("objects", "get"),  # the manifest that the head names
        ("objects", "get"),  # its published copy
        ("objects", "get"),  # the next version, which must not be published yet
        ("objects", "create"),  # stage
        ("registry", "swap"),
        ("objects", "create"),  # publish
        ("objects", "get"),  # the hint
        ("objects", "replace"),
    ]


def test_one_fault_at_any_call_commits_once_or_never():
    kinds = {type(error) for _, error in one_fault_each(SITUATION)}
    assert kinds <= {type(None), Crash, Unavailable, Ambiguous}


@pytest.mark.one_case
def test_an_outage_from_any_call_on_raises_unavailable_or_ambiguous():
    kinds = {type(error) for _, error in outages(SITUATION)}
    assert kinds == {type(None), Unavailable, Ambiguous}


@pytest.mark.rest
def test_another_operation_between_any_two_calls_commits_once_or_never():
    for _, error in interruptions(SITUATION, before=(None, FAIL_AFTER, FAIL_BEFORE, late(3), late(99))):
        assert error is None or isinstance(error, (Ambiguous, Unavailable))


def test_a_manifest_that_lost_its_swap_is_never_published():
    commit_scenarios.lost_swap()


def test_a_commit_with_a_lost_reply_and_newer_commits_is_recognised_by_its_published_manifest():
    commit_scenarios.lost_reply_and_newer_commits()


def test_the_next_committer_publishes_a_manifest_whose_publication_failed_before_its_own():
    environment = Environment()

    def fails_to_publish(call):
        publishes = call.key.endswith(".binpb") and "/staged/" not in call.key and call.writes
        return FAIL_BEFORE if call.process == "first" and publishes else None

    environment.plan = FaultPlan(fails_to_publish)
    environment.commit(environment.region("first"))
    assert environment.store.get(published_manifest(environment.id, Version(2))) is None

    environment.commit(environment.region("second"))  # the registry of the environment asserts the order

    assert environment.store.get(published_manifest(environment.id, Version(2))) is not None
    environment.audit()


def test_a_published_manifest_that_is_not_in_the_registry_stops_all_commits():
    commit_scenarios.foreign_published_manifest()


def test_a_transition_that_is_superseded_or_done_commits_nothing():
    environment = Environment()
    region = environment.region("a")

    assert commit(region, lambda _: Superseded(why="another came first")) == Superseded(why="another came first")
    done = commit(region, lambda manifest: manifest)

    assert (done.manifest.version, done.head.manifest_version) == (1, 1)
    assert not [call for call in environment.plan.calls if call.writes]


def test_a_transition_that_breaks_an_invariant_is_not_staged():
    commit_scenarios.broken_invariant()


def test_a_reader_whose_manifest_was_swept_reads_the_head_again():
    environment = Environment()
    region = environment.region("reader")
    stale = region.head()
    head = environment.commit(environment.region("committer")).head
    environment.store.remove(stale.manifest_key)

    assert newest(region, stale) == (head, commits.load(region, head.manifest_key).manifest)


def test_a_missing_manifest_that_the_head_names_is_corrupt():
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


def test_appends_and_a_commit_do_not_disturb_each_other():
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


def test_a_commit_that_always_loses_its_race_raises_contended():
    environment = Environment(budget_seconds=0.5)

    def another_commits_before_each_swap(call):
        if call.process == "slow" and call.method == "swap":
            environment.commit(environment.region("fast", faulty=False))

    environment.plan = FaultPlan(another_commits_before_each_swap)
    error = raised(lambda: environment.commit(environment.region("slow")))
    assert isinstance(error, Contended)
    assert not isinstance(error, (Fenced, Invalid))
    environment.audit()
