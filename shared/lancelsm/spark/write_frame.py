"""Write a DataFrame: compute the region of each row, bring the rows of a region into one task, sort, and append."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from lancelsm.errors import Invalid, LsmError, error_context
from lancelsm.region.catalog import check_takes_plain_writes
from lancelsm.region.config import newest_sequence
from lancelsm.region.handle import TableHandle, open_configured
from lancelsm.spark.executor_errors import job_errors
from lancelsm.spark.write_rows import (
    COUNTS,
    REGION,
    Op,
    WriteJob,
    check_columns,
    job_slot,
    rows_per_entry,
    spec_number_of,
    with_regions,
    write_sorted,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WRITE_OPS = ("upsert", "delete", "apply")
_LONGEST_NAME = 150
_MOST = 2**31 - 2  # a sequence is less than 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRows:
    """What a job wrote.

    Args:
        rows: the rows of the DataFrame, all of which the table has taken. Those that an earlier run of the job or of a
            task wrote are counted too.
        entries: into how many log entries the rows were cut.
        late: with op `apply`, how many events lost against a higher sequence.
        skipped: how many of the rows were not written since their region has a later run of the job, with a higher
            `txn_version`: check the numbers of the runs.
    """

    rows: int
    entries: int
    late: int
    skipped: int = 0


def write(
    df: DataFrame, uri: str, *, op: Op = "upsert", txn_app: str | None = None, txn_version: int | None = None
) -> WrittenRows:
    """Write a DataFrame. Return when all rows are durable and visible.

    Each region gets its rows in order of key, of the columns of the table's `sequence_by`, then of all other columns,
    in entries of about 100,000 rows. If a key has several rows, the last one in this order wins. A task that Spark
    repeats, or runs twice at the same time, writes no row twice.

    Args:
        df: the columns of the table in any order; more are left out for op `delete`, and refused otherwise. It must
            give the same rows if Spark computes it again: without `rand()`, `uuid()` or `limit` without an order.
        uri: the location of the table, which executors reach too.
        op: `upsert` whole rows; `delete` by the key columns; or `apply` change events: rows with a column `_op` that is
            `upsert` or `delete`. The table must have `sequence_by` from an earlier `Table.apply_changes`: the highest
            sequence of a key wins, also against stored rows. `apply` needs `txn_app`.
        txn_app: the name of a job that may be repeated.
        txn_version: the number of its run, from 0, higher from run to run. A region that has rows of this run, or of a
            later one, skips what it has. So a repeated run writes each row once. A region remembers 16 names.

    Raises:
        Invalid: a column is missing or unknown, a value does not fit, or the executors lack lancelsm. Rows of other
            regions and earlier entries may be written: correct it, then run the job again.
        Contended: four jobs without `txn_app` run already, or a region remembers 16 other names.
        Fenced: another owner holds a region.
        Ambiguous, Unavailable: a store or the registry did not answer. With `txn_app`, run the job again.
        Corrupt: the log or the head of a region is damaged.
    """
    if op not in WRITE_OPS:
        raise Invalid(f"op is {op!r}", remedy=f"Give one of {', '.join(WRITE_OPS)}", field="op")
    if (txn_app is None) != (txn_version is None):
        raise Invalid("txn_app and txn_version go together", remedy="Give both or none", field="txn_app")
    if df.isStreaming:
        raise Invalid("the DataFrame is a stream", remedy="Call lancelsm.spark.write_stream", field="df")
    handle = open_configured(uri)
    with error_context(table=handle.context.uri):
        if txn_app is None:
            if op == "apply":
                raise Invalid(
                    "op apply needs txn_app and txn_version", remedy="Name the job and number its runs", field="op"
                )
            with job_slot(handle.context) as (producer, batch):
                return write_as(df, handle, op=op, producer=producer, batch=batch, alone=True)
        check_name(txn_app)
        if not isinstance(txn_version, int) or isinstance(txn_version, bool) or not 0 <= txn_version <= _MOST:
            raise Invalid(
                f"txn_version is {txn_version!r}", remedy=f"Give an integer from 0 to {_MOST}", field="txn_version"
            )
        return write_as(df, handle, op=op, producer=f"spark:{txn_app}", batch=txn_version)


def check_name(txn_app: str | None) -> None:
    """Raise `Invalid` unless this is None or may be the name of a job."""
    if txn_app is not None and not 0 < len(txn_app) <= _LONGEST_NAME:
        raise Invalid("txn_app is not a name", remedy=f"Give 1 to {_LONGEST_NAME} characters", field="txn_app")


def write_as(
    df: DataFrame, handle: TableHandle, *, op: Op, producer: str, batch: int, alone: bool = False
) -> WrittenRows:
    """Write a DataFrame under a producer. See `write` and `WriteJob`."""
    if op != "apply":
        check_takes_plain_writes({"table": handle.context.uri}, ordered=handle.context.ordered)
    job = WriteJob(
        uri=handle.context.uri,
        op=op,
        producer=producer,
        batch=batch,
        alone=alone,
        rows_per_entry=rows_per_entry(handle.config.schema),
    )
    job = replace(job, number=spec_number_of(job, handle))
    with job_errors(table=job.uri):
        results = _sorted(df, handle, job).mapInArrow(
            partial(write_sorted, job=job), ", ".join([*(f"{name} long" for name in COUNTS), "error binary"])
        )
        found = results.collect()
    for one in found:
        if one.error is not None:
            error = pickle.loads(bytes(one.error))
            assert isinstance(error, LsmError)
            raise error
    return WrittenRows(**{name: sum(one[name] for one in found) for name in COUNTS})


def _sorted(df: DataFrame, handle: TableHandle, job: WriteJob) -> DataFrame:
    """Return the rows with their region, each region in one partition, sorted."""
    from pyspark.sql.types import StringType, StructField, StructType

    key = handle.config.schema.primary_key
    sequence = newest_sequence(handle.context.objects, handle.config, uri=job.uri)
    if job.op == "apply" and not sequence:
        raise Invalid(
            "the table has no sequence_by, and a shuffle does not keep the order of events",
            remedy="Call table.apply_changes([], sequence_by=...) once",
            field="sequence_by",
        )
    taken = check_columns(df.columns, handle, op=job.op)
    rows = df.select(*map(_quoted, taken))
    keyed = StructType([*rows.schema.fields, StructField(REGION, StringType())])
    placed = rows.mapInArrow(partial(with_regions, job=job), keyed).repartition(REGION)
    order = [*key, *(name for name in sequence if name in taken)]
    return placed.sortWithinPartitions(REGION, *_sort_keys(placed, order), *_sort_keys(placed, taken))


def _sort_keys(df: DataFrame, names: Sequence[str]) -> list[Column]:
    from pyspark.sql import functions

    found = []
    for name in names:
        column = functions.col(_quoted(name))
        has_map = "map<" in df.schema[name].dataType.simpleString()  # Spark does not order maps
        found.append(functions.to_json(functions.struct(column)) if has_map else column)
    return found


def _quoted(name: str) -> str:
    return f"`{name}`"
