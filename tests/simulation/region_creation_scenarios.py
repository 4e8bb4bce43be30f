"""Scenarios of creating a region that is sealed, that has lost its head, or that another process creates meanwhile."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import head_key, version_hint
from lancelsm.errors import Corrupt, Invalid
from lancelsm.wal.claim import create_region, seal
from tests.simulation.environment import OWNER, TABLE, VALUES, Environment, collect
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.situations import note_on_failure


def calls_of_creation() -> list[Call]:
    """Return the port calls of a creation without faults."""
    environment = Environment(with_region=False)
    environment.create("creator")
    return environment.plan.calls


def stalled_creator() -> None:
    """A creator stalls before any of its calls until the region is created, written to and flushed."""
    for call in calls_of_creation():
        environment = Environment(with_region=False)

        def others_go_ahead(now: Call, environment=environment, at=call.index) -> None:
            if now.index == at:
                region = environment.create("other", faulty=False)
                environment.write(region, 1)
                collect(environment, region)
                environment.commit(region)

        with note_on_failure(call):
            environment.plan = FaultPlan(others_go_ahead)
            region = environment.create("stalled")
            environment.write(region, 2)
            environment.audit()


def sealed_region() -> None:
    """A sealed region is not created again."""
    environment = Environment()
    seal(environment.region("sealer"))
    with pytest.raises(Invalid, match="the region is sealed"):
        create_region(environment.context("again"), spec_id=1, values=VALUES, owner=OWNER)


def lost_head(*, without_hint: bool) -> None:
    """The registry has lost the head of a region that has manifests."""
    environment = Environment()
    environment.commit(environment.region("committer"))
    environment.registry._records.pop(head_key(TABLE, environment.id))
    if without_hint:
        environment.store.remove(version_hint(environment.id))

    with pytest.raises(Corrupt, match="registry rebuild"):
        create_region(environment.context("again"), spec_id=1, values=VALUES, owner=OWNER)

    assert environment.region("reader").find_head() is None
