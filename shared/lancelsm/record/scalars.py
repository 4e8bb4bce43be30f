"""Convert values that Arrow lacks to values that it reads as they are, if that is exact.

These are scalars of numpy, pandas and pyarrow, UUIDs, paths and members of enums. A value that is not exact for the
type is returned as it is, so that the check of types refuses it. The module imports neither numpy nor pandas: a
function that only takes JSON has no memory for them.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from enum import Enum
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from lancelsm.record.casts import kind_of

_SECOND: Final = 10**9
_NANOSECONDS: Final = {"W": 604_800 * _SECOND, "D": 86_400 * _SECOND, "h": 3600 * _SECOND, "m": 60 * _SECOND}
_NANOSECONDS.update({"s": _SECOND, "ms": 10**6, "us": 10**3, "ns": 1})
_FINER: Final = {"ps": 10**3, "fs": 10**6, "as": 10**9}  # in a nanosecond
_DAYS: Final = ("W", "D")
_NESTED: Final = (list, tuple, Mapping)
_UNIT: Final = re.compile(r"(datetime|timedelta)64\[(\d*)(\w+)\]")
_OF_ARROW: Final = (str, bytes, numbers.Number, date, time, timedelta)  # Arrow reads enum members that are these, too
_LEAST, _MOST = -(1 << 63) + 1, (1 << 63) - 1  # the least int64 stands for NaT


def plain(values: Sequence[Any], kind: pa.DataType | None) -> Sequence[Any]:
    """Return the values for a column of this type; None: its type is inferred. A missing value becomes None.

    Without a type, lists and mappings are converted inside too.
    """
    odd = {given for given in {*map(type, values)} if _is_odd(given) or (kind is None and issubclass(given, _NESTED))}
    return [_plain(value, kind) if type(value) in odd else value for value in values] if odd else values


def is_time_of_numpy(value: Any, name: str, unit: str) -> bool:
    """Return whether a value is a `datetime64` or a `timedelta64`, as `name` says, in this unit."""
    return type(value).__module__ == "numpy" and value.dtype.name == f"{name}[{unit}]"


def _is_odd(given: type) -> bool:
    return (
        issubclass(given, UUID | PurePath | pa.Scalar)
        or given.__module__.partition(".")[0] in ("numpy", "pandas")
        or (issubclass(given, Enum) and not issubclass(given, _OF_ARROW))
    )


def _plain(value: Any, kind: pa.DataType | None) -> Any:
    if isinstance(value, Enum):
        return plain([value.value], kind)[0]
    if isinstance(value, UUID):
        return _uuid(value, kind)
    if isinstance(value, PurePath):
        return str(value) if kind is None or kind_of(kind) == "text" else value
    if isinstance(value, pa.Scalar):
        return _of_scalar(value)
    if isinstance(value, Mapping):
        return dict(zip(plain([*value], None), plain([*value.values()], None), strict=True))
    if isinstance(value, list | tuple):
        return plain(value, None)
    return _of_numpy(value, kind)


def _of_numpy(value: Any, kind: pa.DataType | None) -> Any:
    name = type(value).__name__
    if name == "ndarray":
        return _plain(value[()], kind) if value.shape == () else value
    if name == "NAType":
        return None
    if name in ("NaTType", "datetime64", "timedelta64"):
        return _time(value, name, kind)
    if kind is None:
        return value
    if pa.types.is_decimal(kind) and isinstance(value, numbers.Integral) and not name.startswith("bool"):
        return int(value)
    if name == "longdouble" and pa.types.is_floating(kind):
        return float(value) if float(value) == value or math.isnan(value) else value
    if name == "void" and value.dtype.names is None and kind_of(kind) == "binary":
        return value.tobytes()
    return value


def _uuid(value: UUID, kind: pa.DataType | None) -> Any:
    if kind is None:
        return value
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return str(value)
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == pa.binary(16)
    return value.bytes if is_binary else value


def _of_scalar(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):  # Python lacks the value, such as the year 10000
        return value


def _time(value: Any, name: str, kind: pa.DataType | None) -> Any:
    if value != value:  # noqa: PLR0124 - not a time
        return None if kind is None or _has(kind, name) else value
    found = _UNIT.fullmatch(value.dtype.name)
    if found is None:  # a number of no unit
        return value
    number, unit = int(value.astype("int64")) * int(found[2] or 1), found[3]
    if kind is None:
        return value if unit == "ns" or found[1] == "timedelta" else value.item()
    if not _has(kind, name):
        return value
    if pa.types.is_date(kind):
        return value.astype("datetime64[D]").item() if unit in _DAYS else value
    wanted = "ns" if kind.unit == "ns" else "us"
    numerator, divisor = number * _NANOSECONDS.get(unit, 1), _FINER.get(unit, 1) * _NANOSECONDS[wanted]
    if unit not in _NANOSECONDS and unit not in _FINER:  # months and years
        return value
    exact, rest = divmod(numerator, divisor)
    return value if rest or not _LEAST <= exact <= _MOST else type(value)(exact, wanted)


def _has(kind: pa.DataType, name: str) -> bool:
    """Return whether a column of this type can have values of this class; NaT is the null of every type of time."""
    dates = bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))
    durations = bool(pa.types.is_duration(kind))
    if name == "NaTType":
        return dates or durations or bool(pa.types.is_time(kind))
    return durations if name == "timedelta64" else dates
