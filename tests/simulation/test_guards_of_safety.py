"""Each guard of collections and pins in this table is needed: without it, a seed or a scenario fails.

If one guard stands behind another one, a test removes both. A seed of `whole_table_actors` finds the violation. For
orders of events that seeds rarely choose, a scenario runs another operation before any call.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from lancelsm.common.layout import Position
from lancelsm.history import pins
from lancelsm.history.pin_records import Pin, RegionPin
from lancelsm.wal.claim import claim
from tests.simulation import collection_scenarios, pin_scenarios
from tests.simulation.collecting import TableEnv
from tests.simulation.collection_faults import run, small
from tests.simulation.environment import OWNER, raised
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.marks import Edit, changed, without
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.removal import fails
from tests.simulation.whole_table_actors import run_whole_table_actors
from tests.simulation.whole_table_env import WholeTableEnv, at_each_call

DAY = 86_400.0


def late_merge_before_any_call() -> None:
    """A merge writes its rows before a collection and commits before any of its calls, or after it."""
    at_each_call(_collected_beside_a_merge)


def _collected_beside_a_merge(at: int) -> FaultPlan:
    table_env = WholeTableEnv()
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
        for number in range(2):
            table_env.put("writer", {number: True})
            assert table_env.flush() is not None
            table_env.merge() if number == 0 else None
        commit = table_env.prepare_merge(table_env.region("merger"))
        assert commit is not None

        plan = table_env.interrupt(lambda call: call.index == at, commit)
        raised(lambda: table_env.collect("victim", faulty=True))
        table_env.environment.plan = FaultPlan()
        assert table_env.scan("reader") == table_env.truth
        commit()
        assert table_env.scan("reader") == table_env.truth
    return plan


def late_cursor_before_any_call() -> None:
    """A creator reads the head before a collection, and records its cursor before any call of the collection."""
    at_each_call(_cursor_recorded_at)


def _cursor_recorded_at(at: int) -> FaultPlan:
    table_env, confirmed = small(), list[Pin]()
    table_env.merge()

    def records(call: Call) -> None:
        if call.index == at:
            context = table_env.region("slow").context
            needs = {table_env.environment.id: RegionPin(first_position=Position(1))}
            pin = pins.begin(context, "cursor", "slow")
            pin = replace(pin, regions=pins.pin_regions(context, pin, needs))
            if not pins.overtaken(context, pin):
                confirmed.append(pins.confirm(context, pin, ttl_seconds=None))

    plan = FaultPlan(records)
    run(table_env, plan)
    for position in table_env.environment.log if confirmed else ():
        table_env.check_entry(position)
    return plan


def fences_of_a_collected_log() -> None:
    """The oldest and the newest fence of a collected log remain: they stop Lance's own writers."""
    table_env = TableEnv()
    for number in range(3):
        claim(table_env.region("claimer"), owner=OWNER)
        table_env.write(number)
    table_env.flush(rows_max=10)
    table_env.merge()
    table_env.collect()
    fences = [position for position, entry in sorted(table_env.environment.log.items()) if entry.fence]
    assert table_env.audit().first_position > fences[-1]
    table_env.check_entry(fences[0])
    table_env.check_entry(fences[-1])


def held_old_version() -> None:
    """A snapshot holds a version of the base that newer versions replaced long ago."""
    table_env = WholeTableEnv()
    with in_place_of_lance(table_env.base):
        for number in range(3):
            table_env.put("writer", {number: True})
            assert table_env.flush() is not None
            table_env.merge()
            if number == 0:
                table_env.hold("holder", "held", ttl_seconds=100 * DAY)
                table_env.read_held("holder", "held")
        old = set(table_env.base.versions)
        table_env.environment.schedule.clock.advance(10 * DAY)
        for _ in range(2):
            table_env.collect()
        assert old & table_env.base.versions.keys() == {table_env.held["held"].pin.base_version}
        table_env.read_held("reader", "held")


def test_a_collection_keeps_only_the_old_version_of_the_base_that_a_snapshot_needs() -> None:
    held_old_version()


def test_the_oldest_and_the_newest_fence_are_never_collected() -> None:
    fences_of_a_collected_log()


def another_collection_before_any_call() -> None:
    """Another collection comes before any call of a collection."""
    collection_scenarios.another_operation_before_any_call("collects")


