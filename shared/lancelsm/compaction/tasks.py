"""The tasks of a merge: functions of values that run on any machine and may run twice.

A task reads generations and one version of the base. It writes files under fresh names, and nothing refers to these
files before the commit. Rows are folded per region, since a key belongs to one region. Base rows are looked up for all
regions at once.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.layout import Generation, RegionId
from lancelsm.common.setsum import Setsum
from lancelsm.common.task_pool import PoolTask, TaskPool
from lancelsm.compaction.plan import Sums
from lancelsm.dataset import base_rows
from lancelsm.dataset.base_rows import Base, NewFragment
from lancelsm.dataset.deleted_keys import sequences_of
from lancelsm.dataset.file_ranges import range_reader
from lancelsm.dataset.generation import read_generation
from lancelsm.dataset.key_lookup import Keys
from lancelsm.dataset.read_back import check_rows, sum_new
from lancelsm.dataset.scrub_reads import own_row_setsum
from lancelsm.errors import Corrupt, error_context
from lancelsm.objects.filesum import check_files
from lancelsm.objects.local_copies import LocalCopies
from lancelsm.objects.location import local_path
from lancelsm.objects.open import open_store
from lancelsm.record import sequence
from lancelsm.record.digest import RowDigest
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TOMBSTONE, TableSchema
from lancelsm.record.ttl import Expiry

_BATCHES_BEHIND = 8

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A pending generation.

    Args:
        uri, key: of its directory; the key is relative to the table.
        sums: that the flush recorded; None if Lance itself wrote the generation.
    """

    region: RegionId
    generation: Generation
    uri: str
    key: str
    sums: Sums | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBase:
    """The version of the base that a merge reads, its schema, and local copies of generations, if there are any.

    `sequence` has the columns that order change events; empty if none do. `expiry` tells which rows of generations are
    taken for tombstones; None for no row.
    """

    base: Base
    schema: TableSchema
    copies: LocalCopies | None = None
    sequence: tuple[str, ...] = ()
    expiry: Expiry | None = None


@dataclass(frozen=True, slots=True)
class KeysHere:
    """The keys of a generation, and which of its rows are deletes; not sent to another process, which reads them."""

    read: tuple[pa.Table, Flags] | None = None

    def __reduce__(self) -> tuple[type[KeysHere], tuple[()]]:
        return KeysHere, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The rows of a generation that no newer pending generation replaces.

    Args:
        rows: number of rows in the generation.
        winners: one bit per row, in reading order, the first in the lowest bit: set if no newer row has its key.
        live, dead: number of winners that are rows, and that are tombstones or have expired.
        key_bytes: size of all keys.
        deleted: keys and sequences of the dead winners, as many as a file may have; None without a sequence.
        late: the highest sequence of the others (`record.sequence`); empty without one.
        keys: of all rows, if this process has read them.
    """

    source: Source
    rows: int
    winners: bytes
    live: int
    dead: int
    key_bytes: int
    deleted: pa.Table | None = dataclasses.field(default=None, repr=False, compare=False)
    late: str = ""
    keys: KeysHere = dataclasses.field(default=KeysHere(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The newest row of each key in the pending generations of all regions."""

    merge_base: MergeBase
    parts: tuple[Part, ...]

    @property
    def live(self) -> int:
        return sum(part.live for part in self.parts)

    @property
    def keys(self) -> int:
        return sum(part.live + part.dead for part in self.parts)


def fold_delta(merge_base: MergeBase, sources: tuple[Source, ...]) -> tuple[Part, ...]:
    """Find the newest row of each key in the pending generations of one region. Holds keys in memory, not rows.

    Args:
        sources: newest first.

    Raises:
        Corrupt: a key is null, or repeated within one generation; or a generation is missing, unreadable or changed.
    """
    if merge_base.copies is not None and local_path(merge_base.base.uri) is None:
        _check_files(merge_base, sources, merge_base.copies)
    try:
        return _folded(merge_base, sources)
    except Exception:
        _check_files(merge_base, sources)  # if files changed, report that instead of its consequences
        raise


