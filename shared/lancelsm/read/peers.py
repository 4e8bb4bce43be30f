"""Give Arrow data to polars and duckdb. A column of a type that they lack is `Invalid`, and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from lancelsm.common.extras import needing
from lancelsm.common.panics import is_panic
from lancelsm.errors import Invalid


def polars_of(rows: pa.Table) -> Any:
    """Return a polars DataFrame with these rows.

    Raises:
        Invalid: polars is not installed, or lacks the type of a column.
    """
    with needing("polars"):
        import polars

    with _naming_column("polars", rows.schema, polars.from_arrow):
        return polars.from_arrow(rows)


def duckdb_of(source: Any, schema: pa.Schema, connection: Any) -> Any:
    """Return a relation of duckdb for a table or a dataset of Arrow.

    Args:
        schema: of the source.
        connection: a connection of duckdb; None: its default connection.

    Raises:
        Invalid: duckdb is not installed, or lacks the type of a column; or this is no open connection of it.
    """
    with needing("duckdb"):
        import duckdb

    if connection is not None and not isinstance(connection, duckdb.DuckDBPyConnection):
        raise Invalid(
            f"connection is of type {type(connection).__name__}",
            remedy="Give a connection of duckdb.connect(), or none",
            field="connection",
        )
    try:
        with _naming_column("duckdb", schema, duckdb.from_arrow):
            return (duckdb if connection is None else connection).from_arrow(source)
    except duckdb.ConnectionException as error:
        raise Invalid(str(error), remedy="Give an open connection", field="connection") from error


def nulls_of(schema: pa.Schema) -> pa.Table:
    """Return a row of nulls, with the types of the columns."""
    return pa.table([pa.nulls(1, field.type) for field in schema], names=schema.names)


@contextmanager
def _naming_column(peer: str, schema: pa.Schema, read: Callable[[pa.Table], object]) -> Iterator[None]:
    """Raise `Invalid` if the block fails at a column of which `read` can't take a null either."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        for field in schema:
            if not _can_read(pa.schema([field]), read):
                raise Invalid(
                    f"{peer} has no type for column {field.name!r} of type {field.type}",
                    remedy="Read other columns: scan(columns=[...]), or to_arrow()",
                    field=field.name,
                ) from error
        raise


def _can_read(schema: pa.Schema, read: Callable[[pa.Table], object]) -> bool:
    try:
        read(nulls_of(schema))
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        return False
    return True
