"""Each guard of writes, flushes and merges in this table is needed: without it, its scenario fails.

The scenarios are orders of events that seeds rarely choose.
"""

from __future__ import annotations

import contextlib
import io
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from lancelsm.admin.rebuild import rebuild
from lancelsm.common.layout import Position, wal_entry
from lancelsm.compaction import fold
from lancelsm.compaction import plan as planning
from lancelsm.dataset import base_rows
from lancelsm.errors import Corrupt
from lancelsm.region import catalog
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.handle import open_table
from lancelsm.stack.flush_run import flush_in_time
from lancelsm.wal import claim
from tests.simulation import append_scenarios, claim_scenarios, region_creation_scenarios
from tests.simulation.environment import OWNER, RIVAL, Environment, raised
from tests.simulation.faults import CRASH_BEFORE, FAIL_BEFORE, Call, FaultPlan, MemoryRegistry
from tests.simulation.marks import Edit, changed, moved, without
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.pipelined import run_pipelined_actors
from tests.simulation.removal import Scenario, anywhere, with_and_without
from tests.simulation.whole_table_env import WholeTableEnv
from tests.unit import balance_scenarios, merge_scenarios, tables, ttl_scenarios, writer_scenarios
from tests.unit.merge_environment import A, row
from tests.unit.tables import row as row_of
from tests.unit.tables import rows_of


def pipelined_seeds(known: int, _: Path) -> None:
    """Run the seed that finds the violation, then others, in case the calls of the code have changed."""
    for seed in (known, *range(200)):
        run_pipelined_actors(seed)


# Claims


def claimed_after_a_rival(_: Path) -> None:
    """A rival claims right before the swap of our claim."""
    environment = Environment()

    def rival(call: Call) -> None:
        if call.index == 2:
            claim.claim(environment.region("rival", faulty=False), owner=RIVAL)

    environment.plan = FaultPlan(rival)
    assert claim.claim(environment.region("claimer"), owner=OWNER).owner == OWNER


def claimed_without_an_answer(_: Path) -> None:
    """The owner claims its own region, and its swap gets no answer and has no effect."""
    environment = Environment()
    environment.plan = FaultPlan.at(2, FAIL_BEFORE)
    assert claim.claim(environment.region("claimer"), owner=OWNER).epoch == 2


def created_after_a_crash(_: Path) -> None:
    """A creator crashes at any call. A region that accepts rows is in the catalog for readers."""
    for at in range(12):
        environment = Environment(with_region=False)
        environment.plan = FaultPlan.at(at, CRASH_BEFORE)
        raised(lambda environment=environment: environment.create("creator"))  # type: ignore[misc]
        environment.plan.stop()
        environment.write(environment.create("next"), 1)
        assert [one.id for one in catalog.regions(environment.context("reader", faulty=False))] == [environment.id]


def rebuilt_after_a_crash(_: Path) -> None:
    """A creator crashes at any call and the region gets rows. Then the registry is lost and rebuilt from storage."""
    for at in range(9):
        table_env = WholeTableEnv(environment=Environment(with_region=False))
        with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
            table_env.environment.plan = FaultPlan.at(at, CRASH_BEFORE)
            raised(lambda environment=table_env.environment: environment.create("creator"))  # type: ignore[misc]
            table_env.environment.plan.stop()
            table_env.environment.create("next")
            table_env.put("writer", {1: True})
            table_env.environment.registry = MemoryRegistry()
            rebuild(table_env.handle("rebuilder", faulty=False))
            assert table_env.scan("reader") == table_env.truth


# Flush


def changing_a_row(path: Path) -> None:
    """A flush changes a row while it gathers the rows. A read must still return the rows that were written."""
    table = tables.create(path)
    table.upsert([row_of(1), row_of(2)])
    gathered = fold.gathered

    def gathered_wrong(*arguments: Any, **options: Any) -> Any:
        for found in gathered(*arguments, **options):
            wrong = pa.array(["wrong"] * found.num_rows)
            yield found.set_column(1, found.schema.field(1), wrong)

    with mock.patch.object(fold, "gathered", gathered_wrong), contextlib.suppress(Corrupt):
        table.flush()
    assert rows_of(table) == [row_of(1), row_of(2)]


