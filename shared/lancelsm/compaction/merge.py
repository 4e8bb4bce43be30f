"""Run a merge up to its one commit, and handle commit conflicts.

Lance refuses a `Merge` operation if data, schema or schema metadata changed since the version that was read. Commits of
indexes and configuration don't conflict: they change neither counters nor fence. After a refusal the merge reads the
newest base:

| the newest base | action |
|---|---|
| has no table id or another one | raise `Corrupt` |
| has another counter, fence, schema or time to live | start again: heads, plan, fold, rows |
| has none of these changes | keep the rows that were written; look up and hide base rows again on that version |

A compaction may replace generations while a merge reads them. The merge is committed all the same: then the compacted
generation may begin at or below the counter, and readers and the next merge find in it the rows that the base has, or
newer ones. If the old directories are gone before they were read, the merge starts again.

A commit without an answer is resolved in the same way. The counters that it carries show whether it was applied.
Models: tests/model/merge_order.py (heads before base), merge_redo.py (start again).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from lancelsm.common.clock import Clock, Ids
from lancelsm.common.layout import Generation, RegionId, TableId
from lancelsm.common.task_pool import beside
from lancelsm.compaction import replaced_rows, tasks
from lancelsm.compaction.hidden import changed_fragments, old_files
from lancelsm.compaction.plan import MergePlan, RegionPending, RegionPlan, StaleHeads, balanced, index_pays, plan_merge
from lancelsm.compaction.replaced_rows import Hidden
from lancelsm.compaction.runner import TaskRunner
from lancelsm.compaction.tasks import Delta, MergeBase, Source
from lancelsm.dataset import base_rows
from lancelsm.dataset.base_rows import Base, CommittedVersion, NewFragment, Preempted
from lancelsm.dataset.base_table import MERGED, BaseTable, StorageOptions, base_of, open_base
from lancelsm.dataset.deleted_keys import keep_deletes
from lancelsm.dataset.foreign_rows import ROWS, counted_rows
from lancelsm.dataset.merged_generations import repair_markers
from lancelsm.dataset.statement import Stating
from lancelsm.errors import Ambiguous, Contended, Corrupt, Invalid, Unavailable
from lancelsm.objects import ObjectStore
from lancelsm.objects.local_copies import LocalCopies

ATTEMPTS = 8
_FIRST_WAIT_S = 0.05
_ROWS_PER_WRITER = 250_000
_ROWS_FOR_THREADS = 100_000
_VERSIONS_READ = 32  # after more commits than this during one merge, it is planned again


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What one merge did.

    Args:
        regions: the newest merged generation of every region with one, also of merges by other processes.
        merged_now: the newest merged generation of each region that this call merged.
        generations: number of generations that this call merged; 0 if none was pending.
        rows_upserted: live rows written to the base.
        rows_deleted: base rows that tombstones hid.
        base_version: the version of the base that holds the result.
    """

    regions: Mapping[RegionId, Generation]
    merged_now: Mapping[RegionId, Generation]
    generations: int
    rows_upserted: int
    rows_deleted: int
    base_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merger:
    """The arguments of one call of `merge_generations`."""

    uri: str
    table: TableId
    read_regions: Callable[[], Iterable[RegionPending]]
    check: Callable[[BaseTable], None]
    objects: ObjectStore
    runner: TaskRunner
    parallel: int
    clock: Clock
    ids: Ids
    storage_options: StorageOptions
    copies: LocalCopies
    read_sequence: Callable[[], tuple[str, ...]]
    keep_deletes_seconds: float
    skew_seconds: float

    def open_base(self) -> BaseTable:
        """Open the newest base; raises `Corrupt` if it belongs to another table, and the errors of `check`."""
        base = open_base(uri=self.uri, storage_options=self.storage_options)
        found = base.facts.table if base.facts else None
        if found != self.table:  # guard: merge goes into its own base
            raise Corrupt(
                f"the base belongs to table {found}, not to {self.table}: the table was dropped and created again, or "
                "another tool replaced the base",
                remedy="Open the table again; if it was not dropped, restore the last version of the base with its id",
                table=self.uri,
                version=base.version,
            )
        self.check(base)  # guard: base has the columns of the table
        return base

    def lists(self, plan: MergePlan) -> bool:
        """Return whether the heads still list all directories of a plan: a compaction may have replaced them."""
        listed = {(one.region, path) for one in self.read_regions() for _, path in one.generations}
        return all((one.region, path) in listed for one in plan.regions for _, path in one.generations)


