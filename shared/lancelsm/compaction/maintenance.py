"""Maintain a table: flush its regions, merge its generations, optimize its base. Any process may run each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from lancelsm.common.free_memory import release_free_memory
from lancelsm.common.full_disk import is_full, no_room
from lancelsm.common.layout import Generation, Position, RegionId, generation_path
from lancelsm.common.memory_budget import MemoryBudget
from lancelsm.common.task_pool import in_threads
from lancelsm.compaction.engine import committed_manifests, runner_of
from lancelsm.compaction.expired import remove_expired
from lancelsm.compaction.flush import Stored, Write, flush
from lancelsm.compaction.fold import FoldedRows
from lancelsm.compaction.indexes import (
    build_generation,
    extend,
    index_key,
    maintain_indexes,
    raise_number,
    retrain,
    unfinished,
)
from lancelsm.compaction.merge import Merged, merge_generations
from lancelsm.compaction.optimize import Optimized, optimize_base
from lancelsm.compaction.pace import Pace
from lancelsm.compaction.plan import RegionPending, Sums
from lancelsm.compaction.runner import Engine, TaskRunner
from lancelsm.compaction.snapshot_regions import snapshot_regions
from lancelsm.dataset.base_table import BaseTable
from lancelsm.dataset.durable import make_durable
from lancelsm.dataset.file_ranges import range_reader
from lancelsm.dataset.generation import check_generation
from lancelsm.dataset.generation_writer import discard_generation, threads_for, write_generation
from lancelsm.dataset.indexes import wanted_list
from lancelsm.errors import Contended, Corrupt, Unavailable, error_context
from lancelsm.objects.filesum import FileSums, sum_files
from lancelsm.objects.local_copies import LocalCopies
from lancelsm.objects.location import local_path
from lancelsm.read.problems import warn_of_problems
from lancelsm.record.key_bounds import key_bounds
from lancelsm.record.schema import NewerSchema
from lancelsm.region import head as heads
from lancelsm.region.catalog import Region, regions, with_heads
from lancelsm.region.compare_and_swap import CommittedManifest, newest, read_committed
from lancelsm.region.config import newest_sequence
from lancelsm.region.drift import Drifted, drift, resume, stop_writers
from lancelsm.region.handle import TableHandle
from lancelsm.region.head import Head
from lancelsm.region.lease import BASE_LEASE, INDEXES_LEASE, lease
from lancelsm.region.manifest import FlushedGeneration, GenerationKeys, IndexesChanged, Manifest
from lancelsm.region.unfinished_change import finish_if_begun, raise_version
from lancelsm.wal.replay import AHEAD_BYTES

_STAGED_BYTES = 128 << 20  # of rows; from more of them, a generation is written to an object store directly
_LARGE_BYTES = 64 << 20  # of rows: to give back the memory of fewer is not worth the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """One generation that a flush wrote.

    Args:
        generation: its number in the region, from 1.
        rows: how many rows it has, with tombstones.
        path: its directory, relative to the table.
        through: the position of the last log entry whose rows are in it.
    """

    region: RegionId
    generation: Generation
    rows: int
    path: str
    through: Position


def flush_table(handle: TableHandle) -> list[Flushed]:
    """Flush every region: when this returns, all rows acknowledged before the call are in generations.

    Raises:
        Corrupt: for the reasons of `compaction.flush.flush`; or the base belongs to another table.
        Contended, Ambiguous, Unavailable: for the reasons of `compaction.flush.flush`.
    """
    return flush_regions(handle, lambda: regions(handle.context), all_of_them=True, stacklevel=4)


FlushOne = Callable[..., list[Flushed]]
"""`flush_region` for one region; takes only a `pace`."""


def flush_regions(
    handle: TableHandle,
    list_regions: Callable[[], Sequence[Region]],
    *,
    run: Callable[[Region, FlushOne], list[Flushed]] = lambda _, flush_one: flush_one(),
    all_of_them: bool = False,
    stacklevel: int = 3,
) -> list[Flushed]:
    """Flush some regions, several at a time, within the memory of one flush.

    Args:
        list_regions: lists them. The list of indexes is read after that: see `compaction.indexes`.
        run: calls its second argument to flush the region, or leaves the region out.
        all_of_them: whether these are all regions of the table.

    Raises: the same errors as `flush_table`.
    """
    context, room = handle.context, MemoryBudget(handle.settings.flush_memory_bytes)
    wanted = list_regions()
    heads_read = with_heads(context, wanted)
    base = handle.read_base()  # guard: list of indexes is read after the regions
    handle = handle.with_columns_of(base)
    write = writing(handle, base)
    warn_of_problems(handle, base=base, heads=heads_read if all_of_them else None, stacklevel=stacklevel)
    held = {one.id: head for one, head in heads_read}

    def flush_one(region: Region) -> list[Flushed]:
        one = partial(flush_region, handle, region, held=held.get(region.id), write=write, room=room)
        return run(region, one)

    return [flushed for of_region in context.each(flush_one, wanted) for flushed in of_region]


def flush_region(
    handle: TableHandle,
    region: Region,
    *,
    held: Head | None = None,
    write: Write | None = None,
    room: MemoryBudget | None = None,
    pace: Pace | None = None,
) -> list[Flushed]:
    """Flush one region until generations hold all entries that a head shows; a concurrent flush counts too.

    Args:
        held: the head; by default, or if the region had none when the caller looked, it is read now.
        write: see `compaction.flush.Write`.
        room: memory that this flush shares with those of other regions.
        pace: ends the flush before the end of the log if the time is over.

    Raises: the same errors as `flush_table`.
    """
    made: list[Flushed] = []
    head = held or region.find_head()
    if head is None:
        return made
    found = read_committed(region, head)
    seen: CommittedManifest | None = found
    head, manifest = found.head, found.manifest
    end, reached = head.next_position - 1, manifest.replay_after
    if write is None:
        handle, write = _newest_writing(handle)
    room = room or MemoryBudget(handle.settings.flush_memory_bytes)
    bytes_max = min(handle.settings.flush_bytes, handle.settings.flush_memory_bytes)
    while reached < end:
        mean = (head.wal_bytes - manifest.wal_bytes) // (end - reached)
        wanted = min(head.wal_bytes - manifest.wal_bytes, max(bytes_max, mean) + AHEAD_BYTES)
        with room.taken(wanted), error_context(**region.where):
            run = partial(flush, region, rows_max=handle.settings.flush_rows, bytes_max=bytes_max)
            if pace is not None:
                run = partial(run, has_time=pace.has_time)
            try:
                built = run(handle.config.schema, write=write, seen=seen)
            except (IndexesChanged, NewerSchema) as outdated:
                if isinstance(outdated, IndexesChanged):
                    raise_number(handle, outdated.required)
                handle, write = _newest_writing(handle)
                built = run(handle.config.schema, write=write)
        seen = None
        made += [_flushed(region, one) for one in built]
        # If nothing was flushed, another flush took these entries and moved the replay point, or only fences are left.
        now = made[-1].through if built else newest(region, region.head())[1].replay_after
        if now == reached or (pace is not None and pace.stopped):
            break
        reached = now
    return made


def _newest_writing(handle: TableHandle) -> tuple[TableHandle, Write]:
    """Return the handle with the newest columns, and `writing` for them."""
    base = handle.read_base()
    handle = handle.with_columns_of(base)
    return handle, writing(handle, base)


def _flushed(region: Region, built: FlushedGeneration) -> Flushed:
    assert built.folded is not None, "a flush records its range"
    return Flushed(
        region=region.id,
        generation=built.generation,
        rows=built.rows or 0,
        path=generation_path(region.id, built.path),
        through=built.folded.last,
    )


def merge_table(handle: TableHandle, *, engine: Engine = "auto", runner: TaskRunner | None = None) -> Merged:
    """Merge all pending generations of all regions into the base.

    Args:
        engine: where the merge runs; `auto` decides by the sizes of delta and base.
        runner: runs the tasks, instead of the one of `engine`.

    Raises:
        Invalid: unknown engine; or another tool changed the base (`region.drift`).
        Contended: another process holds the lease of the base, or keeps changing the base.
        Ambiguous, Unavailable, Corrupt: for the reasons of `compaction.merge.merge_generations`.
    """
    context = handle.context

    read: list[tuple[Region, CommittedManifest]] = []  # the newest heads that were read
    looked: list[BaseTable] = []

    def read_regions() -> list[RegionPending]:
        read[:] = committed_manifests(handle, with_heads(context, regions(context)))
        return [_pending(region, found.manifest) for region, found in read]

    def check(base: BaseTable) -> None:
        wrong = drift(base, handle.config)
        if wrong is not None:
            stop_writers(context, wrong)  # guard: merge that meets drift stops writers
            raise wrong
        if not looked:
            looked.append(base)
            finish_if_begun(handle, base)
            heads_read = [(region, found.head) for region, found in read]
            warn_of_problems(handle, base=base, heads=heads_read, merging=True, stacklevel=3)

    with error_context(table=context.uri), lease(context, BASE_LEASE), _full_disk(context.uri):
        merged = merge_generations(
            uri=context.uri,
            table=context.table,
            read_regions=read_regions,
            check=check,
            objects=context.objects,
            runner=runner or runner_of(handle, engine),
            clock=context.clock,
            ids=context.ids,
            storage_options=handle.storage_options,
            read_sequence=lambda: newest_sequence(context.objects, handle.config, uri=context.uri),
            keep_deletes_seconds=handle.settings.keep_delete_sequences_seconds,
            skew_seconds=handle.settings.skew_allowance_seconds,
            parallel=context.parallel,
        )
    for region, found in read:
        _report(region, found, merged.regions.get(region.id, Generation(0)), handle.config.schema.version)
    return merged


def optimize_table(handle: TableHandle, *, pace: Pace | None = None) -> Optimized:
    """Maintain the indexes, hide rows that have expired, and compact the base if that is due.

    See `compaction.expired.remove_expired` and `compaction.optimize.optimize_base`.

    The base is compacted in batches, each by a commit of its own. Between two of them a merge may come first; then the
    next batch is planned on its result.

    The indexes of the base catch up, every listed generation gets those that it lacks, and then Lance's readers are
    promised them (`compaction.indexes`). That needs no lease of the base, so it does not wait for a merge. Then the
    region snapshot for eventual reads is written. Training indexes for vectors comes last, since it may take long.

    Args:
        pace: ends the compaction after a batch if the time is over; then `left` is True.

    Raises:
        Contended: a merge or another optimize is running. The indexes may be up to date.
        Unavailable: the store did not answer.
    """
    with lease(handle.context, INDEXES_LEASE):
        indexed = index_key(handle)
        indexed |= maintain_indexes(handle)
        indexed |= extend(handle)
    removed = added = 0
    extended = False
    expired: int | None = None
    while True:
        with lease(handle.context, BASE_LEASE):
            base = handle.read_base()
            expired = remove_expired(handle, base) if expired is None else expired
            done = optimize_base(
                uri=handle.context.uri,
                objects=handle.context.objects,
                small_fragments=handle.settings.optimize_small_fragments,
                deleted_share=handle.settings.optimize_deleted_percent / 100,
                has_new_indexes=indexed,
                stalled_indexes=wanted_list(base).stalled,
                storage_options=handle.storage_options,
            )
            removed, added = removed + done.fragments_removed, added + done.fragments_added
            extended |= done.indexes_extended
            if not done.left or (pace is not None and not pace.has_time(1, 1)):
                changed = snapshot_regions(handle)
                break
    done = replace(
        done, fragments_removed=removed, fragments_added=added, indexes_extended=extended, rows_expired=expired
    )
    if done.left:
        return replace(done, base_version=handle.read_base().version, indexes_extended=extended or indexed)
    trained = retrain(handle)
    if changed or trained:
        done = replace(done, base_version=handle.read_base().version)
    return replace(done, indexes_extended=done.indexes_extended or indexed or trained)


def finish_indexes(handle: TableHandle) -> None:
    """Finish indexes whose creation or drop was interrupted; do nothing if another process maintains them.

    Raises: `Corrupt` or `Unavailable`, like `compaction.indexes.maintain_indexes`.
    """
    with suppress(Contended):
        if unfinished(handle):
            with lease(handle.context, INDEXES_LEASE):
                maintain_indexes(handle)


def writing(handle: TableHandle, base: BaseTable) -> Write:
    """Return the function by which a flush or a compaction writes a generation of this table and reads it back.

    It writes by the configuration, also if the base has other columns: what was appended before stays readable, and is
    merged once the base is in order.
    """
    schema, options = handle.config.schema, handle.storage_options
    indexes, read_range = wanted_list(base), range_reader(handle.context.uri, options)
    wrong = drift(base, handle.config)
    if wrong is not None:
        stop_writers(handle.context, wrong)  # guard: flush that meets drift stops writers
        if not isinstance(wrong, Drifted):
            raise wrong

    def write(key: str, rows: FoldedRows) -> Stored:
        try:
            with _full_disk(handle.context.uri):
                return write_and_check(key, rows)
        except Unavailable:  # such as a full disk, which each try would fill more
            discard_generation(f"{handle.context.uri}/{key}")
            raise

    def write_and_check(key: str, rows: FoldedRows) -> Stored:
        uri, count = f"{handle.context.uri}/{key}", rows.keys.num_rows
        made = write_generation(
            uri=uri,
            keys=rows.keys,
            rows=rows.batches(),
            schema=schema,
            data_storage_version=base.data_storage_version,
            staged=local_path(uri) is None and rows.bytes_given <= _STAGED_BYTES,
            parallel=handle.context.parallel,
            storage_options=options,
        )
        if rows.bytes_given >= _LARGE_BYTES:  # the writer's threads keep it, and reading back would need as much again
            release_free_memory()
        summed: list[FileSums] = []

        def check() -> None:
            # Sum the files before reading the rows: a change in between must not count as written.
            with LocalCopies(uri) as copies:
                copy = copies.begin(key)
                summed.append(sum_files(handle.context.objects, key, copy=copy, read_range=read_range))
                check_generation(
                    uri=uri,
                    schema=schema,
                    rows=count,
                    setsum=rows.setsum,
                    row_bytes=rows.bytes // count,
                    copy=copy.location,
                    storage_options=options,
                )

        threads = threads_for(count, handle.context.parallel)
        in_threads(lambda run: run(), (check, partial(make_durable, uri)), most=threads)
        return Stored(
            file_setsum=summed[0].setsum,
            bloom_setsum=made.bloom,
            key_index_setsums=made.key_index,
            index_number=indexes.number,
            indexes=build_generation(handle, key, indexes),
            keys=GenerationKeys(
                bounds=key_bounds(rows.keys.select(list(schema.primary_key))),
                filter_blocks=made.filter_blocks,
                filter_setsum=made.key_filter,
            ),
        )

    return write


@contextmanager
def _full_disk(uri: str) -> Iterator[None]:
    """Report a full disk instead of the damage that it causes: Lance does not notice each write that fails."""
    try:
        yield
    except Corrupt as error:
        path = local_path(uri)
        if path is not None and is_full(str(path)):
            raise no_room(f"what was written reads back differently: {error.message}", table=uri) from error
        raise


def _pending(region: Region, manifest: Manifest) -> RegionPending:
    listed = tuple((g.generation, generation_path(region.id, g.path)) for g in manifest.generations)
    sums = {
        g.generation: Sums(rows=g.folded.row_setsum, files=g.folded.file_setsum)
        for g in manifest.generations
        if g.folded
    }
    spans = {g.generation: g.numbers for g in manifest.generations if len(g.numbers) > 1}
    return RegionPending(region=region.id, newest=manifest.newest, generations=listed, sums=sums, spans=spans)


def _report(region: Region, seen: CommittedManifest, through: Generation, schema_version: int) -> None:
    """Record in the head what is merged, for backpressure and schedules. Advisory, so a lost swap is not repeated.

    But a region that stays dirty although the base has everything costs reads of each schedule until the next write.
    So after a refused swap the region is read once more: a compaction changes the manifest, and adds no rows.

    Args:
        seen: as it was when the merge began. If the region has changed since, a swap that depends on it is refused.
        schema_version: the version of the columns in the configuration; a crash may have left it out of the head.
    """
    head, manifest = seen.head, seen.manifest
    head = resume(region, head)  # a merge found the base in order
    with suppress(Contended):
        head = raise_version(region, head, schema_version)
    for is_last in (False, True):
        has_all = head.current_generation - 1 == manifest.newest == through and manifest.wal_rows == head.wal_rows
        if not head.dirty or not has_all:
            break
        if isinstance(region.swap(heads.cleaned(head, through)), Head):
            return
        if not is_last:
            head, manifest = newest(region, region.head())
    step = heads.merged(head, through, began=seen.head if through >= seen.manifest.newest else None)
    if step is not None:
        region.swap(step)
