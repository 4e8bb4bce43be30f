"""Return the rows of one read to pyarrow, polars, duckdb and pandas."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lancelsm.common.extras import needing
from lancelsm.common.html import records_html
from lancelsm.common.other_names import ROWS, other_name
from lancelsm.errors import Invalid
from lancelsm.read.peers import duckdb_of, polars_of

if TYPE_CHECKING:  # packages that few processes use
    from duckdb import DuckDBPyConnection, DuckDBPyRelation
    from pandas import DataFrame
    from polars import DataFrame as PolarsFrame


class Rows:
    """The rows of one read. They are streamed from storage, and can be read once.

    Supports the Arrow C stream protocol, so pyarrow, polars, duckdb and pandas accept it directly.
    """

    def __init__(self, stream: pa.RecordBatchReader) -> None:
        self._stream = stream
        self._taken = False

    if not TYPE_CHECKING:  # type checkers report a name that is missing

        def __getattr__(self, name: str) -> object:
            if error := other_name("a read", name, ROWS):
                raise error
            return object.__getattribute__(self, name)  # raises the error that Python has for it

    def __repr__(self) -> str:
        return f"<lancelsm.Rows {self.schema.names}: read them once, with to_arrow() or to_pandas()>"

    def _repr_html_(self) -> str:
        """Show the columns in a notebook. No row is read, since rows can be read once."""
        columns = [{"column": field.name, "type": field.type} for field in self.schema]
        return records_html("Rows of one read: to_arrow() or to_pandas() reads them, once", ("column", "type"), columns)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self._stream.schema

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._take().__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._take())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows in batches."""
        return iter(self._take())

    def to_arrow(self) -> pa.Table:
        """Read the rows into a table of Arrow."""
        return self._take().read_all()

    def to_pylist(self) -> list[dict[str, Any]]:
        """Read the rows into a list of dicts."""
        rows: list[dict[str, Any]] = self.to_arrow().to_pylist()
        return rows

    def _take(self) -> pa.RecordBatchReader:
        """Return the stream once. A second reader would silently get only the remaining rows."""
        if self._taken:
            raise Invalid("these rows were already read", remedy="Keep them with to_arrow(), or scan again")
        self._taken = True
        return self._stream

    def to_polars(self) -> PolarsFrame:
        """Return a polars DataFrame. Raise `Invalid` if polars is not installed, or lacks the type of a column."""
        return polars_of(self.to_arrow())

    def to_pandas(self) -> DataFrame:
        """Return a pandas DataFrame. Raise `Invalid` if pandas is not installed."""
        with needing("pandas"):
            import_module("pandas")  # pyarrow would raise an error without a remedy

        return self.to_arrow().to_pandas()

    def to_duckdb(self, connection: DuckDBPyConnection | None = None) -> DuckDBPyRelation:
        """Return a relation of duckdb, with the rows in memory.

        Raises:
            Invalid: duckdb is not installed, or lacks the type of a column; or this is no open connection of it.
        """
        return duckdb_of(self.to_arrow(), self.schema, connection)


def with_first_batch(stream: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Read the first batch now, so that most missing objects are found before the caller gets a row."""
    first = next(iter(stream), None)
    if first is None:
        return pa.RecordBatchReader.from_batches(stream.schema, [])
    return pa.RecordBatchReader.from_batches(stream.schema, chain([first], stream))
