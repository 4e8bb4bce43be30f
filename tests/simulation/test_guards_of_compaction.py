"""Each guard of the compaction of generations is needed: without it, its scenario fails."""

from __future__ import annotations

import pytest

from tests.simulation.marks import Edit, without
from tests.simulation.removal import Scenario, with_and_without
from tests.unit import compaction_scenarios as scenarios

GUARDS: dict[str, tuple[list[Edit], Scenario]] = {
    "no round was committed since a compaction began": (
        [without("no round was committed during a compaction")],
        scenarios.round_between_write_and_commit,
    ),
    "a compaction that a round overtook raises no error": (
        [without("superseded compaction raises no error")],
        scenarios.round_during_a_write,
    ),
    "the verifier refuses a round from before a compaction": (
        [without("verified round knows all compactions")],
        scenarios.compaction_between_mark_and_verify,
    ),
    "a round from before a compaction is not committed": (
        [without("no compaction was committed since the mark")],
        scenarios.compaction_between_verify_and_commit,
    ),
    "all parts of a compaction are still listed": (
        [without("parts of a compaction are still listed")],
        scenarios.another_compaction_of_some_parts,
    ),
    "a compaction builds every index": (
        [without("compaction builds every index of the list in the head")],
        scenarios.index_between_write_and_commit,
    ),
    "a merge of compacted generations is planned again": (
        [without("merge of compacted generations is replanned")],
        scenarios.parts_swept_during_a_merge,
    ),
}

passes, fails_without = with_and_without(GUARDS, own=())
test_a_scenario_fails_without_its_guard = pytest.mark.rest(fails_without)
