"""Read and write tables in PySpark: `spark.read.format("lancelsm").load(uri)`, `write(df, uri)`,
`write_stream(df, uri)`, and `merge(session, uri)`. `java_home()` finds or sets up a Java for Spark.

Executors need lancelsm in their Python, as in the layer or in a packed environment. Options of a read: `columns` (names
separated by commas), `where` (a condition in Lance's dialect), `at` (the name of a snapshot), and `ttl`: how long the
snapshot that is made for the query lives unless a running task renews it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancelsm.compaction.java import java_home
from lancelsm.errors import Invalid
from lancelsm.spark.read_frame import read
from lancelsm.spark.session_merge import merge
from lancelsm.spark.stream_write import write_stream
from lancelsm.spark.write_frame import WrittenRows, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["WrittenRows", "java_home", "merge", "read", "register", "write", "write_stream"]


def register(spark: SparkSession) -> None:
    """Register the data source `lancelsm` in a session. Spark also finds it without this, if it is installed.

    Raises:
        Invalid: this release of Spark has no data sources in Python.
    """
    if not hasattr(spark, "dataSource"):
        raise Invalid(
            "Spark 3.5 has no data sources in Python", remedy="Use PySpark 4.0 or later, or lancelsm.spark.read"
        )
    from pyspark_lancelsm import DefaultSource  # noqa: PLC0415 - it needs pyspark

    spark.dataSource.register(DefaultSource)
