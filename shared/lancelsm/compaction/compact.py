"""Compact generations: replace several of a region by one, so that reads stay fast while merges are rare.

A compaction reads neighbouring generations that are not merged, and writes the newest row of each of their keys as one
generation. Tombstones stay, since the base may have rows of their keys. The sum of all rows that it reads must be that
of the generations. The commit is one of a manifest, like that of a flush: it applies only if all of them are still
listed, and if no collection round was committed since the compaction began. Such a round may delete the new directory,
since no manifest names it yet and its number is used.

Readers of an older manifest still read the old directories. A collection deletes these by their rank. Model:
tests/model/generation_compaction.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from lancelsm.common.layout import NO_GENERATION, Generation, RegionId, generation_name, generation_path
from lancelsm.common.memory_budget import MemoryBudget
from lancelsm.common.setsum import Setsum
from lancelsm.compaction.flush import Write
from lancelsm.compaction.fold import FoldedRows
from lancelsm.compaction.maintenance import writing
from lancelsm.compaction.pace import SharedPace
from lancelsm.compaction.tiers import FUNCTION_BYTES, due_parts, size
from lancelsm.dataset.file_ranges import range_reader
from lancelsm.dataset.generation import generation_version, read_generation
from lancelsm.dataset.scrub_reads import own_row_setsum
from lancelsm.errors import Contended, Corrupt, LsmError, error_context
from lancelsm.objects.filesum import check_files
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TableSchema
from lancelsm.region import manifest as manifests
from lancelsm.region.catalog import Region, regions, select_regions, with_heads
from lancelsm.region.compare_and_swap import commit, newest
from lancelsm.region.handle import TableHandle
from lancelsm.region.lease import compaction_lease, lease
from lancelsm.region.manifest import FlushedGeneration, FlushedRange, IndexesChanged, Manifest, Superseded


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedGeneration:
    """One generation that replaces those with the numbers `first_generation` to `generation`.

    `parts` counts the generations that it replaces. Some of them may be compacted ones.
    """

    region: RegionId
    first_generation: Generation
    generation: Generation
    parts: int
    rows: int
    path: str  # relative to the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one invocation of a function compacts at most.

    Args:
        bytes_max: the bytes of the generations that one step replaces; see `compaction.tiers.due_parts`.
        left: gets the regions for which there was no more time.
    """

    pace: SharedPace
    bytes_max: int = FUNCTION_BYTES
    left: list[RegionId] = field(default_factory=list)


def compact_table(
    handle: TableHandle, *, only: Sequence[str] | None = None, leased: bool = False, bounds: Bounds | None = None
) -> list[CompactedGeneration]:
    """Compact regions until none has more than `max_generations` generations that are not merged.

    Args:
        only: compact only these regions, given by their ids.
        leased: compact each region under its lease, which only saves double work, and leave out a region whose lease
            another process holds.
        bounds: limits of time and bytes; none by default. Generations that are too large for them stay as they are.

    Returns:
        The generations that were written. None of a region in which another process was faster.

    Raises:
        Invalid: region not found.
        Corrupt: a generation is missing or damaged, or the new one reads back differently. Nothing of it was committed.
        Contended, Ambiguous, Unavailable: for the reasons of `region.compare_and_swap.commit`. Retry.

    A crash at any line leaves the old generations or the new one. A directory that no manifest names is an orphan.
    """
    context = handle.context
    wanted = regions(context) if only is None else [one for part in only for one in select_regions(context, part)]
    found = with_heads(context, wanted)
    named = context.each(lambda pair: newest(*pair)[1], found)
    base = handle.read_base()
    plans = [
        (of, manifest, counter)
        for (of, _), manifest in zip(found, named, strict=True)
        if _due(handle, manifest, counter := base.counters.get(of.id, NO_GENERATION), bounds)
    ]
    if not plans:
        return []
    handle = handle.with_columns_of(base)
    write, room = writing(handle, base), MemoryBudget(handle.settings.flush_memory_bytes)

    def run(plan: tuple[Region, Manifest, Generation]) -> list[CompactedGeneration]:
        with ExitStack() as held:
            if leased:
                try:
                    held.enter_context(lease(context, compaction_lease(plan[0].id)))
                except Contended:
                    return []
            return _compact_region(handle, *plan, write=write, room=room, bounds=bounds)

    return [one for of_region in context.each(run, plans) for one in of_region]


