"""Write a stream of Spark: each micro-batch is a job whose name is the query and whose number is that of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancelsm.errors import Invalid, error_context
from lancelsm.region.handle import open_configured
from lancelsm.spark.write_frame import WRITE_OPS, check_name, write_as
from lancelsm.spark.write_rows import Op

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_QUERY = "sql.streaming.queryId"


def write_stream(df: DataFrame, uri: str, *, op: Op = "upsert", txn_app: str | None = None) -> DataStreamWriter:
    """Return a writer that writes each micro-batch as `write` does. Give it a checkpoint, perhaps a trigger; start it.

    Each row is in the log once, also if the driver is killed at any point and the query is started again with the same
    checkpoint: Spark then repeats the last batch, and each region skips what it has of it.

    Args:
        df: a streaming DataFrame whose source gives the same rows if Spark repeats a batch, as files and Kafka do.
        uri: the location of the table, which executors reach too.
        op: `upsert`, `delete` or `apply`, with the columns that `write` asks for.
        txn_app: the name of the query in the table; by default the id of the query, which the checkpoint keeps. A query
            with a new checkpoint counts its batches from 0 again, so it needs another name. Regions remember 16 names.

    Raises:
        Invalid: there is no table at this location, or an argument is wrong. Errors of a batch end the query.
    """
    if op not in WRITE_OPS:
        raise Invalid(f"op is {op!r}", remedy=f"Give one of {', '.join(WRITE_OPS)}", field="op")
    if not df.isStreaming:
        raise Invalid("the DataFrame is no stream", remedy="Call lancelsm.spark.write", field="df")
    check_name(txn_app)
    uri = open_configured(uri).context.uri

    def write_batch(batch: DataFrame, number: int) -> None:
        handle = open_configured(uri)
        with error_context(table=handle.context.uri):
            producer = f"spark-query:{_query_id(batch)}" if txn_app is None else f"spark:{txn_app}"
            write_as(batch, handle, op=op, producer=producer, batch=number)

    return df.writeStream.foreachBatch(write_batch)


def _query_id(batch: DataFrame) -> str:
    try:
        found = batch.sparkSession.sparkContext.getLocalProperty(_QUERY)
    except Exception:  # noqa: BLE001 - Spark Connect has no such context
        found = None
    if not found:
        raise Invalid("Spark does not say which query this is", remedy="Give txn_app", field="txn_app")
    return str(found)
