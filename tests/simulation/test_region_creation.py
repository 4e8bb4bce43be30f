"""Region creation: a race makes one region, the next creator finishes after a crash, a lost head is never replaced."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Version, published_manifest, version_hint
from lancelsm.errors import Ambiguous, LsmError, Unavailable
from lancelsm.region.catalog import regions
from lancelsm.wal.claim import create_region, seal
from tests.simulation import region_creation_scenarios
from tests.simulation.environment import OWNER, VALUES, Environment, raised
from tests.simulation.faults import EVERY_FAULT, Crash, FaultPlan
from tests.simulation.region_creation_scenarios import calls_of_creation
from tests.simulation.schedule import Schedule
from tests.simulation.situations import NO_ANSWER, STALLS, note_on_failure


def test_a_region_is_created_in_the_order_catalog_manifest_head():
    assert [(call.port, call.method) for call in calls_of_creation() if call.writes] == [
        ("registry", "swap"),  # catalog
        ("objects", "create"),  # staged
        ("objects", "create"),  # published
        ("objects", "create"),  # hint
        ("registry", "swap"),  # head
    ]


def test_one_fault_at_any_call_leaves_a_region_that_the_next_creator_finishes():
    for call in calls_of_creation():
        for fault in (*EVERY_FAULT, *STALLS):
            with note_on_failure(call, fault):
                environment = Environment(with_region=False)
                environment.plan = FaultPlan.at(call.index, fault, clock=environment.schedule.clock)
                error = raised(lambda environment=environment: environment.create("creator"))
                assert error is None or isinstance(error, (Crash, Unavailable))
                assert all(
                    region.id == environment.id for region in regions(environment.context("reader", faulty=False))
                )
                environment.plan.stop()
                region = environment.create("next")
                environment.write(region, 1)
                environment.plan.land()
                environment.write(environment.region("later"), 2)
                environment.audit()


def test_an_outage_from_any_call_on_is_unavailable():
    for call in calls_of_creation():
        for fault in NO_ANSWER:
            with note_on_failure(call, fault):
                environment = Environment(with_region=False)
                environment.plan = FaultPlan(
                    lambda now, first=call.index, fault=fault: fault if now.index >= first else None,
                    clock=environment.schedule.clock,
                )
                with pytest.raises((Unavailable, Ambiguous)):
                    environment.create("creator")
                environment.plan.stop()
                environment.create("next")
                environment.plan.land()
                environment.audit()


def test_racing_creators_create_one_region_and_all_succeed():
    # chroma 6344, 6658: an initialiser that lost the race failed.
    for seed in range(150):
        schedule = Schedule(seed)
        environment = Environment(schedule=schedule, with_region=False)
        outcomes = schedule.run(
            {
                name: lambda environment=environment, name=name, number=number: (
                    environment.write(environment.create(name), number).summary.position
                )
                for number, name in enumerate(("a", "b", "c"))
            }
        )
        with note_on_failure(f"seed {seed}"):
            assert sorted(outcome.value for outcome in outcomes.values()) == [1, 2, 3]
            environment.audit()


def test_a_creator_that_stalls_until_the_region_is_written_to_and_flushed_succeeds():
    region_creation_scenarios.stalled_creator()


def test_creating_an_existing_region_takes_one_read():
    environment = Environment()
    create_region(environment.context("again"), spec_id=1, values=VALUES, owner=OWNER)
    assert [(call.port, call.method) for call in environment.plan.calls] == [("registry", "read")]


def test_a_sealed_region_is_not_created_again():
    region_creation_scenarios.sealed_region()


@pytest.mark.parametrize("without_hint", [False, True])
def test_a_region_whose_head_is_lost_is_not_created_over_its_files(without_hint):
    region_creation_scenarios.lost_head(without_hint=without_hint)


def test_the_catalog_returns_the_spec_and_values_of_each_region():
    environment = Environment()
    context = environment.context("reader")
    other = create_region(context, spec_id=2, values=(("a", None), ("b", b"\x01\x00")), owner="x")

    found = {region.id: (region.spec_id, region.values) for region in regions(context)}

    assert found == {environment.id: (1, VALUES), other.id: (2, (("a", None), ("b", b"\x01\x00")))}


def test_the_first_manifest_and_head_are_those_of_an_empty_region():
    environment = Environment()
    head = environment.region("reader").head()
    assert (head.epoch, head.owner, head.next_position, head.first_position, head.current_generation) == (
        1, OWNER, 1, 1, 1,
    )  # fmt: skip
    assert (
        environment.store.get(published_manifest(environment.id, Version(1))).body
        == environment.store.get(head.manifest_key).body
    )
    assert environment.store.get(version_hint(environment.id)).body == b'{"version":1}'


def test_errors_name_the_table_and_the_region():
    environment = Environment()
    seal(environment.region("sealer"))
    error = raised(lambda: environment.write(environment.region("writer"), 1))
    assert isinstance(error, LsmError)
    assert (error.where["table"], error.where["region"]) == ("memory://t", environment.id)
