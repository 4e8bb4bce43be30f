"""The demo through a deployment: the schedule as base, a month at a time on top, by queue, functions and state machine.

What departs, lands and is cancelled goes by `lancelsm.client` to `ingest`, on to the FIFO queue and by `writer_flush`
into the log; `compaction` flushes, the state machine merges, `query` reads. Only the table is made, and proven in the
end, by the library in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
from rich.console import Console

from lancelsm import aws
from lancelsm.client import Client
from lancelsm.client.invoking import Service
from lancelsm.clock import Clock, Ids, SystemClock, SystemIds
from lancelsm.cost import total
from lancelsm.cost.running import Counted, spent
from lancelsm.demo.flights import KEY, REGIONS, Day, days, flown, read_flights, scheduled, told
from lancelsm.demo.stack import Document, Place, Stack
from lancelsm.demo.telling import Teller, check, looking, prove
from lancelsm.table import Table, create
from lancelsm.upkeep import Engine

MONTHS_OF_FLUSHES: Final = (3, 6, 9, 11)  # so that the year ends with rows at every level
MONTH_OF_MERGE: Final = 6  # in the function, as the machine itself decides for so few rows; the last one is on Spark

_VISIBLE_SECONDS = 600  # until what was sent is read; a queue that rests for a while after an error is not stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the demo did, counted. `rows_per_second` is of events, with flushes, merges and reads in between.

    Attributes:
        usd: what it costs on AWS, by the list and without what a deployment costs at rest.
    """

    table: str
    scheduled: int
    cancelled: int
    flown: int
    events: int
    rows_per_second: int
    requests: int
    messages: int
    entries: int
    generations: int
    merges: int
    usd: float


