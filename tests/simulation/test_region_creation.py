"""Creation: two creators make one region, the next one finishes after a crash, a forgotten region is not made over."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Version, head_key, published_manifest, version_hint
from lancelsm.errors import Ambiguous, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.region.catalog import regions
from lancelsm.wal.claim import create_region, seal
from tests.simulation.faults import EVERY_FAULT, Crash, FaultPlan
from tests.simulation.schedule import Schedule
from tests.simulation.situations import NO_ANSWER, STALLS, noted
from tests.simulation.world import OWNER, TABLE, VALUES, World, collect, told


def calls_of_creation():
    world = World(made=False)
    world.make("creator")
    return world.plan.calls


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
                world = World(made=False)
                world.plan = FaultPlan.at(call.index, fault, clock=world.schedule.clock)
                error = told(lambda world=world: world.make("creator"))
                assert error is None or isinstance(error, (Crash, Unavailable))
                assert all(region.id == world.id for region in regions(world.storage("reader", faulty=False)))
                world.plan.stop()
                region = world.make("next")
                world.write(region, 1)
                world.plan.land()
                world.write(world.region("later"), 2)
                world.audit()


def test_an_outage_from_any_call_on_is_unavailable():
    for call in calls_of_creation():
        for fault in NO_ANSWER:
            with noted(call, fault):
                world = World(made=False)
                world.plan = FaultPlan(
                    lambda now, first=call.index, fault=fault: fault if now.index >= first else None,
                    clock=world.schedule.clock,
                )
                with pytest.raises((Unavailable, Ambiguous)):
                    world.make("creator")
                world.plan.stop()
                world.make("next")
                world.plan.land()
                world.audit()


def test_creators_that_race_make_one_region_whoever_loses():
    # chroma 6344, 6658: an initialiser that lost the race failed.
    for seed in range(150):
        schedule = Schedule(seed)
        world = World(schedule=schedule, made=False)
        outcomes = schedule.run(
            {
                name: lambda world=world, name=name, number=number: (
                    world.write(world.make(name), number).summary.position
                )
                for number, name in enumerate(("a", "b", "c"))
            }
        )
        with noted(f"seed {seed}"):
            assert sorted(outcome.value for outcome in outcomes.values()) == [1, 2, 3]
            world.audit()


def test_a_creator_that_stalls_until_the_region_is_written_to_and_flushed_succeeds():
    for call in calls_of_creation():
        world = World(made=False)

        def others_go_ahead(now, world=world, at=call.index):
            if now.index == at:
                region = world.make("other", faulty=False)
                world.write(region, 1)
                collect(world, region)
                world.commit(region)

        with noted(call):
            world.plan = FaultPlan(others_go_ahead)
            region = world.make("stalled")
            world.write(region, 2)
            world.audit()


def test_a_region_that_exists_costs_one_read():
    world = World()
    create_region(world.storage("again"), spec_id=1, values=VALUES, owner=OWNER)
    assert [(call.port, call.method) for call in world.plan.calls] == [("registry", "read")]


def test_a_sealed_region_is_not_created_again():
    world = World()
    seal(world.region("sealer"))
    with pytest.raises(Invalid, match="the region is sealed"):
        create_region(world.storage("again"), spec_id=1, values=VALUES, owner=OWNER)


@pytest.mark.parametrize("without_hint", [False, True])
def test_a_region_that_the_registry_forgot_is_not_made_over_its_files(without_hint):
    world = World()
    world.commit(world.region("committer"))
    world.registry._records.pop(head_key(TABLE, world.id))
    if without_hint:
        world.store.remove(version_hint(world.id))

    with pytest.raises(Corrupt, match="registry rebuild"):
        create_region(world.storage("again"), spec_id=1, values=VALUES, owner=OWNER)

    assert world.region("reader").find_head() is None


def test_the_catalog_gives_back_what_the_region_was_made_with():
    world = World()
    storage = world.storage("reader")
    other = create_region(storage, spec_id=2, values=(("a", None), ("b", b"\x01\x00")), owner="x")

    found = {region.id: (region.spec_id, region.values) for region in regions(storage)}

    assert found == {world.id: (1, VALUES), other.id: (2, (("a", None), ("b", b"\x01\x00")))}


def test_the_first_manifest_and_head_are_those_of_an_empty_region():
    world = World()
    head = world.region("reader").head()
    assert (head.epoch, head.owner, head.next_position, head.first_position, head.current_generation) == (
        1, OWNER, 1, 1, 1,
    )  # fmt: skip
    assert world.store.get(published_manifest(world.id, Version(1))).body == world.store.get(head.manifest_key).body
    assert world.store.get(version_hint(world.id)).body == b'{"version":1}'


def test_errors_name_the_table_and_the_region():
    world = World()
    seal(world.region("sealer"))
    error = told(lambda: world.write(world.region("writer"), 1))
    assert isinstance(error, LsmError)
    assert (error.where["table"], error.where["region"]) == ("memory://t", world.id)
