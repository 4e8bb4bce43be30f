"""Convert the filters that Spark 4.1 and later push into a data source to a condition in Lance's dialect.

A filter is taken only if the condition is true for exactly the rows for which Spark's filter is true: Spark does not
apply it again. All others are left to Spark. Spark takes all NaNs for equal and for the greatest float.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lancelsm.read.sources.arrow_filters import in_range, text_literal

_COMPARISONS: Final = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
_PARTS: Final = {"StringStartsWith": "starts_with", "StringEndsWith": "ends_with", "StringContains": "contains"}
_MOST_DIGITS = 38  # of a decimal in Spark
_NS_SECONDS = 2**63 // 10**9 - 1  # of a timestamp with nanoseconds
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - compared with times without a zone


def taken_filters(filters: Iterable[Any], columns: pa.Schema) -> tuple[list[str], list[Any]]:
    """Return conditions that all must be true, and the filters that they do not have.

    Args:
        filters: those of `pyspark.sql.datasource`, all of which must be true.
        columns: as the table stores them.
    """
    taken, left = [], []
    for one in filters:
        condition = condition_of(one, columns)
        if condition is None:
            left.append(one)
        else:
            taken.append(condition)
    return taken, left


def condition_of(given: Any, columns: pa.Schema) -> str | None:
    """Return the condition for a filter; None if there is none that is sure to have its meaning.

    It is null where the filter is null, so that `NOT` means the same.
    """
    name = type(given).__name__
    if name == "Not":
        inner = condition_of(given.child, columns)
        return None if inner is None else f"NOT ({inner})"
    path: Sequence[str] = getattr(given, "attribute", ())
    if len(path) != 1 or path[0] not in columns.names:
        return None
    column, kind = f"`{path[0]}`", columns.field(path[0]).type
    if name in ("IsNull", "IsNotNull"):
        return None if pa.types.is_nested(kind) else f"{column} IS {'NOT ' if name == 'IsNotNull' else ''}NULL"
    if name in _COMPARISONS:
        return _comparison(column, _COMPARISONS[name], given.value, kind)
    if name == "EqualNullSafe":
        if given.value is None:
            return None if pa.types.is_nested(kind) else f"{column} IS NULL"
        same = _comparison(column, "=", given.value, kind)
        return None if same is None else f"{column} IS NOT NULL AND {same}"
    if name == "In":
        return _one_of(column, given.value, kind)
    if name in _PARTS and _is_text(kind) and isinstance(given.value, str):
        text = text_literal(given.value)
        return None if text is None else f"{_PARTS[name]}({column}, {text})"
    return None


def _comparison(column: str, operator: str, value: Any, kind: pa.DataType) -> str | None:
    if pa.types.is_floating(kind):
        return _float_comparison(column, operator, value, kind)
    literal = _literal(value, kind)
    return None if literal is None else f"{column} {operator} {literal}"


def _float_comparison(column: str, operator: str, value: Any, kind: pa.DataType) -> str | None:
    """Compare by the order of Spark. Lance takes NaNs with a sign for less than all numbers."""
    if not isinstance(value, float) or pa.types.is_float16(kind):
        return None
    is_nan = f"isnan({column})"
    if math.isnan(value):
        # Nothing is greater: null where the column is null, else false.
        known = {"=": is_nan, ">=": is_nan, "<": f"NOT {is_nan}", "<=": f"({is_nan} OR NOT {is_nan})"}
        return known.get(operator, f"({is_nan} AND NOT {is_nan})")
    with np.errstate(over="ignore"):
        if pa.types.is_float32(kind) and float(np.float32(value)) != value:
            return None
    literal = repr(value) if math.isfinite(value) else f"'{'-' if value < 0 else ''}Infinity'"
    compared = f"{column} {operator} {literal}"
    if operator == "=":
        return compared
    return f"({compared} OR {is_nan})" if operator in (">", ">=") else f"({compared} AND NOT {is_nan})"


def _one_of(column: str, values: Sequence[Any], kind: pa.DataType) -> str | None:
    if not values or (pa.types.is_floating(kind) and not all(isinstance(one, float) for one in values)):
        return None
    same = [_comparison(column, "=", one, kind) for one in values]
    if pa.types.is_floating(kind):
        return None if None in same else f"({' OR '.join(filter(None, same))})"
    literals = [_literal(one, kind) for one in values]
    return None if None in literals else f"{column} IN ({', '.join(filter(None, literals))})"


def _literal(value: Any, kind: pa.DataType) -> str | None:
    """Return a literal of SQL for a column of this type; None if the column can't have the value."""
    return next((convert(value, kind) for is_kind, convert in _LITERALS if is_kind(kind)), None)


def _integer(value: Any, kind: pa.DataType) -> str | None:
    if isinstance(value, Decimal) and value.is_finite() and value == int(value):
        value = int(value)  # Spark has uint64 as a decimal
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return str(value) if in_range(value, kind) else None


def _boolean(value: Any, _: pa.DataType) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None


def _text(value: Any, _: pa.DataType) -> str | None:
    return text_literal(value) if isinstance(value, str) else None


def _binary(value: Any, kind: pa.DataType) -> str | None:
    if not isinstance(value, (bytes, bytearray)):
        return None
    fits = not pa.types.is_fixed_size_binary(kind) or len(value) == kind.byte_width
    return f"x'{bytes(value).hex()}'" if fits else None


def _date(value: Any, _: pa.DataType) -> str | None:
    is_date = isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    return f"'{value.isoformat()}'" if is_date else None


def _decimal(value: Any, kind: pa.DataType) -> str | None:
    if not isinstance(value, Decimal) or not value.is_finite():
        return None
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if exponent < -kind.scale or len(digits) + exponent > kind.precision - kind.scale:
        return None
    return f"'{value:f}'"


def _timestamp(value: Any, kind: pa.DataType) -> str | None:
    if not isinstance(value, datetime.datetime) or (value.tzinfo is None) != (kind.tz is None):
        return None
    if value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    step, digits = {"s": (10**6, "seconds"), "ms": (10**3, "milliseconds")}.get(kind.unit, (1, "microseconds"))
    if value.microsecond % step:
        return None
    if kind.unit == "ns" and abs((value - _EPOCH).total_seconds()) > _NS_SECONDS:
        return None
    return f"'{value.isoformat(timespec=digits)}{'' if kind.tz is None else 'Z'}'"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind)) and kind.precision <= _MOST_DIGITS and kind.scale >= 0


_LITERALS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], str | None]]] = (
    (pa.types.is_integer, _integer),
    (pa.types.is_boolean, _boolean),
    (_is_text, _text),
    (_is_binary, _binary),
    (pa.types.is_date32, _date),
    (_is_decimal, _decimal),
    (pa.types.is_timestamp, _timestamp),
)
