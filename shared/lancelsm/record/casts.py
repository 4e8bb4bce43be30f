"""Cast an Arrow column to the type of the table's column, or report the first row that can't be cast.

A value changes its type only within its kind, and only if the cast is lossless. The kinds are integers, floats, text,
binary, decimal, dates and timestamps without a time zone, timestamps with a time zone, time of day, and duration. A
dictionary has the kind of its values.

Arrow allows a null below a null struct, even in a field that must not be null. But its own casts, and those of its
users, refuse such an array. So a column has a value there: an arbitrary one, which nobody sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.error_text import shown
from lancelsm.errors import Invalid
from lancelsm.record.admission import children, declared_type, is_any
from lancelsm.record.expected import expected

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)

_ARROW_ERRORS: Final = (pa.ArrowException, OverflowError, UnicodeError)
_LISTS: Final = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_NESTED: Final = ((pa.types.is_struct,), (pa.types.is_map,), _LISTS)
_TEXT: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BINARY: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


def cast_column(column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    """Cast a column to the type of `field`, which has Lance's field ids.

    Raises:
        Invalid: the column has another kind; a value does not fit, would change or is malformed (text that is not
            UTF-8); or a null is not allowed by `field` or a nested field. The error names column and row.
    """
    if not _castable(column.type, field.type):
        raise Invalid(
            f"column {field.name!r} has type {column.type}, but the table has {field.type}",
            remedy=f"Cast the column to {field.type}, or give {expected(field.type)}",
            field=field.name,
        )
    casts, start = [], 0
    for chunk in column.chunks:  # a narrow dictionary index may count the values of each chunk, but not of all
        rows = range(start, start + len(chunk))
        start = rows.stop
        attempt(chunk, lambda part: part.validate(full=True), field, rows)
        casts.append(converted(chunk, field, rows))
    if len(casts) == 1 and len(casts[0]):
        return casts[0]
    try:
        return whole(pa.chunked_array(casts, field.type))
    except pa.ArrowInvalid as error:
        what = f"column {field.name!r} has more bytes than one array of {field.type} can have"
        raise Invalid(what, remedy="Write the rows in several calls", field=field.name) from error


def converted(array: pa.Array, field: pa.Field, rows: Sequence[int]) -> pa.Array:
    """Cast an array with Arrow's safe casts, even between kinds; check nulls. The last part of `cast_column`.

    Args:
        rows: the row number of each value.
    """
    cast = attempt(array, lambda part: as_type(part, field.type), field, rows)
    if cast.type != array.type:
        attempt(cast, lambda part: part.validate(full=True), field, rows)
    if not field.nullable and cast.null_count:
        row = rows[pc.index(cast.is_null(), True).as_py()]
        raise Invalid(
            f"column {field.name!r} is null in row {row}, but must not be null",
            remedy=f"Give {expected(field.type)}",
            field=field.name,
            row=row,
        )
    return cast


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array. Raise an error of Arrow if that has too many bytes of text or binary.

    Empty chunks are left out: Arrow can't concatenate one that was imported with an offset.
    """
    if isinstance(column, pa.Array):
        return column
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array of another type with equal values, or raise an error of Arrow. An array that fits is not copied.

    In the result, no dictionary contains null, and a field that must not be null has no null below a null struct.
    """
    given = array.type
    if given == kind and not _needs_a_look(kind):
        return array
    if isinstance(given, pa.BaseExtensionType):
        array, given = array.storage, given.storage_type
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, as_type(array, kind.storage_type))
    if pa.types.is_null(given):
        return array if given == kind else nulls(len(array), kind)
    if pa.types.is_dictionary(kind):
        return _as_dictionary(array, kind)
    if pa.types.is_dictionary(given):
        array = _decoded(array)
    nested = next((one for one in _NESTED if is_any(kind, one)), None)
    if nested is not None and not is_any(array.type, nested):
        raise pa.ArrowInvalid(f"{array.type} can't be cast to {kind}")
    if pa.types.is_struct(kind):
        return _as_struct(array, kind)
    if pa.types.is_map(kind):
        return _as_map(array, kind)
    if is_any(kind, _LISTS):
        return _as_list(array, kind)
    return _as_flat(array, kind)


def nulls(rows: int, kind: pa.DataType) -> pa.Array:
    """Return nulls of a type, in the form that `as_type` returns."""
    return as_type(pa.nulls(rows, kind), kind)


def as_column(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Apply `as_type` to each chunk of a column."""
    if isinstance(column, pa.Array):
        return as_type(column, kind)
    return pa.chunked_array([as_type(chunk, kind) for chunk in column.chunks], kind)


def as_schema(rows: _Rows, schema: pa.Schema) -> _Rows:
    """Apply `as_type` to each column, in the order of the schema."""
    columns = [as_column(column, field.type) for column, field in zip(rows.columns, schema, strict=True)]
    made: _Rows = type(rows).from_arrays(columns, schema=schema)
    return made


