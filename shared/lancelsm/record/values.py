"""Convert Python values to a column of the table's type. The conversion is strict: it refuses values that do not fit.

Arrow alone would truncate 1.5 to 1, a datetime to its day, and nanoseconds of pandas to microseconds. Values from JSON
are converted the same way. Values that JSON lacks are text: dates and times in ISO 8601, decimals, binary in base64,
and "NaN", "Infinity", "-Infinity". A duration is an integer in its unit.

Nested values are taken apart, and each leaf is converted as a column of its own.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import numbers
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import accumulate, chain
from typing import Any, Final, TypeAlias

import pyarrow as pa

from lancelsm.common.error_text import shown
from lancelsm.errors import Invalid
from lancelsm.record.admission import children
from lancelsm.record.casts import as_type, attempt, converted, kind_of, storage_type
from lancelsm.record.expected import expected, expected_in_json
from lancelsm.record.iso import parsed
from lancelsm.record.scalars import is_time_of_numpy, plain

# Doubles of at least this size round to infinity.
_ROUNDS_TO_INFINITY: Final = {16: 65520.0, 32: 3.4028235677973366e38, 64: math.inf}
_DIGITS: Final = {32: 9, 64: 18, 128: 38, 256: 76}  # of decimals, by their bits
_FLOAT_CODES: Final = {16: "<e", 32: "<f", 64: "<d"}
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FRACTION: Final = re.compile(r"(\d\d:?\d\d:?\d\d)[.,](\d{1,9})")

_Leaf: TypeAlias = Callable[[Sequence[Any], pa.DataType, pa.Field, Sequence[int]], pa.Array]


def column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Convert Python values to a column; None is null.

    Numbers for a float column are rounded to its width, as everywhere in Python. Nothing else changes.

    Raises:
        Invalid: a value has another kind or does not fit, or a null is not allowed by `field` or a nested field. The
            error names column and row.
    """
    rows = range(len(values))
    is_bool8 = field.type == pa.bool8()
    array = _array(values, pa.bool_() if is_bool8 else field.type, field, rows, _from_python)
    return converted(array.cast(pa.int8()) if is_bool8 else array, field, rows)


