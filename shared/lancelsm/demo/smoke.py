"""Prove that a deployment works: one row goes through its queue, functions and merge machine, and is read again.

This runs the code of every layer, so it also finds layers that were built for another architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pyarrow as pa

import lancelsm
from lancelsm.client import Client
from lancelsm.client.invoke import Service
from lancelsm.common import aws
from lancelsm.common.clock import Clock, Ids, SystemClock, SystemIds
from lancelsm.demo.stack_calls import DeployedStage, Stack
from lancelsm.errors import Invalid, LsmError, Unavailable
from lancelsm.objects.open import list_directories
from lancelsm.stack.doctor import Check

SMOKE = "lancelsm-smoke"  # the directory of its tables
_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("run", pa.string())])
# The schedule must start nothing: a merge of its own would start a collection, which fails once the table is dropped.
_SETTINGS = {"flush_age_seconds": 604_800.0, "merge_age_seconds": 604_800.0}
_VISIBLE_SECONDS = 300
_RUN_SECONDS = 3600  # after that time, a table is not that of a run that still goes on


def smoke_checks(
    stage: str,
    *,
    resources: DeployedStage | None = None,
    service: Service = aws.client,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Iterator[Check]:
    """Run the steps, and yield the check of each, until one fails.

    The table is created and dropped with the caller's rights. It has a name of its own below `lancelsm-smoke`, since
    functions remember a table for a minute. After a failure it stays; a run an hour later or more drops it first.

    Args:
        resources: the resources of the stage; by default the outputs of its stacks name them.
    """
    run = _Run(stage, resources=resources, service=service, clock=clock or SystemClock(), ids=ids or SystemIds())
    steps: tuple[tuple[str, Callable[[], str]], ...] = (
        ("create", run.create),
        ("write", run.write),
        ("read", run.read),
        ("flush", run.flush),
        ("merge", run.merge),
        ("read again", run.read),
        ("drop", run.drop),
    )
    for name, step in steps:
        try:
            found = step()
        except LsmError as error:
            yield Check(name=f"smoke: {name}", ok=False, found=f"{error.kind}: {error.message}", remedy=error.remedy)
            return
        yield Check(name=f"smoke: {name}", ok=True, found=found)


class _Run:
    """One run of the smoke test. Each step returns what it found."""

    def __init__(
        self, stage: str, *, resources: DeployedStage | None, service: Service, clock: Clock, ids: Ids
    ) -> None:
        self._stage = stage
        self._resources = resources
        self._service = service
        self._clock = clock
        self._ids = ids
        self._row: dict[str, int | str] = {"id": 1, "run": str(ids.nonce())}
        self._started_at = int(clock.now())
        self._name = f"{SMOKE}/{self._started_at}-{self._row['run']}"

    def create(self) -> str:
        place = self._resources or DeployedStage.from_outputs(self._stage, service=self._service)
        self._stack = Stack(place, service=self._service, clock=self._clock, ids=self._ids)
        self._uri = f"{place.tables}/{self._name}"
        for left in list_directories(f"{place.tables}/{SMOKE}"):
            if self._may_be_in_use(left):
                continue
            with suppress(Invalid):  # there is no table any more
                lancelsm.drop(f"{place.tables}/{SMOKE}/{left}")
        lancelsm.create(self._uri, _SCHEMA, primary_key="id", registry=place.registry, settings=_SETTINGS)
        return self._uri

    def _may_be_in_use(self, name: str) -> bool:
        begun = name.partition("-")[0]
        return begun.isdecimal() and self._started_at - int(begun) < _RUN_SECONDS

    def write(self) -> str:
        with self._client() as client:
            client.upsert(self._name, [self._row])
        return "1 row is on the queue"

    def read(self) -> str:
        """Query until the row is visible."""
        client = self._client()
        rows: list[object] = []
        for _ in self._stack.attempts(_VISIBLE_SECONDS):
            rows = list(client.query(self._name, keys=[self._row["id"]]))
            if rows == [self._row]:
                return "1 row, as written"
        raise Unavailable(
            f"the row was not visible after {_VISIBLE_SECONDS} s; the query answers {rows}",
            remedy="Look at the log of writer_flush, the queue and the dead-letter queue",
        )

    def flush(self) -> str:
        return f"1 row in {_one('generations', len(self._stack.flush(self._name)['generations']))}"

    def merge(self) -> str:
        done = self._stack.merge(self._name, engine="inprocess", collect=False)["merge"]
        return f"{_one('rows', done['rows_upserted'])} in version {done['base_version']} of the base"

    def drop(self) -> str:
        return f"{lancelsm.drop(self._uri)} objects deleted"

    def _client(self) -> Client:
        return Client(stage=self._stage, service=self._service, interval_seconds=None, clock=self._clock, ids=self._ids)


def _one(what: str, number: int) -> str:
    """Return "1 generation" or "1 row"; raise an error for another number."""
    if number != 1:
        raise LsmError(f"there are {number} {what} instead of 1", remedy="Look at the logs of the functions")
    return f"1 {what.removesuffix('s')}"
