"""Each guard of collections, and of what is kept from them, carries weight: without it, something breaks.

Where one stands behind another, both are taken out. What shows it is a seed of `whole_actors`, or, where that takes an
order of events which seeds seldom say, another's whole operation before any call.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from lancelsm.common.layout import Position
from lancelsm.compaction import flush
from lancelsm.gc import base, collect, mark, survey, sweep
from lancelsm.gc.verify_base import verify_base
from lancelsm.history import cursor, pins
from lancelsm.history.pins import Pin, RegionPin
from lancelsm.wal.claim import claim
from tests.simulation.collected import run, small
from tests.simulation.collecting import TableEnv
from tests.simulation.environment import OWNER, raised
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.removal import Edit, ends_badly
from tests.simulation.test_collection import (
    test_another_operation_before_any_call_costs_nobody_anything as another_before_any_call,
)
from tests.simulation.test_collection import (
    test_slatedb_604_a_stalled_flush_whose_files_were_swept_is_dead_and_says_nothing_else as dead_flush,
)
from tests.simulation.test_collection_and_pins import (
    test_a_clock_that_is_ahead_by_less_than_the_allowance_costs_no_pin_its_life as clock_ahead,
)
from tests.simulation.test_collection_and_pins import (
    test_a_pin_that_expires_before_the_sweep_and_is_renewed_while_that_judges_it_counts as renewed_pin,
)
from tests.simulation.test_collection_and_pins import (
    test_a_snapshot_whose_maker_looked_before_the_round_is_confirmed_and_kept_or_neither as late_snapshot,
)
from tests.simulation.whole_actors import whole_actors
from tests.simulation.whole_table_env import WholeTableEnv, at_each_call

EXPIRE = "expire_pins(handle.context, skew_seconds=handle.settings.skew_allowance_seconds, removed=tour.removed)"
READ_PINS = f"counting = {EXPIRE}"
PINS = "_divided(region, listed.round.items, head, manifest, pins)"
EARLY_PINS = PINS.replace("pins)", "[pin for pin in pins if pin.created < listed.round.marked])")
DAY = 86_400.0
HELD_TAGS = "held = {tag_of(pin.nonce) for pin in pins}"


def late_merge_before_any_call() -> None:
    """A merge that wrote its rows before a collector looked, and commits before any of its calls, or after."""
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
    """A cursor whose maker looked before a collection and recorded it before any of its calls."""
    at_each_call(_cursor_recorded_at)


def _cursor_recorded_at(at: int) -> FaultPlan:
    table_env, made = small(), list[Pin]()
    table_env.merge()

    def recorded(call: Call) -> None:
        if call.index == at:
            context = table_env.region("slow").context
            needs = {table_env.environment.id: RegionPin(first_position=Position(1))}
            pin = pins.begin(context, "cursor", "slow")
            pin = replace(pin, regions=pins.pin_regions(context, pin, needs))
            if not pins.overtaken(context, pin):
                made.append(pins.confirm(context, pin, ttl_seconds=None))

    plan = FaultPlan(recorded)
    run(table_env, plan)
    for position in table_env.environment.log if made else ():
        table_env._stands(position)
    return plan


def fences_are_collected() -> None:
    """Lance's own writers run into the oldest and the newest fence of a log that is folded and collected."""
    table_env = TableEnv()
    for number in range(3):
        claim(table_env.region("claimer"), owner=OWNER)
        table_env.write(number)
    table_env.flush(rows_max=10)
    table_env.merge()
    table_env.collect()
    fences = [position for position, entry in sorted(table_env.environment.log.items()) if entry.fence]
    assert table_env.audit().first_position > fences[-1]
    table_env._stands(fences[0])
    table_env._stands(fences[-1])


def old_version_is_held() -> None:
    """A snapshot of a version of the base that newer ones have long replaced."""
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


def test_an_old_version_of_the_base_is_kept_for_a_snapshot_and_others_are_not() -> None:
    old_version_is_held()


def test_the_fences_that_lance_runs_into_outlast_the_log() -> None:
    fences_are_collected()


def another_collection_before_any_call() -> None:
    another_before_any_call("collects")


def test_a_merge_that_commits_beside_a_collection_loses_nothing() -> None:
    late_merge_before_any_call()


def test_a_cursor_from_before_a_collection_is_kept_or_fails_whenever_it_is_recorded() -> None:
    late_cursor_before_any_call()


