"""Fold committed WAL entries into one generation.

A flush never loses to a later one: it carries its precondition (replay point, generation) and is recognised by its own
directory in the manifest. A failed flush of generation i blocks i + 1, since both would take the same number.
Spec: lance-memwal, "Flushed MemTable". Model: tests/model/head_commits.py.
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
from lancelsm.region.manifest import Dead, FlushedGeneration, Folded, Manifest
from lancelsm.wal.entry import Entry
from lancelsm.wal.replay import stored_rows, tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What became of the rows: their bytes in memory, and the sums of the files with them and of the filter."""

    bytes: int
    file_setsum: Setsum
    bloom_setsum: Setsum | None = None  # None: there is none


Write = Callable[[str, pa.Table, Setsum], Stored]
"""Write rows as a generation at a key, sum its files, and read the rows back against their setsum, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPlan:
    """What one flush will do, fixed before it writes. Valid only while the manifest still has this replay point."""

    generation: Generation
    after: Position  # the last position that is in a generation already
    entries: tuple[Entry, ...]  # those that follow; the last one ends the generation
    before: LogTotals  # of the log through `after`

    @property
    def through(self) -> Position:
        return self.entries[-1].summary.position

    @property
    def at_end(self) -> LogTotals:
        """The log's totals through the last entry."""
        return self.before.after(entry.summary for entry in self.entries)


def plan_flush(manifest: Manifest, entries: Sequence[Entry], *, rows_max: int, bytes_max: int) -> FlushPlan | None:
    """Take entries from the start of the tail until one of the sizes is reached, at least one with rows.

    Returns None if the tail holds no rows: fences alone wait for the next ones.
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
    """Fold the start of the region's tail into its next generation.

    Args:
        schema: the table's, in whose stored form the generation is written.
        write: see `Write`.
        rows_max, bytes_max: how much WAL one generation takes, in whole entries.

    Returns:
        The generation once the head names a manifest with it; None if there was nothing to flush, or another flush
        took the same entries first.

    Raises:
        Corrupt: the tail is not what was committed, or rows got lost or changed on the way; nothing was committed.
        Contended, Ambiguous, Unavailable: as `region.compare_and_swap.commit`. Run again: a flush that was committed is
            not repeated.

    A crash at any line leaves the tail or the generation, each whole; a directory that no manifest names is an orphan.
    """
    plan = _planned(region, rows_max=rows_max, bytes_max=bytes_max)
    if plan is None:
        return None
    rows, row_sum = _folded(region, schema, plan)
    name = generation_name(plan.generation, region.context.ids.nonce())
    try:
        stored = write(generation_path(region.id, name), rows, row_sum)
    except LsmError:
        # Once another flush has taken the number, this directory is an orphan and may be swept at any moment.
        if _is_dead(region, plan):
            return None
        raise
    totals = plan.at_end
    built = FlushedGeneration(
        generation=plan.generation,
        path=name,
        rows=rows.num_rows,
        bytes=stored.bytes,
        folded=Folded(
            first=Position(plan.after + 1),
            last=plan.through,
            entry_setsum=totals.entry_setsum - plan.before.entry_setsum,
            row_setsum=row_sum,
            file_setsum=stored.file_setsum,
            bloom_setsum=stored.bloom_setsum,
        ),
    )
    outcome = commit(region, lambda manifest: manifests.flushed(manifest, after=plan.after, built=built, at_end=totals))
    return None if isinstance(outcome, Dead) else built


def _is_dead(region: Region, plan: FlushPlan) -> bool:
    """Whether another flush took the plan's generation."""
    _, manifest = newest(region, region.head())
    return (manifest.current_generation, manifest.replay_after) != (plan.generation, plan.after)


def _planned(region: Region, *, rows_max: int, bytes_max: int) -> FlushPlan | None:
    for _ in region.context.budget().attempts():
        head, manifest = newest(region, region.head())
        entries = tail(region, head, manifest)
        if entries is not None:
            return plan_flush(manifest, entries, rows_max=rows_max, bytes_max=bytes_max)
    raise Contended("the log was collected faster than it could be read", remedy="Retry", **region.where)


def _folded(region: Region, schema: TableSchema, plan: FlushPlan) -> tuple[pa.Table, Setsum]:
    """The newest row of each key, tombstones too, and their setsum. Replayed = kept + superseded, or `Corrupt`."""
    tables, replayed = [], Setsum()
    for entry in plan.entries:
        if entry.summary.rows:
            with error_context(**region.where):
                table = stored_rows(entry, schema)
            tables.append(table)
            replayed += row_setsum(table) if entry.row_setsum is None else entry.row_setsum
    folded = fold(pa.concat_tables(tables).combine_chunks(), schema.primary_key)
    kept = row_setsum(folded.rows)
    if kept + row_setsum(folded.superseded) != replayed:
        raise Corrupt(
            "the rows of the log don't add up to what its entries declare",
            remedy=f"See which, then restore it: lancelsm inspect entries {region.context.uri} --region {region.id}",
            **region.where,
            position=f"{plan.after + 1}..{plan.through}",
        )
    return folded.rows, kept
