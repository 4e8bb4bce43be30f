"""Each guard of views, reads and change streams is needed: without it, its scenario fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lancelsm import table
from lancelsm.common.layout import head_key, region_key, table_key
from lancelsm.errors import Corrupt
from lancelsm.history import changes
from lancelsm.read import reader, view
from lancelsm.region import catalog
from lancelsm.region import config as configs
from lancelsm.wal import replay
from tests.simulation.environment import TABLE
from tests.simulation.read_scenarios import (
    create_and_read_snapshot,
    merge_and_collect,
    overtaken_before_any_call,
    read_changes,
    read_changes_with_a_cursor,
    scan,
    with_pending_generations,
)
from tests.simulation.removal import Edit, Scenario, anywhere, fails
from tests.simulation.whole_table_env import WholeTableEnv
from tests.unit import read_scenarios

OBJECTS_THEN_HEAD = """\
    found = region.context.each(region.context.objects.get, keys)
    # Read the head after the entries, before using them: a late put may have refilled a collected slot.
    if region.head().first_position > positions[0] and not kept():
"""
HEAD_THEN_OBJECTS = """\
    floor = region.head().first_position
    found = region.context.each(region.context.objects.get, keys)
    if floor > positions[0] and not kept():
"""


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


@pytest.mark.parametrize("read", [scan, create_and_read_snapshot, read_changes, read_changes_with_a_cursor])
def test_a_read_that_is_overtaken_before_any_call_shows_one_moment(read: Callable[[WholeTableEnv], None]) -> None:
    overtaken_before_any_call(read)


GUARDS: dict[str, tuple[list[Edit], Scenario]] = {
    "heads are read before the base of a view": (
        [
            (
                view.take_view,
                "found = context.each(_read, regions())\n        base = read_base()",
                "base = read_base()\n        found = context.each(_read, regions())",
            ),
            (view.mismatch, "if counter <= manifest.newest and not missing:", "if counter <= manifest.newest:"),
        ],
        anywhere(overtaken_before_any_call, scan),
    ),
    "a counter is at most the newest generation of the heads": (
        [(view.mismatch, "if counter <= manifest.newest and not missing:", "if not missing:")],
        anywhere(overtaken_before_any_call, scan),
    ),
    "every generation that the base lacks is listed": (
        [(view.mismatch, "if counter <= manifest.newest and not missing:", "if counter <= manifest.newest:")],
        base_restored_too_far_back,
    ),
    "a view checks the table id of the base": (
        [(view._problem, "if base.facts is None or base.facts.table != context.table:", "if False:")],
        base_overwritten,
    ),
    "a region whose head is lost is not empty": ([(view._without_head, "if not written:", "if True:")], lost_head),
    "a table whose registry is lost is not empty": (
        [(catalog.regions, "if not found and context.registry.read(table_key(context.table)) is None:", "if False:")],
        lost_registry,
    ),
    "a newer row hides a row of the base even if it fails the condition": (
        [(reader._rows, "yield rows.filter(pa.array(above.level_of(rows, schema) == ABSENT))", "yield rows")],
        read_scenarios.older_row_does_not_reappear,
    ),
    "a newer row hides a row of a generation even if it fails the condition": (
        [(reader._rows, "(above.level_of(rows, schema) == level.number) & ", "")],
        read_scenarios.older_row_does_not_reappear,
    ),
    "a key is looked up at the newest level first": (
        [(reader.get, "reversed(_levels(region))", "_levels(region)")],
        read_scenarios.newest_level_with_a_key_wins,
    ),
    "a key that was found is not looked up again": (
        [(reader.get, "missing = missing.filter(pc.invert(_among(missing, rows, schema)))", "pass")],
        read_scenarios.newest_level_with_a_key_wins,
    ),
    "changes are proven by a head": (
        [(changes.committed, "if region.head().first_position > positions[0] and not kept():", "if False:")],
        anywhere(overtaken_before_any_call, read_changes),
    ),
    "changes are proven by a head that is read after them": (
        [(changes.committed, OBJECTS_THEN_HEAD, HEAD_THEN_OBJECTS)],
        anywhere(overtaken_before_any_call, read_changes),
    ),
    "the base of a view matches its heads": (
        [(view.take_view, "if not problem:", "if True:")],
        anywhere(overtaken_before_any_call, scan),
    ),
    "a collected tail is not reported as damage": (
        [(replay.tail, "if region.head().first_position > positions.start:", "if False:")],
        anywhere(overtaken_before_any_call, scan),
    ),
    "a reader takes a new view after a collection": (
        [(table.Table._read_with_retry, "except Corrupt:", "except OSError:")],
        anywhere(overtaken_before_any_call, scan),
    ),
}


@pytest.mark.parametrize("scenario", [base_overwritten, base_restored_too_far_back, lost_head, lost_registry])
def test_a_scenario_passes_with_all_guards(scenario: Scenario, tmp_path: Path) -> None:
    scenario(tmp_path)


@pytest.mark.parametrize("guard", GUARDS)
def test_the_scenario_fails_without_its_guard(guard: str, tmp_path: Path) -> None:
    edits, scenario = GUARDS[guard]

    assert fails(edits, partial(scenario, tmp_path))
