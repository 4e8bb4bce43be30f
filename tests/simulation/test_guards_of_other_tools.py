"""Each guard against other tools in this table is needed: without it, its scenario fails."""

from __future__ import annotations

from tests.simulation.marks import changed, without
from tests.simulation.removal import with_and_without
from tests.unit import drift_scenarios as drift
from tests.unit import foreign_shard_scenarios as shards

GUARDS = {
    "a stopped region takes no rows": ([without("stopped region takes no rows")], drift.flush_stops_writers),
    "a flush that meets a changed base stops writers": (
        [without("flush that meets drift stops writers")],
        drift.flush_stops_writers,
    ),
    "a merge that meets a changed base stops writers": (
        [without("merge that meets drift stops writers")],
        drift.merge_stops_writers,
    ),
    "a merge goes into a base with the columns of the table": (
        [
            without("base has the columns of the table"),
            without("repaired base has the columns of the table"),
        ],
        drift.merge_stops_writers,
    ),
    "a stop fences appends in flight": ([without("stop fences appends in flight")], drift.append_in_flight),
    "a stop swaps on the epoch": ([without("stop swaps on the epoch")], drift.claim_before_the_mark),
    "the log is kept while a shard of another tool has rows": (
        [without("log is kept while a shard of another tool has rows")],
        shards.log_is_kept,
    ),
    "rows that were appended before a crash are not appended again": (
        [changed("moved rows stay out", "[rows for position, rows in self.parts[values]]")],
        shards.crash_before_the_shard_is_drained,
    ),
    "the order of keys is checked at the append": (
        [without("keys of unknown order are refused at the append")],
        shards.written_during_the_adoption,
    ),
    "rows of merged generations are not appended": (
        [without("rows that are in the base are not appended again")],
        shards.merged_by_another_tool,
    ),
    "a read compares keys of the table": (
        [without("base of a read has its key", instead=False)],
        drift.read_without_the_key,
    ),
}

OWN = (*dict.fromkeys(scenario for _, scenario in GUARDS.values()), shards.collected_before_the_shard)

test_a_scenario_passes_with_all_guards, test_the_scenario_fails_without_its_guard = with_and_without(GUARDS, own=OWN)