def merge_generations(
    *,
    uri: str,
    table: TableId,
    read_regions: Callable[[], Iterable[RegionPending]],
    check: Callable[[BaseTable], None],
    objects: ObjectStore,
    runner: TaskRunner,
    clock: Clock,
    ids: Ids,
    storage_options: StorageOptions = None,
    read_sequence: Callable[[], tuple[str, ...]] = tuple,
    keep_deletes_seconds: float = 0.0,
    skew_seconds: float = 0.0,
    parallel: int = 1,
) -> Merged:
    """Merge all pending generations of all regions into the base.

    Args:
        uri: of the table, which is also the location of the base.
        table: the table id that the base must have.
        read_regions: reads the heads of the regions at every call; called before the base is read.
        check: raises an error if rows can't be merged into this version of the base; called whenever the base is read.
        objects: the object store of the table.
        runner: runs the tasks.
        storage_options: for Lance, on every machine that the runner uses.
        read_sequence: reads the columns that order change events; called after the heads are read, so that it has those
            of all deletes in the generations.
        keep_deletes_seconds: see `dataset.deleted_keys.keep_deletes`.
        skew_seconds: by how much the clocks of two machines may differ. A row counts as deleted that has expired at
            least as long ago.
        parallel: maximum number of threads. With 2 and many rows, base rows are hidden while new rows are written.

    Raises:
        Contended: other processes kept changing the base. Nothing of this merge was committed.
        Ambiguous: neither the commit nor the read of the base after it had an answer. Merge again: no generation is
            merged twice.
        Unavailable: a store did not answer before the commit; nothing was merged.
        Invalid: `check` raised it: another tool changed the base.
        Corrupt: the base belongs to another table; or a pending generation is missing, unreadable or changed, or has a
            null or repeated key.

    A crash before the commit leaves files that nothing refers to. A crash after it leaves only the markers behind, and
    the next merge repairs them. The call is idempotent.
    """
    with LocalCopies(uri) as copies:
        merger = _Merger(
            uri=uri,
            table=table,
            read_regions=read_regions,
            check=check,
            objects=objects,
            runner=runner,
            parallel=parallel,
            clock=clock,
            ids=ids,
            storage_options=storage_options,
            copies=copies,
            read_sequence=read_sequence,
            keep_deletes_seconds=keep_deletes_seconds,
            skew_seconds=skew_seconds,
        )
        return _merge(merger)


def _merge(merger: _Merger) -> Merged:
    stale: StaleHeads | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            merger.clock.sleep(_FIRST_WAIT_S * 2**attempt * merger.ids.uniform())
        pending = list(merger.read_regions())  # guard: heads are read before the base
        base = repair_markers(base=merger.open_base(), objects=merger.objects)
        merger.check(base)  # guard: repaired base has the columns of the table
        plan = plan_merge(pending, base.counters, table=merger.uri)
        if plan is None:
            return Merged(
                regions=base.counters,
                merged_now={},
                generations=0,
                rows_upserted=0,
                rows_deleted=0,
                base_version=base.version,
            )
        stale = plan if isinstance(plan, StaleHeads) else None
        if isinstance(plan, MergePlan) and (done := _attempt(merger, plan, base)) is not None:
            # The merge is committed. If a marker stays behind, the next merge repairs it.
            with suppress(Contended, Unavailable, Invalid):
                repair_markers(base=done.base or merger.open_base(), objects=merger.objects)
            return done.merged
    if stale is not None:
        raise Corrupt(
            "the base has merged more generations than the region's head has",
            remedy=f"Stop all writers, then: lancelsm registry rebuild {merger.uri}",
            table=merger.uri,
            region=stale.region,
        )
    raise Contended("other processes kept changing the base", remedy="Merge again", table=merger.uri)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """A merge that is committed, and a version of the base that has it; None if it must be opened."""

    merged: Merged
    base: BaseTable | None


def _attempt(merger: _Merger, plan: MergePlan, planned: BaseTable) -> _Done | None:
    """Commit the plan; None if the merge must be planned again.

    That is also the case if reading failed after another merge, or after a compaction of the generations: a collection
    may have deleted them.
    """
    try:
        return _carry_out(merger, plan, planned)
    except (Corrupt, Invalid):
        newest = merger.open_base()
        if (
            (newest.counters, newest.fence) == (planned.counters, planned.fence)  # guard: failed merge is replanned
            and merger.lists(plan)  # guard: merge of compacted generations is replanned
        ):
            raise
        return None


