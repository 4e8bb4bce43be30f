"""The change stream as a streaming source of PySpark 4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lancelsm.common.zip_importers import forget_zip_importers
from lancelsm.errors import Invalid
from lancelsm.spark.source import matching_schema
from lancelsm.spark.stream_read import ChangeSource, EntrySpan, StreamRequest, read_span, stream_schema

CHANGES = "changes"
_OPTIONS = ("path", CHANGES, "cursor", "columns", "start", "entries_per_trigger")


@dataclass(frozen=True)
class SpanOfTask(InputPartition):
    """What one task reads, as Spark sends it to an executor."""

    span: EntrySpan


def reads_changes(options: Mapping[str, str]) -> bool:
    """Return whether the options ask for the change stream."""
    given = {name.lower(): value for name, value in options.items()}
    return given.get(CHANGES, "false").lower() == "true"


def stream_request(options: Mapping[str, str]) -> StreamRequest:
    """Decode the options of a stream. Their names have no case.

    Raises:
        Invalid: an option is missing, unknown or not valid.
    """
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name not in _OPTIONS:
            raise Invalid(f"unknown option {name!r}", remedy=f"Options are {', '.join(_OPTIONS)}", field=name)
    if not reads_changes(given):
        raise Invalid(
            "a stream reads changes, whose columns differ from those of the table",
            remedy="Give the option changes=true, and cursor=NAME",
            field=CHANGES,
        )
    if not given.get("path"):
        raise Invalid("the read names no table", remedy="Give its location: load(uri)", field="path")
    if not given.get("cursor"):
        raise Invalid(
            "the stream has no cursor, which keeps changes until they are processed",
            remedy="Give the option cursor, a name that only this query uses",
            field="cursor",
        )
    start = given.get("start", "earliest")
    if start not in ("earliest", "latest"):
        raise Invalid(f"start is {start!r}", remedy="Give earliest or latest", field="start")
    most = given.get("entries_per_trigger")
    if most is not None and (not most.isdecimal() or int(most) < 1):
        raise Invalid(f"entries_per_trigger is {most!r}", remedy="Give 1 or more", field="entries_per_trigger")
    columns = given.get("columns")
    return StreamRequest(
        uri=given["path"],
        cursor=given["cursor"],
        columns=None if columns is None else tuple(one.strip() for one in columns.split(",")),
        start=start,
        entries_per_trigger=None if most is None else int(most),
    )


def change_schema(options: Mapping[str, str]) -> StructType:
    """Return the schema of a stream in Spark. Raises the errors of `stream_request` and `stream_schema`."""
    request = stream_request(options)
    return from_arrow_schema(stream_schema(request.uri, request.columns), prefer_timestamp_ntz=True)


class StreamReader(DataSourceStreamReader):
    """Read changes: an offset has the next position of each region. See `stream_read`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._request = stream_request(options)
        expected = stream_schema(self._request.uri, self._request.columns)
        self._schema = matching_schema(schema, expected, table=self._request.uri)
        self._source: ChangeSource | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}  # tasks have no need of it

    @property
    def _changes(self) -> ChangeSource:
        self._source = self._source or ChangeSource(self._request)
        return self._source

    def initialOffset(self) -> dict[str, int]:
        return self._changes.initial_offset()

    def latestOffset(self) -> dict[str, int]:
        return self._changes.latest_offset()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [SpanOfTask(span) for span in self._changes.spans(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        forget_zip_importers()
        assert isinstance(partition, SpanOfTask)
        return read_span(self._request, partition.span, self._schema)

    def commit(self, end: dict[str, int]) -> None:
        self._changes.commit(end)