@pytest.mark.rest
def test_a_merge_that_commits_during_a_collection_loses_nothing() -> None:
    late_merge_before_any_call()


@pytest.mark.rest
def test_a_cursor_from_before_a_collection_is_kept_or_not_confirmed_whenever_it_is_recorded() -> None:
    late_cursor_before_any_call()


EARLY_PINS = "[pin for pin in pins if pin.created < listed.round.marked]"

# guard: (its removal, a seed that finds the violation soon or a scenario)
GUARDS: dict[str, tuple[list[Edit], int | Callable[[], None]]] = {
    "pins are read before the sweep": (
        [without("pins are read before the sweep", instead=())],
        pin_scenarios.snapshot_from_before_the_round,
    ),
    "pins are read after the floors are committed": (
        [
            changed(
                "pins are read after the floors are committed",
                f"_split(region, listed.round.items, head, manifest, {EARLY_PINS})",
            )
        ],
        pin_scenarios.snapshot_from_before_the_round,
    ),
    "objects that a pin holds are kept": (
        [without("held objects are kept", instead=[])],
        pin_scenarios.snapshot_from_before_the_round,
    ),
    "an expired pin is removed before it stops counting": (
        [without("expired pin counts until it is removed")],
        pin_scenarios.renewed_during_the_sweep,
    ),
    "an expired pin is removed only if it is the one that was judged": (
        [without("renewed pin is not removed")],
        pin_scenarios.renewed_during_the_sweep,
    ),
    "the allowance for clocks is added to the expiry of a pin": (
        [changed("clocks may differ", "pin.expires is not None and pin.expires < now")],
        pin_scenarios.clock_ahead_within_the_allowance,
    ),
    "only merged generations are deleted": ([without("only merged generations leave")], 0),
    "a generation is deleted after its entries": ([without("mark keeps generations with entries")], 0),
    "an orphan generation is deleted only if its number is taken": (
        [without("mark keeps generations in flight")],
        0,
    ),
    "a staged manifest is deleted only if its version is taken": ([without("mark keeps manifests in flight")], 9),
    "the manifest that the head names is kept": ([without("mark keeps the manifest of the head")], 0),
    "published manifests from the hint on are kept": (
        [without("mark keeps published manifests from the hint on")],
        18,
    ),
    "a list is deleted only if its round is over": ([without("mark keeps lists of later rounds")], 1),
    "the oldest and the newest fence are kept": (
        [without("oldest and newest fence stay", instead=set())],
        fences_of_a_collected_log,
    ),
    "an overtaken survey is not reported as damage": (
        [without("overtaken survey is not damage")],
        another_collection_before_any_call,
    ),
    "files of the base are deleted only if no version names them": (
        [without("sweep keeps files that versions name", instead=frozenset())],
        late_merge_before_any_call,
    ),
    "the fence of the base is raised before files are deleted": (
        [without("fence is raised before files are deleted"), without("sweep needs the fence of its round")],
        late_merge_before_any_call,
    ),
    "versions of the base that pins need are kept": (
        [
            without("mark keeps pinned versions", instead={}),
            without("mark keeps tagged versions"),
            without("verifier checks the pins of the base"),
            without("sweep keeps pinned versions", instead={}),
            without("tags of pins stay", instead=set()),
        ],
        held_old_version,
    ),
    "a pin is confirmed against the rounds": (
        [without("pin is confirmed against the rounds")],
        pin_scenarios.snapshot_from_before_the_round,
    ),
    "a cursor is confirmed against the floors": (
        [without("cursor is confirmed against the floors")],
        late_cursor_before_any_call,
    ),
    "a cursor is saved only by the consumer that read from it": ([without("cursor is saved by its consumer")], 9),
    "a cursor is saved under its version": (
        [changed("cursor is saved under its version", "{} if version else None")],
        9,
    ),
    "a superseded flush raises no error": (
        [without("superseded flush raises no error")],
        partial(collection_scenarios.superseded_flush, "read back"),
    ),
}


@pytest.mark.one_case
@pytest.mark.parametrize("guard", GUARDS)
def test_a_seed_or_scenario_fails_without_the_guard(guard: str) -> None:
    edits, known = GUARDS[guard]
    first = known if callable(known) else partial(run_whole_table_actors, known)
    others = [partial(run_whole_table_actors, seed) for seed in range(60)]  # in case the calls of the code have changed

    assert any(fails(edits, scenario) for scenario in (first, *others))
