"""The smallest and the largest key of some rows, for each key column, in a form that fits into a manifest."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.record.ordered import Ordered, after, ordered, stored
from lancelsm.record.ranges import Ranges

# Both ends, encoded; the upper one is None if text has no short upper bound.
Bounds = tuple[bytes, bytes | None]

_INTEGER_BYTES = 9  # of uint64 with a sign
_TEXT_BYTES = 64  # longer text is bounded by its beginning


def key_bounds(keys: pa.Table) -> tuple[Bounds, ...]:
    """Return the bounds of each key column, in their order. There is at least one row, and no null."""
    return tuple(_bounds(column) for column in keys.columns)


def _bounds(column: pa.ChunkedArray) -> Bounds:
    ends = pc.min_max(column.cast(stored(column.type)))
    low, high = ordered(pa.array([ends["min"].as_py(), ends["max"].as_py()], stored(column.type)))
    if isinstance(low, int) and isinstance(high, int):
        return _encoded(low), _encoded(high)
    assert isinstance(low, bytes), "a key column has no nulls"
    assert isinstance(high, bytes), "a key column has no nulls"
    return low[:_TEXT_BYTES], high if len(high) <= _TEXT_BYTES else _above(high[:_TEXT_BYTES])


def bounded(bounds: Bounds, kind: pa.DataType) -> Ranges:
    """Return the values of a key column of this type that the bounds allow."""
    low, high = (None if end is None else _decoded(end, kind) for end in bounds)
    return Ranges(((low, None if high is None else after(high)),))


def within(column: pa.ChunkedArray, bounds: Bounds) -> pa.ChunkedArray:
    """Return a flag for each value of a key column: whether the bounds allow it."""
    kind = stored(column.type)
    values, (low, high) = column.cast(kind), bounds
    found = pc.greater_equal(values, pa.scalar(_decoded(low, kind), kind))
    return found if high is None else pc.and_(found, pc.less_equal(values, pa.scalar(_decoded(high, kind), kind)))


def _above(beginning: bytes) -> bytes | None:
    """Return the smallest bytes above all that begin so, if there are any."""
    kept = beginning.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _encoded(value: int) -> bytes:
    return value.to_bytes(_INTEGER_BYTES, "little", signed=True)


def _decoded(end: bytes, kind: pa.DataType) -> Ordered:
    return int.from_bytes(end, "little", signed=True) if pa.types.is_primitive(kind) else end
