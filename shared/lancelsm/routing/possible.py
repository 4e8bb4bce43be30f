"""Compute the region values that rows can have, from the ranges of their key columns."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from lancelsm.errors import Invalid
from lancelsm.record.ordered import Ordered, after, from_ordered, ordered
from lancelsm.record.ranges import Ranges, Span
from lancelsm.record.schema import TableSchema
from lancelsm.routing import transforms
from lancelsm.routing.route import computed
from lancelsm.routing.spec import RegionField
from lancelsm.routing.transforms import Transform

_MOST_KEYS = 4096  # up to this number, the region values of keys are computed one by one
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY: Final = 86_400
# The years that Arrow's calendar functions surely have, in seconds since 1970.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_800
# In seconds: a time in which each value occurs, and steps so short that no value is missed in any time zone.
_PERIODS: Final = {
    Transform.MONTH: (366 * _DAY, 6 * 3600),
    Transform.DAY: (31 * _DAY, 6 * 3600),
    Transform.HOUR: (_DAY, 900),
}


def possible_values(field: RegionField, box: Mapping[str, Ranges], schema: TableSchema) -> Ranges | None:
    """Return the values that a region field may have, in the order of its result type; None if it may have any.

    Args:
        box: the values that each key column may have; any value for a column that it leaves out.
    """
    kinds = {name: schema.columns.field(name).type for name in field.columns}
    sources = {name: box.get(name, Ranges.all_of(kind)) for name, kind in kinds.items()}
    if not all(sources.values()):
        return Ranges(())
    exact = _of_each_key(field, sources, kinds)
    if exact is not None or len(field.columns) != 1:
        return exact
    ((name, ranges),) = sources.items()
    return _of_ranges(field, ranges, kinds[name])


def _of_each_key(field: RegionField, sources: Mapping[str, Ranges], kinds: Mapping[str, pa.DataType]) -> Ranges | None:
    """Compute the value of each possible key, if there are few."""
    values = {name: ranges.values(_MOST_KEYS) for name, ranges in sources.items()}
    if any(found is None for found in values.values()):
        return None
    known = {name: found for name, found in values.items() if found is not None}
    if prod(map(len, known.values())) > _MOST_KEYS:
        return None
    keys = list(product(*known.values()))
    try:
        rows = pa.table(
            {name: from_ordered([key[at] for key in keys], kinds[name]) for at, name in enumerate(known)}
            if known
            else {"none": pa.nulls(1)}
        )
        found = ordered(computed(field, rows))
    except (Invalid, ValueError, OverflowError):  # an expression fails for a key, which may not exist
        return None
    return None if None in found else Ranges.points(one for one in found if one is not None)


def _of_ranges(field: RegionField, ranges: Ranges, kind: pa.DataType) -> Ranges | None:
    match field.transform:
        case Transform.IDENTITY:
            return ranges
        case Transform.TRUNCATE:
            return Ranges.of(_truncated(span, field.size or 1, kind) for span in ranges)
        case Transform.YEAR:
            return Ranges.of(_years(span, kind) for span in ranges)
        case Transform.MONTH | Transform.DAY | Transform.HOUR:
            found = [_calendar_values(span, field.transform, kind) for span in ranges]
            return None if None in found else Ranges.points(one for some in found if some is not None for one in some)
        case _:
            return None


def _truncated(span: Span, width: int, kind: pa.DataType) -> Span:
    """Return the range of the truncated values: cutting keeps the order, and so does rounding towards zero."""
    low, high = span
    if isinstance(high, int):
        high -= 1

    def cut(value: Ordered | None) -> Ordered | None:
        if isinstance(value, int):
            return (abs(value) // width * width) * (-1 if value < 0 else 1)
        if value is None:
            return None
        if pt.is_binary(kind) or pt.is_large_binary(kind):
            return value[:width]
        return value.decode()[:width].encode()

    last = cut(high)
    if last is None or (last == high and isinstance(last, bytes)):  # text before a short text is cut to text before it
        return cut(low), last
    return cut(low), after(last)


def _years(span: Span, kind: pa.DataType) -> Span:
    # Two days more at each end, since a time zone may be that far away.
    first, last = (None if value is None else _in_seconds(value, kind) for value in span)
    low = None if first is None or not _FIRST_SECOND < first - 2 * _DAY < _LAST_SECOND else first - 2 * _DAY
    high = None if last is None or not _FIRST_SECOND < last + 2 * _DAY < _LAST_SECOND else last + 2 * _DAY
    if not pt.is_timestamp(kind) or kind.tz is None:
        low = None if low is None or first is None else max(low, first)
        high = None if high is None or last is None else min(high, last)
    years = [None if one is None else _year(one) for one in (low, high)]
    return years[0], None if years[1] is None else years[1] + 1


def _year(second: int) -> int:
    return int(transforms.calendar(Transform.YEAR, pa.array([second], pa.timestamp("s")))[0].as_py())


def _calendar_values(span: Span, part: Transform, kind: pa.DataType) -> set[Ordered] | None:
    """Return the calendar values in a span; None if it is long."""
    low, high = span
    if not isinstance(low, int) or not isinstance(high, int):
        return None
    period, step = _PERIODS[part]
    first, last = _in_seconds(low, kind), _in_seconds(high - 1, kind)
    if last - first >= period or not _FIRST_SECOND < first <= last < _LAST_SECOND:
        return None
    every = max(1, step // _DAY if pt.is_date32(kind) else step * _PER_SECOND[kind.unit])
    times = from_ordered([*range(low, high, every), high - 1], kind)
    try:
        return {one for one in ordered(transforms.calendar(part, times)) if one is not None}
    except Invalid:
        return None


def _in_seconds(value: Ordered, kind: pa.DataType) -> int:
    number = int(value)
    return number * _DAY if pt.is_date32(kind) else number // _PER_SECOND[kind.unit]
