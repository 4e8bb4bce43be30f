"""Write the rows of a job from its tasks: each chunk of rows is one entry of a region, and is appended once. No Spark.

All rows of a region are in one task, sorted. So each attempt of the task cuts the same chunks. Chunk number n of batch
number b has the sequence (b + 1) * 2**32 + n, and the head of the region remembers the highest sequence of the job's
producer in the swap that commits the rows (`region.producers`). An attempt skips the chunks that the region has: those
of an earlier attempt, of one that runs at the same time, or of an earlier run of the job.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.layout import RegionId
from lancelsm.common.zip_importers import forget_zip_importers
from lancelsm.errors import Ambiguous, Contended, Invalid, LsmError, Unavailable, error_context
from lancelsm.read.transact.source_offsets import producer as producer_of
from lancelsm.record.casts import cast_column
from lancelsm.record.normalize import deletes, upserts
from lancelsm.record.schema import TableSchema, unknown_column
from lancelsm.region.catalog import Directory, Region, TableContext, regions, with_heads
from lancelsm.region.handle import TableHandle, WriteTarget, open_configured
from lancelsm.region.head import Head
from lancelsm.region.lease import lease
from lancelsm.routing.route import route
from lancelsm.table import Table
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.region_writer import RegionWriters

Op = Literal["upsert", "delete", "apply"]
REGION = "_lancelsm_region"
OPERATION = "_op"  # `upsert` or `delete`, as in the change stream
COUNTS = ("rows", "entries", "late", "skipped")
RESULT = pa.schema({**dict.fromkeys(COUNTS, pa.int64()), "error": pa.binary()})
_ROW = "_lancelsm_row"
_BATCH = 2**32
_ROWS_PER_ENTRY, _FEWEST_ROWS = 100_000, 1_000
_BYTES_PER_ENTRY = 64 << 20
_SLOTS = 4  # jobs without a name that may run at the same time
_PER_SECOND = 100
_RETRIED = (Unavailable, Ambiguous, Contended)  # Spark runs the task again, and it skips what is appended


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """What the tasks of a job write.

    Args:
        producer: the name under which regions remember the job.
        batch: rises from job to job of a producer.
        alone: no other job may use the producer meanwhile. A region with a higher batch then is an error; else it has
            the rows of this batch already.
        rows_per_entry: how many rows are one chunk.
        number: that of the region spec by which rows are placed in tasks and chunks.
    """

    uri: str
    op: Op
    producer: str
    batch: int
    alone: bool
    rows_per_entry: int
    number: int = 1

    def sequence(self, chunk: int) -> int:
        return (self.batch + 1) * _BATCH + chunk


def spec_number_of(job: WriteJob, handle: TableHandle) -> int:
    """Return the number of the region spec by which the rows of a job are placed: one for all its tasks and attempts.

    A run that was begun before a reshard is placed by the old spec again, so that its chunks are the same.
    """
    config, newest = handle.config, handle.target().regions.number
    known = [one for one in regions(handle.context) if one.number < newest and config.regions_of(one.number)]

    def applied(region: Region, head: Head) -> int:
        return head.applied(producer_of(f"{job.producer}@{region.id}") if job.op == "apply" else job.producer)

    found = with_heads(handle.context, known) if config.earlier_regions else []
    return min((one.number for one, head in found if applied(one, head) >= job.sequence(0)), default=newest)


def rows_per_entry(schema: TableSchema) -> int:
    """Return how many rows are one entry: fewer if they have long vectors. It depends on the columns alone."""
    width = sum(_width(field.type) for field in schema.columns)
    return max(_FEWEST_ROWS, min(_ROWS_PER_ENTRY, _BYTES_PER_ENTRY // width))


def check_columns(given: Sequence[str], handle: TableHandle, *, op: str) -> list[str]:
    """Return the columns that a write takes, in order.

    Raises:
        Invalid: a column is missing, or no column of the table. Deletes leave out columns that are not of the key.
    """
    schema = handle.config.schema
    wanted = list(schema.primary_key) if op == "delete" else schema.names
    with error_context(table=handle.context.uri):
        wanted = [name for name in wanted if name in given or name not in schema.optional]
        if missing := [name for name in wanted if name not in given]:
            raise Invalid(f"column {missing[0]!r} is missing", remedy=f"Give {', '.join(wanted)}", field=missing[0])
        optional = [OPERATION] if op == "apply" and OPERATION in given else []
        if op != "delete" and (unknown := [name for name in given if name not in (*wanted, *optional)]):
            raise unknown_column(unknown[0], schema.names)
    return [*wanted, *optional]


def _width(kind: pa.DataType) -> int:
    """Return the bytes of a value, as far as its type states them."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(_width(field.type) for field in kind)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # the values differ in length
        return 8


