"""The demo through a deployment: the schedule as base, a month at a time on top, by queue, functions and state machine.

What departs, lands and is cancelled goes by `lancelsm.client` to `ingest`, on to the FIFO queue and by `writer_flush`
into the log; `compaction` flushes, the state machine merges, `query` reads. Only the table is made, and proven in the
end, by the library in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
from rich.console import Console

from lancelsm.client import Client
from lancelsm.client.invoke import Service
from lancelsm.common import aws
from lancelsm.common.clock import Clock, Ids, SystemClock, SystemIds
from lancelsm.compaction.maintenance import Engine
from lancelsm.demo.flights import KEY, Day, described, read_flights
from lancelsm.demo.progress import Teller, check, looking
from lancelsm.demo.stack_calls import DeployedStage, Document, Stack
from lancelsm.demo.year import Month, Shown, lay_schedule, take_year
from lancelsm.stack.cost import total
from lancelsm.stack.cost.per_row import MeasuredWork, spent
from lancelsm.table import Table

MONTHS_OF_FLUSHES: Final = (3, 6, 9, 11)  # so that the year ends with rows at every level
MONTH_OF_MERGE: Final = 6  # in the function, as the machine itself decides for so few rows; the last one is on Spark

_VISIBLE_SECONDS = 600  # until what was sent is read; a queue that rests for a while after an error is not stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownOnAws(Shown):
    """What the demo did through a deployment; `usd` is by the list, without what a deployment costs at rest."""

    requests: int
    messages: int
    usd: float


def run_demo(
    *,
    stage: str,
    console: Console,
    flights: pa.Table | None = None,
    engine: Engine = "spark",
    place: DeployedStage | None = None,
    service: Service = aws.client,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> ShownOnAws:
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
    flights = read_flights() if flights is None else flights
    clock, ids = clock or SystemClock(), ids or SystemIds()
    stack = Stack(place or DeployedStage.of(stage, service=service), service=service, clock=clock, ids=ids)
    teller, name = Teller(console, clock=clock), f"flights-{ids.nonce()[:8]}"
    table = lay_schedule(f"{stack.place.tables}/{name}", flights, registry=stack.place.registry, teller=teller)
    with Client(stage=stack.place.stage, service=stack.service, interval_seconds=None) as client:
        steps = _ThroughStack(table, name, client=client, stack=stack, engine=engine, teller=teller)
        shown = take_year(table, flights, steps, teller=teller)
    on_aws = ShownOnAws(
        **asdict(shown),
        requests=stack.requests,
        messages=stack.messages,
        usd=total(spent(steps.counted(shown, row_bytes=flights.nbytes / flights.num_rows))),
    )
    teller.say(summary(on_aws))
    return on_aws


def summary(shown: ShownOnAws) -> str:
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


class _ThroughStack:
    """Steps by the functions of a deployment."""

    def __init__(
        self, table: Table, name: str, *, client: Client, stack: Stack, engine: Engine, teller: Teller
    ) -> None:
        self.entries = self.generations = self.merges = 0
        self._table = table
        self._name = name
        self._client = client
        self._stack = stack
        self._engine = engine
        self._teller = teller
        self._flushes = self._pending = 0
        self._jobs: list[Document] = []  # merges on Spark, as each says of itself

    def write(self, month: Month) -> Iterator[Day]:
        """By the queue. What is deleted flies on no day, so that all keys of a month may be one request."""
        start = self._teller.now()
        deletes = pa.concat_tables(day.deletes for day in month)
        for day in month:
            self._client.upsert(self._name, day.upserts)
        self._client.delete(self._name, deletes)
        self._client.flush()
        sent = sum(day.upserts.num_rows for day in month) + deletes.num_rows
        self._teller.did(start, f"{month[-1].date}: {sent:,} rows of the month are on the queue")
        yield from month

    def end(self, month: Month, *, rows: int, last: bool) -> None:
        self._read(month, rows)
        number = month[-1].date.month
        if not last and number in MONTHS_OF_FLUSHES:
            self._flush()
            if number == MONTH_OF_MERGE:
                self._merge("auto")

    def fold(self) -> None:
        self._flush()
        self._merge(self._engine)
        self.entries = sum(region.next_position - 1 for region in self._table.status().regions)

    def counted(self, shown: Shown, *, row_bytes: float) -> MeasuredWork:
        """What AWS charges for."""
        return MeasuredWork(
            rows=shown.events,
            row_bytes=row_bytes,
            requests=self._stack.requests,
            messages=self._stack.messages,
            entries=shown.entries,
            flushes=self._flushes,
            generations=shown.generations,
            merges=shown.merges - len(self._jobs),
            jobs=len(self._jobs),
            merged_rows=sum(merge["rows_upserted"] + merge["rows_deleted"] for merge in self._jobs),
        )

    def _read(self, month: Month, expected: int) -> None:
        """Ask `query` until what was sent last is there.

        A carrier's rows come in the order in which they were sent, so its last row tells of all before; the deletes,
        which were sent after them, are told by the count.
        """
        start = self._teller.now()
        last = _last_of_carriers(month)
        newest = month[-1].upserts.slice(month[-1].upserts.num_rows - 1)
        rows, there = 0, False
        keys = [{name: row[name] for name in KEY} for row in last]
        for _ in self._stack.attempts(_VISIBLE_SECONDS):
            there = _by_key(self._client.query(self._name, keys=keys)) == _by_key(last)
            rows = self._client.count(self._name) if there else rows
            if there and rows == expected:
                break
        check(there, f"other rows than those that were sent last until {month[-1].date}", self._table.uri)
        check(rows == expected, f"{rows} rows on {month[-1].date} instead of {expected}", self._table.uri)
        self._teller.did(start, f"{month[-1].date}: {rows:,} rows are read; {described(newest)}")

    def _flush(self) -> None:
        start = self._teller.now()
        made = self._stack.flush(self._name)["generations"]
        self._flushes += 1
        self.generations += len(made)
        self._pending += len(made)
        rows = sum(one["rows"] for one in made)
        self._teller.did(start, f"flushed {rows:,} rows of the log into {len(made)} generations")

    def _merge(self, engine: Engine) -> None:
        start = self._teller.now()
        done = self._stack.merge(self._name, engine=engine)
        self._teller.did(start, f"merged {self._pending} generations {_merged(done)}")
        self.merges += 1
        self._jobs += [done["merge"]] if done["engine"] == "spark" else []
        self._pending = 0


def _merged(done: Document) -> str:
    merge = done["merge"]
    where = "on Spark" if done["engine"] == "spark" else "in the function"
    return (
        f"into version {merge['base_version']} of the base, {where}: "
        f"{merge['rows_upserted']:,} rows upserted, {merge['rows_deleted']:,} deleted"
    )


def _last_of_carriers(month: Month) -> list[dict[str, Any]]:
    """The row of each carrier that was sent last."""
    sent = pa.concat_tables(day.upserts for day in month)
    numbered = sent.select(["carrier"]).append_column("number", pa.array(range(sent.num_rows), pa.int64()))
    last = numbered.group_by("carrier").aggregate([("number", "max")])
    rows: list[dict[str, Any]] = sent.take(last["number_max"]).to_pylist()
    return rows


def _by_key(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[name] for name in KEY): row for row in rows}
