"""The year in both demos: the schedule is the base, a month of events at a time follows, the proof comes last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from lancelsm.demo.flights import KEY, REGIONS, Day, days, flown, scheduled
from lancelsm.demo.progress import Reporter, prove
from lancelsm.table import Table, create

Month = list[Day]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the demo did, counted.

    `rows_per_second` is the rate of events, including flushes, merges and reads in between.
    """

    table: str
    scheduled: int
    cancelled: int
    flown: int
    events: int
    rows_per_second: int
    entries: int
    generations: int
    merges: int


class Steps(Protocol):
    """How a demo works with its table. Each step reports what it did; the attributes count the work."""

    entries: int
    generations: int
    merges: int

    def write(self, month: Month) -> Iterator[Day]:
        """Write a month. Yield each day when it is written."""
        ...

    def end(self, month: Month, *, rows: int, last: bool) -> None:
        """Read, flush and merge what is due after a month.

        Args:
            rows: the number of rows that the table must have now.
            last: whether this is the last month.

        Raises:
            LsmError: a read differs from what was written.
        """
        ...

    def flush_and_merge(self) -> None:
        """Flush and merge everything that is left."""
        ...


def create_schedule(
    location: str | Path, flights: pa.Table, *, registry: str | None = None, reporter: Reporter
) -> Table:
    """Create the table with the planned flights as its base."""
    start = reporter.now()
    table = create(location, scheduled(flights), primary_key=KEY, regions=REGIONS, registry=registry)
    reporter.report(start, f"The schedule, {flights.num_rows:,} flights, is the base of {table.uri}")
    return table


def apply_year(table: Table, flights: pa.Table, steps: Steps, *, reporter: Reporter) -> Shown:
    """Send the events of all flights through the steps, and prove that the table has exactly the flights that flew.

    Raises:
        LsmError: a read differs from what was written.
    """
    flew = flown(flights)
    start, year = reporter.now(), list(days(flights))
    events = cancelled = 0
    with reporter.progress() as progress:
        bar = progress.add_task("", total=len(year))
        for month in _months(year):
            for day in steps.write(month):
                events += day.upserts.num_rows + day.deletes.num_rows
                cancelled += day.deletes.num_rows
                progress.update(bar, advance=1, description=f"{day.date}")
            steps.end(month, rows=flights.num_rows - cancelled, last=month[-1] is year[-1])
    # First with rows in base, generations and log, then with everything in the base.
    prove(table, flew, levels="base, generations and log", reporter=reporter)
    steps.flush_and_merge()
    prove(table, flew, levels="the base alone", reporter=reporter)
    return Shown(
        table=table.uri,
        scheduled=flights.num_rows,
        cancelled=cancelled,
        flown=flew.num_rows,
        events=events,
        rows_per_second=round(events / max(reporter.now() - start, 1e-9)),
        entries=steps.entries,
        generations=steps.generations,
        merges=steps.merges,
    )


def _months(year: list[Day]) -> Iterator[Month]:
    for _, month in groupby(year, key=lambda day: (day.date.year, day.date.month)):
        yield list(month)