@contextmanager
def job_slot(context: TableContext) -> Iterator[tuple[str, int]]:
    """Hold a producer for a job without a name, and yield it with the batch of the job.

    A producer for each job would fill the heads: they remember few (`region.producers`). Batches are times. If a clock
    was behind or the lease was lost, a region has a higher batch, and the job fails instead of losing rows.

    Raises:
        Contended: as many jobs without a name write to the table already.
    """
    for slot in range(_SLOTS):
        held = lease(context, f"spark-job-{slot}")
        try:
            held.__enter__()
        except Contended:
            continue
        try:
            context.clock.sleep(1 / _PER_SECOND)  # the batch is not that of the job before
            yield f"spark-job-{slot}", int(context.clock.now() * _PER_SECOND)
        finally:
            held.__exit__(None, None, None)
        return
    raise Contended(
        f"{_SLOTS} Spark jobs without txn_app write to the table",
        remedy="Wait until one ends, or give txn_app and txn_version",
        table=context.uri,
    )


def with_regions(batches: Iterable[pa.RecordBatch], job: WriteJob) -> Iterator[pa.RecordBatch]:
    """Add the column `REGION` with the id of the region of each row.

    Raises:
        Invalid: a value of a key column does not fit.
    """
    forget_zip_importers()
    handle = open_configured(job.uri)
    target = handle.target()
    spec = handle.config.regions_of(job.number) or target.regions
    directory = Directory(handle.context, spec_id=spec.spec_id)
    for batch in batches:
        with _in_table(job):
            columns = {field.name: _key(batch, field) for field in target.schema.key}
        keys = pa.table({**columns, _ROW: pa.array(range(batch.num_rows), pa.int64())})
        parts = route(keys, spec)
        rows = pa.chunked_array([chunk for part in parts for chunk in part.rows.column(_ROW).chunks], pa.int64())
        ids = [pa.repeat(pa.scalar(directory.named(one.values).id), one.rows.num_rows) for one in parts]
        regions = pa.chunked_array(ids, pa.string()).take(pc.sort_indices(rows)).combine_chunks()
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, regions], schema=batch.schema.append(pa.field(REGION, pa.string()))
        )


