"""Each guard of the promise of indexes is needed: without it, a scenario breaks the promise."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.marks import Edit, moved, without
from tests.simulation.removal import Scenario, with_and_without
from tests.unit import index_scenarios

# guard: (its removal, what finds the violation)
GUARDS: dict[str, tuple[Iterable[Edit], Scenario]] = {
    "a flush commits only with every index that the head requires": (
        [without("flush builds every index of the list in the head")],
        index_scenarios.index_is_created_during_a_flush,
    ),
    "every head requires the list of a new index": (
        [without("heads require the list")],
        index_scenarios.index_is_created_during_a_flush,
    ),
    "a flush reads the list after it has listed the regions": (
        [moved("list of indexes is read after the regions", by=-2)],
        index_scenarios.region_is_created_after_the_index,
    ),
    "a region without a head is created before the index is promised": (
        [without("region without a head is created before its flushes are refused")],
        index_scenarios.region_gets_its_head_after_the_index,
    ),
    "only the list that was built is promised": (
        [without("promise is of the list that was built")],
        index_scenarios.index_is_dropped_before_a_stalled_maintainer_promises_it,
    ),
}

OWN = (
    index_scenarios.index_is_created_during_a_flush,
    index_scenarios.region_is_created_after_the_index,
    index_scenarios.region_gets_its_head_after_the_index,
    index_scenarios.index_is_dropped_before_a_stalled_maintainer_promises_it,
)

test_a_scenario_passes_with_all_guards, test_the_scenario_fails_without_its_guard = with_and_without(GUARDS, own=OWN)
