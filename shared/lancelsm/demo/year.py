"""The year as both demos take it: the schedule as base, a month at a time on top, and the proof in the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from lancelsm.demo.flights import KEY, REGIONS, Day, days, flown, scheduled
from lancelsm.demo.progress import Teller, prove
from lancelsm.table import Table, create

Month = list[Day]


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


class Steps(Protocol):
    """What each demo does to its table in its own way. Each step tells of itself; in the end all is counted."""

    entries: int
    generations: int
    merges: int

    def write(self, month: Month) -> Iterator[Day]:
        """Write a month; yields its days, each when it is written."""
        ...

    def end(self, month: Month, *, rows: int, last: bool) -> None:
        """Read, flush and merge what is due after a month.

        Args:
            rows: that the table has by now.
            last: nothing comes after it.

        Raises:
            LsmError: a read differs from what was written.
        """
        ...

    def fold(self) -> None:
        """Flush and merge whatever is left."""
        ...


def lay_schedule(place: str | Path, flights: pa.Table, *, registry: str | None = None, teller: Teller) -> Table:
    """Make the table, with the flights as they were planned as its base."""
    start = teller.now()
    table = create(place, scheduled(flights), primary_key=KEY, regions=REGIONS, registry=registry)
    teller.did(start, f"The schedule, {flights.num_rows:,} flights, is the base of {table.uri}")
    return table


def take_year(table: Table, flights: pa.Table, steps: Steps, *, teller: Teller) -> Shown:
    """Take what became of the flights through the steps, and prove that the table holds exactly those that flew.

    Raises:
        LsmError: a read differs from what was written.
    """
    flew = flown(flights)
    start, year = teller.now(), list(days(flights))
    events = cancelled = 0
    with teller.progress() as progress:
        bar = progress.add_task("", total=len(year))
        for month in _months(year):
            for day in steps.write(month):
                events += day.upserts.num_rows + day.deletes.num_rows
                cancelled += day.deletes.num_rows
                progress.update(bar, advance=1, description=f"{day.date}")
            steps.end(month, rows=flights.num_rows - cancelled, last=month[-1] is year[-1])
    # While autumn is in generations and the end of the year in the log, then with everything in the base.
    prove(table, flew, levels="base, generations and log", teller=teller)
    steps.fold()
    prove(table, flew, levels="the base alone", teller=teller)
    return Shown(
        table=table.uri,
        scheduled=flights.num_rows,
        cancelled=cancelled,
        flown=flew.num_rows,
        events=events,
        rows_per_second=round(events / max(teller.now() - start, 1e-9)),
        entries=steps.entries,
        generations=steps.generations,
        merges=steps.merges,
    )


def _months(year: list[Day]) -> Iterator[Month]:
    for _, month in groupby(year, key=lambda day: (day.date.year, day.date.month)):
        yield list(month)
