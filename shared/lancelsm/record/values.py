"""Convert Python values to a column of the table's type. The conversion is strict: it refuses values that do not fit.

Arrow alone would truncate 1.5 to 1 and a datetime to its day. Values from JSON are converted the same way. Values that
JSON lacks are text: dates and times in ISO 8601, decimals, binary in base64, and "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from lancelsm.errors import Invalid
from lancelsm.record.casts import attempt, converted, kind_of
from lancelsm.record.shapes import without_uuids

# Doubles of at least this size round to infinity.
_ROUNDS_TO_INFINITY: Final = {16: 65520.0, 32: 3.4028235677973366e38}
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Convert Python values to a column; None is null.

    Numbers for a float column are rounded to its width, as everywhere in Python. Nothing else changes.

    Raises:
        Invalid: a value has another kind or does not fit, or a null is not allowed by `field` or a nested field. The
            error names column and row.
    """
    values = without_uuids(values, field.type)
    _check_types(values, field.type, field, range(len(values)))
    array = attempt(values, lambda part: pa.array(part, _wide(field.type)), field)
    return converted(array, field)


def json_column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Convert values, as `json.loads` returns them, to a column like `column`. Floats may be Decimal."""
    if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type):
        # Python's datetime has no nanoseconds.
        return converted(column(values, field.with_type(pa.string())), field)
    read = _reader(field.type)
    if read is None:
        return column(values, field)
    read_values = []
    for row, value in enumerate(values):
        try:
            read_values.append(None if value is None else read(value))
        except (ValueError, ArithmeticError, TypeError, AttributeError) as error:
            raise _refused(value, field.type, field, row) from error
    return column(read_values, field)


def _check_types(values: Sequence[Any], kind: pa.DataType, field: pa.Field, rows: Sequence[int]) -> None:
    """Raise `Invalid` for the first value that has another kind; `rows` has the row number of each value."""
    kind = _storage_type(kind)
    accepts = _acceptance(kind)
    refused = {given for given in set(map(type, values)) if given is not type(None) and not accepts(given)}
    limited = _is_limited(kind)
    if refused or limited:
        for value, row in zip(values, rows, strict=True):
            if type(value) in refused or (limited and value is not None and not _in_limits(value, kind)):
                raise _refused(value, kind, field, row)
    if not pa.types.is_nested(kind):
        return
    present = [(value, row) for value, row in zip(values, rows, strict=True) if value is not None]
    if pa.types.is_struct(kind):
        names = {child.name for child in kind}
        for value, row in present:
            if value.keys() != names:
                raise _refused(value, kind, field, row)
        for child in kind:
            inner = [value[child.name] for value, _ in present]
            _check_types(inner, child.type, field, [row for _, row in present])
    elif pa.types.is_map(kind):
        pairs = [(pair, row) for value, row in present for pair in _pairs(value)]
        for side, side_kind in enumerate((kind.key_type, kind.item_type)):
            _check_types([pair[side] for pair, _ in pairs], side_kind, field, [row for _, row in pairs])
    elif hasattr(kind, "value_field"):
        items = list(chain.from_iterable(value for value, _ in present))
        _check_types(items, kind.value_type, field, [row for value, row in present for _ in value])


def _acceptance(kind: pa.DataType) -> Callable[[type], bool]:
    """Return a predicate for the Python types that a column of this type accepts."""
    if pa.types.is_boolean(kind):
        return _is_bool
    if pa.types.is_integer(kind):
        return lambda given: issubclass(given, numbers.Integral) and not _is_bool(given)
    if pa.types.is_floating(kind):
        return lambda given: issubclass(given, numbers.Real) and not _is_bool(given)
    if pa.types.is_decimal(kind):
        return lambda given: issubclass(given, int | Decimal) and not _is_bool(given)
    if pa.types.is_date(kind):
        return lambda given: issubclass(given, dt.date) and not issubclass(given, dt.datetime)
    family = _family(kind)
    if family == "list":
        return lambda given: (
            issubclass(given, list | tuple) or (hasattr(given, "__array__") and hasattr(given, "__iter__"))
        )
    accepted = _ACCEPTED.get(family, ())
    return lambda given: issubclass(given, accepted)


_ACCEPTED: Final[dict[str | None, tuple[type, ...]]] = {
    "text": (str,),
    "binary": (bytes, bytearray, memoryview),
    "timestamp": (dt.datetime,),
    "time": (dt.time,),
    "duration": (dt.timedelta,),
    "struct": (Mapping,),
    "map": (Mapping, list, tuple),
}


def _family(kind: pa.DataType) -> str | None:
    if hasattr(kind, "value_field"):
        return "list"
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return "struct" if pa.types.is_struct(kind) else "map"
    return "timestamp" if pa.types.is_timestamp(kind) else kind_of(kind)


def _is_bool(given: type) -> bool:
    return given is bool or (given.__module__ == "numpy" and given.__name__ in ("bool", "bool_"))


def _is_limited(kind: pa.DataType) -> bool:
    narrow = pa.types.is_floating(kind) and kind.bit_width in _ROUNDS_TO_INFINITY
    return bool(narrow or pa.types.is_timestamp(kind) or pa.types.is_map(kind))


def _in_limits(value: Any, kind: pa.DataType) -> bool:
    """Check for mistakes that Arrow accepts: a float that rounds to infinity, a missing or an extra time zone."""
    if pa.types.is_timestamp(kind):
        return (value.tzinfo is None) == (kind.tz is None)
    if pa.types.is_map(kind):
        return all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in _pairs(value))
    number = value if isinstance(value, int) else float(value)
    return abs(number) == math.inf or not abs(number) >= _ROUNDS_TO_INFINITY[kind.bit_width]


def _wide(kind: pa.DataType) -> pa.DataType:
    """Return a type that represents Python values without loss; the cast to `kind` then refuses a loss."""
    kind = _storage_type(kind)
    if pa.types.is_timestamp(kind):
        return kind if kind.unit == "ns" else pa.timestamp("us", kind.tz)
    if pa.types.is_time(kind):
        return kind if kind.bit_width == 64 else pa.time64("us")
    if pa.types.is_duration(kind):
        return kind if kind.unit == "ns" else pa.duration("us")
    if pa.types.is_struct(kind):
        return pa.struct([child.with_type(_wide(child.type)) for child in kind])
    if pa.types.is_map(kind):
        return pa.map_(_wide(kind.key_type), _wide(kind.item_type))
    if hasattr(kind, "value_field"):
        return pa.large_list(kind.value_field.with_type(_wide(kind.value_type)))
    return kind


def _reader(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that converts a JSON value to a Python value of this type; None if none is needed."""
    kind = _storage_type(kind)
    if pa.types.is_floating(kind):
        return _read_float
    if pa.types.is_decimal(kind):
        return lambda value: Decimal(value) if isinstance(value, str) else value
    if pa.types.is_timestamp(kind):
        return dt.datetime.fromisoformat
    if pa.types.is_date(kind):
        return dt.date.fromisoformat
    if pa.types.is_time(kind):
        return dt.time.fromisoformat
    if pa.types.is_struct(kind):
        readers = {child.name: _reader(child.type) for child in kind}
        return lambda value: {name: _read(item, readers.get(name)) for name, item in value.items()}
    if pa.types.is_map(kind):
        key, item = _reader(kind.key_type), _reader(kind.item_type)
        return lambda value: [(_read(k, key), _read(v, item)) for k, v in _pairs(value)]
    if hasattr(kind, "value_field"):
        inner = _reader(kind.value_type)
        return None if inner is None else lambda value: [_read(item, inner) for item in value]
    if _family(kind) == "binary":
        return lambda value: base64.b64decode(value, validate=True)
    return None


def _read(value: Any, reader: Callable[[Any], Any] | None) -> Any:
    return value if value is None or reader is None else reader(value)


def _read_float(value: Any) -> Any:
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if isinstance(value, Decimal):
        number = float(value)
        if math.isinf(number) and value.is_finite():
            raise ValueError(f"{value} is out of the range of a double")
        return number
    return value


def _pairs(value: Any) -> Iterator[Any]:
    return iter(value.items() if isinstance(value, Mapping) else value)


def _storage_type(kind: pa.DataType) -> pa.DataType:
    while isinstance(kind, pa.BaseExtensionType | pa.DictionaryType):
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type
    return kind


def _refused(value: Any, kind: pa.DataType, field: pa.Field, row: int) -> Invalid:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return Invalid(
        f"column {field.name!r}, row {row}: {shown} is not a value of {kind}",
        redacted=f"column {field.name!r}, row {row}: the value is not a value of {kind}",
        field=field.name,
        row=row,
    )
