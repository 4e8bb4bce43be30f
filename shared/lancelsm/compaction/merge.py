"""Drive a merge to its one commit, and decide what a conflict means.

Lance's `Merge` operation is refused as soon as data, schema or schema metadata changed since the version that was
read; it lets indexes and configuration pass, which move neither counters nor fence. After a refusal the newest base
is read:

| there | then |
|---|---|
| the table's id is absent or another | `Corrupt` |
| a counter, the fence or the schema moved | all of it anew: heads, plan, fold, rows |
| none moved | the rows that were written stay good; look up and hide again on that version |

A commit without an answer is decided the same way, and recognised as applied by the counters that it carries.
Models: merge_order (heads before base), merge_redo (plan anew).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from lancelsm.common.clock import Clock, Ids
from lancelsm.common.layout import Generation, RegionId, TableId
from lancelsm.compaction import tasks
from lancelsm.compaction.plan import MergePlan, RegionPending, RegionPlan, StaleHeads, balanced, index_pays, plan_merge
from lancelsm.compaction.runner import TaskRunner
from lancelsm.compaction.tasks import Delta, Hidden, MergeBase, Source
from lancelsm.dataset import base_rows
from lancelsm.dataset.base_rows import Base, CommittedVersion, NewFragment, Preempted
from lancelsm.dataset.base_table import MERGED, BaseTable, StorageOptions, open_base
from lancelsm.dataset.merged_generations import repair_markers
from lancelsm.errors import Ambiguous, Contended, Corrupt, Invalid, Unavailable
from lancelsm.objects import ObjectStore

ATTEMPTS = 8
_FIRST_WAIT_S = 0.05
_ROWS_PER_WRITER = 250_000
_VERSIONS_ASKED = 32  # more commits than that during one merge: it is planned anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What one merge did.

    Args:
        regions: the newest generation in the base, of every region that has one there, whoever merged it.
        moved: the same of the regions that this call merged.
        generations: how many this call merged; 0 if none was pending.
        rows_upserted: live rows written to the base.
        rows_deleted: base rows that tombstones hid.
        base_version: that holds all of it.
    """

    regions: Mapping[RegionId, Generation]
    moved: Mapping[RegionId, Generation]
    generations: int
    rows_upserted: int
    rows_deleted: int
    base_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merger:
    """The collaborators of one call."""

    uri: str
    table: TableId
    objects: ObjectStore
    runner: TaskRunner
    ids: Ids
    storage_options: StorageOptions

    def open_base(self) -> BaseTable:
        """The newest base; raises `Corrupt` if it is another table's."""
        base = open_base(uri=self.uri, storage_options=self.storage_options)
        found = base.facts.table if base.facts else None
        if found != self.table:
            raise Corrupt(
                f"the base belongs to table {found}, not to {self.table}: the table was dropped and made anew, or "
                "another tool replaced it",
                remedy="Open the table anew; if nobody dropped it, restore the base to its last version with its id",
                table=self.uri,
                version=base.version,
            )
        return base


