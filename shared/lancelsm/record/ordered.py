"""Key values as Python values with the order of the column: ints or bytes. Text is UTF-8, a time its stored number."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

Ordered = int | bytes


def ordered(column: pa.Array | pa.ChunkedArray) -> list[Ordered | None]:
    """Return each value of a column of a key's type; None for null."""
    kind = column.type
    stored = _stored(kind)
    values: list[Ordered | None] = (column if stored == kind else column.cast(stored)).to_pylist()
    return values


def from_ordered(values: Sequence[Ordered], kind: pa.DataType) -> pa.Array:
    """Return the inverse of `ordered`; raise `pa.ArrowInvalid` or `OverflowError` for a value that the type lacks."""
    return pa.array(values, _stored(kind)).cast(kind)


def is_orderable(kind: pa.DataType) -> bool:
    """Return whether `ordered` supports the type."""
    return bool(
        pt.is_boolean(kind)
        or pt.is_integer(kind)
        or pt.is_date32(kind)
        or pt.is_timestamp(kind)
        or _is_text(kind)
        or pt.is_binary(kind)
        or pt.is_large_binary(kind)
    )


def after(value: Ordered) -> Ordered:
    """Return the smallest value above this one."""
    return value + 1 if isinstance(value, int) else value + b"\0"


def limits(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the smallest and the largest value of a type; None for text and binary."""
    if pt.is_boolean(kind):
        return 0, 1
    stored = _stored(kind)
    if not pt.is_integer(stored):
        return None
    bits = stored.bit_width
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if pt.is_signed_integer(stored) else (0, (1 << bits) - 1)


def _stored(kind: pa.DataType) -> pa.DataType:
    if pt.is_boolean(kind):
        return pa.uint8()
    if pt.is_date32(kind):
        return pa.int32()
    if pt.is_timestamp(kind):
        return pa.int64()
    return pa.large_binary() if _is_text(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))
