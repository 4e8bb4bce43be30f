"""Region values: their types, and their encoding in manifests, region ids and the catalog.

A value is encoded as in Lance's `ShardFieldEntry`: the raw little-endian Arrow scalar, or UTF-8 for text. Types have
the names of Lance's specs (`boolean`, `utf8`, ...). Lance does not support timestamps; they have the names that Arrow
prints.
"""

from __future__ import annotations

import base64
import re

import pyarrow as pa
import pyarrow.types as pt

from lancelsm.errors import Invalid
from lancelsm.record.ordered import Ordered

_TYPES = {
    "boolean": pa.bool_(),
    **{str(kind): kind for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(kind): kind for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    "utf8": pa.utf8(),
    "large_utf8": pa.large_utf8(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32": pa.date32(),
}
_NAMES = {kind: name for name, kind in _TYPES.items()}
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]")


def type_name(kind: pa.DataType) -> str:
    """Return the name of the type of a region value; raise `Invalid` if region values can't have this type."""
    if pt.is_timestamp(kind):
        return str(kind)
    if kind not in _NAMES:
        raise Invalid(f"a region value can't be of type {kind}", remedy=f"Use one of {', '.join(_TYPES)}, timestamp")
    return _NAMES[kind]


def arrow_type(name: str) -> pa.DataType:
    """Return the type with this name, the inverse of `type_name`; raise `Invalid` for an unknown name."""
    match = _TIMESTAMP.fullmatch(name)
    if match:
        return pa.timestamp(match[1], match[2])
    if name not in _TYPES:
        raise Invalid(f"{name!r} is not the type of a region value")
    return _TYPES[name]


def encoded(values: pa.Array) -> list[bytes | None]:
    """Encode each value to bytes; None for null."""
    kind = values.type
    if pt.is_string(kind) or pt.is_large_string(kind):
        return [None if value is None else value.encode() for value in values.to_pylist()]
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return list(values.to_pylist())
    if pt.is_boolean(kind):
        values = values.cast(pa.int8())
    width = values.type.bit_width // 8
    integers = values.view(_signed(width)).to_pylist()
    return [None if value is None else value.to_bytes(width, "little", signed=True) for value in integers]


def decoded(value: bytes | None, kind: pa.DataType) -> bool | int | str | None:
    """Decode a value for display and JSON: dates and timestamps in ISO 8601 (zoned ones in UTC), binary in base64."""
    if value is None:
        return None
    if pt.is_boolean(kind):
        return value != b"\0"
    if pt.is_string(kind) or pt.is_large_string(kind):
        return value.decode()
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return base64.b64encode(value).decode()
    if pt.is_integer(kind):
        return int.from_bytes(value, "little", signed=pt.is_signed_integer(kind))
    number = pa.array([int.from_bytes(value, "little", signed=True)], _signed(len(value)))
    if pt.is_timestamp(kind) and kind.tz:
        kind = pa.timestamp(kind.unit, "UTC")
    return str(number.view(kind).cast(pa.utf8())[0].as_py())


def as_ordered(value: bytes, kind: pa.DataType) -> Ordered:
    """Return an encoded value in the order of its type, as `record.ordered.ordered` returns it."""
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_binary(kind) or pt.is_large_binary(kind):
        return value
    if pt.is_boolean(kind):
        return int(value != b"\0")
    return int.from_bytes(value, "little", signed=not pt.is_unsigned_integer(kind))


def _signed(width: int) -> pa.DataType:
    return {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}[width]