def kind_of(kind: pa.DataType) -> str | None:
    """Return the kind within which values may change their type; None if the type has no kind."""
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "float"
    if is_any(kind, _TEXT):
        return "text"
    if is_any(kind, _BINARY):
        return "binary"
    if pa.types.is_decimal(kind):
        return "decimal"
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return "instant"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    if pa.types.is_time(kind):
        return "time"
    return "duration" if pa.types.is_duration(kind) else None


def storage_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of an extension type or a dictionary; another type unchanged."""
    while isinstance(kind, pa.BaseExtensionType | pa.DictionaryType):
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type
    return kind


def attempt(rows: Any, step: Callable[[Any], Any], field: pa.Field, numbers: Sequence[int] | None = None) -> Any:
    """Return `step(rows)`; if Arrow raises an error, raise `Invalid` with the first row that causes it.

    Args:
        numbers: the number of each row; by default they are counted from 0.
    """
    try:
        return step(rows)
    except _ARROW_ERRORS as error:
        start, end, cause = 0, len(rows), error
        while end - start > 1:
            middle = (start + end) // 2
            try:
                step(_part(rows, start, middle))
                start = middle
            except _ARROW_ERRORS as narrower:
                end, cause = middle, narrower
        reason = str(cause).partition("\n")[0]
        if isinstance(cause, OverflowError):  # the message of Python is about C types
            reason = f"{shown_value(rows[start])} does not fit {field.type}"
        row = start if numbers is None else numbers[start]
        raise Invalid(
            f"column {field.name!r}, row {row}: {reason}",
            redacted=f"column {field.name!r}, row {row}: the value does not fit {field.type}",
            remedy=f"Give {expected(field.type)}",
            field=field.name,
            row=row,
        ) from error


def shown_value(value: Any) -> str:
    """Return a text for a value of Arrow or Python. Python lacks values that Arrow has, such as the year 10000."""
    try:
        return shown(value.as_py()) if isinstance(value, pa.Scalar) else shown(value)
    except (ValueError, OverflowError):
        return f"a value of {value.type}"


def _castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of one type may be cast to another type, if they fit."""
    given, wanted = storage_type(given), storage_type(wanted)
    if given == wanted or pa.types.is_null(given):
        return True
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        given_types, wanted_types = ({field.name: field.type for field in kind} for kind in (given, wanted))
        same = given_types.keys() == wanted_types.keys() and len(given_types) == given.num_fields
        return same and all(_castable(given_types[name], wanted_types[name]) for name in wanted_types)
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return _castable(given.key_type, wanted.key_type) and _castable(given.item_type, wanted.item_type)
    if is_any(given, _LISTS) and is_any(wanted, _LISTS):
        return _castable(given.value_type, wanted.value_type)
    kind = kind_of(given)
    return kind is not None and kind == kind_of(wanted)


def _needs_a_look(kind: pa.DataType) -> bool:
    """Return whether an array of the right type may still have a null where `as_type` returns none."""
    if pa.types.is_dictionary(kind):
        return True
    if not kind.num_fields:
        return False
    inner = children(kind)
    return not all(field.nullable for field in inner[pa.types.is_map(kind) :]) or any(
        _needs_a_look(field.type) for field in inner
    )


def _as_flat(array: pa.Array, kind: pa.DataType) -> pa.Array:
    given = array.type
    if given == kind:
        return array
    cast = array.cast(kind)
    if kind_of(given) in ("float", "date", "instant", "time", "duration"):
        # Arrow's safe casts round floats to narrower types and times to days.
        width = pa.binary(given.bit_width // 8)
        differs = pc.not_equal(array.view(width), cast.cast(given).view(width))
        if (row := pc.index(differs, True).as_py()) >= 0:
            raise pa.ArrowInvalid(f"{shown_value(array[row])} would change from {given} to {kind}")
    return cast


def _as_dictionary(array: pa.Array, kind: pa.DictionaryType) -> pa.DictionaryArray:
    if isinstance(array, pa.DictionaryArray):
        values = as_type(array.dictionary, kind.value_type)
        if values.null_count == 0:
            return pa.DictionaryArray.from_arrays(array.indices.cast(kind.index_type), values, ordered=kind.ordered)
        array = _decoded(array)
    encoded = as_type(array, kind.value_type).dictionary_encode()
    indices = encoded.indices.cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=kind.ordered)


def _decoded(array: pa.DictionaryArray) -> pa.Array:
    # Arrow has no `take` for dictionaries of views, which polars creates.
    values = as_type(array.dictionary, declared_type(array.dictionary.type))
    return pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()


