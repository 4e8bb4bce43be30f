"""Flush: write committed WAL entries as generations and commit the manifests that list them.

In an AWS deployment the function named `compaction` runs this module. `writer_flush` only appends, despite its name.

A flush reads the entries of the tail in order, and cuts the tail into generations while it reads. It holds the rows of
one generation at a time. Of a large entry in a local directory it keeps the keys only, and reads the rows again when
they are written. Only the end of the tail proves that the entries are the committed ones. So the generations are
written first, and their manifests are committed, in order, after all entries were read.

A manifest is committed only if the one before it has the replay point and the generation number of its plan. The flush
recognises its own earlier commit by the generation's directory in the manifest. After a failed flush the next one takes
the same numbers. Spec: lance-memwal, "Flushed MemTable". Model: tests/model/head_commits.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from lancelsm.common.layout import Generation, Position, generation_name, generation_path
from lancelsm.common.setsum import Setsum
from lancelsm.compaction.fold import FoldedRows
from lancelsm.errors import Corrupt, LsmError, error_context
from lancelsm.objects.location import local_path
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TableSchema
from lancelsm.region import manifest as manifests
from lancelsm.region.catalog import Region
from lancelsm.region.compare_and_swap import CommittedManifest, commit, newest, read_committed
from lancelsm.region.head import Head, LogTotals, Summary
from lancelsm.region.manifest import (
    FlushedGeneration,
    FlushedRange,
    GenerationIndexes,
    GenerationKeys,
    IndexesChanged,
    Manifest,
    Superseded,
)
from lancelsm.region.since import Since
from lancelsm.wal.entry import Entry
from lancelsm.wal.replay import LogCollected, read_entry, stored_rows, stream_tail

_LARGE_BYTES = 1 << 20  # to read a smaller entry again takes too long for the memory that it frees


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A written generation: the setsums of its files with rows, of its bloom filter and of the files of its key index.

    `index_number` is the number of the wanted list of indexes that it was built for.
    """

    file_setsum: Setsum
    bloom_setsum: Setsum | None = None  # None: no bloom filter
    key_index_setsums: tuple[Setsum, ...] = ()
    index_number: int = 0
    indexes: GenerationIndexes | None = None
    keys: GenerationKeys | None = None


Write = Callable[[str, FoldedRows], Stored]
"""Write rows as a generation at a key, then sum its files, then read the rows back and compare their setsum."""

