"""Creation: two creators make one region, the next one finishes after a crash, a forgotten region is not made over."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Version, head_key, published_manifest, version_hint
from lancelsm.errors import Ambiguous, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.region.catalog import regions
from lancelsm.wal.claim import create_region, seal
from tests.simulation.environment import OWNER, TABLE, VALUES, Environment, collect, raised
from tests.simulation.faults import EVERY_FAULT, Crash, FaultPlan
from tests.simulation.schedule import Schedule
from tests.simulation.situations import NO_ANSWER, STALLS, noted


def calls_of_creation():
    environment = Environment(made=False)
    environment.make("creator")
    return environment.plan.calls


def test_a_region_is_made_in_the_order_catalog_manifest_head():
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
            with noted(call, fault):
                environment = Environment(made=False)
                environment.plan = FaultPlan.at(call.index, fault, clock=environment.schedule.clock)
                error = raised(lambda environment=environment: environment.make("creator"))
                assert error is None or isinstance(error, (Crash, Unavailable))
                assert all(
                    region.id == environment.id for region in regions(environment.context("reader", faulty=False))
                )
                environment.plan.stop()
                region = environment.make("next")
                environment.write(region, 1)
                environment.plan.land()
                environment.write(environment.region("later"), 2)
                environment.audit()


def test_an_outage_from_any_call_on_is_unavailable():
    for call in calls_of_creation():
        for fault in NO_ANSWER:
            with noted(call, fault):
                environment = Environment(made=False)
                environment.plan = FaultPlan(
                    lambda now, first=call.index, fault=fault: fault if now.index >= first else None,
                    clock=environment.schedule.clock,
                )
                with pytest.raises((Unavailable, Ambiguous)):
                    environment.make("creator")
                environment.plan.stop()
                environment.make("next")
                environment.plan.land()
                environment.audit()


def test_creators_that_race_make_one_region_whoever_loses():
    # chroma 6344, 6658: an initialiser that lost the race failed.
    for seed in range(150):
        schedule = Schedule(seed)
        environment = Environment(schedule=schedule, made=False)
        outcomes = schedule.run(
            {
                name: lambda environment=environment, name=name, number=number: (
                    environment.write(environment.make(name), number).summary.position
                )
                for number, name in enumerate(("a", "b", "c"))
            }
        )
        with noted(f"seed {seed}"):
            assert sorted(outcome.value for outcome in outcomes.values()) == [1, 2, 3]
            environment.audit()


def test_a_creator_that_stalls_until_the_region_is_written_to_and_flushed_succeeds():
    for call in calls_of_creation():
        environment = Environment(made=False)

        def others_go_ahead(now, environment=environment, at=call.index):
            if now.index == at:
                region = environment.make("other", faulty=False)
                environment.write(region, 1)
                collect(environment, region)
                environment.commit(region)

        with noted(call):
            environment.plan = FaultPlan(others_go_ahead)
            region = environment.make("stalled")
            environment.write(region, 2)
            environment.audit()


def test_a_region_that_exists_costs_one_read():
    environment = Environment()
    create_region(environment.context("again"), spec_id=1, values=VALUES, owner=OWNER)
    assert [(call.port, call.method) for call in environment.plan.calls] == [("registry", "read")]


def test_a_sealed_region_is_not_created_again():
    environment = Environment()
    seal(environment.region("sealer"))
    with pytest.raises(Invalid, match="the region is sealed"):
        create_region(environment.context("again"), spec_id=1, values=VALUES, owner=OWNER)


@pytest.mark.parametrize("without_hint", [False, True])
def test_a_region_that_the_registry_forgot_is_not_made_over_its_files(without_hint):
    environment = Environment()
    environment.commit(environment.region("committer"))
    environment.registry._records.pop(head_key(TABLE, environment.id))
    if without_hint:
        environment.store.remove(version_hint(environment.id))

    with pytest.raises(Corrupt, match="registry rebuild"):
        create_region(environment.context("again"), spec_id=1, values=VALUES, owner=OWNER)

    assert environment.region("reader").find_head() is None


def test_the_catalog_gives_back_what_the_region_was_made_with():
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
