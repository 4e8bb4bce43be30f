"""Merge a table on the executors of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancelsm.compaction.maintenance import merge_table
from lancelsm.compaction.spark import Spark
from lancelsm.errors import Unavailable
from lancelsm.region.handle import open_table
from lancelsm.spark.executor_errors import from_spark, job_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lancelsm.compaction.merge import Merged


def merge(session: SparkSession, uri: str) -> Merged:
    """Merge all generations of a table into its base, on the executors of this session. It does not flush.

    Executors read and write the objects of the table with the credentials that they have. The driver commits.

    Raises:
        Invalid: the executors lack lancelsm or run another Python; or another tool changed the base.
        Contended: another process merges or optimizes the table, or keeps changing the base. Retry.
        Ambiguous: the commit may have happened. Merge again: generations are not merged twice.
        Unavailable: a store did not answer; nothing was committed. Retry.
        Corrupt: the base belongs to another table, or a generation is missing or damaged.
    """
    handle = open_table(uri)
    with job_errors(table=handle.context.uri):
        try:
            return merge_table(handle, runner=Spark(session))
        except Unavailable as error:
            if error.__cause__ is not None and from_spark(error.__cause__):
                raise error.__cause__ from None  # its text has the traceback of the worker
            raise