def json_column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Convert values, as `json.loads` returns them, to a column like `column`. Floats may be Decimal."""
    rows = range(len(values))
    return converted(_array(values, field.type, field, rows, _from_json), field, rows)


def _array(values: Sequence[Any], kind: pa.DataType, field: pa.Field, rows: Sequence[int], leaf: _Leaf) -> pa.Array:
    """Build an array of the storage type of `kind`; `rows` has the row number of each value."""
    kind = storage_type(kind)
    if leaf is _from_python:
        values = plain(values, kind)
    if not pa.types.is_nested(kind):
        return leaf(values, kind, field, rows)
    _check_types(values, kind, field, rows)
    null = pa.array([value is None for value in values], pa.bool_())

    def inner(part: Sequence[Any], inside: pa.Field, numbers: Sequence[int]) -> pa.Array:
        built = _array(part, inside.type, field, numbers, leaf)
        return attempt(built, lambda some: as_type(some, inside.type), field, numbers)

    if pa.types.is_struct(kind):
        parts = [[None if value is None else value[child.name] for value in values] for child in kind]
        arrays = [inner(part, child, rows) for part, child in zip(parts, kind, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=null)
    lists: list[Sequence[Any]] = [() if value is None else _items(value, kind) for value in values]
    items = list(chain.from_iterable(lists))
    ends = list(accumulate(map(len, lists), initial=0))
    numbers, offsets = _ParentRows(rows, ends), pa.array(ends, pa.int64())
    if pa.types.is_map(kind):
        keys, values_of_keys = (
            inner([pair[side] for pair in items], child, numbers) for side, child in enumerate(children(kind))
        )
        return pa.MapArray.from_arrays(offsets.cast(pa.int32()), keys, values_of_keys, type=kind, mask=null)
    # `converted` makes a list of another type of it, and checks nulls and sizes.
    item = kind.value_field
    return pa.LargeListArray.from_arrays(offsets, inner(items, item, numbers), type=pa.large_list(item), mask=null)


class _ParentRows(Sequence[int]):
    """The row number of each item of lists; `ends` has where each list begins in the items, and the end."""

    def __init__(self, rows: Sequence[int], ends: list[int]) -> None:
        self._rows = rows
        self._ends = ends

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, item: Any) -> Any:
        return self._rows[bisect_right(self._ends, item) - 1]


def _items(value: Any, kind: pa.DataType) -> Sequence[Any]:
    return list(_pairs(value)) if pa.types.is_map(kind) else value


def _from_python(values: Sequence[Any], kind: pa.DataType, field: pa.Field, rows: Sequence[int]) -> pa.Array:
    _check_types(values, kind, field, rows)
    if pa.types.is_floating(kind):
        values = _plain_floats(values)
    array = attempt(values, lambda part: pa.array(part, _wide(kind)), field, rows)
    return attempt(array, lambda part: as_type(part, kind), field, rows)


def _from_json(values: Sequence[Any], kind: pa.DataType, field: pa.Field, rows: Sequence[int]) -> pa.Array:
    try:
        return _read_json(values, kind, field, rows)
    except Invalid as error:
        error.remedy = f"Give {expected_in_json(kind)}"
        raise


def _read_json(values: Sequence[Any], kind: pa.DataType, field: pa.Field, rows: Sequence[int]) -> pa.Array:
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        _check_types(values, pa.string(), field, rows, of=kind)
        texts = attempt(values, lambda part: pa.array(part, pa.string()), field, rows)
        return attempt(texts, lambda part: parsed(part, kind), field, rows)
    if pa.types.is_duration(kind):
        _check_types(values, pa.int64(), field, rows, of=kind)
        return attempt(values, lambda part: pa.array(part, pa.int64()).view(kind), field, rows)
    read = _reader(kind)
    if read is None:
        return _from_python(values, kind, field, rows)
    read_values = []
    for at, value in enumerate(values):
        try:
            read_values.append(None if value is None else read(value))
        except (ValueError, ArithmeticError, TypeError, AttributeError) as error:
            raise _refused(value, kind, field, rows[at]) from error
    if pa.types.is_time(kind):
        array = pa.array(read_values, pa.int64()).view(pa.time64("ns"))
        return attempt(array, lambda part: as_type(part, kind), field, rows)
    return _from_python(read_values, kind, field, rows)


def _plain_floats(values: Sequence[Any]) -> Sequence[Any]:
    """Replace other numbers by equal floats: Arrow reads unsigned integers of numpy as signed, and refuses 2**63."""
    if {*map(type, values)} <= {float, type(None)}:
        return values
    return [value if value is None else float(value) for value in values]


def _check_types(
    values: Sequence[Any], kind: pa.DataType, field: pa.Field, rows: Sequence[int], *, of: pa.DataType | None = None
) -> None:
    """Raise `Invalid` for the first value that has another kind.

    Args:
        rows: the row number of each value.
        of: the type of the column, if it is read from values of `kind`.
    """
    accepts = _acceptance(kind)
    types = {*map(type, values)} - {type(None)}
    refused = {given for given in types if not accepts(given)}
    fits = _limits(kind, types)
    if refused or fits:
        for at, value in enumerate(values):
            if type(value) in refused or (fits and value is not None and not fits(value)):
                raise _refused(value, of or kind, field, rows[at])


def _acceptance(kind: pa.DataType) -> Callable[[type], bool]:
    """Return a predicate for the Python types that a column of this type accepts."""
    if pa.types.is_boolean(kind):
        return _is_bool
    if pa.types.is_integer(kind):
        return lambda given: issubclass(given, numbers.Integral) and not _is_odd_number(given)
    if pa.types.is_floating(kind):
        return lambda given: issubclass(given, numbers.Real) and not _is_odd_number(given)
    if pa.types.is_decimal(kind):
        return lambda given: issubclass(given, int | Decimal) and not _is_bool(given)
    if pa.types.is_date(kind):
        return lambda given: issubclass(given, dt.date) and not issubclass(given, dt.datetime)
    family = _family(kind)
    if family == "list":
        return lambda given: (
            issubclass(given, list | tuple)
            or (hasattr(given, "__array__") and hasattr(given, "__iter__") and not issubclass(given, str | bytes))
        )
    accepted = _ACCEPTED.get(family, ())
    of_numpy = _OF_NUMPY.get(family)
    return lambda given: (
        issubclass(given, accepted)
        or (given.__module__ == "numpy" and of_numpy is not None and given.__name__ == of_numpy)
    )


_ACCEPTED: Final[dict[str | None, tuple[type, ...]]] = {
    "text": (str,),
    "binary": (bytes, bytearray, memoryview),
    "timestamp": (dt.datetime,),
    "time": (dt.time,),
    "duration": (dt.timedelta,),
    "struct": (Mapping,),
    "map": (Mapping, list, tuple),
}


_OF_NUMPY: Final[dict[str | None, str]] = {"timestamp": "datetime64", "duration": "timedelta64"}


def _family(kind: pa.DataType) -> str | None:
    if hasattr(kind, "value_field"):
        return "list"
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return "struct" if pa.types.is_struct(kind) else "map"
    return "timestamp" if pa.types.is_timestamp(kind) else kind_of(kind)


def _is_bool(given: type) -> bool:
    return given is bool or (given.__module__ == "numpy" and given.__name__ in ("bool", "bool_"))


def _is_odd_number(given: type) -> bool:
    """Return whether a type of numbers stands for something else, or has more digits than a double."""
    return _is_bool(given) or (given.__module__ == "numpy" and given.__name__ in ("timedelta64", "longdouble"))


def _limits(kind: pa.DataType, types: set[type]) -> Callable[[Any], bool] | None:
    """Return a check for values of these types that Arrow would change or accept by mistake; None if there are none."""
    if pa.types.is_struct(kind):
        names = {child.name for child in kind}
        return lambda value: bool(value.keys() == names)
    if pa.types.is_map(kind):
        return lambda value: all(map(_is_pair, _pairs(value)))
    if hasattr(kind, "value_field"):
        return None if types <= {list, tuple} else lambda value: getattr(value, "shape", None) != ()
    if pa.types.is_timestamp(kind):
        return lambda value: _fits_timestamp(value, kind)
    if pa.types.is_time(kind):
        return lambda value: value.tzinfo is None
    if pa.types.is_duration(kind):
        return lambda value: _fits_duration(value, kind)
    if pa.types.is_floating(kind) and (kind.bit_width < 64 or not types <= {float}):
        return lambda value: _fits_float(value, kind)
    if pa.types.is_decimal(kind) and any(issubclass(given, Decimal) for given in types):
        return lambda value: _fits_decimal(value, kind)
    return None


def _fits_decimal(value: Any, kind: pa.DataType) -> bool:
    """Return whether Arrow can scale a number. Of one with more digits it makes another number, or it crashes."""
    exponent = value.as_tuple().exponent if isinstance(value, Decimal) else 0
    return not isinstance(exponent, int) or exponent >= -kind.scale - _DIGITS[kind.bit_width]


def _fits_timestamp(value: Any, kind: pa.DataType) -> bool:
    if _is_of_numpy(value):
        return kind.tz is None and is_time_of_numpy(value, "datetime64", _wide(kind).unit)
    offset = value.utcoffset()
    if (offset is None) != (kind.tz is None):
        return False
    # Arrow drops microseconds of an offset, and nanoseconds of pandas.
    return not (offset and offset.microseconds) and (kind.unit == "ns" or not getattr(value, "nanosecond", 0))


def _fits_duration(value: Any, kind: pa.DataType) -> bool:
    if _is_of_numpy(value):
        return is_time_of_numpy(value, "timedelta64", _wide(kind).unit)
    return kind.unit == "ns" or not getattr(value, "nanoseconds", 0)


def _is_of_numpy(value: Any) -> bool:
    return type(value).__module__ == "numpy"


def _fits_float(value: Any, kind: pa.DataType) -> bool:
    """Return whether a float does not round to infinity, and an integer does not round at all."""
    try:
        number = float(value)
        if isinstance(value, numbers.Integral):
            code = _FLOAT_CODES[kind.bit_width]
            return bool(struct.unpack(code, struct.pack(code, number)) == (int(value),))
    except OverflowError:
        return False
    return abs(number) == math.inf or not abs(number) >= _ROUNDS_TO_INFINITY[kind.bit_width]


def _wide(kind: pa.DataType) -> pa.DataType:
    """Return a type that represents Python values without loss; the cast to `kind` then refuses a loss."""
    if pa.types.is_timestamp(kind):
        return kind if kind.unit == "ns" else pa.timestamp("us", kind.tz)
    if pa.types.is_time(kind):
        return kind if kind.bit_width == 64 else pa.time64("us")
    if pa.types.is_duration(kind):
        return kind if kind.unit == "ns" else pa.duration("us")
    return kind


def _reader(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that converts a JSON value to a Python value of this type; None if none is needed."""
    if pa.types.is_floating(kind):
        return _read_float
    if pa.types.is_decimal(kind):
        return lambda value: Decimal(value) if isinstance(value, str) else value
    if pa.types.is_time(kind):
        return _read_time
    if kind_of(kind) == "binary":
        return lambda value: base64.b64decode(value, validate=True)
    return None


def _read_time(text: str) -> int:
    """Return the nanoseconds since midnight. Python's `time` has none."""
    fraction = _FRACTION.fullmatch(text)
    whole, digits = fraction.groups() if fraction else (text, "0")
    time = dt.time.fromisoformat(whole)
    if time.tzinfo is not None or not {".", ","}.isdisjoint(whole):
        raise ValueError(f"{text} is not a time of day")
    return ((time.hour * 60 + time.minute) * 60 + time.second) * 10**9 + int(digits.ljust(9, "0"))


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


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and pair[0] is not None


def _refused(value: Any, kind: pa.DataType, field: pa.Field, row: int) -> Invalid:
    return Invalid(
        f"column {field.name!r}, row {row}: {shown(value)} is not a value of {kind}",
        redacted=f"column {field.name!r}, row {row}: the value is not a value of {kind}",
        remedy=f"Give {expected(kind)}",
        field=field.name,
        row=row,
    )