def merge_generations(
    *,
    uri: str,
    table: TableId,
    read_regions: Callable[[], Iterable[RegionPending]],
    objects: ObjectStore,
    runner: TaskRunner,
    clock: Clock,
    ids: Ids,
    storage_options: StorageOptions = None,
) -> Merged:
    """Merge all pending generations of all regions into the base.

    Args:
        uri: the table's, which is the base's.
        table: the id that the base must carry.
        read_regions: reads the regions' heads anew at every call; called before the base is read.
        objects: the table's objects.
        runner: where the work is done.
        storage_options: for Lance, on every machine that the runner uses.

    Raises:
        Contended: others kept changing the base. Nothing of this merge was committed.
        Ambiguous: the commit and a look at the base had no answer. Merge again: what was merged is not merged twice.
        Unavailable: a store did not answer, before anything was committed.
        Corrupt: the base is another table's, a generation that is due is missing or unreadable, or has a null or
            repeated key.

    A crash before the commit leaves files that nothing refers to; after it, all is done but the markers, which the next
    merge repairs. Run again, a finished merge changes nothing.
    """
    merger = _Merger(uri=uri, table=table, objects=objects, runner=runner, ids=ids, storage_options=storage_options)
    behind: StaleHeads | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            clock.sleep(_FIRST_WAIT_S * 2**attempt * ids.uniform())
        pending = list(read_regions())
        base = repair_markers(base=merger.open_base(), objects=objects)
        plan = plan_merge(pending, base.counters, table=uri)
        if plan is None:
            return Merged(
                regions=base.counters,
                moved={},
                generations=0,
                rows_upserted=0,
                rows_deleted=0,
                base_version=base.version,
            )
        behind = plan if isinstance(plan, StaleHeads) else None
        if isinstance(plan, MergePlan) and (merged := _attempt(merger, plan, base)) is not None:
            # Done is done: a marker that stays behind is repaired by the next merge.
            with suppress(Contended, Unavailable):
                repair_markers(base=merger.open_base(), objects=objects)
            return merged
    if behind is not None:
        raise Corrupt(
            "the base has merged more generations than the region's head knows",
            remedy="Run `lancelsm registry rebuild` with all writers stopped",
            table=uri,
            region=behind.region,
        )
    raise Contended("others kept changing the base", remedy="Merge again", table=uri)


def _attempt(merger: _Merger, plan: MergePlan, planned: BaseTable) -> Merged | None:
    """As `_carry_out`; also None if what the plan rests on was collected after another merge."""
    try:
        return _carry_out(merger, plan, planned)
    except (Corrupt, Invalid):
        newest = merger.open_base()
        if (newest.counters, newest.fence) == (planned.counters, planned.fence):
            raise
        return None


def _carry_out(merger: _Merger, plan: MergePlan, planned: BaseTable) -> Merged | None:
    """Commit the plan; None if it has to be made anew."""
    delta = _fold(merger, plan, planned)
    new = _write(merger, delta)
    base = planned
    for _ in range(ATTEMPTS):
        delta = Delta(merge_base=MergeBase(base=Base.of(base), schema=base.schema), parts=delta.parts)
        hidden = _hide(merger, delta, base)
        outcome = _commit(merger, plan, base, hidden, new)
        if isinstance(outcome, CommittedVersion):
            return _merged(plan, planned, delta, hidden, outcome.version)
        newest = _look_again(merger, outcome)
        if outcome is None and plan.reached(newest.counters):
            return _merged(plan, planned, delta, hidden, newest.version)
        if not _is_same_ground(merger, planned, newest):
            return None
        base = newest
    return None


def _merged(plan: MergePlan, planned: BaseTable, delta: Delta, hidden: Iterable[Hidden], version: int) -> Merged:
    return Merged(
        regions=plan.counters(planned.counters),
        moved={region.region: region.through for region in plan.regions},
        generations=sum(len(region.generations) for region in plan.regions),
        rows_upserted=delta.live,
        rows_deleted=sum(one.dead for one in hidden),
        base_version=version,
    )


def _is_same_ground(merger: _Merger, written_on: BaseTable, base: BaseTable) -> bool:
    """Whether rows written on one version may be committed on another.

    A raised fence says that files which nothing referred to are swept: those rows may be gone by now. A base that was
    restored since shows the fence no more, so every version in between is asked.
    """
    between = range(written_on.version + 1, base.version)
    if len(between) > _VERSIONS_ASKED:
        return False
    try:
        passed = [open_base(uri=base.uri, version=one, storage_options=merger.storage_options) for one in between]
    except Invalid:  # cleaned up: nobody can tell what it said
        return False
    return all(
        one.counters == written_on.counters
        and one.fence == written_on.fence
        and one.schema.columns.equals(written_on.schema.columns, check_metadata=True)
        for one in [*passed, base]
    )


def _look_again(merger: _Merger, outcome: Preempted | None) -> BaseTable:
    """The newest base after a commit that was refused, or had no answer."""
    try:
        return merger.open_base()
    except Unavailable as cause:
        if outcome is not None:
            raise
        raise Ambiguous(
            "the merge may have been committed: neither the commit nor a look at the base had an answer",
            remedy="Merge again: what was merged is not merged twice",
            table=merger.uri,
        ) from cause