def _folded(merge_base: MergeBase, sources: tuple[Source, ...]) -> tuple[Part, ...]:
    columns = [_keys_and_tombstones(merge_base, source) for source in sources]
    keys = pa.concat_tables([keys for keys, *_ in columns])
    if any(column.null_count for column in keys.columns):
        raise Corrupt("a pending generation has a null key", region=sources[0].region)
    first = Keys(keys).find_known(keys)
    parts, start = [], 0
    for source, (own, tombstones, sequences) in zip(sources, columns, strict=True):
        firsts = first[start : start + len(own)]
        wins = firsts == np.arange(start, start + len(own))
        if ((firsts >= start) & ~wins).any():  # guard: generation has each key once
            raise Corrupt("a generation has the same key twice", region=source.region, object=source.uri)
        dead = int((wins & tombstones).sum())
        deleted, late = _deleted(own, sequences, wins & tombstones, merge_base.sequence)
        parts.append(
            Part(
                source=source,
                rows=len(own),
                winners=np.packbits(wins, bitorder="little").tobytes(),
                live=int(wins.sum()) - dead,
                dead=dead,
                key_bytes=own.nbytes,
                deleted=deleted,
                late=late,
                keys=KeysHere((own, tombstones)),
            )
        )
        start += len(own)
    return tuple(parts)


def write_live_rows(merge_base: MergeBase, parts: tuple[Part, ...]) -> tuple[NewFragment, ...]:
    """Write the winning rows, without tombstones, as new fragments, and read them back against the generations.

    Every generation is checked at the same time, by the sum of its files, unless it was copied and checked before. If
    the manifest has no such sum, all rows are summed, with tombstones.

    Raises:
        Corrupt: a generation changed since it was flushed, or has a null that the base does not allow; or other rows
            were read back than were written.
    """
    with TaskPool(1) as pool:
        unchecked = [part.source for part in parts if _copy(merge_base, part.source) is None]
        check = pool.submit(lambda: _check_files(merge_base, unchecked))
        try:
            return _written(merge_base, parts)
        finally:
            check.result()


def _written(merge_base: MergeBase, parts: tuple[Part, ...]) -> tuple[NewFragment, ...]:
    wanted = sum(part.live for part in parts)
    batches = (batch for part in parts for batch in _live_rows(merge_base, part))
    if not wanted:
        deque(batches, maxlen=0)
        return ()
    columns = merge_base.schema.columns
    digest = RowDigest(columns)
    written = base_rows.write_rows(merge_base.base, columns, digest.passing(batches))
    if (rows := sum(fragment.rows for fragment in written)) != wanted:
        raise Corrupt(f"{rows} rows were written to the base, but the delta has {wanted}", table=merge_base.base.uri)
    with LocalCopies(merge_base.base.uri) as copies:
        copy = copies.begin("new files")
        written = sum_new(merge_base.base, written, copy=copy)
        again = (batch for part in parts for batch in _live_rows(merge_base, part, checked=True))
        check_rows(  # guard: merge reads its rows back
            merge_base.base, columns, written, again, digest=digest, copy=copy.location
        )
    return written


def winning_keys(delta: Delta) -> tuple[pa.Table, Flags]:
    """Return the key columns with each key of the delta once, and whether its newest row is a tombstone."""
    keys, dead = [], []
    for part in delta.parts:
        own, tombstones = part.keys.read or _keys_and_tombstones(delta.merge_base, part.source)[:2]
        wins = _wins(part)
        keys.append(own if wins.all() else own.filter(pa.array(wins)))
        dead.append(tombstones[wins])
    return pa.concat_tables(keys), np.concatenate(dead)


def _keys_and_tombstones(merge_base: MergeBase, source: Source) -> tuple[pa.Table, Flags, pa.Table]:
    """Return the key columns, which of the rows are tombstones or have expired, and the columns of the sequence."""
    expiry = merge_base.expiry
    columns = merge_base.sequence if expiry is None else (*merge_base.sequence, expiry.column)
    batches = _read(merge_base, source, columns=columns)
    table = pa.Table.from_batches(batches, schema=_key_schema(merge_base.schema, columns))
    if expiry is not None:
        table = expiry.as_deletes(table)
    keys = table.select(list(merge_base.schema.primary_key))
    return keys, table[TOMBSTONE].to_numpy().astype(np.bool_), table.select(list(merge_base.sequence))


def _deleted(keys: pa.Table, sequences: pa.Table, dead: Flags, names: Sequence[str]) -> tuple[pa.Table | None, str]:
    if not names:
        return None, ""
    rows = pa.array(dead)
    deleted, others = sequences_of(keys.filter(rows), sequences.filter(rows), names)
    return deleted, sequence.to_text(sequence.highest(others, names))