def _due(
    handle: TableHandle, manifest: Manifest, counter: Generation, bounds: Bounds | None
) -> tuple[FlushedGeneration, ...]:
    bytes_max = None if bounds is None else bounds.bytes_max
    return due_parts(manifest, counter, most=handle.settings.max_generations, bytes_max=bytes_max)


def _compact_region(
    handle: TableHandle,
    region: Region,
    manifest: Manifest,
    counter: Generation,
    *,
    write: Write,
    room: MemoryBudget,
    bounds: Bounds | None,
) -> list[CompactedGeneration]:
    made: list[CompactedGeneration] = []
    while parts := _due(handle, manifest, counter, bounds):
        bytes_of_step = sum(size(part) for part in parts)
        with room.taken(sum(part.bytes or 0 for part in parts)), error_context(**region.where):
            if bounds is not None and not bounds.pace.has_time(bytes_of_step):
                bounds.left.append(region.id)
                break
            done = _compact(handle, region, manifest, parts, write)
        if done is None:
            break
        if bounds is not None:
            bounds.pace.add(bytes_of_step)
        built, manifest = done
        made.append(
            CompactedGeneration(
                region=region.id,
                first_generation=Generation(built.numbers.start),
                generation=built.generation,
                parts=len(parts),
                rows=built.rows or 0,
                path=generation_path(region.id, built.path),
            )
        )
    return made


def _compact(
    handle: TableHandle, region: Region, manifest: Manifest, parts: Sequence[FlushedGeneration], write: Write
) -> tuple[FlushedGeneration, Manifest] | None:
    read = partial(_read, handle, region)
    sum_of = partial(_sum_of_part, handle, region)
    schema = handle.config.schema
    try:
        return compact_parts(region, schema, began=manifest, parts=parts, read=read, write=write, sum_of=sum_of)
    except Corrupt:
        _explain_damage(handle, region, parts)
        raise


Read = Callable[[FlushedGeneration, Sequence[str] | None], Iterator[pa.RecordBatch]]
"""Read columns of a generation with its key, in stored form; None: all columns. The order of rows never changes."""


def flushed_sum(part: FlushedGeneration) -> Setsum:
    """Return the sum of the rows of a generation as they were flushed."""
    return Setsum.ZERO if part.folded is None else part.folded.row_setsum


def compact_parts(
    region: Region,
    schema: TableSchema,
    *,
    began: Manifest,
    parts: Sequence[FlushedGeneration],
    read: Read,
    write: Write,
    sum_of: Callable[[FlushedGeneration], Setsum] = flushed_sum,
) -> tuple[FlushedGeneration, Manifest] | None:
    """Replace neighbouring generations of a manifest by one.

    Args:
        write: see `compaction.flush.Write`.
        sum_of: returns the sum of the rows of a generation as `read` returns them.

    Returns:
        The generation and the manifest that lists it, once the head names that manifest. None if another process
        replaced a part, a collection round was committed, or an index was created since: nothing was committed.

    Raises: the same errors as `compact_table`.
    """
    try:
        built, index_number = _write(region, schema, parts, read, write, sum_of)
    except LsmError:
        if _is_superseded(region, began, parts):  # guard: superseded compaction raises no error
            return None
        raise
    step = partial(
        manifests.compacted,
        parts=[part.path for part in parts],
        built=built,
        collector_round=began.collector_round,
        index_number=index_number,
    )
    try:
        done = commit(region, step)
    except IndexesChanged:  # what was written is an orphan
        return None
    return None if isinstance(done, Superseded) else (built, done.manifest)


def _is_superseded(region: Region, began: Manifest, parts: Sequence[FlushedGeneration]) -> bool:
    """Return whether the commit would be superseded: then a sweep may have deleted what is read or written."""
    _, now = newest(region, region.head())
    listed = {g.path for g in now.generations}
    return now.collector_round != began.collector_round or any(part.path not in listed for part in parts)