def _carry_out(merger: _Merger, plan: MergePlan, planned: BaseTable) -> _Done | None:
    """Commit the plan; None if the merge must be planned again."""
    names = merger.read_sequence()
    delta, deletes = _fold(merger, plan, planned, names)
    base = planned
    with beside(partial(_write, merger, delta), most=_threads(merger, delta, base)) as written:
        for _ in range(ATTEMPTS):
            merge_base = replace(delta.merge_base, base=Base.of(base), schema=base.schema, sequence=())
            delta = Delta(merge_base=merge_base, parts=delta.parts)
            hidden = _hide(merger, delta, base)  # guard: replaced rows are looked up after each conflict
            outcome = _commit(merger, plan, base, hidden, written(), live=delta.live, deletes=deletes)
            if isinstance(outcome, CommittedVersion):
                opened = outcome.dataset
                committed = opened and base_of(opened, uri=merger.uri, storage_options=merger.storage_options)
                return _Done(merged=_merged(plan, planned, delta, hidden, outcome.version), base=committed)
            newest = _newest_base(merger, outcome)
            if outcome is None and plan.reached(newest.counters):
                return _Done(merged=_merged(plan, planned, delta, hidden, newest.version), base=newest)
            if not _rows_are_valid(merger, planned, newest):
                return None
            base = newest
    return None


def _threads(merger: _Merger, delta: Delta, base: BaseTable) -> int:
    """Return how many threads may write and hide rows. For few rows, a second one costs more than it saves."""
    return merger.parallel if delta.keys + base.rows > _ROWS_FOR_THREADS else 1


def _merged(plan: MergePlan, planned: BaseTable, delta: Delta, hidden: Iterable[Hidden], version: int) -> Merged:
    return Merged(
        regions=plan.counters(planned.counters),
        merged_now={region.region: region.through for region in plan.regions},
        generations=sum(len(region.generations) for region in plan.regions),
        rows_upserted=delta.live,
        rows_deleted=sum(one.dead for one in hidden),
        base_version=version,
    )


def _rows_are_valid(merger: _Merger, written_on: BaseTable, base: BaseTable) -> bool:
    """Return whether rows written on one version may be committed on another.

    A raised fence means that a sweep deletes unreferenced files, so the written rows may be gone. A restored base has
    its old fence again, so this function checks every version in between too.
    """
    between = range(written_on.version + 1, base.version)
    if len(between) > _VERSIONS_READ:
        return False
    try:
        passed = [  # guard: fence of a version in between counts
            open_base(uri=base.uri, version=one, storage_options=merger.storage_options) for one in between
        ]
    except Invalid:  # a version was cleaned up, so its fence is unknown
        return False
    return all(
        one.counters == written_on.counters  # guard: rows fit the counters
        and one.ttl == written_on.ttl  # guard: rows fit the time to live
        and one.fence == written_on.fence  # guard: rows fit the fence
        and one.schema.columns.equals(written_on.schema.columns, check_metadata=True)  # guard: rows fit the schema
        for one in [*passed, base]
    )


def _newest_base(merger: _Merger, outcome: Preempted | None) -> BaseTable:
    """Open the newest base after a commit that was refused or had no answer."""
    try:
        return merger.open_base()
    except Unavailable as cause:
        if outcome is not None:
            raise
        raise Ambiguous(
            "the merge may have been committed: neither the commit nor the read of the base after it had an answer",
            remedy="Merge again: no generation is merged twice",
            table=merger.uri,
        ) from cause


def _fold(merger: _Merger, plan: MergePlan, base: BaseTable, names: tuple[str, ...]) -> tuple[Delta, Mapping[str, str]]:
    """Return the delta, and the schema metadata that keeps the sequences of its deletes."""
    expiry = base.expiry(merger.clock.now() - merger.skew_seconds)
    merge_base = MergeBase(base=Base.of(base), schema=base.schema, copies=merger.copies, sequence=names, expiry=expiry)
    sources = [_newest_first(region, merger.uri) for region in plan.regions]
    folded = merger.runner.map(partial(tasks.fold_delta, merge_base), sources)
    parts = [part for parts in folded for part in parts]
    deletes = keep_deletes(  # guard: merge keeps the sequences of its deletes
        base,
        merger.objects,
        [(part.source.region, part.deleted) for part in parts if part.deleted is not None],
        late=[(part.source.region, part.late) for part in parts],
        names=names,
        now=merger.clock.now(),
        keep_seconds=merger.keep_deletes_seconds,
    )
    return Delta(merge_base=merge_base, parts=tuple(replace(part, deleted=None) for part in parts)), deletes


