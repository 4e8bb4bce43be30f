"""The demo on a deployment: the schedule is the base; each month's events go through queue, functions and state
machine.

`lancelsm.client` sends departures, landings and cancellations to `ingest`, which sends them to the FIFO queue;
`writer_flush` appends them to the log. `compaction` flushes, the state machine merges, `query` reads. Only the creation
of the table and the proof at the end use the library in this process.
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
from lancelsm.compaction.runner import Engine
from lancelsm.demo.flights import KEY, Day, describe_flight, read_flights
from lancelsm.demo.progress import Reporter, check, next_commands
from lancelsm.demo.stack_calls import DeployedStage, Document, Stack
from lancelsm.demo.year import Month, Shown, apply_year, create_schedule
from lancelsm.stack.cost import total
from lancelsm.stack.cost.per_row import MeasuredWork, measured_bill
from lancelsm.table import Table

MONTHS_OF_FLUSHES: Final = (3, 6, 9, 11)  # so that the year ends with rows at every level
MONTH_OF_MERGE: Final = 6  # engine `auto`, which chooses the function for so few rows; the last merge is on Spark

_VISIBLE_SECONDS = 600  # how long to wait for sent rows; the queue may pause for a while after an error


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownOnAws(Shown):
    """What the demo did through a deployment. `usd` is by list prices, without the cost of a deployment at rest."""

    requests: int
    messages: int
    usd: float


def run_demo(
    *,
    stage: str,
    console: Console,
    flights: pa.Table | None = None,
    engine: Engine = "spark",
    resources: DeployedStage | None = None,
    service: Service = aws.client,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> ShownOnAws:
    """Send the year through a deployed stage, read it on the way, and prove that the table has exactly the right rows.

    Args:
        console: prints each step; progress bars appear only on a terminal.
        flights: the data; by default `read_flights()`.
        engine: where the last merge runs.
        resources: used instead of the stacks' outputs.

    Raises:
        Invalid: the data is not installed, or the stage is not deployed.
        LsmError: a read differs from what was written. The demo exists to show that this does not happen.
    """
    flights = read_flights() if flights is None else flights
    clock, ids = clock or SystemClock(), ids or SystemIds()
    stack = Stack(
        resources or DeployedStage.from_outputs(stage, service=service), service=service, clock=clock, ids=ids
    )
    reporter, name = Reporter(console, clock=clock), f"flights-{ids.nonce()[:8]}"
    table = create_schedule(
        f"{stack.resources.tables}/{name}", flights, registry=stack.resources.registry, reporter=reporter
    )
    with Client(stage=stack.resources.stage, service=stack.service, interval_seconds=None) as client:
        steps = _ThroughStack(table, name, client=client, stack=stack, engine=engine, reporter=reporter)
        shown = apply_year(table, flights, steps, reporter=reporter)
    on_aws = ShownOnAws(
        **asdict(shown),
        requests=stack.requests,
        messages=stack.messages,
        usd=total(measured_bill(steps.measured(shown, row_bytes=flights.nbytes / flights.num_rows))),
    )
    reporter.print(summary(on_aws))
    return on_aws


def summary(shown: ShownOnAws) -> str:
    """Return what the demo did, and commands to look at its table."""
    return "\n".join(
        (
            f"{shown.scheduled:,} scheduled, {shown.cancelled:,} cancelled, {shown.flown:,} flown",
            f"{shown.events:,} rows sent at {shown.rows_per_second:,} rows/s, reads, flushes and merges included",
            (
                f"{shown.requests:,} requests, {shown.messages:,} messages, {shown.entries:,} entries, "
                f"{shown.generations} generations, {shown.merges} merges"
            ),
            f"On AWS this costs ${shown.usd:.2f} by list prices",
            *next_commands(shown.table),
        )
    )


class _ThroughStack:
    """Steps that use the functions of a deployment."""

    def __init__(
        self, table: Table, name: str, *, client: Client, stack: Stack, engine: Engine, reporter: Reporter
    ) -> None:
        self.entries = self.generations = self.merges = 0
        self._table = table
        self._name = name
        self._client = client
        self._stack = stack
        self._engine = engine
        self._reporter = reporter
        self._flushes = self._pending = 0
        self._jobs: list[Document] = []  # documents of merges on Spark

    def write(self, month: Month) -> Iterator[Day]:
        """Write through the queue.

        A cancelled flight is never written later, so the deletes of a month can be one request.
        """
        start = self._reporter.now()
        deletes = pa.concat_tables(day.deletes for day in month)
        for day in month:
            self._client.upsert(self._name, day.upserts)
        self._client.delete(self._name, deletes)
        self._client.flush()
        sent = sum(day.upserts.num_rows for day in month) + deletes.num_rows
        self._reporter.report(start, f"{month[-1].date}: {sent:,} rows of the month are on the queue")
        yield from month

    def end(self, month: Month, *, rows: int, last: bool) -> None:
        self._read(month, rows)
        number = month[-1].date.month
        if not last and number in MONTHS_OF_FLUSHES:
            self._flush()
            if number == MONTH_OF_MERGE:
                self._merge("auto")

    def flush_and_merge(self) -> None:
        self._flush()
        self._merge(self._engine)
        self.entries = sum(region.next_position - 1 for region in self._table.status().regions)

    def measured(self, shown: Shown, *, row_bytes: float) -> MeasuredWork:
        """Return the work that AWS charges for."""
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
        """Query until the last rows that were sent are visible.

        Rows of one carrier are applied in the order in which they were sent, so its last row proves all earlier ones.
        The deletes were sent after the rows; the count proves them.
        """
        start = self._reporter.now()
        last = _last_of_carriers(month)
        newest = month[-1].upserts.slice(month[-1].upserts.num_rows - 1)
        rows, there = 0, False
        keys = [{name: row[name] for name in KEY} for row in last]
        for _ in self._stack.attempts(_VISIBLE_SECONDS):
            there = _by_key(self._client.query(self._name, keys=keys)) == _by_key(last)
            rows = self._client.count(self._name) if there else rows
            if there and rows == expected:
                break
        check(there, f"other rows than the last ones sent until {month[-1].date}", self._table.uri)
        check(rows == expected, f"{rows} rows on {month[-1].date} instead of {expected}", self._table.uri)
        self._reporter.report(start, f"{month[-1].date}: read {rows:,} rows; {describe_flight(newest)}")

    def _flush(self) -> None:
        start = self._reporter.now()
        made = self._stack.flush(self._name)["generations"]
        self._flushes += 1
        self.generations += len(made)
        self._pending += len(made)
        rows = sum(one["rows"] for one in made)
        self._reporter.report(start, f"flushed {rows:,} rows of the log into {len(made)} generations")

    def _merge(self, engine: Engine) -> None:
        start = self._reporter.now()
        done = self._stack.merge(self._name, engine=engine)
        self._reporter.report(start, f"merged {self._pending} generations {_merged(done)}")
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
    """Return the row of each carrier that was sent last."""
    sent = pa.concat_tables(day.upserts for day in month)
    numbered = sent.select(["carrier"]).append_column("number", pa.array(range(sent.num_rows), pa.int64()))
    last = numbered.group_by("carrier").aggregate([("number", "max")])
    rows: list[dict[str, Any]] = sent.take(last["number_max"]).to_pylist()
    return rows


def _by_key(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[name] for name in KEY): row for row in rows}