def _fold(merger: _Merger, plan: MergePlan, base: BaseTable) -> Delta:
    merge_base = MergeBase(base=Base.of(base), schema=base.schema)
    sources = [_newest_first(region, merger.uri) for region in plan.regions]
    folded = merger.runner.map(partial(tasks.fold_delta, merge_base), sources)
    return Delta(merge_base=merge_base, parts=tuple(part for parts in folded for part in parts))


def _newest_first(region: RegionPlan, uri: str) -> tuple[Source, ...]:
    return tuple(
        Source(
            region=region.region,
            generation=number,
            uri=f"{uri.rstrip('/')}/{path}",
            key=path,
            sums=region.sums.get(number),
        )
        for number, path in reversed(region.generations)
    )


def _write(merger: _Merger, delta: Delta) -> list[NewFragment]:
    writers = min(merger.runner.parallelism, -(-delta.live // _ROWS_PER_WRITER))
    shares = balanced(delta.parts, [part.live for part in delta.parts], max(writers, 1))
    written = merger.runner.map(partial(tasks.write_live_rows, delta.merge_base), shares)
    return [fragment for fragments in written for fragment in fragments]


def _hide(merger: _Merger, delta: Delta, base: BaseTable) -> list[Hidden]:
    """Hide all base rows that the delta replaces; every fragment is looked at by one of two paths."""
    run, parallelism = merger.runner.map, merger.runner.parallelism
    indexed = _worth_looking_up(delta, base)
    hidden: list[Hidden] = []
    if indexed:
        shares = min(parallelism, -(-delta.keys // tasks.INDEX_RUN_KEYS))
        find = partial(tasks.find_by_index, delta, fragments=tuple(sorted(indexed)))
        found = run(find, [(number, shares) for number in range(shares)])
        finds = tasks.merged_finds(find for finds in found for find in finds)
        groups = balanced(finds, [len(find.offsets) for find in finds], parallelism)
        hidden += [one for many in run(partial(tasks.hide_rows, delta.merge_base.base), groups) for one in many]
    others = [fragment for fragment in base.fragments if fragment.id not in indexed]
    groups_of_ids = balanced([one.id for one in others], [one.rows for one in others], parallelism)
    hidden += [one for many in run(partial(tasks.hide_by_scan, delta), groups_of_ids) for one in many]
    return hidden


def _worth_looking_up(delta: Delta, base: BaseTable) -> frozenset[int]:
    """The fragments whose rows are found by an index on the key; the others are scanned."""
    if len(base.schema.primary_key) != 1:
        return frozenset()
    covered = base_rows.indexed_fragments(delta.merge_base.base, base.schema.primary_key[0])
    present = {fragment.id: fragment.rows for fragment in base.fragments if fragment.id in covered}
    keys = sum(part.rows for part in delta.parts)
    mean = sum(part.key_bytes for part in delta.parts) / max(keys, 1)
    pays = index_pays(keys=delta.keys, rows=sum(present.values()), key_bytes=mean)
    return frozenset(present) if pays else frozenset()


def _commit(
    merger: _Merger, plan: MergePlan, base: BaseTable, hidden: Iterable[Hidden], new: Iterable[NewFragment]
) -> CommittedVersion | Preempted | None:
    """Try to commit once; None if there was no answer."""
    target = {region.region: region.through for region in plan.regions}
    changed = {one.fragment: one.metadata or _hide_all(merger, base, one.fragment) for one in hidden}
    written = {f"{MERGED}{region}": str(upto) for region, upto in plan.counters(base.counters).items()}
    try:
        return base_rows.commit(
            Base.of(base),
            changed=changed,
            new=new,
            metadata={**base.metadata, **written},
            properties={"lancelsm.merge": json.dumps(target, sort_keys=True)},
        )
    except Unavailable:
        return None


def _hide_all(merger: _Merger, base: BaseTable, number: int) -> str:
    (fragment,) = (found for found in base.fragments if found.id == number)
    return base_rows.hide_all_rows(Base.of(base), fragment, objects=merger.objects, nonce=merger.ids.nonce())
