"""Pick a small part of the demo's data, so that its tests stay fast."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc


def flights_of_days(flights: pa.Table, *, days: Iterable[tuple[int, int]], every: int) -> pa.Table:
    """Every `every`-th flight of the given (month, day) pairs."""
    date = pc.add(pc.multiply(flights["month"], 100), flights["day"])
    chosen = pc.is_in(date, value_set=pa.array([month * 100 + day for month, day in days], date.type))
    of_these_days = flights.filter(chosen)
    return of_these_days.take(pa.arange(0, of_these_days.num_rows, every))
