"""Each guard of writes and folding that a scenario tells of carries weight: without it, the scenario ends badly.

The scenarios are tests of their own, each an order of events that seeds seldom say.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from lancelsm.admin.rebuild import rebuild
from lancelsm.compaction import flush
from lancelsm.compaction import merge as merging
from lancelsm.compaction import plan as planning
from lancelsm.dataset import base_rows
from lancelsm.errors import Corrupt
from lancelsm.region import catalog, head
from lancelsm.wal import claim, pipeline, region_writer, slot
from tests.simulation import test_append, test_claim, test_region_creation
from tests.simulation.environment import OWNER, RIVAL, Environment, raised
from tests.simulation.faults import CRASH_BEFORE, FAIL_BEFORE, Call, FaultPlan, MemoryRegistry
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.removal import Edit, Scenario, anywhere, with_and_without
from tests.simulation.test_pipeline import actors as pipelined
from tests.simulation.whole_table_env import WholeTableEnv
from tests.unit import balance_scenarios, tables, test_merge, test_writer
from tests.unit.merge_environment import A, row
from tests.unit.tables import row as row_of
from tests.unit.tables import rows_of


def pipelined_seeds(known: int, _: Path) -> None:
    """The seed that finds it now, then others, if the calls of the code have changed since."""
    for seed in (known, *range(200)):
        pipelined(seed)


# Claims


def claimed_after_a_rival(_: Path) -> None:
    """A rival's whole claim comes right before the swap of one's own."""
    environment = Environment()

    def rival(call: Call) -> None:
        if call.index == 2:
            claim.claim(environment.region("rival", faulty=False), owner=RIVAL)

    environment.plan = FaultPlan(rival)
    assert claim.claim(environment.region("claimer"), owner=OWNER).owner == OWNER


def claimed_without_an_answer(_: Path) -> None:
    """The owner claims its own region, and its swap gets lost."""
    environment = Environment()
    environment.plan = FaultPlan.at(2, FAIL_BEFORE)
    assert claim.claim(environment.region("claimer"), owner=OWNER).epoch == 2


def created_after_a_crash(_: Path) -> None:
    """A region that takes rows is one that readers find."""
    for at in range(9):
        environment = Environment(made=False)
        environment.plan = FaultPlan.at(at, CRASH_BEFORE)
        raised(lambda environment=environment: environment.make("creator"))  # type: ignore[misc]
        environment.plan.stop()
        environment.write(environment.make("next"), 1)
        assert [one.id for one in catalog.regions(environment.context("reader", faulty=False))] == [environment.id]


def rebuilt_after_a_crash(_: Path) -> None:
    """A region takes rows though its creator crashed; then the registry is lost, and rebuilt by what was published."""
    for at in range(9):
        table_env = WholeTableEnv(environment=Environment(made=False))
        with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
            table_env.environment.plan = FaultPlan.at(at, CRASH_BEFORE)
            raised(lambda environment=table_env.environment: environment.make("creator"))  # type: ignore[misc]
            table_env.environment.plan.stop()
            table_env.environment.make("next")
            table_env.put("writer", {1: True})
            table_env.environment.registry = MemoryRegistry()
            rebuild(table_env.handle("rebuilder", faulty=False))
            assert table_env.scan("reader") == table_env.truth


# Flush


def losing_a_row(place: Path) -> None:
    """The fold of a flush loses a row; what is written then is read back as it was written."""
    table = tables.create(place)
    table.upsert([row_of(1), row_of(2)])
    fold = flush.fold

    def folded_short(*arguments: Any) -> Any:
        found = fold(*arguments)
        return replace(found, rows=found.rows.slice(1))

    with mock.patch.object(flush, "fold", folded_short), contextlib.suppress(Corrupt):
        table.flush()
    assert rows_of(table) == [row_of(1), row_of(2)]


# Merges


def anothers_base(place: Path) -> None:
    table = test_merge.environment(place)
    base = table.base()
    metadata = {**base.metadata, "lancelsm.table": "00000000-0000-4000-8000-000000000000"}
    base_rows.commit(base_rows.Base.of(base), changed={}, new=(), metadata=metadata, properties={})
    with pytest.raises(Corrupt):
        table.merge()


def collected_between(place: Path) -> None:
    """Another merge and a collection come while the heads are read: their generations are not listed any more."""
    table = test_merge.environment(place)

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


SEALED = "if head.status is RegionState.SEALED:"
ONLY_CLAIM = (catalog.check_writable, SEALED, "if False:")

GUARDS: dict[str, tuple[list[Edit], Scenario]] = {
    # Append
    "an entry that is not ours to commit is left alone, without a nonce": (
        [(slot.resolve_conflict, "or other.nonce is None or ", "or ")],
        anywhere(test_append.test_an_entry_of_our_epoch_that_is_not_ours_to_commit_is_left_alone),
    ),
    "an entry that is not ours to commit is left alone, torn": (
        [(slot.resolve_conflict, " or not other.sound:", ":")],
        anywhere(test_append.test_an_entry_of_our_epoch_that_is_not_ours_to_commit_is_left_alone),
    ),
    "an entry of a later epoch is nobody's who knows the registry": (
        [
            (slot.resolve_conflict, "if other is not None and other.summary.epoch > epoch:", "if False:"),
            (head.appended, " or any(e.epoch != head.epoch for e in entries):", ":"),
        ],
        anywhere(test_claim.test_a_writer_above_the_head_s_epoch_works_outside_the_registry),
    ),
    "a store that refuses later proves nothing of an earlier put": (
        [
            (
                slot.put_entry,
                "except (Unavailable, Invalid) as error:\n        if maybe_written:",
                "except (Unavailable, Invalid) as error:\n        if False:",
            )
        ],
        anywhere(test_append.test_a_store_that_refuses_after_an_unanswered_put_is_not_told_as_nothing_written),
    ),
    "a sequence of a queue never goes back": (
        [(head.LogTotals.after, "max(applied.get(queue, sequence), sequence, key=int)", "sequence")],
        anywhere(test_append.test_a_source_never_goes_back_when_batches_are_committed_out_of_order),
    ),
    "sequences are compared as numbers": (
        [(head.LogTotals.after, "sequence, key=int)", "sequence)")],
        anywhere(test_append.test_a_source_never_goes_back_when_batches_are_committed_out_of_order),
    ),
    "a sealed region takes no rows": (
        [ONLY_CLAIM, (catalog.check_writable, "if head.owner != owner:", "if head.owner not in (owner, ''):")],
        anywhere(test_claim.test_a_sealed_region_takes_neither_rows_nor_claims_and_stays_sealed),
    ),
    "a sealed region is not claimed": (
        [
            (claim._swap_epoch, SEALED, "if False:"),
            (head.claimed, '{"epoch": head.epoch, "status": RegionState.OPEN.value}', '{"epoch": head.epoch}'),
        ],
        anywhere(test_claim.test_a_sealed_region_takes_neither_rows_nor_claims_and_stays_sealed),
    ),
    "a sealed region is not created again": (
        [(claim._exists, "check_writable(region, head, owner=head.owner)", "pass")],
        anywhere(test_region_creation.test_a_sealed_region_is_not_created_again),
    ),
    # Creation
    "a region is catalogued before it has a head": (
        [
            (claim.create_region, "    add_to_catalog(region, budget=budget)\n", ""),
            (
                claim.create_region,
                "owner=owner), budget=budget)\n",
                "owner=owner), budget=budget)\n    add_to_catalog(region, budget=budget)\n",
            ),
        ],
        created_after_a_crash,
    ),
    "a region's first manifest is published before it has a head": (
        [
            (claim.create_region, "        publish(region, staged, budget=budget)\n", ""),
            (
                claim.create_region,
                "owner=owner), budget=budget)\n",
                "owner=owner), budget=budget)\n    publish(region, staged, budget=budget)\n",
            ),
        ],
        rebuilt_after_a_crash,
    ),
    "a region that the registry forgot is not made anew": (
        [(claim.create_region, "ensure_unused(region)", "pass")],
        anywhere(test_region_creation.test_a_region_that_the_registry_forgot_is_not_made_over_its_files, True),
    ),
    "a region that another creator has made meanwhile is not a forgotten one": (
        [(claim.create_region, "        if _exists(region):  # another", "        if False:  # another")],
        anywhere(test_region_creation.test_a_creator_that_stalls_until_the_region_is_written_to_and_flushed_succeeds),
    ),
    # Claim
    "a claim whose reply is lost is recognised by its owner": (
        [(claim._swap_epoch, "now.epoch == head.epoch + 1 and now.owner == owner", "now.epoch == head.epoch + 1")],
        claimed_after_a_rival,
    ),
    "a claim whose reply is lost is recognised by its epoch": (
        [(claim._swap_epoch, "now.epoch == head.epoch + 1 and now.owner == owner", "now.owner == owner")],
        claimed_without_an_answer,
    ),
    "a claim is confirmed": (
        [
            (claim.finish_claim, "check_writable(region, head, owner=owner)", "pass"),
            (claim._fence, "check_writable(region, head, owner=owner)", "pass"),
        ],
        anywhere(test_claim.test_two_writers_are_never_open_at_once_in_different_epochs),
    ),
    "a claim goes on from a log that adds up": (
        [(claim.claim, "head = _verified_head(region, held_by=held_by)", "head = region.head()")],
        partial(
            balance_scenarios.first_wrong_entry_is_named,
            fault=balance_scenarios.flip,
            operation="claim",
        ),
    ),
    "a claim goes on from rows that add up": (
        [(claim._check_counts, "if getattr(head, name) != getattr(totals, name):", "if False:")],
        partial(balance_scenarios.claim_compares_totals_with_the_head, field="wal_rows"),
    ),
    "a region is taken from its previous_owners only": (
        [(claim._swap_epoch, "if held_by and head.owner not in held_by:", "if False:")],
        test_writer.test_an_exclusive_writer_that_lost_its_region_does_not_claim_it_again,
    ),
    "an exclusive writer gives its regions back": (
        [
            (
                region_writer.RegionWriter.release,
                "claim_held(self._region, owner=self._previous_owners[-1], held_by=(self._owner,))",
                "pass",
            )
        ],
        test_writer.test_an_exclusive_writer_fences_others_and_releases_its_regions,
    ),
    # Pipeline
    "entries are committed in order": (
        [
            (
                pipeline.Pipeline._committable,
                "list(takewhile(lambda item: item.written is not None, self._in_flight))",
                "[item for item in self._in_flight if item.written is not None]",
            ),
            (head.appended, "if [e.position for e in entries] != list(expected) or", "if"),
        ],
        partial(pipelined_seeds, 79),
    ),
    "with an entry that is given up all later ones fail": (
        [(pipeline.Pipeline._fail, "failed.append(self._in_flight.pop())", "failed.append(self._in_flight.popleft())")],
        partial(pipelined_seeds, 65),
    ),
    # Flush
    "a generation has the rows of its entries": (
        [(flush._folded, "if kept + row_setsum(folded.superseded) != replayed:", "if False:")],
        losing_a_row,
    ),
    # Merge
    "heads are read before the base": (
        [
            (merging.merge_generations, "        pending = list(read_regions())\n", ""),
            (
                merging.merge_generations,
                "objects=objects)\n        plan =",
                "objects=objects)\n        pending = list(read_regions())\n        plan =",
            ),
        ],
        collected_between,
    ),
    "rows are committed on the counters that they were written on": (
        [
            (merging._rows_are_valid, "one.counters == written_on.counters\n        and ", ""),
            (planning.MergePlan.counters, "if not self.holds(present):", "if False:"),
        ],
        partial(test_merge.test_a_merger_whose_counter_moved_plans_again_from_fresh_heads, step=2),
    ),
    "rows are committed on the fence that they were written on": (
        [(merging._rows_are_valid, "one.fence == written_on.fence\n        and ", "")],
        partial(test_merge.test_rows_written_before_a_raised_fence_are_written_again, step=2),
    ),
    "a fence that a restored base shows no more counts": (
        [(merging._rows_are_valid, "[*passed, base]", "[base]")],
        partial(
            test_merge.test_rows_written_before_a_raised_fence_are_written_again_even_if_a_restore_hides_the_fence,
            step=2,
        ),
    ),
    "rows are committed on the schema that they were written in": (
        [
            (
                merging._rows_are_valid,
                "and one.schema.columns.equals(written_on.schema.columns, check_metadata=True)",
                "",
            )
        ],
        partial(test_merge.test_a_column_added_during_a_merge_makes_the_merge_start_again, step=2),
    ),
    "a merge goes into the table's own base": (
        [(merging._Merger.open_base, "if found != self.table:", "if False:")],
        anothers_base,
    ),
    "heads behind the base are raised": (
        [(planning.plan_merge, "if counter > region.newest:", "if False:")],
        test_merge.test_heads_older_than_the_base_are_read_again,
    ),
    "no generation is left out": (
        [
            (planning.plan_merge, "if missing := [number for number in wanted if number not in listed]:", "if False:"),
            (
                planning.plan_merge,
                "tuple((number, listed[number]) for number in wanted)",
                "tuple((number, listed[number]) for number in wanted if number in listed)",
            ),
        ],
        test_merge.test_a_restored_base_whose_next_generation_is_gone_is_corrupt,
    ),
    "newer generations win in a merge": (
        [(merging._newest_first, "reversed(region.generations)", "region.generations")],
        test_merge.test_a_merge_puts_the_newest_row_of_each_key_of_every_region_into_the_base_once,
    ),
    "rows that a merge replaces are looked up again after a conflict": (
        [
            (merging._carry_out, "        hidden = _hide(merger, delta, base)\n", ""),
            (
                merging._carry_out,
                "    base = planned\n",
                "    base = planned\n    hidden = _hide(merger, delta, base)\n",
            ),
        ],
        partial(
            test_merge.test_after_a_commit_of_another_tool_a_merge_repeats_the_lookup_and_keeps_its_written_rows,
            step=3,
            change="append",
        ),
    ),
}


OWN = (
    anothers_base,
    claimed_after_a_rival,
    claimed_without_an_answer,
    collected_between,
    created_after_a_crash,
    losing_a_row,
    rebuilt_after_a_crash,
)


test_with_all_guards_a_story_ends_well, test_without_the_guard_a_story_ends_badly = with_and_without(GUARDS, own=OWN)
