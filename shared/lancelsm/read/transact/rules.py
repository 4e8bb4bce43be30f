"""Decide which rows of a conditional or partial write are written, from the live rows of their keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.error_text import shown
from lancelsm.errors import Invalid
from lancelsm.record.casts import as_column, shown_value, whole
from lancelsm.record.key import key_column
from lancelsm.record.schema import TableSchema, field_id, unknown_column

_DECIMALS = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128, 256: pa.decimal256}


def absent(given: pa.Table, current: pa.Table, schema: TableSchema) -> pa.Table:
    """Return the given rows whose keys have no live row."""
    return given.filter(_row_of(given, current, schema).is_null())


def newer(given: pa.Table, current: pa.Table, schema: TableSchema, *, column: str) -> pa.Table:
    """Return the given rows that have no live row, or one with a lower value in the column.

    Null is lower than every value, and so is NaN.
    """
    row = _row_of(given, current, schema)
    kind = _ordered_type(schema, column)
    now, before = _values(given.column(column), kind), _values(current.column(column), kind).take(row)
    later = pc.or_kleene(before.is_null(), pc.greater(now, before))
    return given.filter(pc.fill_null(pc.or_(row.is_null(), pc.and_kleene(now.is_valid(), later)), False))


def filled(given: pa.Table, current: pa.Table, schema: TableSchema, *, names: Sequence[str]) -> pa.Table:
    """Return the given rows with the live values of all columns but `names`; the default if there is no live row.

    Raises:
        Invalid: a row has no live row, and a column that is not in `names` must not be null.
    """
    row = _row_of(given, current, schema)
    for field in schema.columns:
        if field.name in names:
            continue
        if not field.nullable and row.null_count:
            first = pc.index(row.is_null(), True).as_py()
            key = ", ".join(f"{name} {shown_value(given.column(name)[first])}" for name in schema.primary_key)
            raise Invalid(
                f"there is no row with the key {key}, and column {field.name!r} must not be null in a new row",
                remedy=f"Give a value for {field.name}, or leave the row out",
                redacted="a partial row has a key without a row, and lacks a column that must not be null",
                field=field.name,
            )
        values = as_column(whole(current.column(field.name)).take(row), field.type)
        if schema.history.default(field_id(field)) is not None:
            both = whole(pa.chunked_array([values, schema.left_out(field, 1)]))
            values = both.take(pc.if_else(row.is_null(), len(row), pa.arange(0, len(row))))
        at = given.schema.get_field_index(field.name)
        given = given.set_column(at, given.schema.field(at), values)
    return given


def check_ordered(schema: TableSchema, column: str) -> None:
    """Raise `Invalid` unless rows can be compared by this column, which is no key column."""
    if column not in schema.names:
        raise unknown_column(column, schema.names)
    if column in schema.primary_key:
        raise Invalid(
            f"column {shown(column)} is a key column, so it is the same in both rows",
            remedy="Name a column with a version or a time",
            field=column,
        )
    kind = _ordered_type(schema, column)
    empty = pa.array([], kind)
    try:
        pc.greater(empty, empty)
    except pa.ArrowException as error:
        raise Invalid(
            f"values of column {shown(column)} of type {kind} have no order",
            remedy="Name a column of numbers, times or text",
            field=column,
        ) from error


def _row_of(given: pa.Table, current: pa.Table, schema: TableSchema) -> pa.Array:
    """Return the index of the live row with the key of each given row; null if there is none."""
    names = schema.primary_key
    return pc.index_in(key_column(given, names), value_set=key_column(current, names))


def _ordered_type(schema: TableSchema, column: str) -> pa.DataType:
    kind = schema.columns.field(column).type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    # Arrow can't compare these two kinds of numbers.
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal(kind) and kind.scale < 0:
        return _DECIMALS[kind.bit_width](kind.precision, 0)
    return kind


def _values(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return the values as an array without NaN."""
    values = whole(column)
    if pa.types.is_decimal(values.type) and values.type.scale < 0:  # the same numbers without the power of ten
        return pa.Array.from_buffers(kind, len(values), values.buffers(), offset=values.offset)
    values = whole(as_column(values, kind))
    if pa.types.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, kind), values)
    return values
