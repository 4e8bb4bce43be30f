"""The demo in a directory: a day at a time is written, each month read and flushed, each quarter merged."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from rich.console import Console

from lancelsm.common.clock import Clock, SystemClock
from lancelsm.compaction.maintenance import Engine
from lancelsm.demo.flights import KEY, Day, described, read_flights
from lancelsm.demo.progress import Teller, check, looking
from lancelsm.demo.year import Month, Shown, lay_schedule, take_year
from lancelsm.table import Table

MONTHS_OF_MERGES: Final = (2, 5, 8, 11)  # so that the year ends with rows at every level


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
    flights = read_flights() if flights is None else flights
    place = (directory or Path(tempfile.mkdtemp(prefix="lancelsm-demo-"))) / "flights"
    teller = Teller(console, clock=clock or SystemClock())
    table = lay_schedule(place, flights, teller=teller)
    shown = take_year(table, flights, _InDirectory(table, engine=engine, teller=teller), teller=teller)
    teller.say(summary(shown))
    return shown


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


class _InDirectory:
    """Steps by the library in this process."""

    def __init__(self, table: Table, *, engine: Engine, teller: Teller) -> None:
        self.entries = self.generations = self.merges = 0
        self._table = table
        self._engine = engine
        self._teller = teller

    def write(self, month: Month) -> Iterator[Day]:
        for day in month:
            for committed in (self._table.upsert(day.upserts), self._table.delete(day.deletes)):
                self.entries += len(committed.entries)
            yield day

    def end(self, month: Month, *, rows: int, last: bool) -> None:
        if last:
            return
        self._read(month[-1], rows)
        self._flush()
        if month[-1].date.month in MONTHS_OF_MERGES:
            self._merge()

    def fold(self) -> None:
        self._flush()
        self._merge()

    def _read(self, day: Day, expected: int) -> None:
        """Count, and look up what was written last: both must be as of now."""
        start = self._teller.now()
        rows = sum(batch.num_rows for batch in self._table.scan(columns=KEY[:1]))
        last = day.upserts.slice(day.upserts.num_rows - 1)
        found = self._table.get(last.select(KEY))
        check(rows == expected, f"{rows} rows on {day.date}", self._table.uri)
        check(found.equals(last), f"another row than the one that was written last on {day.date}", self._table.uri)
        self._teller.did(start, f"{day.date}: {rows:,} rows; {described(last)}")

    def _flush(self) -> None:
        self.generations += len(self._table.flush())

    def _merge(self) -> None:
        start = self._teller.now()
        merged = self._table.merge(engine=self._engine)
        self.merges += merged.generations > 0
        note = " (Spark started first)" if self._engine == "spark" and self.merges == 1 else ""
        self._teller.did(
            start,
            f"merged {merged.generations} generations into version {merged.base_version} of the base: "
            f"{merged.rows_upserted:,} rows upserted, {merged.rows_deleted:,} deleted{note}",
        )
