"""Each guard of views, reads and change streams is needed: without it, its scenario fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lancelsm.common.layout import REGISTRY_OBJECTS, head_key, region_key, table_key
from lancelsm.errors import Corrupt
from lancelsm.region import config as configs
from tests.simulation.environment import TABLE
from tests.simulation.marks import Edit, changed, moved, without
from tests.simulation.read_scenarios import (
    create_and_read_snapshot,
    merge_and_collect,
    overtaken_before_any_call,
    read_changes,
    read_changes_with_a_cursor,
    scan,
    scan_held,
    with_pending_generations,
)
from tests.simulation.removal import Scenario, anywhere, fails
from tests.simulation.whole_table_env import WholeTableEnv
from tests.unit import read_scenarios
from tests.unit.tables import create, row, rows_of

# Lost objects and records


def check_corrupt(table_env: WholeTableEnv) -> None:
    """A read raises `Corrupt`. The configuration exists, so the table was not dropped."""
    configs.create(table_env.environment.store, table_env.handle("reader").config, uri=table_env.context("reader").uri)
    with pytest.raises(Corrupt):
        table_env.scan("reader")


def base_restored_too_far_back(_: Path) -> None:
    """The base is restored to a version whose next generation is collected."""
    with with_pending_generations() as table_env:
        first = table_env.base.versions[1]
        merge_and_collect(table_env)
        table_env.base._add(first.file, first.metadata)
        check_corrupt(table_env)


def base_overwritten(_: Path) -> None:
    """Another tool overwrites the base, without the facts of the table."""
    with with_pending_generations() as table_env:
        table_env.base._add(table_env.base.versions[1].file, {})
        check_corrupt(table_env)


def lost_head(_: Path) -> None:
    """The registry has lost the head of a region that was written to."""
    with with_pending_generations() as table_env:
        table_env.environment.registry._records.pop(head_key(TABLE, table_env.environment.id))
        check_corrupt(table_env)


def lost_registry(_: Path) -> None:
    """The registry has lost all records of the table."""
    with with_pending_generations() as table_env:
        for key in (
            region_key(TABLE, table_env.environment.id),
            table_key(TABLE),
            head_key(TABLE, table_env.environment.id),
        ):
            table_env.environment.registry._records.pop(key, None)
        check_corrupt(table_env)


def named_region_of_a_lost_registry(directory: Path) -> None:
    """A condition names one region, which was never written to, and the registry has lost all records of the table."""
    table = create(directory, [row(7)], regions="identity(id)", registry="object")
    shutil.rmtree(directory / "table" / REGISTRY_OBJECTS)
    with pytest.raises(Corrupt):
        rows_of(table, where="id = 7")


@pytest.mark.one_case
@pytest.mark.parametrize("read", [scan_held, scan, create_and_read_snapshot, read_changes, read_changes_with_a_cursor])
def test_a_read_that_is_overtaken_before_any_call_shows_one_moment(read: Callable[[WholeTableEnv], None]) -> None:
    overtaken_before_any_call(read)


GUARDS: dict[str, tuple[list[Edit], Scenario]] = {
    "heads are read before the base of a view": (
        [moved("base is read after the heads", by=-1), without("generations that the base lacks are listed")],
        anywhere(overtaken_before_any_call, scan),
    ),
    "a counter is at most the newest generation of the heads": (
        [without("counter is in the heads")],
        anywhere(overtaken_before_any_call, scan),
    ),
    "every generation that the base lacks is listed": (
        [without("generations that the base lacks are listed")],
        base_restored_too_far_back,
    ),
    "a view checks the table id of the base": (
        [without("base of a view is of the table")],
        base_overwritten,
    ),
    "a region whose head is lost is not empty": (
        [without("region with a lost head is not empty", instead=True)],
        lost_head,
    ),
    "a table whose registry is lost is not empty": (
        [without("lost registry is not empty")],
        lost_registry,
    ),
    "a region that a condition names is not absent if the registry is lost": (
        [without("lost registry is not empty")],
        named_region_of_a_lost_registry,
    ),
    "a page of a key filter is the one that was flushed": (
        [without("page of a key filter is as flushed")],
        read_scenarios.flipped_key_filter_hides_no_key,
    ),
    "the key bounds of a generation are those that were flushed": (
        [without("recorded keys of a generation are as flushed")],
        read_scenarios.flipped_key_bounds_hide_no_key,
    ),
    "a newer row hides a row of the base even if it fails the condition": (
        [changed("newer row hides a row of the base", "newest == newest")],
        read_scenarios.older_row_does_not_reappear,
    ),
    "a newer row hides a row of a generation even if it fails the condition": (
        [without("newer row hides a row of a generation")],
        read_scenarios.older_row_does_not_reappear,
    ),
    "a key is looked up at the newest level first": (
        [changed("newest level is looked up first", "levels_of(region, region.generations)")],
        read_scenarios.newest_level_with_a_key_wins,
    ),
    "a key that was found is not looked up again": (
        [without("found key is not looked up")],
        read_scenarios.newest_level_with_a_key_wins,
    ),
    "an entry that is read again is the one that was proven": (
        [without("entry that is read again is the same")],
        read_scenarios.entries_replaced_before_they_are_read_again,
    ),
    "changes are proven by a head": (
        [without("changes are proven by a head")],
        anywhere(overtaken_before_any_call, read_changes),
    ),
    "changes are proven by a head that is read after them": (
        [moved("head and cursor are read after the entries", by=1)],
        anywhere(overtaken_before_any_call, read_changes),
    ),
    "the base of a view matches its heads": (
        [without("base of a view matches its heads", instead=True)],
        anywhere(overtaken_before_any_call, scan),
    ),
    "a collected tail is not reported as damage": (
        [without("collected tail is not damage")],
        anywhere(overtaken_before_any_call, scan),
    ),
    "a reader takes a new view after a collection": (
        [without("reader takes a new view after a collection")],
        anywhere(overtaken_before_any_call, scan),
    ),
}


@pytest.mark.parametrize(
    "scenario",
    [
        base_overwritten,
        base_restored_too_far_back,
        lost_head,
        lost_registry,
        named_region_of_a_lost_registry,
    ],
)
def test_a_scenario_passes_with_all_guards(scenario: Scenario, tmp_path: Path) -> None:
    scenario(tmp_path)


@pytest.mark.one_case
@pytest.mark.parametrize("guard", GUARDS)
def test_the_scenario_fails_without_its_guard(guard: str, tmp_path: Path) -> None:
    edits, scenario = GUARDS[guard]

    assert fails(edits, partial(scenario, tmp_path))