def _newest_first(region: RegionPlan, uri: str) -> tuple[Source, ...]:
    return tuple(
        Source(
            region=region.region,
            generation=number,
            uri=f"{uri.rstrip('/')}/{path}",
            key=path,
            sums=region.sums.get(number),
        )
        for number, path in reversed(region.generations)  # guard: newer generation wins in a merge
    )


def _write(merger: _Merger, delta: Delta) -> list[NewFragment]:
    writers = min(merger.runner.parallelism, -(-delta.live // _ROWS_PER_WRITER))
    shares = balanced(delta.parts, [part.live for part in delta.parts], max(writers, 1))
    written = merger.runner.map(partial(tasks.write_live_rows, delta.merge_base), shares)
    return [fragment for fragments in written for fragment in fragments]


def _hide(merger: _Merger, delta: Delta, base: BaseTable) -> list[Hidden]:
    """Hide all base rows that the delta replaces. Each fragment is searched by the index or by a scan."""
    run, parallelism = merger.runner.map, merger.runner.parallelism
    indexed = _fragments_to_look_up(delta, base)
    hidden: list[Hidden] = []
    if indexed:
        shares = min(parallelism, -(-delta.keys // replaced_rows.INDEX_RUN_KEYS))
        find = partial(replaced_rows.find_by_index, delta, fragments=tuple(sorted(indexed)))
        found = run(find, [(number, shares) for number in range(shares)])
        finds = replaced_rows.merged_finds(find for finds in found for find in finds)
        groups = balanced(finds, [len(find.offsets) for find in finds], parallelism)
        hidden += [one for many in run(partial(replaced_rows.hide_rows, delta.merge_base.base), groups) for one in many]
    others = [fragment for fragment in base.fragments if fragment.id not in indexed]
    groups_of_ids = balanced([one.id for one in others], [one.rows for one in others], parallelism)
    hidden += [one for many in run(partial(replaced_rows.hide_by_scan, delta), groups_of_ids) for one in many]
    return hidden


def _fragments_to_look_up(delta: Delta, base: BaseTable) -> frozenset[int]:
    """Return the fragments to search by an index on the key; the others are scanned."""
    if len(base.schema.primary_key) != 1:
        return frozenset()
    covered = base_rows.indexed_fragments(delta.merge_base.base, base.schema.primary_key[0])
    present = {fragment.id: fragment.rows for fragment in base.fragments if fragment.id in covered}
    keys = sum(part.rows for part in delta.parts)
    mean = sum(part.key_bytes for part in delta.parts) / max(keys, 1)
    pays = index_pays(keys=delta.keys, rows=sum(present.values()), key_bytes=mean)
    return frozenset(present) if pays else frozenset()


def _commit(
    merger: _Merger,
    plan: MergePlan,
    base: BaseTable,
    hidden: Sequence[Hidden],
    new: Sequence[NewFragment],
    *,
    live: int,
    deletes: Mapping[str, str],
) -> CommittedVersion | Preempted | None:
    """Send one commit; None if there was no answer."""
    target = {region.region: region.through for region in plan.regions}
    written = {f"{MERGED}{region}": str(upto) for region, upto in plan.counters(base.counters).items()}
    written[ROWS] = str(counted_rows(base) + live - sum(one.rows for one in hidden))
    try:
        changed, lines = changed_fragments(base, hidden, objects=merger.objects, ids=merger.ids)
        return base_rows.commit(
            Base.of(base),
            changed=changed,
            new=new,
            metadata={**base.metadata, **written, **deletes},
            properties={"lancelsm.merge": json.dumps(target, sort_keys=True)},
            stating=Stating(
                objects=merger.objects,
                new=(*(line for fragment in new for line in fragment.files), *lines),
                read=old_files(hidden),
            ),
        )
    except Unavailable:
        return None