def replaced_last_entry(path: Path, *, seconds: float = 900) -> None:
    """The last entry of a log is replaced by one of another table. The flush of the log must commit nothing."""
    table, other = (tables.create(one, settings={"flush_rows": 1}) for one in (path, path / "other"))
    for one, first in ((table, 0), (other, 10)):
        for key in range(first, first + 3):
            one.upsert([row_of(key)])
    last, theirs = (
        Path(one.uri) / wal_entry(found.id, Position(3)) for one in (table, other) for found in one.list_regions()
    )
    last.write_bytes(theirs.read_bytes())
    with pytest.raises(Corrupt):
        flush_in_time(open_table(table.uri), region=None, leased=None, seconds=seconds)
    (region,) = table.list_regions()
    assert newest(region, region.head())[1].generations == ()


# Merges


def base_of_another_table(path: Path) -> None:
    """The base carries the id of another table."""
    table = merge_scenarios.table_with_generations(path)
    base = table.base()
    metadata = {**base.metadata, "lancelsm.table": "00000000-0000-4000-8000-000000000000"}
    base_rows.commit(base_rows.Base.of(base), changed={}, new=(), metadata=metadata, properties={})
    with pytest.raises(Corrupt):
        table.merge()


def collected_between(path: Path) -> None:
    """Another merge and a collection come while heads are read. Then heads no longer list the merged generations."""
    table = merge_scenarios.table_with_generations(path)

    def read_regions() -> list[planning.RegionPending]:
        found = table.read_regions()
        if len(table.pending[A]) == 2:
            table.merge(read_regions=lambda: found)
            table.flush(A, [row(1, 5)])
            del table.pending[A][:2]
            found = table.read_regions()
        return found

    table.merge(read_regions=read_regions)
    table.check()


