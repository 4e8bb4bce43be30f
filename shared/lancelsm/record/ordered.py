"""Key values as Python values with the order of the column: ints or bytes. Text is UTF-8, a time its stored number."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

Ordered = int | bytes


def ordered(column: pa.Array | pa.ChunkedArray) -> list[Ordered | None]:
    """Return each value of a column of a key's type; None for null."""
    kind = column.type
    values: list[Ordered | None] = column.cast(stored(kind)).to_pylist()
    return values


def from_ordered(values: Sequence[Ordered], kind: pa.DataType) -> pa.Array:
    """Return the inverse of `ordered`; raise `pa.ArrowInvalid` or `OverflowError` for a value that the type lacks."""
    return pa.array(values, stored(kind)).cast(kind)


def after(value: Ordered) -> Ordered:
    """Return the smallest value above this one."""
    return value + 1 if isinstance(value, int) else value + b"\0"


def limits(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the smallest and the largest value of a type; None for text and binary."""
    if pt.is_boolean(kind):
        return 0, 1
    number = stored(kind)
    if not pt.is_integer(number):
        return None
    bits = number.bit_width
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if pt.is_signed_integer(number) else (0, (1 << bits) - 1)


def stored(kind: pa.DataType) -> pa.DataType:
    """Return the type of number or binary that has the values of `ordered`, in the same order."""
    if pt.is_boolean(kind):
        return pa.uint8()
    if pt.is_date32(kind):
        return pa.int32()
    if pt.is_timestamp(kind):
        return pa.int64()
    return pa.large_binary() if _is_text(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))