def _key(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    return cast_column(_fitting(pa.chunked_array([batch.column(field.name)]), field.type), field.with_nullable(False))


def _fitting(values: pa.ChunkedArray, kind: pa.DataType | None) -> pa.ChunkedArray:
    """Convert values of Spark's stand-in for a type that Spark lacks."""
    is_stand_in = kind == pa.uint64() and pa.types.is_decimal(values.type)
    return values.cast(kind) if is_stand_in else values


def write_sorted(batches: Iterable[pa.RecordBatch], job: WriteJob) -> Iterator[pa.RecordBatch]:
    """Append the rows of a task, which are sorted by region and key. Yield what was written, under `RESULT`.

    An error that another attempt can't avoid is part of the result: Spark would run the task again.

    Raises:
        Unavailable, Ambiguous, Contended: another attempt continues after the last entry.
    """
    rows = entries = late = skipped = 0
    failure: bytes | None = None
    try:
        append = _appender(job)
        for region, chunk, part in chunks(batches, size=job.rows_per_entry):
            with _in_table(job):
                outcome = append(region, chunk, part)
            late, skipped = late + outcome.late, skipped + outcome.skipped
            rows, entries = rows + part.num_rows, entries + 1
    except _RETRIED:
        raise
    except LsmError as error:
        failure = pickle.dumps(error)
    yield pa.RecordBatch.from_pylist(
        [{"rows": rows, "entries": entries, "late": late, "skipped": skipped, "error": failure}], schema=RESULT
    )


def write_unsorted(batches: Iterable[pa.RecordBatch], *, uri: str, op: Literal["upsert", "delete"]) -> int:
    """Append the rows of a task in any order, in entries of all regions. Return how many. Another attempt repeats them.

    Raises: the same errors as `Table.upsert`.
    """
    handle = open_configured(uri)
    target = handle.target()
    writers = RegionWriters(target, owner=target.owner)
    size, rows = rows_per_entry(target.schema), 0

    def append(held: Sequence[pa.RecordBatch]) -> None:
        if held:
            writers.append_all(_stored(pa.Table.from_batches(held), op, target.schema))

    held: list[pa.RecordBatch] = []
    for batch in batches:
        if held and sum(one.num_rows for one in held) + batch.num_rows > size:
            append(held)
            held = []
        held.append(batch)
        rows += batch.num_rows
    append(held)
    return rows


def chunks(batches: Iterable[pa.RecordBatch], *, size: int) -> Iterator[tuple[str, int, pa.Table]]:
    """Cut rows that are sorted by region: yield region, number in the region from 0, and rows.

    Where a chunk ends depends on the number of rows before it in its region alone.
    """
    region, number = "", 0
    held: list[pa.Table] = []
    for part in _by_region(batches):
        name = part.column(REGION)[0].as_py()
        rows = pa.Table.from_batches([part]).drop_columns([REGION])
        if name != region:
            if held:
                yield region, number, pa.concat_tables(held)
            region, number, held = name, 0, []
        while rows.num_rows:
            room = size - sum(one.num_rows for one in held)
            held.append(rows.slice(0, room))
            rows = rows.slice(room)
            if held[-1].num_rows == room:
                yield region, number, pa.concat_tables(held)
                number, held = number + 1, []
    if held:
        yield region, number, pa.concat_tables(held)


def _by_region(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        runs = pc.run_end_encode(batch.column(REGION))
        start = 0
        for end in runs.run_ends.to_pylist():
            yield batch.slice(start, end - start)
            start = end


@dataclass(frozen=True, slots=True, kw_only=True)
class _Appended:
    """How many rows of a chunk were late, and how many a region skipped since it has a later run of the job."""

    late: int = 0
    skipped: int = 0


_Append = Callable[[str, int, pa.Table], _Appended]
"""Gets a region, the number of a chunk in it, and the rows."""


def _appender(job: WriteJob) -> _Append:
    handle = open_configured(job.uri)
    target = handle.target()
    if job.op == "apply":
        table = Table(handle)

        def apply(region: str, chunk: int, part: pa.Table) -> _Appended:
            source = f"{job.producer}@{region}"  # the task of the region is the only one that uses it
            is_delete = OPERATION in part.column_names
            done = table.apply_changes(
                _columns(part, part.column_names, target.schema),
                format="rows",
                apply_as_deletes=f"{OPERATION} = 'delete'" if is_delete else None,
                except_column_list=[OPERATION] if is_delete else None,
                source=source,
                offset=job.sequence(chunk),
            )
            is_older = done.skipped and (table.source_offset(source) or 0) >= job.sequence(0) + _BATCH
            return _Appended(late=done.late, skipped=done.skipped if is_older else 0)

        return apply
    writers = RegionWriters(target, owner=target.owner)

    def append(placed: str, chunk: int, part: pa.Table) -> _Appended:
        skipped: list[int] = []
        once = _once(job, RegionId(placed), chunk, target, skipped)
        writers.append_all(_stored(part, job.op, target.schema), next_draft=once)
        return _Appended(skipped=sum(skipped))

    return append


def _stored(part: pa.Table, op: Op, schema: TableSchema) -> pa.Table:
    names = list(schema.primary_key) if op == "delete" else schema.names
    columns = _columns(part, names, schema)
    return deletes(columns, schema=schema) if op == "delete" else upserts(columns, schema=schema)


def _columns(part: pa.Table, names: Sequence[str], schema: TableSchema) -> pa.Table:
    kinds = {field.name: field.type for field in schema.columns}
    given = [name for name in names if name in part.column_names]  # a column may have been added since the job began
    return pa.table({name: _fitting(part.column(name), kinds.get(name)) for name in given})


def _once(
    job: WriteJob, placed: RegionId, chunk: int, target: WriteTarget, skipped: list[int]
) -> Callable[[Region, pa.Table], Callable[[Head], Draft | None]]:
    """Return what to append of a chunk at a head. A chunk is numbered in the region `placed`.

    If a reshard has sealed this region, its head says whether it has the chunk. If not, the new regions take their
    parts under a producer of their own, since chunks of several old regions may go to one of them.
    """
    sequence = job.sequence(chunk)

    def at_region(region: Region, rows: pa.Table) -> Callable[[Head], Draft | None]:
        encoded: list[Draft] = []
        is_moved = region.number > job.number
        producer = f"{job.producer}@{placed}" if is_moved else job.producer
        old = replace(region, id=placed).find_head() if is_moved else None
        before = 0 if old is None else old.applied(job.producer)

        def next_draft(head: Head) -> Draft | None:
            done = max(head.applied(producer), head.applied(job.producer), before)
            if job.alone and done >= job.sequence(0) + _BATCH:  # guard: job is the only one of its producer
                raise Invalid(
                    "a later job took the place of this one, which stood still for too long or whose clock is behind",
                    remedy="Run the job again; give txn_app and txn_version to skip what it has written",
                    **region.where,
                )
            if done >= sequence:  # guard: chunk of a job is appended once
                skipped.extend([rows.num_rows] if done >= job.sequence(0) + _BATCH else [])
                return None
            if not encoded:
                sequences = {producer: str(sequence)}
                encoded.append(draft(rows, applied_sequences=sequences, at=target.context.clock.now()))
            return encoded[0]

        return next_draft

    return at_region


@contextmanager
def _in_table(job: WriteJob) -> Iterator[None]:
    try:
        yield
    except LsmError as error:
        error.where = {"table": job.uri, **error.where}
        error.where.pop("row", None)  # it counts the rows of one chunk
        raise
