"""Flush: write committed WAL entries as one generation and commit the manifest that lists it.

In an AWS deployment the function named `compaction` runs this module. `writer_flush` only appends, despite its name.

A flush commits only if the manifest still has the replay point and the generation number of its plan. It recognises its
own earlier commit by the generation's directory in the manifest. Generations are flushed in order: after a failed flush
the next one takes the same number. Spec: lance-memwal, "Flushed MemTable". Model: tests/model/head_commits.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lancelsm.common.layout import Generation, Position, generation_name, generation_path
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Contended, Corrupt, LsmError, error_context
from lancelsm.record.key import fold
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TableSchema
from lancelsm.region import manifest as manifests
from lancelsm.region.catalog import Region
from lancelsm.region.compare_and_swap import commit, newest
from lancelsm.region.head import LogTotals
from lancelsm.region.manifest import FlushedGeneration, FlushedRange, GenerationIndexes, Manifest, Superseded
from lancelsm.wal.entry import Entry
from lancelsm.wal.replay import stored_rows, tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A written generation: bytes of the rows in memory, setsum of the data files, setsum of the bloom filter.

    `index_number` is the number of the wanted list of indexes that it was built for.
    """

    bytes: int
    file_setsum: Setsum
    bloom_setsum: Setsum | None = None  # None: no bloom filter
    index_number: int = 0
    indexes: GenerationIndexes | None = None


Write = Callable[[str, pa.Table, Setsum], Stored]
"""Write rows as a generation at a key, then sum its files, then read the rows back and compare their setsum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPlan:
    """What one flush will write. Valid only while the manifest has the same replay point and generation number."""

    generation: Generation
    after: Position  # the last position that is already in a generation
    entries: tuple[Entry, ...]  # the entries of the generation, from `after` + 1
    before: LogTotals  # totals of the log through `after`

    @property
    def through(self) -> Position:
        return self.entries[-1].summary.position

    @property
    def at_end(self) -> LogTotals:
        """Totals of the log through the last entry of the plan."""
        return self.before.after(entry.summary for entry in self.entries)


def plan_flush(manifest: Manifest, entries: Sequence[Entry], *, rows_max: int, bytes_max: int) -> FlushPlan | None:
    """Take entries from the start of the tail up to either limit, but always at least one entry with rows.

    Return None if the tail holds no rows: fences alone are not flushed.
    """
    rows = size = taken = 0
    for entry in entries:
        if rows and (rows + entry.summary.rows > rows_max or size + entry.summary.bytes > bytes_max):
            break
        rows, size, taken = rows + entry.summary.rows, size + entry.summary.bytes, taken + 1
    if not rows:
        return None
    return FlushPlan(
        generation=manifest.current_generation,
        after=manifest.replay_after,
        entries=tuple(entries[:taken]),
        before=manifest.totals,
    )


def flush(
    region: Region, schema: TableSchema, *, write: Write, rows_max: int, bytes_max: int
) -> FlushedGeneration | None:
    """Write the start of the region's tail as its next generation.

    Args:
        schema: the table's; the generation is written in its stored form.
        write: see `Write`.
        rows_max, bytes_max: limits of the entries in one generation; entries are not split.

    Returns:
        The generation, once the head names a manifest that lists it. None if there was nothing to flush, or another
        flush took the same entries first.

    Raises:
        Corrupt: the tail is not what was committed, or rows were lost or changed while they were written. Nothing was
            committed.
        IndexesChanged: an index was created meanwhile; write with the newest list of indexes.
        Contended, Ambiguous, Unavailable: for the same reasons as in `region.compare_and_swap.commit`. Retry: a
            committed flush is not repeated.

    After a crash at any line either the entries or the generation hold all rows. A directory that no manifest names is
    an orphan.
    """
    plan = _planned(region, rows_max=rows_max, bytes_max=bytes_max)
    if plan is None:
        return None
    rows, row_sum = _folded(region, schema, plan)
    name = generation_name(plan.generation, region.context.ids.nonce())
    try:
        stored = write(generation_path(region.id, name), rows, row_sum)
    except LsmError:
        # If another flush has taken the number, this directory is an orphan, and a sweep may already have deleted it.
        if _is_dead(region, plan):  # guard: superseded flush raises no error
            return None
        raise
    totals = plan.at_end
    built = FlushedGeneration(
        generation=plan.generation,
        path=name,
        rows=rows.num_rows,
        bytes=stored.bytes,
        folded=FlushedRange(
            first=Position(plan.after + 1),
            last=plan.through,
            entry_setsum=totals.entry_setsum - plan.before.entry_setsum,
            row_setsum=row_sum,
            file_setsum=stored.file_setsum,
            bloom_setsum=stored.bloom_setsum,
        ),
        indexes=stored.indexes,
    )
    number = stored.index_number
    outcome = commit(
        region,
        lambda manifest: manifests.flushed(manifest, after=plan.after, built=built, at_end=totals, index_number=number),
    )
    return None if isinstance(outcome, Superseded) else built


def _is_dead(region: Region, plan: FlushPlan) -> bool:
    """Return whether another flush took the generation number or the entries of the plan."""
    _, manifest = newest(region, region.head())
    return (manifest.current_generation, manifest.replay_after) != (plan.generation, plan.after)


def _planned(region: Region, *, rows_max: int, bytes_max: int) -> FlushPlan | None:
    for _ in region.context.budget().attempts():
        head, manifest = newest(region, region.head())
        entries = tail(region, head, manifest)
        if entries is not None:
            return plan_flush(manifest, entries, rows_max=rows_max, bytes_max=bytes_max)
    raise Contended("the log was collected while it was read", remedy="Retry", **region.where)


def _folded(region: Region, schema: TableSchema, plan: FlushPlan) -> tuple[pa.Table, Setsum]:
    """Return the newest row of each key, tombstones included, and their setsum.

    Raises `Corrupt` unless the sum of the entries is the sum of kept and superseded rows.
    """
    tables, replayed = [], Setsum()
    for entry in plan.entries:
        if entry.summary.rows:
            with error_context(**region.where):
                table = stored_rows(entry, schema)
            tables.append(table)
            replayed += row_setsum(table) if entry.row_setsum is None else entry.row_setsum
    folded = fold(pa.concat_tables(tables).combine_chunks(), schema.primary_key)
    kept = row_setsum(folded.rows)
    if kept + row_setsum(folded.superseded) != replayed:  # guard: flush loses no row
        raise Corrupt(
            "the rows of the log don't have the sum that its entries declare",
            remedy=f"Find and restore the entry: lancelsm inspect entries {region.context.uri} --region {region.id}",
            **region.where,
            position=f"{plan.after + 1}..{plan.through}",
        )
    return folded.rows, kept
