"""Each guard of a collection carries weight: without it something that is needed goes, or a false alarm is raised."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from lancelsm import commit, flush, pins
from lancelsm.errors import LsmError
from lancelsm.gc import collect, lists, survey, sweep
from tests.simulation import test_collection as tests
from tests.simulation.test_guards import without  # noqa: F401 - a fixture

late_pin = tests.test_a_snapshot_whose_maker_looked_before_the_round_is_confirmed_and_kept_or_neither
another = tests.test_another_operation_before_any_call_costs_nobody_anything
repeated = partial(another, "collects, merges, collects")

# guard: (function, its text, the text without the guard, where the violation shows)
GUARDS: dict[str, tuple[Callable[..., object], str, str, Callable[[], None]]] = {
    "pins are read after the commit": (
        collect._swept,
        "expire_pins(opened.storage, skew_seconds=opened.settings.skew_allowance_seconds, removed=tour.removed)",
        "()",
        late_pin,
    ),
    "a pin is held against the committed round": (
        pins.overtaken,
        "head.collector_round != needs.collector_round",
        "False",
        late_pin,
    ),
    "an expired pin is removed before it stops counting": (
        sweep.expire_pins,
        "if not isinstance(storage.registry.delete(key, expect=witness), Applied):",
        "if False:",
        tests.test_what_an_expired_pin_kept_goes_and_the_pin_with_it,
    ),
    "a removed pin is removed as it was judged": (
        sweep.expire_pins,
        '{"version": pin.version, "nonce": pin.nonce}',
        '{"nonce": pin.nonce}',
        tests.test_a_pin_that_is_renewed_while_it_is_judged_expired_counts,
    ),
    "only a committed round is swept": (
        sweep.confirm_region,
        "if done.manifest.collector_key != key:",
        "if False:",
        tests.test_chroma_4972_nothing_is_deleted_for_a_round_that_was_not_committed,
    ),
    "a sweep waits for the publication": (
        commit.commit,
        "    _ensure_published(region, current, budget=budget)",
        "    pass",
        tests.test_a_sweep_begins_once_the_manifest_of_its_round_is_published,
    ),
    "a list is the one that was committed": (
        lists.read_list,
        "if setsum is not None and read != setsum:",
        "if False:",
        tests.test_a_list_that_is_not_the_committed_one_deletes_nothing,
    ),
    "the list of a round that is over is not missed": (
        lists.find_list,
        "if newest() > (round_number(key) or 0):",
        "if False:",
        repeated,
    ),
    "a listing that breaks off still counts": (
        survey.seen,
        "if not found:",
        "if True:",
        tests.test_slatedb_1641_a_listing_that_fails_in_the_middle_every_time_stops_no_collection,
    ),
    "leftovers are looked up once more": (
        sweep._sweep_leftover,
        "if not is_of(own, record):",
        "if True:",
        tests.test_a_pin_that_is_begun_while_leftovers_are_listed_keeps_its_records,
    ),
    "an overtaken flush is dead": (
        flush.flush,
        "if _is_dead(region, plan):",
        "if False:",
        partial(
            tests.test_slatedb_604_a_stalled_flush_whose_files_were_swept_is_dead_and_says_nothing_else, "read back"
        ),
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_without_the_guard_something_breaks(guard: str, without: Callable[..., None]) -> None:  # noqa: F811
    function, text, instead, hunt = GUARDS[guard]
    without(function, text, instead)
    with pytest.raises((AssertionError, LsmError, pytest.fail.Exception)):
        hunt()