HasTime = Callable[[int, int], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What a flush holds of an entry. `setsum` is the sum of its rows in stored form, `bytes` is their size in memory.

    Without `rows`, the entry is read again.
    """

    summary: Summary
    at: float | None
    keys: pa.Table
    rows: pa.Table | None
    setsum: Setsum
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """The entries of one generation, and the totals of the log before and after them."""

    parts: list[_Part]
    before: LogTotals
    after: LogTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A generation that is written but not committed, and the totals of the log through its last entry."""

    built: FlushedGeneration
    range: FlushedRange
    totals: LogTotals
    index_number: int
    at: float | None  # of its last entry with a time; None if Lance's writer wrote all of them


class _Tail:
    """The entries of a tail. `proven` is set once all of them were read and are known to be the committed ones."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries
        self.proven = False

    def __iter__(self) -> Iterator[Entry]:
        yield from self._entries
        self.proven = True


def flush(
    region: Region,
    schema: TableSchema,
    *,
    write: Write,
    rows_max: int,
    bytes_max: int,
    has_time: HasTime = lambda _done, _total: True,
    seen: CommittedManifest | None = None,
) -> list[FlushedGeneration]:
    """Write the region's tail as its next generations.

    Args:
        schema: the table's; the generations are written in its stored form.
        write: see `Write`.
        rows_max, bytes_max: limits of the entries in one generation. Entries are not split: a larger one is alone in
            its generation. Fences alone are not flushed.
        has_time: called after each generation with the bytes of the log that are in generations, and the bytes of the
            tail. If it returns False, the rest of the tail is only read, as a proof.
        seen: the head and its manifest, as the caller read them; they are read now by default.

    Returns:
        The generations, once the head names a manifest that lists them. Empty if there was nothing to flush, or another
        flush took the same entries first.

    Raises:
        Corrupt: the tail is not what was committed, or rows were lost or changed while they were written. Nothing of
            these rows was committed.
        IndexesChanged: an index was created meanwhile; write with the newest list of indexes.
        Contended, Ambiguous, Unavailable: for the same reasons as in `region.compare_and_swap.commit`. Retry: a
            committed flush is not repeated.

    If a generation can't be written, those before it are still committed. After a crash at any line either the entries
    or the generation hold all rows. A directory that no manifest names is an orphan.
    """
    began = seen or read_committed(region, region.head())
    head, manifest = began.head, began.manifest
    size, done = head.wal_bytes - manifest.wal_bytes, 0
    tail = _Tail(stream_tail(region, head, manifest, size=size))
    entries = iter(tail)
    written: list[_Written] = []
    failure: LsmError | None = None
    try:
        take = partial(_part, region, schema)
        for cut in _cuts(entries, manifest.totals, take, rows_max=rows_max, bytes_max=bytes_max):
            done += sum(part.summary.bytes for part in cut.parts)
            written.append(_write(region, schema, cut, write, number=len(written), manifest=manifest))
            if done < size and not has_time(done, size):
                for _ in entries:  # guard: flush that ends early proves its log
                    pass
                break
    except LogCollected:  # another flush took entries, and they were collected since
        return []
    except LsmError as error:
        # If another flush has taken the number, this directory is an orphan, and a sweep may already have deleted it.
        if _is_superseded(region, manifest):  # guard: superseded flush raises no error
            return []
        failure = error
    if failure is not None and not (written and _is_proven(tail, entries)):
        raise failure
    made = _committed(region, written, began)
    if failure is not None:
        raise failure
    return made


def _is_proven(tail: _Tail, entries: Iterator[Entry]) -> bool:
    """Read the entries that are left. Return whether the tail is proven."""
    try:
        for _ in entries:
            pass
    except (LsmError, LogCollected):
        return False
    return tail.proven  # guard: generations of an unproven log are not committed


def _committed(region: Region, written: Iterable[_Written], began: CommittedManifest) -> list[FlushedGeneration]:
    """Commit generations in order; return those of them that no other flush has superseded."""
    made: list[FlushedGeneration] = []
    seen = began
    for one in written:
        after = Position(one.range.first - 1)
        step = partial(
            manifests.flushed, after=after, built=one.built, at_end=one.totals, index_number=one.index_number
        )
        try:
            done = commit(region, step, seen=seen, flushed=_log_since(one, seen.head))
        except IndexesChanged:
            if made:
                break
            raise
        if isinstance(done, Superseded):
            break
        seen = done
        made.append(one.built)
    return made


def _log_since(written: _Written, head: Head) -> Since | None:
    """Return since when rows wait in the log after this generation; None if that is not known."""
    known = Since.parse(head.log_since)
    at = written.at if written.at is not None else None if known is None else known.at
    return None if at is None else Since(first=written.range.last + 1, at=int(at))


def _is_superseded(region: Region, began: Manifest) -> bool:
    """Return whether another flush took the generation number or the entries that this one began with."""
    _, manifest = newest(region, region.head())
    return (manifest.current_generation, manifest.replay_after) != (began.current_generation, began.replay_after)


def _cuts(
    entries: Iterable[Entry], before: LogTotals, take: Callable[[Entry], _Part], *, rows_max: int, bytes_max: int
) -> Iterator[_Cut]:
    """Cut a tail. A cut ends before an entry that would exceed a limit. The caller alone holds the parts of a cut."""
    taken: list[_Part] = []
    rows = size = 0
    for entry in entries:
        if rows and (rows + entry.summary.rows > rows_max or size + entry.summary.bytes > bytes_max):
            after = before.after(one.summary for one in taken)
            yield _Cut(parts=taken, before=before, after=after)
            taken, rows, size, before = [], 0, 0, after
        taken.append(take(entry))
        rows, size = rows + entry.summary.rows, size + entry.summary.bytes
        del entry
    if rows:
        yield _Cut(parts=taken, before=before, after=before.after(one.summary for one in taken))


def _part(region: Region, schema: TableSchema, entry: Entry) -> _Part:
    """Decode an entry.

    Raises:
        Corrupt: a row can't be read.
    """
    summary = entry.summary
    if not summary.rows:
        none = schema.stored.empty_table()
        return _Part(summary=summary, at=entry.at, keys=none, rows=none, setsum=Setsum.ZERO, bytes=0)
    with error_context(**region.where):
        rows = stored_rows(entry, schema)
    is_older = summary.schema_version < schema.version  # its own sum is that of the rows as written
    is_held = summary.bytes < _LARGE_BYTES or local_path(region.context.uri) is None
    keys = rows.select(schema.primary_key)
    return _Part(
        summary=summary,
        at=entry.at,
        keys=keys if is_held else _copied(keys),
        rows=rows if is_held else None,
        setsum=row_setsum(rows) if entry.row_setsum is None or is_older else entry.row_setsum,
        bytes=rows.nbytes,
    )


def _copied(rows: pa.Table) -> pa.Table:
    """Copy columns, so that they don't keep the entry that they are a part of."""
    return pa.Table.from_arrays([pa.concat_arrays(column.chunks) for column in rows.columns], schema=rows.schema)


def _write(
    region: Region, schema: TableSchema, cut: _Cut, write: Write, *, number: int, manifest: Manifest
) -> _Written:
    """Write the generation of a cut.

    Raises:
        Corrupt: a row can't be read, or the rows don't have the sum that the entries declare, or read back differently.
    """
    generation = Generation(manifest.current_generation + number)
    first, last = cut.parts[0].summary.position, cut.parts[-1].summary.position
    at = next((part.at for part in reversed(cut.parts) if part.at is not None), None)
    rows = _folded(region, schema, cut, where=f"{first}..{last}")
    name = generation_name(generation, region.context.ids.nonce())
    stored = write(generation_path(region.id, name), rows)
    folded = FlushedRange(
        first=first,
        last=last,
        entry_setsum=cut.after.entry_setsum - cut.before.entry_setsum,
        row_setsum=rows.setsum,
        file_setsum=stored.file_setsum,
        bloom_setsum=stored.bloom_setsum,
        key_index_setsums=stored.key_index_setsums,
    )
    built = FlushedGeneration(
        generation=generation,
        path=name,
        rows=rows.keys.num_rows,
        bytes=rows.bytes,
        folded=folded,
        indexes=stored.indexes,
        keys=stored.keys,
    )
    return _Written(built=built, range=folded, totals=cut.after, index_number=stored.index_number, at=at)


def _folded(region: Region, schema: TableSchema, cut: _Cut, *, where: str) -> FoldedRows:
    """Fold the rows of a cut, whose parts are given up one by one."""
    parts, remedy = deque(cut.parts), f"lancelsm inspect entries {region.context.uri} --region {region.id}"
    cut.parts.clear()
    return FoldedRows(
        pa.concat_tables([part.keys.select(schema.primary_key) for part in parts]),
        _rows(region, schema, parts),
        schema,
        bytes_given=sum(part.bytes for part in parts),
        expected=sum((part.setsum for part in parts), start=Setsum.ZERO),
        problem="the rows of the log don't have the sum that its entries declare",
        where={**region.where, "position": where, "remedy": f"Find and restore the entry: {remedy}"},
    )


def _rows(region: Region, schema: TableSchema, parts: deque[_Part]) -> Iterator[pa.Table]:
    while parts:
        yield _rows_of(region, schema, parts.popleft())


def _rows_of(region: Region, schema: TableSchema, part: _Part) -> pa.Table:
    if part.rows is not None:
        return part.rows
    entry = read_entry(region, part.summary.position)
    with error_context(**region.where):
        if entry.summary.entry_setsum != part.summary.entry_setsum:
            raise Corrupt("an entry changed while it was flushed", position=part.summary.position, object=entry.key)
        return stored_rows(entry, schema)