GUARDS: dict[str, tuple[list[Edit], Scenario]] = {
    # Append
    "an entry without a nonce is left alone": (
        [without("entry without a nonce is left alone")],
        anywhere(append_scenarios.foreign_or_damaged_entry),
    ),
    "a damaged entry is left alone": (
        [without("damaged entry is left alone")],
        anywhere(append_scenarios.foreign_or_damaged_entry),
    ),
    "an entry of a higher epoch is from a writer without the registry": (
        [without("entry of a higher epoch is foreign"), without("entries are of the epoch of the head")],
        anywhere(claim_scenarios.entry_of_a_higher_epoch),
    ),
    "a later refusal of the store proves nothing about an earlier put": (
        [without("refusal proves nothing about an earlier put")],
        anywhere(append_scenarios.refusal_after_an_unanswered_put),
    ),
    "an applied sequence never decreases": (
        [without("applied sequence never decreases")],
        anywhere(append_scenarios.batches_out_of_order),
    ),
    "a producer is remembered until it is idle": (
        [without("new producer has room")],
        anywhere(append_scenarios.more_producers_than_a_head_remembers),
    ),
    "a sealed region accepts no rows": (
        [without("sealed region takes no rows"), without("only the owner appends")],
        anywhere(claim_scenarios.sealed_region),
    ),
    "a sealed region is not claimed": (
        [without("sealed region is not claimed"), without("claim swaps on the status")],
        anywhere(claim_scenarios.sealed_region),
    ),
    "a sealed region is not created again": (
        [without("sealed region is not created again")],
        anywhere(region_creation_scenarios.sealed_region),
    ),
    # Creation
    "a region is in the catalog before it has a head": (
        [moved("region is in the catalog before it has a head", by=4)],
        created_after_a_crash,
    ),
    "a region's first manifest is published before it has a head": (
        [moved("manifest is published before the region has a head", out=1, by=2)],
        rebuilt_after_a_crash,
    ),
    "a region whose head is lost is not created again": (
        [without("region with a lost head is not created again")],
        anywhere(partial(region_creation_scenarios.lost_head, without_hint=True)),
    ),
    "a region that another process created meanwhile has not lost its head": (
        [without("region of another creator is used")],
        anywhere(region_creation_scenarios.stalled_creator),
    ),
    # Claim
    "a claim with a lost reply is recognised by its owner": (
        [without("claim with a lost reply has our owner")],
        claimed_after_a_rival,
    ),
    "a claim with a lost reply is recognised by its epoch": (
        [without("claim with a lost reply has the next epoch")],
        claimed_without_an_answer,
    ),
    "a claimer checks that it still owns the region": (
        [
            without("claimer owns the region after its commit"),
            without("claimer owns the region after each fence"),
        ],
        anywhere(claim_scenarios.two_claims),
    ),
    "a claim checks the sum of the log": (
        [changed("claim checks the sum of the log", "region.head()")],
        partial(
            balance_scenarios.first_wrong_entry_is_named,
            fault=balance_scenarios.flip,
            operation="claim",
        ),
    ),
    "a claim checks the counts of the head": (
        [without("claim checks the counts of the head")],
        partial(balance_scenarios.claim_compares_totals_with_the_head, field="wal_rows"),
    ),
    "a region is claimed from its previous owners only": (
        [without("region is claimed from its previous owners")],
        writer_scenarios.exclusive_writer_loses_its_region,
    ),
    "an exclusive writer releases its regions": (
        [without("region release")],
        writer_scenarios.exclusive_writer_releases_its_regions,
    ),
    # Pipeline
    "entries are committed in order": (
        [
            changed("entries in order", "[item for item in self._in_flight if item.written is not None]"),
            without("entries follow the head"),
        ],
        partial(pipelined_seeds, 79),
    ),
    "when an entry is given up, all later ones fail": (
        [changed("all later entries fail", "failed.append(self._in_flight.popleft())")],
        partial(pipelined_seeds, 65),
    ),
    # Flush
    "a flush checks that no row of its entries is lost": (
        [without("flush loses no row")],
        changing_a_row,
    ),
    "a flush commits no generation of a log that is not proven": (
        [changed("generations of an unproven log are not committed", "return True")],
        replaced_last_entry,
    ),
    "a flush that ends early commits no generation of a log that is not proven": (
        [without("flush that ends early proves its log")],
        partial(replaced_last_entry, seconds=0),
    ),
    # Merge
    "heads are read before the base": (
        [moved("heads are read before the base", by=1)],
        collected_between,
    ),
    "rows are committed on the counters that they were written on": (
        [without("rows fit the counters"), without("plan holds for the counters")],
        partial(merge_scenarios.counter_moves_during_a_merge, step=2),
    ),
    "rows are committed on the fence that they were written on": (
        [without("rows fit the fence")],
        partial(merge_scenarios.fence_is_raised_during_a_merge, step=2),
    ),
    "a fence that a restored base no longer shows still counts": (
        [without("fence of a version in between counts", instead=[])],
        partial(
            merge_scenarios.fence_is_hidden_during_a_merge,
            step=2,
        ),
    ),
    "rows are committed on the schema that they were written in": (
        [without("rows fit the schema")],
        partial(merge_scenarios.column_is_added_during_a_merge, step=2),
    ),
    "rows that a merge took for expired stay if the time to live was removed meanwhile": (
        [without("rows fit the time to live")],
        partial(ttl_scenarios.ttl_is_removed_during_a_merge, step=2),
    ),
    "a merge goes into the table's own base": (
        [without("merge goes into its own base")],
        base_of_another_table,
    ),
    "heads that are older than the base are read again": (
        [without("heads older than the base are read again")],
        merge_scenarios.heads_are_older_than_the_base,
    ),
    "no generation is left out": (
        [
            without("no generation is missing"),
            changed(
                "no generation is left out",
                "tuple((number, listed[number]) for number in wanted if number in listed)",
            ),
        ],
        merge_scenarios.restored_base_lacks_its_next_generation,
    ),
    "newer generations win in a merge": (
        [changed("newer generation wins in a merge", "region.generations")],
        merge_scenarios.newest_row_of_each_key_is_merged_once,
    ),
    "rows that a merge replaces are looked up again after a conflict": (
        [moved("replaced rows are looked up after each conflict", out=1, by=-1)],
        partial(
            merge_scenarios.another_tool_commits_during_a_merge,
            step=3,
            change="append",
        ),
    ),
}


OWN = (
    base_of_another_table,
    claimed_after_a_rival,
    claimed_without_an_answer,
    collected_between,
    created_after_a_crash,
    changing_a_row,
    rebuilt_after_a_crash,
    replaced_last_entry,
)


test_a_scenario_passes_with_all_guards, test_the_scenario_fails_without_its_guard = with_and_without(GUARDS, own=OWN)