# guard: (what is taken out, the seed that finds it soon or a test that does)
GUARDS: dict[str, tuple[list[Edit], int | Callable[[], None]]] = {
    "pins are read before the sweep": (
        [(collect._swept, READ_PINS, "counting = ()")],
        late_snapshot,
    ),
    "pins are read after the floors are committed": (
        [(sweep.sweep_region, PINS, EARLY_PINS)],
        late_snapshot,
    ),
    "what a pin holds stays": (
        [(sweep._divided, "[pin for pin, needed in needs if _holds(needed, item)]", "[]")],
        late_snapshot,
    ),
    "an expired pin is removed before it stops to count": (
        [(sweep.expire_pins, "if not isinstance(context.registry.delete(key, expect=witness), Applied):", "if False:")],
        renewed_pin,
    ),
    "an expired pin is removed as it was judged": (
        [(sweep.expire_pins, '{"version": pin.version, "nonce": pin.nonce}', '{"nonce": pin.nonce}')],
        renewed_pin,
    ),
    "clocks may differ": (
        [(sweep.has_expired, "pin.expires + skew_seconds < now", "pin.expires < now")],
        clock_ahead,
    ),
    "a generation is merged": (
        [(mark._Marking._leaves, "self._survey.progress.lacking(self._region, one.generation) or ", "")],
        0,
    ),
    "a generation goes after its entries": ([(mark._Marking._leaves, "last >= self.floor", "False")], 0),
    "an orphan's number is taken": (
        [(mark._Marking._generations, "if number >= manifest.current_generation:", "if False:")],
        0,
    ),
    "a staged manifest's version is taken": (
        [(mark._Marking._manifests, "staged <= head.manifest_version and ", "")],
        9,
    ),
    "the named manifest stays": ([(mark._Marking._manifests, " and found.key != head.manifest_key", "")], 0),
    "published manifests stay from the hint on": (
        [(mark._Marking._manifests, "min(self._survey.hint, head.manifest_version)", "head.manifest_version")],
        18,
    ),
    "a list's round is over": ([(mark.passed_lists, "number <= newest and ", "")], 1),
    "the fences stay": ([(mark._Marking._entries, "{*fences[:1], *fences[-1:]}", "set()")], fences_are_collected),
    "a survey that was overtaken is no damage": (
        [(survey.contended_if_overtaken, "if region.head().collector_round != head.collector_round:", "if False:")],
        another_collection_before_any_call,
    ),
    "files of the base go if no version names them": (
        [(base.sweep_base, "i.kind is Kind.BASE_FILE and i.path not in named", "i.kind is Kind.BASE_FILE")],
        late_merge_before_any_call,
    ),
    "the fence of the base is raised before files go": (
        [
            (base.commit_base, "_raise_fence(handle, listed.round.fence)", "pass"),
            (base.sweep_base, "if base.fence < found.fence:", "if False:"),
        ],
        late_merge_before_any_call,
    ),
    "versions that pins need stay": (
        [
            (base.mark_base, "_pinned(pins)", "{}"),
            (base.mark_base, "if one.version in tagged:", "if False:"),
            (verify_base, "for pin in pins:", "for pin in ():"),
            (base.sweep_base, " and i.number not in pinned]", "]"),
            (base._drop_tags, HELD_TAGS, "held = set()"),
        ],
        old_version_is_held,
    ),
    "a pin is confirmed against the rounds": (
        [(pins.overtaken, " or bool(collected)", "")],
        late_snapshot,
    ),
    "a cursor is confirmed against the floors": (
        [(pins.overtaken, "head.first_position > needs.first_position or bool(collected)", "bool(collected)")],
        late_cursor_before_any_call,
    ),
    "a cursor is saved by who read from it": (
        [(cursor._move, "outcome.record is None or outcome.record.get(SAVER) != saver", "outcome.record is None")],
        9,
    ),
    "a cursor is saved under its version": (
        [(cursor._move, 'expect={"version": version} if version else None', "expect={} if version else None")],
        9,
    ),
    "a flush that is dead says nothing else": (
        [(flush.flush, "if _is_dead(region, plan):", "if False:")],
        partial(dead_flush, "read back"),
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_without_the_guard_something_breaks(guard: str) -> None:
    edits, known = GUARDS[guard]
    first = known if callable(known) else partial(whole_actors, known)
    others = [partial(whole_actors, seed) for seed in range(60)]  # if the calls of the code have changed since

    assert any(ends_badly(edits, hunt) for hunt in (first, *others))
