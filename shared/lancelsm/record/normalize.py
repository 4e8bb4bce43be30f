"""Convert the rows of a caller to stored form: check them, cast them, and keep each key once. All rows or none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.arrow_input import read_whole
from lancelsm.common.error_text import shown
from lancelsm.errors import Invalid
from lancelsm.record.casts import cast_column, nulls, shown_value
from lancelsm.record.key import fold, last_of_key, newest
from lancelsm.record.scalars import plain
from lancelsm.record.schema import TableSchema, unknown_column
from lancelsm.record.shapes import SAME_COLUMNS, check_nesting, is_row, key_rows, listed, record_row
from lancelsm.record.values import column

_PANDAS_INDEX: Final = re.compile(r"__index_level_\d+__")
_Column: TypeAlias = pa.ChunkedArray | Sequence[Any]


def upserts(data: Any, *, schema: TableSchema, on_duplicate: Literal["last", "error"] = "last") -> pa.Table:
    """Convert whole rows to the form of `schema.stored`.

    Args:
        data: anything with `__arrow_c_stream__` or `__arrow_c_array__` (pyarrow, polars, pandas), a mapping of
            columns, an iterable of rows, or one row: a mapping, a dataclass, a named tuple or a pydantic model. It must
            have the columns of the table, in any order. It may leave out columns that were added to the table; then
            they have their defaults.
        on_duplicate: "last": the last row of each key wins. "error": a duplicate key is refused.

    Returns:
        One row per key, in arrival order, one chunk per column, with `_tombstone` false.

    Raises:
        Invalid: a column is unknown or missing, a key is null, a not-null column has a null, a value has another kind
            or does not fit, text is not UTF-8, or a key is duplicate and `on_duplicate` is "error". The error names
            column and row.
    """
    rows = _stored(_columns(data, schema=schema), schema=schema, names=schema.names, tombstone=False)
    return _distinct(rows, schema, on_duplicate)


def partial_upserts(
    data: Any, *, schema: TableSchema, on_duplicate: Literal["last", "error"] = "last"
) -> tuple[pa.Table, list[str]]:
    """Convert rows of some columns, the key columns among them, like `upserts`. All other columns are null.

    Returns:
        The rows, and the names of the columns that were given.

    Raises: the same errors as `upserts`, but only a missing key column is one.
    """
    given = _columns(data, schema=schema)
    names = [name for name in schema.names if given is None or name in given or name in schema.primary_key]
    return _distinct(_stored(given, schema=schema, names=names, tombstone=False), schema, on_duplicate), names


def upserts_in_order(data: pa.Table | Mapping[str, Sequence[Any]], *, schema: TableSchema) -> pa.Table:
    """Convert a table, or columns of Python values, like `upserts`, but keep every row of a key.

    Raises: the same errors as `upserts`.
    """
    given = _table_columns(data) if isinstance(data, pa.Table) else data
    return _stored(given, schema=schema, names=schema.names, tombstone=False)


def deletes(keys: Any, *, schema: TableSchema) -> pa.Table:
    """Build tombstones for keys, in the form of `schema.stored`: key columns, `_tombstone` true, all others null.

    Args:
        keys: the same forms as the data of `upserts`, with only the key columns; for a single key column also its plain
            values, or one value; for several key columns also tuples of their values, or one tuple.

    Raises:
        Invalid: for the same reasons as in `upserts`.
    """
    rows = _stored(
        _columns(key_rows(keys, schema.primary_key), schema=schema),
        schema=schema,
        names=list(schema.primary_key),
        tombstone=True,
    )
    return newest(rows, schema.primary_key)


def readable_again(data: Any) -> Any:
    """Return rows of a stream or an iterator, which can be read once, in a form that can be read again.

    Raises:
        Invalid: the rows can't be read.
    """
    if hasattr(data, "__arrow_c_stream__"):
        return data if hasattr(data, "__len__") else _imported(read_whole, data)
    return listed(data) if isinstance(data, Iterator) else data


def inferred(data: Any) -> pa.Table:
    """Convert rows to a table with inferred types, to create a new table from them.

    Args:
        data: the same forms as in `upserts`.

    Raises:
        Invalid: there are no columns, or no type fits the values of a column.
    """
    if isinstance(data, Mapping) and data and all(map(_is_type, data.values())):
        raise Invalid(
            "the values of the dict are types, so it is no row",
            remedy="Give pyarrow.schema(columns), or rows in a list",
        )
    given = _columns(data)
    if not given:
        raise Invalid("there are no columns to create a table from", remedy="Give an Arrow schema, or rows")
    for name, values in given.items():
        check_nesting(values, name)
    known = {name: _inferred_column(name, values) for name, values in given.items()}
    table: pa.Table = _imported(lambda columns: pa.table(dict(columns)), known)
    return table


def _is_type(value: Any) -> bool:
    if not isinstance(value, str):
        return isinstance(value, pa.DataType | type)
    try:
        return pa.type_for_alias(value) is not None
    except ValueError:
        return False


def _inferred_column(name: str, values: _Column) -> _Column:
    if not isinstance(values, list | tuple):
        return values
    try:
        return pa.array(plain(values, None))
    # The error type depends on the values: NotImplementedError means a type that Arrow can't infer.
    except (pa.ArrowException, TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise Invalid(
            f"no type of Arrow fits the values of column {name!r}: {error}",
            redacted=f"no type of Arrow fits the values of column {name!r}",
            remedy="Give values of one type, or create the table from an Arrow schema",
            field=name,
        ) from error


def _stored(given: Mapping[str, _Column] | None, *, schema: TableSchema, names: list[str], tombstone: bool) -> pa.Table:
    stored = schema.stored
    if given is None:
        return stored.empty_table()
    known, wanted, optional = set(schema.names), set(names), schema.optional
    if unknown := [name for name in given if name not in known]:
        raise unknown_column(unknown[0], schema.names)
    whole = f"Give exactly the {'key columns' if tombstone else 'columns'} {', '.join(names)}"
    if unknown := [name for name in given if name not in wanted]:
        raise Invalid(f"{unknown[0]!r} is not a key column", remedy=whole, field=unknown[0])
    if missing := [name for name in names if name not in given and name not in optional]:
        raise Invalid(f"column {missing[0]!r} is missing", remedy=whole, field=missing[0])
    if len({len(values) for values in given.values()}) > 1:
        lengths = ", ".join(f"{name} {len(values)}" for name, values in given.items())
        raise Invalid(f"columns differ in length: {lengths}", remedy="Give each column as many values as the others")
    rows = len(given[next(name for name in names if name in given)])
    arrays = []
    for field in schema.columns:
        if field.name not in wanted:
            arrays.append(nulls(rows, field.type))
            continue
        if field.name not in given:
            arrays.append(schema.left_out(field, rows))
            continue
        needed = field.with_nullable(False) if field.name in schema.primary_key else field
        values = given[field.name]
        arrays.append(cast_column(values, needed) if isinstance(values, pa.ChunkedArray) else column(values, needed))
    arrays.append(pa.repeat(pa.scalar(tombstone, pa.bool_()), rows))
    return pa.Table.from_arrays(arrays, schema=stored)


def _distinct(rows: pa.Table, schema: TableSchema, on_duplicate: str) -> pa.Table:
    if on_duplicate not in ("last", "error"):
        raise Invalid(f"on_duplicate is {shown(on_duplicate)}", remedy="Give 'last' or 'error'")
    if on_duplicate == "error":
        _check_distinct(rows, schema)
        return rows
    return newest(rows, schema.primary_key)


def _check_distinct(rows: pa.Table, schema: TableSchema) -> None:
    if not fold(rows, schema.primary_key).superseded.num_rows:
        return
    last = last_of_key(rows, schema.primary_key)
    first = pc.index(pc.equal(last, pa.arange(0, len(last))), False).as_py()
    key = ", ".join(f"{name} {shown_value(rows.column(name)[first])}" for name in schema.primary_key)
    raise Invalid(
        f"duplicate key {key} in rows {first} and {last[first]}",
        remedy="Leave one of the rows out, or write with on_duplicate='last'",
        field=schema.primary_key[0],
        row=first,
    )


def _columns(data: Any, *, schema: TableSchema | None = None) -> Mapping[str, _Column] | None:
    """Return the columns by name; None for an empty iterable, which has no columns."""
    if (row := record_row(data)) is not None or (
        isinstance(data, Mapping) and is_row(data, None if schema is None else schema.columns)
    ):
        data = [data if row is None else row]
    if isinstance(data, Mapping):
        return {_name(name): _column(_name(name), values) for name, values in data.items()}
    if _is_arrow(data) or type(data).__module__.partition(".")[0] == "pandas":
        if hasattr(data, "items"):  # a frame of pandas
            for name, values in (("index", data.index), *data.items()):
                check_nesting(values, name)
        if type(data).__module__.partition(".")[0] == "polars" and hasattr(data, "schema"):
            for name, kind in data.schema.items():
                _check_no_objects(kind, name)
        return _table_columns(data if isinstance(data, pa.Table) else _imported(read_whole, data))
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise Invalid(
            f"rows can't be read from {type(data).__name__}", remedy="Give Arrow data, columns, or rows as dicts"
        )
    return _row_columns(listed(data))


def _name(name: Any) -> str:
    return str.__str__(name) if isinstance(name, str) else str(name)  # `str` gives a member of an enum by its name


def _table_columns(table: pa.Table) -> dict[str, _Column]:
    names = table.schema.names
    if b"pandas" in (table.schema.metadata or {}):
        # The index of a pandas frame is a column only if it has a name.
        names = [name for name in names if not _PANDAS_INDEX.fullmatch(name)]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise Invalid(f"duplicate column {twice[0]!r}", remedy="Name each column once", field=twice[0])
    return {name: table.column(name) for name in names}


def _row_columns(rows: list[Any]) -> Mapping[str, _Column] | None:
    if not rows:
        return None
    if not isinstance(rows[0], Mapping):
        rows = [values if (found := record_row(values)) is None else found for values in rows]
    names = rows[0].keys() if isinstance(rows[0], Mapping) else ()
    for row, values in enumerate(rows):
        if not isinstance(values, Mapping):
            raise Invalid(
                f"row {row} is a {type(values).__name__}, not a dict", remedy="Give every row as a dict", row=row
            )
        if values.keys() != names:
            name = next(iter(values.keys() ^ names))
            present, missing = (row, 0) if name in values else (0, row)
            raise Invalid(
                f"column {shown(name)} is in row {present} and missing in row {missing}",
                remedy=SAME_COLUMNS,
                field=name,
                row=row,
            )
    return {name: [values[name] for values in rows] for name in names}


def _column(name: str, values: Any) -> _Column:
    if isinstance(values, list | tuple | pa.ChunkedArray):
        return values
    if isinstance(values, pa.Array):
        return pa.chunked_array([values])
    check_nesting(values, name)
    if hasattr(values, "__arrow_c_stream__"):
        _check_no_objects(getattr(values, "dtype", None), name)
        return _imported(pa.chunked_array, values)
    if getattr(getattr(values, "dtype", None), "kind", "") == "O" and hasattr(values, "tolist"):
        return listed(values)  # Python objects in an array of numpy
    if hasattr(values, "__arrow_c_array__") or hasattr(values, "__array__"):
        return _imported(lambda given: pa.chunked_array([pa.array(given)]), values)
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise Invalid(
            f"column {name!r} is a {type(values).__name__}, not a sequence of values",
            remedy="Give columns of values, or rows as a list of dicts",
            field=name,
        )
    return listed(values)


def _is_arrow(data: Any) -> bool:
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def _check_no_objects(kind: Any, name: str) -> None:
    if str(kind) == "Object":
        what = f"column {name!r} has Python objects, of which polars exports the addresses"
        raise Invalid(what, remedy="Convert the column to another type", field=name)


def _imported(read: Callable[[Any], Any], data: Any) -> Any:
    try:
        return read(data)
    # The error type depends on the producer of the stream: NotImplementedError means an unsupported type.
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError) as error:
        reason = ". ".join(map(str, error.args))
        raise Invalid(
            f"{type(data).__name__} can't be read as Arrow: {reason}",
            remedy="Give Arrow data, columns, or rows as dicts",
        ) from error
