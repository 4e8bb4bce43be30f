"""The demo in a directory: write each day, read and flush after each month, merge after each quarter."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from rich.console import Console

from lancelsm.common.clock import Clock, SystemClock
from lancelsm.compaction.runner import Engine
from lancelsm.demo.flights import KEY, Day, describe_flight, read_flights
from lancelsm.demo.progress import Reporter, check, next_commands
from lancelsm.demo.year import Month, Shown, apply_year, create_schedule
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
    """Write the year into a new table, read it on the way, and prove that it has exactly the flights that flew.

    Args:
        directory: the table is created as `flights` in it; by default in a new temporary directory. The table remains.
        console: prints each step; progress bars appear only on a terminal.
        flights: the data; by default `read_flights()`.
        engine: where merges run.

    Raises:
        Invalid: the data or Spark is not installed, or a table already exists there.
        LsmError: a read differs from what was written. The demo exists to show that this does not happen.
    """
    flights = read_flights() if flights is None else flights
    location = (directory or Path(tempfile.mkdtemp(prefix="lancelsm-demo-"))) / "flights"
    reporter = Reporter(console, clock=clock or SystemClock())
    table = create_schedule(location, flights, reporter=reporter)
    shown = apply_year(table, flights, _InDirectory(table, engine=engine, reporter=reporter), reporter=reporter)
    reporter.print(summary(shown))
    return shown


def summary(shown: Shown) -> str:
    """Return what the demo did, and commands to look at its table."""
    return "\n".join(
        (
            f"{shown.scheduled:,} scheduled, {shown.cancelled:,} cancelled, {shown.flown:,} flown",
            f"{shown.events:,} rows written at {shown.rows_per_second:,} rows/s, reads, flushes and merges included",
            f"{shown.entries:,} entries, {shown.generations} generations, {shown.merges} merges",
            *next_commands(shown.table),
        )
    )


class _InDirectory:
    """Steps that use the library in this process."""

    def __init__(self, table: Table, *, engine: Engine, reporter: Reporter) -> None:
        self.entries = self.generations = self.merges = 0
        self._table = table
        self._engine = engine
        self._reporter = reporter

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

    def flush_and_merge(self) -> None:
        self._flush()
        self._merge()

    def _read(self, day: Day, expected: int) -> None:
        """Count the rows and look up the last written row. Both must show the current state."""
        start = self._reporter.now()
        rows = sum(batch.num_rows for batch in self._table.scan(columns=KEY[:1]))
        last = day.upserts.slice(day.upserts.num_rows - 1)
        found = self._table.get(last.select(KEY))
        check(rows == expected, f"{rows} rows on {day.date}", self._table.uri)
        check(found.equals(last), f"another row than the last one written on {day.date}", self._table.uri)
        self._reporter.report(start, f"{day.date}: {rows:,} rows; {describe_flight(last)}")

    def _flush(self) -> None:
        self.generations += len(self._table.flush())

    def _merge(self) -> None:
        start = self._reporter.now()
        merged = self._table.merge(engine=self._engine)
        self.merges += merged.generations > 0
        note = " (Spark started first)" if self._engine == "spark" and self.merges == 1 else ""
        self._reporter.report(
            start,
            f"merged {merged.generations} generations into version {merged.base_version} of the base: "
            f"{merged.rows_upserted:,} rows upserted, {merged.rows_deleted:,} deleted{note}",
        )
