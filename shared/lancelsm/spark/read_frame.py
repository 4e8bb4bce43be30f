"""Read a table into a DataFrame without the data source, for Spark 3.5: tasks read their parts by `mapInArrow`."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from lancelsm.common.duration import seconds_of
from lancelsm.region.handle import open_table
from lancelsm.spark.batch_read import ReadRequest, declared_schema, parts, read_part
from lancelsm.spark.executor_errors import job_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(
    session: SparkSession,
    uri: str,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    at: str | None = None,
    ttl: float | str = "15m",
) -> DataFrame:
    """Return the rows of a table as of this call. Executors read them in parallel when an action needs them.

    `spark.read.format("lancelsm")` of Spark 4 takes a view at each action instead, and is to be preferred there.

    Args:
        columns: their names, in order; all by default.
        where: an SQL condition over the table's columns, in Lance's dialect.
        at: the name of a snapshot; by default a snapshot is made for the DataFrame.
        ttl: how long that snapshot lives, in seconds or as text such as `15m`, unless a running task renews it. An
            action that begins later fails.

    Raises:
        Invalid: there is no such table, snapshot or column, or Spark has no type for a column.
        Corrupt: an object that the snapshot needs is missing or damaged.
        Unavailable: a store or the registry did not answer.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    request = ReadRequest(
        uri=open_table(uri).context.uri,
        columns=None if columns is None else tuple(columns),
        where=where,
        at=at,
        ttl_seconds=seconds_of(ttl, field="ttl"),
    )
    schema = declared_schema(request)
    planned = [(bytearray(pickle.dumps(part)),) for part in parts(request)]
    with job_errors(table=request.uri):
        tasks = session.sparkContext.parallelize(planned, max(1, len(planned)))
        rows = partial(_rows, request=request, schema=schema)
        return session.createDataFrame(tasks, "part binary").mapInArrow(
            rows, from_arrow_schema(schema, prefer_timestamp_ntz=True)
        )


def _rows(batches: Iterable[pa.RecordBatch], *, request: ReadRequest, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for part in batch.column(0).to_pylist():
            yield from read_part(request, pickle.loads(part), schema)
