"""The data source `lancelsm` of PySpark: options, schema, reader and writer. It moves rows as Arrow batches."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceReader, InputPartition, WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lancelsm.common.duration import seconds_of
from lancelsm.common.zip_importers import forget_zip_importers
from lancelsm.errors import Invalid
from lancelsm.record.schema import unknown_column
from lancelsm.region.handle import open_configured
from lancelsm.spark.batch_read import ReadRequest, TaskPart, declared_schema, filtered_request, parts, read_part
from lancelsm.spark.write_rows import check_columns, write_unsorted

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"
_OPTIONS = ("path", "columns", "where", "at", "ttl")


@dataclass(frozen=True)
class PartOfTable(InputPartition):
    """The part of one task, as Spark sends it to an executor."""

    part: TaskPart


def read_request(options: Mapping[str, str]) -> ReadRequest:
    """Decode the options of a read. Their names have no case.

    Raises:
        Invalid: there is no path, or an option is unknown or not valid.
    """
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name not in _OPTIONS:
            raise Invalid(f"unknown option {name!r}", remedy=f"Options are {', '.join(_OPTIONS)}", field=name)
    uri = given.get("path")
    if not uri:
        raise Invalid("the read names no table", remedy="Give its location: load(uri)", field="path")
    columns = given.get("columns")
    ttl = seconds_of(given["ttl"], field="ttl") if "ttl" in given else ReadRequest(uri=uri).ttl_seconds
    return ReadRequest(
        uri=uri,
        columns=None if columns is None else tuple(one.strip() for one in columns.split(",")),
        where=given.get("where"),
        at=given.get("at"),
        ttl_seconds=ttl,
    )


def read_schema(options: Mapping[str, str]) -> StructType:
    """Return the schema of a read in Spark. Raises the errors of `declared_schema`."""
    forget_zip_importers()
    return from_arrow_schema(declared_schema(read_request(options)), prefer_timestamp_ntz=True)


class Reader(DataSourceReader):
    """Read one view of a table in parallel.

    Args:
        schema: what Spark declares: the columns of the table, or those that the user chose with `.schema(...)`.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        forget_zip_importers()
        self._request = read_request(options)
        self._schema = _checked_schema(self._request, schema)

    def partitions(self) -> Sequence[InputPartition]:
        return [PartOfTable(part) for part in parts(self._request)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        forget_zip_importers()
        if partition is None:  # Spark's stand-in for no partition: the table has no rows
            return iter(())
        assert isinstance(partition, PartOfTable)
        return read_part(self._request, partition.part, self._schema)


class FilteringReader(Reader):
    """A reader that takes filters. Spark before 4.1 has none, and later releases refuse such a class unless
    `spark.sql.python.filterPushdown.enabled` is set.
    """

    def pushFilters(self, filters: Iterable[Any]) -> Iterable[Any]:
        """Take filters before `partitions` is called, and return those that Spark must still apply."""
        self._request, left = filtered_request(self._request, filters)
        return left


def reader_class() -> type[Reader]:
    """Return the class of the reader for the process that plans a query. Only one that pushes filters imports
    this module of Spark.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    pushes = _PUSHING in sys.modules or getattr(main, "name", None) == _PUSHING
    return FilteringReader if pushes else Reader


@dataclass(frozen=True)
class RowsOfTask(WriterCommitMessage):
    """What a task has written, as Spark sends it to the driver."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    """Append the rows of each task as Spark partitioned them. `commit` and `abort` have nothing to do: rows are visible
    once they are appended, and nothing takes them back.

    Raises:
        Invalid: the mode is `overwrite`, an option is unknown or asks for what only `lancelsm.spark.write` does, or
            columns don't match.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        given = {name.lower(): value for name, value in options.items()}
        if overwrite:
            raise Invalid(
                "a table is not overwritten",
                remedy="Delete rows with Table.delete(where='true'), then write, or create another table",
                field="mode",
            )
        op = given.get("op", "upsert")
        if op == "apply" or any(name.startswith("txn") for name in given):
            raise Invalid(
                "the data source takes rows as Spark partitioned them, so a repeated task writes them again",
                remedy="Call lancelsm.spark.write(df, uri, op=, txn_app=, txn_version=), which writes each row once",
                field="op" if op == "apply" else "txn_app",
            )
        if op not in ("upsert", "delete"):
            raise Invalid(f"op is {op!r}", remedy="Give upsert or delete", field="op")
        for name in given:
            if name not in ("path", "op"):
                raise Invalid(f"unknown option {name!r}", remedy="Options of a write are path and op", field=name)
        if not given.get("path"):
            raise Invalid("the write names no table", remedy="Give its location: save(uri)", field="path")
        self._uri, self._op = given["path"], op
        check_columns(schema.fieldNames(), open_configured(self._uri), op=op)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        forget_zip_importers()
        return RowsOfTask(write_unsorted(iterator, uri=self._uri, op="delete" if self._op == "delete" else "upsert"))


def refuse_stream() -> Invalid:
    """Build the error of a write by `DataFrame.writeStream.format`."""
    return Invalid(
        "the data source takes no stream: rows as Spark partitioned them would be written again by a repeated batch",
        remedy="Call lancelsm.spark.write_stream(df, uri, op=), which writes each row once",
        field="format",
    )


def matching_schema(given: StructType, expected: pa.Schema, *, table: str) -> pa.Schema:
    """Return the part of the expected schema that is declared. Raises `Invalid` for another column or type."""
    names = given.fieldNames()
    if unknown := [name for name in names if name not in expected.names]:
        raise unknown_column(unknown[0], expected.names, table=table)
    chosen = pa.schema([expected.field(name) for name in names])
    ours = from_arrow_schema(chosen, prefer_timestamp_ntz=True)
    for one, other in zip(given.fields, ours.fields, strict=True):
        if one.dataType.simpleString() != other.dataType.simpleString():
            raise Invalid(
                f"the schema has {one.dataType.simpleString()}, but the table has {other.dataType.simpleString()}",
                remedy="Leave out the schema, or declare this type",
                table=table,
                field=one.name,
            )
    return chosen


def _checked_schema(request: ReadRequest, schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the declared columns. Raises `Invalid` if the user declared other types."""
    names = tuple(schema.fieldNames())
    chosen = declared_schema(ReadRequest(uri=request.uri, at=request.at, columns=names))
    return matching_schema(schema, chosen, table=request.uri)
