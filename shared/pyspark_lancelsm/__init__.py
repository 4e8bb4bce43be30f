"""Let Spark find the data source `lancelsm` without registration.

Spark imports each top-level module named `pyspark_...` at its first use of a data source. So this module imports
nothing slow and raises nothing: an error here would break the data sources of others. lancelsm is imported when a
table is read or written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.datasource import DataSource
    except Exception:  # noqa: BLE001 - Spark 3.5 has no data sources in Python
        DataSource = object


class DefaultSource(DataSource):
    """The data source `lancelsm`; see `lancelsm.spark`."""

    @classmethod
    def name(cls) -> str:
        return "lancelsm"

    def schema(self) -> StructType:
        from lancelsm.spark.source import read_schema  # noqa: PLC0415
        from lancelsm.spark.stream_source import change_schema, reads_changes  # noqa: PLC0415

        return change_schema(self.options) if reads_changes(self.options) else read_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from lancelsm.spark.source import reader_class  # noqa: PLC0415

        return reader_class()(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from lancelsm.spark.stream_source import StreamReader  # noqa: PLC0415

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from lancelsm.spark.source import BatchWriter  # noqa: PLC0415

        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002
        from lancelsm.spark.source import refuse_stream  # noqa: PLC0415

        raise refuse_stream()
