"""A part of the demo's data that its tests can wait for."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc


def few(flights: pa.Table, *, days: Iterable[tuple[int, int]], every: int) -> pa.Table:
    """One of so many flights of these days, each a month and a day."""
    place = pc.add(pc.multiply(flights["month"], 100), flights["day"])
    chosen = pc.is_in(place, value_set=pa.array([month * 100 + day for month, day in days], place.type))
    found = flights.filter(chosen)
    return found.take(pa.arange(0, found.num_rows, every))
