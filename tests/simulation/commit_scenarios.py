"""Scenarios of manifest commits that lose a race or a reply, or that must not be staged."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Position, Version, manifest_prefix, published_manifest
from lancelsm.errors import Corrupt
from lancelsm.region import manifest as manifests
from lancelsm.region.compare_and_swap import commit
from tests.simulation.environment import Environment
from tests.simulation.faults import FAIL_AFTER, Call, Fault, FaultPlan


def lost_swap() -> None:
    """Another committer comes right before each swap of a slow one.

    See chroma 4972: files of a lost compare-and-swap counted as committed.
    """
    environment = Environment()

    def another_commits_before_the_swap(call: Call) -> None:
        if call.process == "slow" and call.method == "swap" and len(environment.commits) < 3:
            environment.commit(environment.region("fast", faulty=False))

    environment.plan = FaultPlan(another_commits_before_the_swap)
    done = environment.commit(environment.region("slow"))

    staged = [line.key for line in environment.store.list(manifest_prefix(environment.id) + "staged/")]
    assert (done.manifest.version, done.head.manifest_version, len(staged)) == (4, 4, 6)
    environment.audit()


def lost_reply_and_newer_commits() -> None:
    """A swap loses its reply, and others commit newer manifests before the head is read again."""
    environment = Environment()

    def loses_the_reply(call: Call) -> Fault | None:
        if call.process == "slow" and call.method == "swap":
            return FAIL_AFTER
        if call.process == "slow" and environment.plan.calls[call.index - 1].method == "swap":
            for _ in range(2):
                environment.commit(environment.region("fast", faulty=False))
        return None

    environment.plan = FaultPlan(loses_the_reply)
    done = environment.commit(environment.region("slow"))

    assert done.manifest.version == 2
    assert done.head.manifest_version == 4
    environment.audit()


def foreign_published_manifest() -> None:
    """The next version is published already, by a writer that does not use the registry."""
    environment = Environment()
    key = published_manifest(environment.id, Version(2))
    environment.store.create(key, b"Lance's")

    with pytest.raises(Corrupt, match=r"is not in the registry.*adopt"):
        commit(environment.region("a"), lambda m: manifests.with_seal(m, epoch=m.epoch, last_seen=m.replay_after))
    with pytest.raises(Corrupt, match=r"is not in the registry.*adopt"):
        environment.commit(environment.region("b"))

    assert environment.store.get(key).body == b"Lance's"
    assert environment.region("reader").head().manifest_version == 1


def broken_invariant() -> None:
    """A transition makes a manifest that breaks an invariant."""
    environment = Environment()
    with pytest.raises(Corrupt, match=r"manifest 2 would break invariants: .*replay point"):
        commit(environment.region("a"), lambda m: manifests.replace(m, first_position=Position(9)))
    assert not [call for call in environment.plan.calls if call.writes]