def _as_struct(array: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    given, wanted = ([field.name for field in one] for one in (array.type, kind))
    if sorted(given) != sorted(wanted):
        raise pa.ArrowInvalid(f"a struct has the fields {', '.join(given)}, not {', '.join(wanted)}")
    null = array.is_null()
    flat = dict(zip(given, array.flatten(), strict=True))  # null below a null struct
    arrays = []
    for field in kind:
        child = as_type(flat[field.name], field.type)
        if not field.nullable and child.null_count:
            if pc.any(pc.and_not(child.is_null(), null)).as_py():
                raise pa.ArrowInvalid(f"{field.name!r} is null, but must not be null")
            child = _filled(child)
        arrays.append(child)
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=null)


def list_of_pairs(array: pa.MapArray) -> pa.ListArray:
    """Return a map as a list of structs of key and value, without a copy.

    Arrow has no kernels for maps, and its cast refuses a value that is null and has a child that must not be null.
    """
    buffers, pairs = array.buffers()[:2], array.values
    return pa.Array.from_buffers(pa.list_(pairs.type), len(array), buffers, offset=array.offset, children=[pairs])


def _as_map(array: pa.MapArray, kind: pa.MapType) -> pa.MapArray:
    lists = list_of_pairs(array)
    keys, items = (
        _checked(as_type(side, field.type), field)
        for side, field in zip(lists.flatten().flatten(), children(kind), strict=True)
    )
    return pa.MapArray.from_arrays(_offsets(lists).cast(pa.int32()), keys, items, type=kind, mask=array.is_null())


def _as_list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    null, field = array.is_null(), kind.value_field
    items = _checked(as_type(array.flatten(), field.type), field)  # without those of null lists
    if pa.types.is_fixed_size_list(kind):
        if pc.any(pc.not_equal(_sizes(array), kind.list_size)).as_py():
            raise pa.ArrowInvalid(f"a list does not have {kind.list_size} items")
        if array.null_count:
            items = _spread(items, null, kind.list_size)
        return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=null)
    large = pa.types.is_large_list(kind)
    offsets = _offsets(array).cast(pa.int64() if large else pa.int32())
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(offsets, items, type=kind, mask=null)


def _checked(items: pa.Array, field: pa.Field) -> pa.Array:
    if not field.nullable and items.null_count:
        raise pa.ArrowInvalid(f"{field.name!r} is null, but must not be null")
    return items


def _sizes(lists: pa.Array) -> pa.Array:
    """Return the number of items of each list; null for null."""
    if pa.types.is_fixed_size_list(lists.type):
        return pc.if_else(lists.is_valid(), lists.type.list_size, pa.scalar(None, pa.int64()))
    return pc.list_value_length(lists).cast(pa.int64())


def _offsets(lists: pa.Array) -> pa.Array:
    """Return where each list begins in the flattened items, and the end."""
    return pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(_sizes(lists).fill_null(0))])


def _spread(items: pa.Array, null: pa.BooleanArray, size: int) -> pa.Array:
    """Insert null items for null lists of a fixed size."""
    places = pa.arange(0, len(null) * size)
    lists = pc.divide(places, size)
    before = pc.subtract(pc.cumulative_sum(pc.invert(null).cast(pa.int64())), 1)  # lists with items before this one
    source = pc.add(pc.multiply(before.take(lists), size), pc.subtract(places, pc.multiply(lists, size)))
    return items.take(pc.if_else(null.take(lists), pa.scalar(None, pa.int64()), source))


def _filled(array: pa.Array) -> pa.Array:
    """Replace nulls by an arbitrary value."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = array.dictionary if len(array.dictionary) else _any_value(kind.value_type)
        return pa.DictionaryArray.from_arrays(array.indices.fill_null(0), values)
    source = pc.if_else(array.is_valid(), pa.arange(0, len(array)), len(array))
    return pa.concat_arrays([array, _any_value(kind)]).take(source)


def _any_value(kind: pa.DataType) -> pa.Array:
    """Return an array of one value, which is not null, nor has a null where none may be."""
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([_any_value(field.type) for field in kind], fields=list(kind))
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(pa.array([0], kind.index_type), _any_value(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(pa.nulls(kind.list_size, kind.value_type), type=kind)
    if pa.types.is_nested(kind):
        return pa.array([[]], kind)
    if kind_of(kind) in ("text", "binary") and not pa.types.is_fixed_size_binary(kind):
        return pa.array([""]).cast(kind)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(max(1, kind.bit_width // 8)))])


def _part(rows: Any, start: int, end: int) -> Any:
    """Copy some of the rows. A slice is not enough: a slice of a list column still contains all items."""
    if not isinstance(rows, pa.Array):
        return rows[start:end]
    try:
        return rows.take(pa.arange(start, end))
    except pa.ArrowNotImplementedError:  # pyarrow can't take from views of text; a slice of these is small
        return rows.slice(start, end - start)