def _write(
    region: Region,
    schema: TableSchema,
    parts: Sequence[FlushedGeneration],
    read: Read,
    write: Write,
    sum_of: Callable[[FlushedGeneration], Setsum],
) -> tuple[FlushedGeneration, int]:
    """Write the generation that replaces these, and read it back. Return it with the number of its list of indexes."""
    joined = manifests.joined_range(parts)
    assert joined is not None, "only generations with sums are compacted"
    first, last, entries = joined
    generation = parts[-1].generation
    name = generation_name(generation, region.context.ids.nonce())
    rows = FoldedRows(
        pa.concat_tables([_keys(region, schema, part, read) for part in parts]),
        (batch for part in parts for batch in _rows(region, part, read)),
        schema,
        bytes_given=sum(part.bytes or 0 for part in parts),
        expected=sum((sum_of(part) for part in parts), start=Setsum.ZERO),
        problem="the rows of generations don't have the sum that was flushed",
        where={"generation": f"{parts[0].numbers.start}..{generation}"},
    )
    stored = write(generation_path(region.id, name), rows)
    built = FlushedGeneration(
        generation=generation,
        path=name,
        rows=rows.keys.num_rows,
        bytes=rows.bytes,
        folded=FlushedRange(
            first=first,
            last=last,
            entry_setsum=entries,
            row_setsum=rows.setsum,
            file_setsum=stored.file_setsum,
            bloom_setsum=stored.bloom_setsum,
            key_index_setsums=stored.key_index_setsums,
        ),
        indexes=stored.indexes,
        keys=stored.keys,
        first_number=Generation(parts[0].numbers.start),
    )
    return built, stored.index_number


def _keys(region: Region, schema: TableSchema, part: FlushedGeneration, read: Read) -> pa.Table:
    names = list(schema.primary_key)
    batches = [batch.select(names) for batch in read(part, ())]
    keys = pa.Table.from_batches(batches, schema=pa.schema([schema.stored.field(name) for name in names]))
    if keys.num_rows != part.rows:
        what = f"a generation has {keys.num_rows} rows, but {part.rows} were flushed"
        raise Corrupt(what, object=generation_path(region.id, part.path))
    return keys


def _rows(region: Region, part: FlushedGeneration, read: Read) -> Iterator[pa.RecordBatch]:
    left = part.rows or 0
    for batch in read(part, None):
        left -= batch.num_rows
        if left < 0:
            break
        yield batch
    if left:
        raise Corrupt("a generation changed while it was read", object=generation_path(region.id, part.path))


def _read(
    handle: TableHandle, region: Region, part: FlushedGeneration, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    return read_generation(
        uri=f"{handle.context.uri}/{generation_path(region.id, part.path)}",
        schema=handle.config.schema,
        columns=columns,
        row_bytes=(part.bytes or 0) // (part.rows or 1),
        storage_options=handle.storage_options,
    )


def _sum_of_part(handle: TableHandle, region: Region, part: FlushedGeneration) -> Setsum:
    """Return the sum of the rows of a generation in the columns of now; raise `Corrupt` if they are not as flushed.

    If the generation was written under older columns, its rows are read twice: as they were flushed, to compare them
    with their sum, and as they are read now.
    """
    schema, options = handle.config.schema, handle.storage_options
    uri = f"{handle.context.uri}/{generation_path(region.id, part.path)}"
    if not schema.history.changes or generation_version(uri=uri, storage_options=options) == schema.version:
        return flushed_sum(part)
    own = own_row_setsum(uri=uri, schema=schema, storage_options=options)
    if own != flushed_sum(part):
        raise _changed(generation_path(region.id, part.path))
    return sum((row_setsum(batch) for batch in _read(handle, region, part, None)), start=Setsum.ZERO)


def _changed(key: str) -> Corrupt:
    return Corrupt(
        "the rows of a generation differ from those that were flushed",
        remedy="Nothing was compacted. Restore it from a copy of the bucket; lancelsm scrub names all damage",
        object=key,
    )


def _explain_damage(handle: TableHandle, region: Region, parts: Sequence[FlushedGeneration]) -> None:
    """Raise the error that names the damaged generation, if one is damaged.

    Raises:
        Corrupt: the files or rows of a generation are not those that were flushed.
    """
    for part in parts:
        folded, key = part.folded, generation_path(region.id, part.path)
        assert folded is not None, "only generations with sums are compacted"
        if folded.file_setsum is not None:
            read_range = range_reader(handle.context.uri, handle.storage_options)
            check_files(region.context.objects, key, folded.file_setsum, read_range=read_range)
        uri, schema = f"{handle.context.uri}/{key}", handle.config.schema
        if own_row_setsum(uri=uri, schema=schema, storage_options=handle.storage_options) != folded.row_setsum:
            raise _changed(key)
