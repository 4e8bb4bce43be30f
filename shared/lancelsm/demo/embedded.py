"""The demo in a directory: the schedule as base, a day at a time on top, flushes and merges in between."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from rich.console import Console

from lancelsm.clock import Clock, SystemClock
from lancelsm.demo.flights import KEY, REGIONS, Day, days, flown, read_flights, scheduled, told
from lancelsm.demo.telling import Teller, check, looking, prove
from lancelsm.table import Table, create
from lancelsm.upkeep import Engine

MONTHS_OF_MERGES: Final = (2, 5, 8, 11)  # so that the year ends with rows at every level


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
    """What the demo did, and what to type to look at its table."""
    return "\n".join(
        (
            f"{shown.scheduled:,} scheduled, {shown.cancelled:,} cancelled, {shown.flown:,} flown",
            f"{shown.events:,} rows written at {shown.rows_per_second:,} rows/s, reads, flushes and merges included",
            f"{shown.entries:,} entries, {shown.generations} generations, {shown.merges} merges",
            *looking(shown.table),
        )
    )


class _Demo:
    """One run, and what it counted so far."""

    def __init__(self, *, flights: pa.Table, place: Path, console: Console, engine: Engine, clock: Clock) -> None:
        self._flights = flights
        self._flown = flown(flights)
        self._place = place
        self._engine = engine
        self._teller = Teller(console, clock=clock)
        self._events = self._deleted = self._entries = self._generations = self._merges = 0

    def run(self) -> Shown:
        start = self._teller.now()
        table = create(self._place, scheduled(self._flights), primary_key=KEY, regions=REGIONS)
        self._teller.did(start, f"The schedule, {self._flights.num_rows:,} flights, is the base of {table.uri}")
        start = self._teller.now()
        self._stream(table)
        shown = self._shown(table, seconds=self._teller.now() - start)
        self._teller.say(summary(shown))
        return shown

    def _stream(self, table: Table) -> None:
        year = list(days(self._flights))
        with self._teller.progress() as progress:
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
        prove(table, self._flown, levels="base, generations and log", teller=self._teller)
        self._flush(table)
        self._merge(table)
        prove(table, self._flown, levels="the base alone", teller=self._teller)

    def _write(self, table: Table, day: Day) -> None:
        for committed in (table.upsert(day.upserts), table.delete(day.deletes)):
            self._entries += len(committed.entries)
        self._events += day.upserts.num_rows + day.deletes.num_rows
        self._deleted += day.deletes.num_rows

    def _read(self, table: Table, day: Day) -> None:
        """Count, and look up what was written last: both must be as of now."""
        start = self._teller.now()
        rows = sum(batch.num_rows for batch in table.scan(columns=KEY[:1]))
        last = day.upserts.slice(day.upserts.num_rows - 1)
        found = table.get(last.select(KEY))
        check(rows == self._flights.num_rows - self._deleted, f"{rows} rows on {day.date}", table.uri)
        check(found.equals(last), f"another row than the one that was written last on {day.date}", table.uri)
        self._teller.did(start, f"{day.date}: {rows:,} rows; {told(last)}")

    def _flush(self, table: Table) -> None:
        self._generations += len(table.flush())

    def _merge(self, table: Table) -> None:
        start = self._teller.now()
        merged = table.merge(engine=self._engine)
        self._merges += merged.generations > 0
        note = " (Spark started first)" if self._engine == "spark" and self._merges == 1 else ""
        self._teller.did(
            start,
            f"merged {merged.generations} generations into version {merged.base_version} of the base: "
            f"{merged.rows_upserted:,} rows upserted, {merged.rows_deleted:,} deleted{note}",
        )

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
