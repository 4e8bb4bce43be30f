"""Each protocol keeps its promises in every interleaving, and needs every guard for it. Append is in test_append."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Any

import pytest

from tests.model import (
    base_statement,
    claim,
    eventual_view,
    expiry,
    generation_compaction,
    head_commits,
    index_promise,
    merge_order,
    merge_redo,
    ordered_region,
    pins,
    pipelining,
    publication,
    reader_view,
    region_creation,
    registry_rebuild,
    restore_in_place,
    schema_change,
    starvation,
    transactions,
    waiting_note,
)
from tests.model.base_statement import BaseStatement
from tests.model.claim import Claim
from tests.model.engine import Model
from tests.model.eventual_view import EventualView
from tests.model.expiry import Expiry
from tests.model.generation_compaction import GenerationCompaction
from tests.model.head_commits import HeadCommits
from tests.model.index_promise import IndexPromise
from tests.model.merge_order import MergeOrder
from tests.model.merge_redo import MergeRedo
from tests.model.ordered_region import OrderedRegion
from tests.model.pins import Pins
from tests.model.pipelining import Pipelining
from tests.model.publication import Publication
from tests.model.reader_view import ReaderView
from tests.model.region_creation import RegionCreation
from tests.model.registry_rebuild import RegistryRebuild
from tests.model.restore_in_place import RestoreInPlace
from tests.model.schema_change import SchemaChange
from tests.model.starvation import Starvation
from tests.model.transactions import Transactions
from tests.model.verdicts import check_broken, check_clean
from tests.model.waiting_note import WaitingNote

RivalClaims = partial(Claim, roles=(claim.P, claim.SIBLING, claim.Q))

# The number of states shows that a model still explores as much as before. Change it only together with the model.
CLEAN = {
    "base statement": (BaseStatement(), 11_877),
    "claim, two actors of one owner": (Claim(), 663),
    "claim, with a rival": (RivalClaims(), 28_083),
    "eventual view": (EventualView(), 87_537),
    "expiry": (Expiry(), 380),
    "generation compaction": (GenerationCompaction(compactors=2, rounds=2, roles=""), 8_450),
    "generation compaction, a slow merge and reads": (GenerationCompaction(roles="MR"), 18_614),
    "head commits": (HeadCommits(), 4_465),
    "index promise": (IndexPromise(creations=1), 41_722),
    "merge order": (MergeOrder(generations=1), 7_157),
    "merge redo": (MergeRedo(), 37_048),
    "ordered region": (OrderedRegion(), 8_479),
    "pins": (Pins(), 1_033),
    "pipelining, alone": (Pipelining(rival=False), 7_645),
    "pipelining, with a rival": (Pipelining(entries=("1", "2")), 1_489),
    "publication": (Publication(), 4_402),
    "reader view": (ReaderView(), 8_018),
    "region creation": (RegionCreation(), 834),
    "registry rebuild": (RegistryRebuild(entries=2), 12_302),
    "restore in place": (RestoreInPlace(), 16_852),
    "schema change": (SchemaChange(roles="WLTF"), 5_558),
    "schema change, merges and reads": (SchemaChange(roles="LFMRX"), 1_658),
    "starvation": (Starvation(), 6),
    "transactions": (Transactions(), 47_843),
    "waiting note": (WaitingNote(), 250),
}
LONG = {
    "eventual view": (EventualView(ticks=3), 255_030),
    "generation compaction": (GenerationCompaction(), 300_012),
    "index promise": (IndexPromise(), 83_617),
    "merge order": (MergeOrder(), 346_791),
    "pipelining": (Pipelining(), 71_567),
    "reader view": (ReaderView(entries=3, views=1), 378_875),
    "registry rebuild": (RegistryRebuild(), 103_500),
}

CAUGHT: dict[Enum, tuple[Any, str]] = {
    base_statement.Guard.SUM_FIRST: (BaseStatement, "damage stated"),
    base_statement.Guard.READ_BACK: (BaseStatement, "damage stated"),
    base_statement.Guard.CONFLICT: (BaseStatement, "statement missing"),
    base_statement.Guard.EVERY_FILE: (BaseStatement, "deleted without proof"),
    base_statement.Guard.COMPARE: (BaseStatement, "deleted without proof"),
    base_statement.Guard.CHECKED_COUNTER: (BaseStatement, "deleted without proof"),
    base_statement.Guard.LISTED_BEFORE_FENCE: (BaseStatement, "check missing"),
    base_statement.Guard.READ_AFTER_FENCE: (BaseStatement, "check missing"),
    base_statement.Guard.ON_ROUND: (BaseStatement, "check missing"),
    claim.Guard.ON_EPOCH: (RivalClaims, "two owners of one epoch"),
    claim.Guard.THROUGH_HIGHEST: (RivalClaims, "leftover above the head"),
    claim.Guard.FINISH_FIRST: (RivalClaims, "committed entry missing"),
    claim.Guard.FENCES_READABLE: (RivalClaims, "committed entry missing"),
    claim.Guard.FRESH_MANIFEST_EPOCH: (RivalClaims, "committed entry missing"),
    claim.Guard.EPOCH_IN_MANIFEST: (RivalClaims, "claim without a fence"),
    eventual_view.Guard.BELOW_INTERVAL: (EventualView, "object missing"),
    eventual_view.Guard.AGE_FROM_BEGIN: (EventualView, "stale read"),
    eventual_view.Guard.MATCH: (EventualView, "older row wins"),
    expiry.Guard.AS_TOMBSTONE: (Expiry, "older row reappears"),
    expiry.Guard.KEPT: (Expiry, "older row reappears"),
    expiry.Guard.SKEW: (Expiry, "row lost"),
    expiry.Guard.TTL_UNMOVED: (Expiry, "row lost"),
    expiry.Guard.CONFLICT: (Expiry, "row lost"),
    generation_compaction.Guard.NO_ROUND: (partial(GenerationCompaction, roles=""), "listed generation missing"),
    generation_compaction.Guard.KNOWN_COMPACTIONS: (partial(GenerationCompaction, roles=""), "generations overlap"),
    generation_compaction.Guard.STILL_LISTED: (partial(GenerationCompaction, compactors=2), "generations overlap"),
    generation_compaction.Guard.NEIGHBOURS: (partial(GenerationCompaction, roles=""), "wrong rows in the base"),
    generation_compaction.Guard.TOMBSTONES: (partial(GenerationCompaction, roles=""), "wrong rows in the base"),
    generation_compaction.Guard.SPANS: (partial(GenerationCompaction, roles="MR"), "false alarm"),
    generation_compaction.Guard.OWN_WORK: (partial(GenerationCompaction, roles=""), "false report"),
    generation_compaction.Guard.PLAN_AGAIN: (partial(GenerationCompaction, roles="M"), "false alarm"),
    head_commits.Guard.PRECONDITION: (HeadCommits, "ranges overlap"),
    head_commits.Guard.OWN_WORK: (HeadCommits, "false report"),
    head_commits.Guard.MANIFEST_VERSION: (HeadCommits, "generation lost"),
    head_commits.Guard.OWN_FIELDS: (HeadCommits, "generation lost"),
    **dict.fromkeys(index_promise.Guard, (IndexPromise, "promise broken")),
    merge_order.Guard.HEADS_BEFORE_BASE: (MergeOrder, "false alarm"),
    merge_order.Guard.PLAN_AGAIN: (MergeOrder, "rows lost"),
    merge_order.Guard.COUNTERS_RISE: (MergeOrder, "counter fell"),
    merge_order.Guard.CONFLICT: (MergeOrder, "rows lost"),
    merge_redo.Guard.FENCE_UNMOVED: (MergeRedo, "committed file missing"),
    merge_redo.Guard.ON_COMMIT_VERSION: (MergeRedo, "merged twice"),
    merge_redo.Guard.LISTED_BEFORE_FENCE: (MergeRedo, "committed file missing"),
    merge_redo.Guard.READ_AFTER_FENCE: (MergeRedo, "committed file missing"),
    merge_redo.Guard.COUNTER_UNMOVED: (MergeRedo, "merged twice"),
    merge_redo.Guard.CONFLICT: (MergeRedo, "merged twice"),
    **dict.fromkeys(ordered_region.Guard, (OrderedRegion, "plain row after an event")),
    **dict.fromkeys(pins.Guard, (Pins, "pinned object missing")),
    pipelining.Guard.FRESH_EPOCH: (Pipelining, "order"),
    pipelining.Guard.ALL_OURS: (Pipelining, "committed entry missing"),
    pipelining.Guard.CONDITION: (Pipelining, "committed entry missing"),
    publication.Guard.BEFORE_NEXT: (Publication, "hole"),
    publication.Guard.COMMITTED_ONLY: (Publication, "published, not committed"),
    publication.Guard.OWN_VERSION: (Publication, "committed twice"),
    publication.Guard.HINT_UPWARDS: (Publication, "hint dangles"),
    publication.Guard.INTERVAL: (Publication, "stopped at a hole"),
    publication.Guard.SWEEP_BELOW_HINT: (Publication, "hint dangles"),
    reader_view.Guard.HEAD_BEFORE_BASE: (ReaderView, "false alarm"),
    reader_view.Guard.WHOLE_VIEW: (ReaderView, "false alarm"),
    reader_view.Guard.TAIL_SUM: (ReaderView, "uncommitted row read"),
    reader_view.Guard.RETRY_IF_GONE: (ReaderView, "stale read"),
    region_creation.Guard.CATALOG_BEFORE_HEAD: (RegionCreation, "rows not seen"),
    region_creation.Guard.MANIFEST_BEFORE_HEAD: (RegionCreation, "manifest missing"),
    region_creation.Guard.HEAD_IF_ABSENT: (RegionCreation, "rows lost"),
    region_creation.Guard.HEAD_BEFORE_ENTRY: (RegionCreation, "rows lost"),
    region_creation.Guard.SAME_MANIFEST: (RegionCreation, "false alarm"),
    region_creation.Guard.CATALOG_THEN_HEADS: (RegionCreation, "false alarm"),
    region_creation.Guard.HEADLESS_IS_EMPTY: (RegionCreation, "false alarm"),
    region_creation.Guard.HEAD_AFTER_LEFTOVERS: (RegionCreation, "false alarm"),
    registry_rebuild.Guard.PUBLISHED_ONLY: (RegistryRebuild, "acknowledged row lost"),
    registry_rebuild.Guard.EPOCH_RISES: (RegistryRebuild, "refused row in the log"),
    registry_rebuild.Guard.EPOCH_AT_REPLAY: (RegistryRebuild, "refused row in the log"),
    registry_rebuild.Guard.CONTIGUOUS: (RegistryRebuild, "hole in the log"),
    registry_rebuild.Guard.ABOVE_COUNTER: (RegistryRebuild, "acknowledged row lost"),
    registry_rebuild.Guard.PUBLISHED_BEFORE_SWEEP: (RegistryRebuild, "acknowledged row lost"),
    restore_in_place.Guard.FILTER: (RestoreInPlace, "newer row lost"),
    restore_in_place.Guard.NEWEST: (RestoreInPlace, "newer row lost"),
    restore_in_place.Guard.GONE: (RestoreInPlace, "newer row lost"),
    restore_in_place.Guard.KEPT: (RestoreInPlace, "stopped without need"),
    restore_in_place.Guard.CONTINUE: (RestoreInPlace, "newer row lost"),
    schema_change.Guard.DEFAULTS: (SchemaChange, "value lost"),
    schema_change.Guard.KNOWN: (SchemaChange, "value lost"),
    schema_change.Guard.OWN_COLUMNS: (partial(SchemaChange, roles="LTFM"), "value lost"),
    schema_change.Guard.BASE_FIRST: (SchemaChange, "rows unreadable"),
    schema_change.Guard.CONFIG_FIRST: (SchemaChange, "columns not found"),
    schema_change.Guard.WRITER_FINISHES: (SchemaChange, "columns not found"),
    schema_change.Guard.FLUSH_READS_BASE: (SchemaChange, "rows unreadable"),
    schema_change.Guard.HEADS_BEFORE_BASE: (SchemaChange, "rows unreadable"),
    schema_change.Guard.CONFLICT: (SchemaChange, "change lost"),
    schema_change.Guard.DRIFT: (partial(SchemaChange, roles="LFX"), "wrong history"),
    starvation.Guard.CLAIM_ON_EPOCH: (Starvation, "starved"),
    starvation.Guard.FLUSH_ON_MANIFEST_VERSION: (Starvation, "starved"),
    starvation.Guard.STAGED_ONCE: (Starvation, "starved"),
    **dict.fromkeys(transactions.Guard, (Transactions, "lost update")),
    waiting_note.Guard.NOTE: (WaitingNote, "starved"),
    waiting_note.Guard.HOLD_BACK: (WaitingNote, "starved"),
    waiting_note.Guard.LONG_ENOUGH: (WaitingNote, "starved"),
    waiting_note.Guard.REMOVED: (WaitingNote, "held back"),
}
GUARDS = [
    guard
    for model in (
        *(base_statement, claim, generation_compaction, head_commits, index_promise, merge_order, merge_redo, pins),
        *(
            ordered_region,
            pipelining,
            publication,
            reader_view,
            region_creation,
            registry_rebuild,
            schema_change,
            starvation,
        ),
        *(transactions, waiting_note),
    )
    for guard in model.Guard
]


def _name(guard: Enum) -> str:
    return f"{type(guard).__module__.rpartition('.')[2]}-{guard.name.lower()}"


@pytest.mark.one_case
@pytest.mark.parametrize(("model", "states"), CLEAN.values(), ids=CLEAN)
def test_a_protocol_keeps_its_promises_in_every_interleaving(model: Model[Any], states: int) -> None:
    check_clean(model, states=states)


@pytest.mark.long
@pytest.mark.parametrize(("model", "states"), LONG.values(), ids=LONG)
def test_a_protocol_keeps_its_promises_in_a_larger_model(model: Model[Any], states: int) -> None:
    check_clean(model, states=states)


@pytest.mark.one_case
@pytest.mark.parametrize("guard", GUARDS, ids=_name)
def test_a_promise_breaks_without_the_guard(guard: Enum) -> None:
    model, kind = CAUGHT[guard]
    check_broken(model(without=guard), kind=kind, guard=guard)
