"""Cast an Arrow column to the type of the table's column, or report the first row that can't be cast.

A value changes its type only within its kind, and only if the cast is lossless. The kinds are integers, floats, text,
binary, decimal, dates and timestamps without a time zone, timestamps with a time zone, time of day, and duration. A
dictionary has the kind of its values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.errors import Invalid
from lancelsm.record.rowsum import values

_ARROW_ERRORS: Final = (pa.ArrowException, OverflowError, UnicodeError)
_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)
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
        raise Invalid(f"column {field.name!r} has type {column.type}, but the table has {field.type}", field=field.name)
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    attempt(array, lambda part: part.validate(full=True), field)
    cast = converted(array, field)
    if array.type != field.type:
        _check_unchanged(array, cast, field)
    return cast


def converted(array: pa.Array, field: pa.Field) -> pa.Array:
    """Cast an array with Arrow's safe casts, even between kinds; check nulls. The last part of `cast_column`."""
    if array.type != field.type:
        kind = field.type
        if pa.types.is_dictionary(array.type) and without_views(array.type) != array.type:
            # Arrow has no `take` for dictionaries of views, which polars creates.
            texts = array.dictionary.cast(without_views(array.type.value_type))
            array = pa.DictionaryArray.from_arrays(array.indices, texts)
        if pa.types.is_nested(kind):
            array = _part(array, 0, len(array))
        if pa.types.is_dictionary(kind):
            # Arrow can't cast numbers to a dictionary.
            array = attempt(array, lambda part: part.cast(kind.value_type), field).dictionary_encode()
        array = attempt(array, lambda part: part.cast(kind), field)
        attempt(array, lambda part: part.validate(full=True), field)
    if (row := null_row(array, field)) is not None:
        raise Invalid(f"column {field.name!r} is null in row {row}, but must not be null", field=field.name, row=row)
    return array


def without_views(kind: pa.DataType) -> pa.DataType:
    """Return the same type with view types of text and binary replaced by plain types, also in a dictionary."""
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, without_views(kind.value_type), kind.ordered)
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def null_row(array: pa.Array, field: pa.Field) -> int | None:
    """Return the first row with a null that `field` or a nested field does not allow, or None."""
    if not field.nullable and array.null_count:
        return int(pc.index(array.is_null(), True).as_py())
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    if pa.types.is_struct(array.type):
        rows = [_null_child(array, child, i) for i, child in enumerate(array.type)]
        return min((row for row in rows if row is not None), default=None)
    if any(is_list(array.type) for is_list in _LISTS):
        item = null_row(array.flatten(), array.type.value_field)
        return None if item is None else int(pc.list_parent_indices(array)[item].as_py())
    return None


def _null_child(array: pa.StructArray, child: pa.Field, index: int) -> int | None:
    # Ignore rows where the struct itself is null.
    present = array.is_valid()
    row = null_row(array.flatten()[index].filter(present), child)
    return None if row is None else int(pc.indices_nonzero(present)[row].as_py())


def _castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of one type may be cast to another type, if they fit."""
    given, wanted = _plain(given), _plain(wanted)
    if given == wanted or pa.types.is_null(given):
        return True
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        given_types, wanted_types = ({field.name: field.type for field in kind} for kind in (given, wanted))
        same = given_types.keys() == wanted_types.keys() and len(given_types) == given.num_fields
        return same and all(_castable(given_types[name], wanted_types[name]) for name in wanted_types)
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return _castable(given.key_type, wanted.key_type) and _castable(given.item_type, wanted.item_type)
    if all(any(is_list(kind) for is_list in _LISTS) for kind in (given, wanted)):
        return _castable(given.value_type, wanted.value_type)
    kind = kind_of(given)
    return kind is not None and kind == kind_of(wanted)


def kind_of(kind: pa.DataType) -> str | None:
    """Return the kind within which values may change their type; None if the type has no kind."""
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "float"
    if any(is_text(kind) for is_text in _TEXT):
        return "text"
    if any(is_binary(kind) for is_binary in _BINARY):
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


def _plain(kind: pa.DataType) -> pa.DataType:
    while isinstance(kind, pa.BaseExtensionType | pa.DictionaryType):
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type
    return kind


def attempt(rows: Any, step: Callable[[Any], Any], field: pa.Field) -> Any:
    """Return `step(rows)`; if Arrow raises an error, raise `Invalid` with the first row that causes it."""
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
            reason = f"{rows[start]} does not fit {field.type}"
        raise Invalid(
            f"column {field.name!r}, row {start}: {reason}",
            redacted=f"column {field.name!r}, row {start}: the value does not fit {field.type}",
            field=field.name,
            row=start,
        ) from error


def _part(rows: Any, start: int, end: int) -> Any:
    """Copy some of the rows. A slice is not enough: a slice of a list column still contains all items."""
    return rows.take(pa.arange(start, end)) if isinstance(rows, pa.Array) else rows[start:end]


def _check_unchanged(before: pa.Array, after: pa.Array, field: pa.Field) -> None:
    """Raise `Invalid` for a changed value: Arrow's safe casts round floats to narrower types and times to days."""
    given = _plain(before.type)
    if pa.types.is_null(given) or kind_of(given) in ("integer", "text", "binary", "decimal"):
        return
    before = before.cast(given)
    differs = pc.not_equal(values(before, field), values(after.cast(given), field))
    if (row := pc.index(differs, True).as_py()) >= 0:
        raise Invalid(
            f"column {field.name!r}, row {row}: {before[row]} would change from {given} to {field.type}",
            redacted=f"column {field.name!r}, row {row}: the value would change from {given} to {field.type}",
            field=field.name,
            row=row,
        )