def _read(merge_base: MergeBase, source: Source, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    return read_generation(
        uri=source.uri,
        schema=merge_base.schema,
        columns=columns,
        copy=_copy(merge_base, source),
        storage_options=dict(merge_base.base.storage_options),
    )


def _copy(merge_base: MergeBase, source: Source) -> str | None:
    return None if merge_base.copies is None else merge_base.copies.find(source.key)


def _key_schema(schema: TableSchema, others: Sequence[str] = ()) -> pa.Schema:
    names = {*schema.primary_key, *others, TOMBSTONE}
    return pa.schema([field for field in schema.stored if field.name in names])


def _live_rows(merge_base: MergeBase, part: Part, *, checked: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the live rows of a part in the columns of the base. If the files have no known sum, also sum all rows.

    Args:
        checked: whether the rows were summed before.
    """
    wins, start = _wins(part), 0
    columns, sums = merge_base.schema.columns, part.source.sums
    with _Summing(sums.rows if sums and sums.files is None and not checked else None) as summing:
        for batch in _read(merge_base, part.source):
            own = wins[start : start + batch.num_rows]
            start += batch.num_rows
            if len(own) != batch.num_rows:
                break
            summing.add(batch)
            dead = batch[TOMBSTONE]
            if merge_base.expiry is not None:
                dead = pc.or_(dead, merge_base.expiry.expired(batch))
            is_live = pc.and_not(pa.array(own), dead)
            live = batch if is_live.true_count == len(batch) else batch.filter(is_live)  # a filter copies
            live = live.select(columns.names)
            if live.num_rows:
                yield _not_null(live, columns, part.source)
        if start != part.rows:
            raise Corrupt(f"a generation no longer has its {part.rows} rows", object=part.source.uri)
        if not summing.matches():
            _check_rows(merge_base, part.source)


class _Summing:
    """Compares the sum of batches with an expected sum; sums in a thread while the caller uses the batches."""

    def __init__(self, expected: Setsum | None) -> None:
        self._expected = expected
        self._total = Setsum.ZERO
        self._waiting: deque[PoolTask[Setsum]] = deque()
        self._pool = TaskPool(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.__exit__(kind, error, trace)

    def add(self, batch: pa.RecordBatch) -> None:
        """Sum a batch. Waits while several batches are queued, since each stays in memory until it is summed."""
        if self._expected is None:
            return
        while len(self._waiting) >= _BATCHES_BEHIND:
            self._total += self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(partial(row_setsum, batch)))

    def matches(self) -> bool:
        while self._waiting:
            self._total += self._waiting.popleft().result()
        return self._expected in (None, self._total)


def _check_rows(merge_base: MergeBase, source: Source) -> None:
    """Sum the columns as they were flushed: the base may have dropped a column since, or changed its type."""
    options = dict(merge_base.base.storage_options)
    found = own_row_setsum(uri=source.uri, schema=merge_base.schema, storage_options=options)
    if source.sums is not None and found != source.sums.rows:  # guard: merge checks the sum of rows
        raise Corrupt(
            "the rows of a generation differ from those that were flushed",
            remedy="Nothing was merged. Restore it from a copy of the bucket; lancelsm scrub names every wrong object",
            region=source.region,
            object=source.uri,
        )


def _check_files(merge_base: MergeBase, sources: Iterable[Source], copies: LocalCopies | None = None) -> None:
    """Compare the files of generations with the sums that their flushes recorded, if there are any.

    Args:
        copies: gets the files that were compared, to read their rows.
    """
    uri, options = merge_base.base.uri, dict(merge_base.base.storage_options)
    objects, read_range = open_store(uri, options), range_reader(uri, options)
    for source in sources:
        if source.sums is not None and source.sums.files is not None:  # guard: merge checks the sum of files
            with error_context(region=source.region):
                copy = None if copies is None else copies.begin(source.key)
                check_files(objects, source.key, source.sums.files, copy=copy, read_range=read_range)


def _not_null(rows: pa.RecordBatch, columns: pa.Schema, source: Source) -> pa.RecordBatch:
    for field in columns:
        if not field.nullable and rows[field.name].null_count:
            raise Corrupt(f"a generation has a null in column {field.name!r}", object=source.uri, field=field.name)
    return pa.RecordBatch.from_arrays(rows.columns, schema=columns)


def _wins(part: Part) -> Flags:
    packed = np.frombuffer(part.winners, np.uint8)
    return np.unpackbits(packed, count=part.rows, bitorder="little").astype(np.bool_)
