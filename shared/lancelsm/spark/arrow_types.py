"""Convert columns to the Arrow types that Spark reads, without Spark.

Spark reads the buffers of a batch as those of the declared type. So names, order, types and nullability of each batch
are exactly those of the declared schema, at every depth.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.errors import Invalid

_DIGITS = 38  # of a decimal in Spark
_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.float16(): pa.float32()}
_Is = Callable[[pa.DataType], bool]
_SAME: tuple[_Is, ...] = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_null)
_TEXT: tuple[_Is, ...] = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BINARY: tuple[_Is, ...] = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
)
_LIST: tuple[_Is, ...] = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def spark_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema of these columns in Spark.

    Raises:
        Invalid: Spark has no type for a column.
    """
    return pa.schema([pa.field(one.name, _column_type(one), one.nullable) for one in columns])


def spark_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch under a schema that `spark_schema` made of its columns.

    Raises:
        Invalid: a value is out of the range of Spark's type, such as a time with nanoseconds.
    """
    columns = [_converted(batch.column(one.name), one) for one in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column_type(column: pa.Field) -> pa.DataType:
    kind = _spark_type(column.type)
    if kind is None:
        raise Invalid(
            f"Spark has no type for {column.type}",
            remedy="Leave the column out with the option columns",
            field=column.name,
        )
    return kind


def _spark_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in Spark; None if there is none that keeps the values."""
    if kind in _WIDER:
        return _WIDER[kind]
    if kind == pa.uint64():
        return pa.decimal128(20, 0)
    if any(one(kind) for one in _SAME):
        return kind
    if any(one(kind) for one in _TEXT):
        return pa.string()
    if any(one(kind) for one in _BINARY):
        return pa.binary()
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_decimal(kind):
        fits = kind.precision <= _DIGITS and 0 <= kind.scale <= kind.precision
        return pa.decimal128(kind.precision, kind.scale) if fits else None
    if pa.types.is_dictionary(kind):
        return _spark_type(kind.value_type)
    return _nested_type(kind)


def _nested_type(kind: pa.DataType) -> pa.DataType | None:
    if any(one(kind) for one in _LIST):
        element = _spark_type(kind.value_type)
        return None if element is None else pa.list_(pa.field("element", element, kind.value_field.nullable))
    if pa.types.is_struct(kind):
        parts = [(one, _spark_type(one.type)) for one in kind]
        fields = [pa.field(one.name, part, one.nullable) for one, part in parts if part is not None]
        return pa.struct(fields) if len(fields) == len(parts) else None
    if pa.types.is_map(kind):
        key, item = _spark_type(kind.key_type), _spark_type(kind.item_type)
        if key is None or item is None:
            return None
        return pa.map_(pa.field("key", key, nullable=False), pa.field("value", item, kind.item_field.nullable))
    return None


def _converted(values: pa.Array, column: pa.Field) -> pa.Array:
    try:
        return _cast(values, column.type)
    except pa.ArrowException as cause:
        raise Invalid(
            f"a value can't be converted to Spark's {column.type}: {cause}",
            redacted=f"a value can't be converted to Spark's {column.type}",
            remedy="Leave the column out with the option columns, or read the table without Spark",
            field=column.name,
        ) from cause


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values; at each depth, since pyarrow casts neither names nor nullability of nested fields."""
    if values.type == kind and not pa.types.is_nested(kind):
        return values
    if pa.types.is_dictionary(values.type):
        return _cast(values.dictionary_decode(), kind)
    if pa.types.is_struct(kind):
        parts = [_cast(part, one.type) for part, one in zip(values.flatten(), kind, strict=True)]
        mask = values.is_null() if values.null_count else None
        if not parts:
            return values
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        offsets, mask = _shape(values)
        keys, items = _cast(values.keys, kind.key_type), _cast(values.items, kind.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    if pa.types.is_list(kind):
        return _list(values, kind)
    return values.cast(kind)


def _shape(values: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Return the offsets of lists and which of them are null. A null list may have values below it."""
    return pc.add(values.offsets, 0), values.is_null() if values.null_count else None  # pyarrow takes no sliced offsets


def _list(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_list(values.type):
        values = values.cast(pa.list_(values.type.value_field))
    offsets, mask = _shape(values)
    return pa.ListArray.from_arrays(offsets, _cast(values.values, kind.value_type), type=kind, mask=mask)
