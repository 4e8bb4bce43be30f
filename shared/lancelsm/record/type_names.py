"""Read the type of a column from text, as Arrow shows it."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from lancelsm.errors import Invalid

TYPES: Final = "int64, double, string, bool, date32, timestamp[us, tz=UTC] or decimal128(10, 2)"

_DECIMAL: Final = re.compile(r"decimal(128|256)?\((\d+),\s*(-?\d+)\)")
_TIMESTAMP: Final = re.compile(r"timestamp\[(s|ms|us|ns),\s*(?:tz=)?([^\]]+)\]")
_BINARY: Final = re.compile(r"(?:fixed_size_)?binary[(\[](\d+)[)\]]")
_FIXED: Final = re.compile(r"fixed_size_list<(?:item: )?(.+)>\[(\d+)\]|([a-z0-9]+)\[(\d+)\]")
_LIST: Final = re.compile(r"(list|large_list)<(?:item: )?(.+)>")


def is_type_name(text: str) -> bool:
    """Return whether the text names a type, see `type_named`."""
    try:
        return _named(text.strip()) is not None
    except (ValueError, pa.ArrowException):
        return False


def type_named(kind: pa.DataType | str, *, column: str) -> pa.DataType:
    """Return the type that a text names: `int64`, `string`, `decimal128(10, 2)`, `timestamp[us, tz=UTC]`, `float[128]`
    for vectors of 128 floats, `list<int32>`, and so on. A type is returned as it is.

    Raises:
        Invalid: the text names no type.
    """
    if isinstance(kind, pa.DataType):
        return kind
    found = _named(kind.strip()) if is_type_name(kind) else None
    if found is None:
        raise Invalid(
            f"{kind!r} is not a type of Arrow",
            remedy=f"Give a type such as {TYPES}",
            field=column,
        )
    return found


def _named(text: str) -> pa.DataType | None:
    if match := _DECIMAL.fullmatch(text):
        precision, scale = int(match[2]), int(match[3])
        make = pa.decimal256 if match[1] == "256" or (match[1] is None and precision > 38) else pa.decimal128
        return make(precision, scale)
    if match := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(match[1], match[2].strip())
    if match := _BINARY.fullmatch(text):
        return pa.binary(int(match[1]))
    if match := _LIST.fullmatch(text):
        inner = _named(match[2])
        return None if inner is None else (pa.list_ if match[1] == "list" else pa.large_list)(inner)
    if (match := _FIXED.fullmatch(text)) and not text.startswith(("timestamp", "time32", "time64", "duration")):
        inner, size = _named(match[1] or match[3]), int(match[2] or match[4])
        return None if inner is None else pa.list_(inner, size)
    return pa.type_for_alias(text)
