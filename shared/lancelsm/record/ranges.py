"""Sets of key values as ranges, for conditions, regions and the bounds of generations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from lancelsm.record.ordered import Ordered, after, limits

# From the first value to before the second one; None: without an end.
Span = tuple[Ordered | None, Ordered | None]


@dataclass(frozen=True, slots=True)
class Ranges:
    """A set of values of one type: sorted, disjoint spans."""

    spans: tuple[Span, ...]

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Ranges:
        """Return the values that are in at least one of the spans."""
        found: list[Span] = []
        for low, high in sorted((span for span in spans if not _is_empty(span)), key=_start):
            if found and (found[-1][1] is None or low is None or low <= found[-1][1]):  # type: ignore[operator]
                found[-1] = found[-1][0], _later(found[-1][1], high)
            else:
                found.append((low, high))
        return cls(tuple(found))

    @classmethod
    def points(cls, values: Iterable[Ordered]) -> Ranges:
        """Return the set of these values."""
        return cls.of((value, after(value)) for value in values)

    @classmethod
    def all_of(cls, kind: pa.DataType) -> Ranges:
        """Return all values of a type."""
        bounds = limits(kind)
        return cls(((None, None),)) if bounds is None else cls(((bounds[0], bounds[1] + 1),))

    def __bool__(self) -> bool:
        return bool(self.spans)

    def __contains__(self, value: Ordered) -> bool:
        return bool(self & Ranges.points([value]))

    def __or__(self, other: Ranges) -> Ranges:
        return Ranges.of((*self.spans, *other.spans))

    def __and__(self, other: Ranges) -> Ranges:
        found, mine, theirs = [], list(reversed(self.spans)), list(reversed(other.spans))
        while mine and theirs:
            one, two = mine[-1], theirs[-1]
            found.append((max(one[0], two[0], key=_low), min(one[1], two[1], key=_high)))
            (mine if _high(one[1]) <= _high(two[1]) else theirs).pop()
        return Ranges(tuple(span for span in found if not _is_empty(span)))

    def __sub__(self, other: Ranges) -> Ranges:
        edges = [None, *chain.from_iterable(other.spans), None]
        gaps = list(zip(edges[::2], edges[1::2], strict=True))
        if other.spans and other.spans[0][0] is None:
            gaps = gaps[1:]
        if other.spans and other.spans[-1][1] is None:
            gaps = gaps[:-1]
        return self & Ranges(tuple(gaps))

    def values(self, limit: int) -> list[Ordered] | None:
        """Return all values; None if there are more than `limit`, or infinitely many."""
        found: list[Ordered] = []
        for low, high in self.spans:
            if isinstance(low, int) and isinstance(high, int) and high - low <= limit - len(found):
                found += range(low, high)
            elif isinstance(low, bytes) and high == after(low) and len(found) < limit:
                found.append(low)
            else:
                return None
        return found

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)


def _is_empty(span: Span) -> bool:
    low, high = span
    return low is not None and high is not None and low >= high  # type: ignore[operator]


def _start(span: Span) -> tuple[bool, Ordered]:
    return _low(span[0])


def _low(value: Ordered | None) -> tuple[bool, Ordered]:
    return (False, 0) if value is None else (True, value)


def _high(value: Ordered | None) -> tuple[bool, Ordered]:
    return (True, 0) if value is None else (False, value)


def _later(one: Ordered | None, two: Ordered | None) -> Ordered | None:
    return max(one, two, key=_high)
