"""Each guard of kept parts of views is needed: without it, its scenario fails."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.simulation import view_scenarios
from tests.simulation.marks import Edit, moved, without
from tests.simulation.removal import Scenario, fails

GUARDS: dict[str, tuple[list[Edit], Scenario]] = {
    "a part of a view is used only for its head": (
        [without("part of a view is used for its head alone")],
        view_scenarios.changed_head,
    ),
    "a kept base is used only while it is the newest": (
        [without("kept base is the newest version")],
        view_scenarios.changed_base,
    ),
    "the next try of a view reads everything again": (
        [without("next try of a view reads everything again")],
        view_scenarios.merge_between_heads_and_base,
    ),
    "a recent view has a recent base": (
        [without("base of a recent view is recent")],
        view_scenarios.old_base,
    ),
    "a recent view has a recent catalog": (
        [without("catalog of a recent view is recent", instead=True)],
        view_scenarios.old_catalog,
    ),
    "a recent view has recent parts": (
        [without("recent part of a view")],
        view_scenarios.old_part_beside_a_recent_one,
    ),
    "an old region snapshot is not used": (
        [without("old region snapshot is not used")],
        view_scenarios.old_region_snapshot,
    ),
    "a region snapshot is used only with a base that it belongs to": (
        [without("snapshot belongs to its base")],
        view_scenarios.base_ahead_of_the_region_snapshot,
    ),
    "a region snapshot is that of the table": (
        [without("region snapshot is of the table")],
        view_scenarios.base_of_another_table,
    ),
    "a part of a region snapshot is not taken for one of a region that lost its head": (
        [without("part of a region snapshot has no head")],
        view_scenarios.lost_head_of_a_region_in_the_snapshot,
    ),
    "the age of a region snapshot counts from before its heads were read": (
        [moved("age of a region snapshot counts from before its heads", by=3)],
        view_scenarios.slow_optimize,
    ),
}


@pytest.mark.one_case
@pytest.mark.parametrize("guard", GUARDS)
def test_the_scenario_passes_with_its_guard_and_fails_without_it(guard: str, tmp_path: Path) -> None:
    edits, scenario = GUARDS[guard]
    scenario(tmp_path / "with")

    assert fails(edits, partial(scenario, tmp_path / "without"))