def run_demo(
    *,
    stage: str,
    console: Console,
    flights: pa.Table | None = None,
    engine: Engine = "spark",
    place: Place | None = None,
    service: Service = aws.client,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Shown:
    """Send the year through a stage that is deployed, read it on the way, and prove that it holds what it must.

    Args:
        console: told of each step; progress bars on a terminal only.
        flights: as `read_flights` returns them, which is the default.
        engine: where the last merge runs.
        place: instead of what the stacks' outputs say.

    Raises:
        Invalid: the data is not installed, or no such stage is deployed.
        LsmError: a read differs from what was written; this is what the demo is to disprove.
    """
    clock, ids = clock or SystemClock(), ids or SystemIds()
    place = place or Place.of(stage, service=service)
    return _Demo(
        flights=read_flights() if flights is None else flights,
        name=f"flights-{ids.nonce()[:8]}",
        stack=Stack(place, service=service, clock=clock, ids=ids),
        teller=Teller(console, clock=clock),
        engine=engine,
    ).run()


def summary(shown: Shown) -> str:
    """What the demo did, and what to type to look at its table."""
    return "\n".join(
        (
            f"{shown.scheduled:,} scheduled, {shown.cancelled:,} cancelled, {shown.flown:,} flown",
            f"{shown.events:,} rows sent at {shown.rows_per_second:,} rows/s, reads, flushes and merges included",
            (
                f"{shown.requests:,} requests, {shown.messages:,} messages, {shown.entries:,} entries, "
                f"{shown.generations} generations, {shown.merges} merges"
            ),
            f"On AWS that is ${shown.usd:.2f} by the list",
            *looking(shown.table),
        )
    )


def _months(year: list[Day]) -> Iterator[list[Day]]:
    for _, month in groupby(year, key=lambda day: (day.date.year, day.date.month)):
        yield list(month)


class _Demo:
    """One run, and what it counted so far."""

    def __init__(self, *, flights: pa.Table, name: str, stack: Stack, teller: Teller, engine: Engine) -> None:
        self._flights = flights
        self._flown = flown(flights)
        self._name = name
        self._stack = stack
        self._teller = teller
        self._engine = engine
        self._client = Client(stage=stack.place.stage, service=stack.service, interval_seconds=None)
        self._events = self._deleted = self._flushes = self._generations = self._pending = 0
        self._merges: list[Document] = []

    def run(self) -> Shown:
        start, place = self._teller.now(), self._stack.place
        table = create(
            f"{place.tables}/{self._name}",
            scheduled(self._flights),
            primary_key=KEY,
            regions=REGIONS,
            registry=place.registry,
        )
        self._teller.did(start, f"The schedule, {self._flights.num_rows:,} flights, is the base of {table.uri}")
        start = self._teller.now()
        with self._client:
            self._stream(table)
        shown = self._shown(table, seconds=self._teller.now() - start)
        self._teller.say(summary(shown))
        return shown

    def _stream(self, table: Table) -> None:
        year = list(days(self._flights))
        with self._teller.progress() as progress:
            bar = progress.add_task("", total=len(year))
            for month in _months(year):
                self._send(month)
                progress.update(bar, advance=len(month), description=f"{month[-1].date}")
                self._read(table, month)
                if month[-1] is not year[-1] and month[-1].date.month in MONTHS_OF_FLUSHES:
                    self._flush()
                    if month[-1].date.month == MONTH_OF_MERGE:
                        self._merge("auto")
        # While autumn is in generations and the end of the year in the log, then with everything in the base.
        prove(table, self._flown, levels="base, generations and log", teller=self._teller)
        self._flush()
        self._merge(self._engine)
        prove(table, self._flown, levels="the base alone", teller=self._teller)

    def _send(self, month: list[Day]) -> None:
        """By the queue. What is deleted flies on no day, so that all keys of a month may be one request."""
        start = self._teller.now()
        deletes = pa.concat_tables(day.deletes for day in month)
        for day in month:
            self._client.upsert(self._name, day.upserts)
        self._client.delete(self._name, deletes)
        self._client.flush()
        sent = sum(day.upserts.num_rows for day in month) + deletes.num_rows
        self._events += sent
        self._deleted += deletes.num_rows
        self._teller.did(start, f"{month[-1].date}: {sent:,} rows of the month are on the queue")

    def _read(self, table: Table, month: list[Day]) -> None:
        """Ask `query` until what was sent last is there.

        A carrier's rows come in the order in which they were sent, so its last row tells of all before; the deletes,
        which were sent after them, are told by the count.
        """
        start = self._teller.now()
        last = _last_of_carriers(month)
        newest = month[-1].upserts.slice(month[-1].upserts.num_rows - 1)
        expected = self._flights.num_rows - self._deleted
        rows, there = 0, False
        keys = [{name: row[name] for name in KEY} for row in last]
        for _ in self._stack.attempts(_VISIBLE_SECONDS):
            there = _by_key(self._client.query(self._name, keys=keys)) == _by_key(last)
            rows = self._client.count(self._name) if there else rows
            if there and rows == expected:
                break
        check(there, f"other rows than those that were sent last until {month[-1].date}", table.uri)
        check(rows == expected, f"{rows} rows on {month[-1].date} instead of {expected}", table.uri)
        self._teller.did(start, f"{month[-1].date}: {rows:,} rows are read; {told(newest)}")

    def _flush(self) -> None:
        start = self._teller.now()
        made = self._stack.flush(self._name)["generations"]
        self._flushes += 1
        self._generations += len(made)
        self._pending += len(made)
        rows = sum(one["rows"] for one in made)
        self._teller.did(start, f"flushed {rows:,} rows of the log into {len(made)} generations")

    def _merge(self, engine: Engine) -> None:
        start = self._teller.now()
        done = self._stack.merge(self._name, engine=engine)
        self._teller.did(start, f"merged {self._pending} generations {_merged(done)}")
        self._merges.append(done)
        self._pending = 0

    def _shown(self, table: Table, *, seconds: float) -> Shown:
        entries = sum(region.next_position - 1 for region in table.status().regions)
        return Shown(
            table=table.uri,
            scheduled=self._flights.num_rows,
            cancelled=self._deleted,
            flown=self._flown.num_rows,
            events=self._events,
            rows_per_second=round(self._events / max(seconds, 1e-9)),
            requests=self._stack.requests,
            messages=self._stack.messages,
            entries=entries,
            generations=self._generations,
            merges=len(self._merges),
            usd=total(spent(self._counted(entries))),
        )

    def _counted(self, entries: int) -> Counted:
        jobs = [one["merge"] for one in self._merges if one["engine"] == "spark"]
        return Counted(
            rows=self._events,
            row_bytes=self._flights.nbytes / self._flights.num_rows,
            requests=self._stack.requests,
            messages=self._stack.messages,
            entries=entries,
            flushes=self._flushes,
            generations=self._generations,
            merges=len(self._merges) - len(jobs),
            jobs=len(jobs),
            merged_rows=sum(merge["rows_upserted"] + merge["rows_deleted"] for merge in jobs),
        )


def _merged(done: Document) -> str:
    merge = done["merge"]
    where = "on Spark" if done["engine"] == "spark" else "in the function"
    return (
        f"into version {merge['base_version']} of the base, {where}: "
        f"{merge['rows_upserted']:,} rows upserted, {merge['rows_deleted']:,} deleted"
    )


def _last_of_carriers(month: list[Day]) -> list[dict[str, Any]]:
    """The row of each carrier that was sent last."""
    sent = pa.concat_tables(day.upserts for day in month)
    numbered = sent.select(["carrier"]).append_column("number", pa.array(range(sent.num_rows), pa.int64()))
    last = numbered.group_by("carrier").aggregate([("number", "max")])
    rows: list[dict[str, Any]] = sent.take(last["number_max"]).to_pylist()
    return rows


def _by_key(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[name] for name in KEY): row for row in rows}
