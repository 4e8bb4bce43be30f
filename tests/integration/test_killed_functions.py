"""Functions are killed between a write and its commit. Their successors lose and duplicate nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

from tests.conformance.dynamodb import Proxy, proxied
from tests.handlers.runtime_api import FunctionError, Runtime
from tests.integration.deployment import Deployment, batch, history, rows, until

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int64())])
Moment = Literal["before", "after", "late", "timeout"]
SECONDS = 30.0
SHORT = 10.0  # enough time to start


class Killer(Proxy):
    """Kill the function at its first swap: before the swap arrives, after it is applied, or while it is in flight.

    With the moment `timeout`, delay the swap until the function times out instead.
    """

    def __init__(self, upstream: str, moment: Moment) -> None:
        super().__init__(upstream)
        self.moment = moment
        self.victim: Runtime | None = None
        self.killed, self.ended = threading.Event(), threading.Event()

    def begin(self, action: str, body: bytes) -> str:
        if action != "UpdateItem" or self.killed.is_set() or self.moment == "after":
            return super().begin(action, body)
        if self.moment == "timeout":
            self.killed.set()
            self.ended.wait(SECONDS)
        else:
            self.kill()
        return "drop" if self.moment == "before" else "late"

    def forward(self, target: str, body: bytes, authorization: str) -> tuple[int, bytes]:
        answer = super().forward(target, body, authorization)
        if target.endswith("UpdateItem") and self.moment == "after" and not self.killed.is_set():
            self.kill()
        return answer

    def kill(self) -> None:
        self.killed.set()
        assert self.victim is not None
        self.victim.kill()


def upstream_endpoint(deployment: Deployment) -> str:
    """Return the endpoint that a proxy forwards to."""
    if deployment.aws.endpoint is None:  # requests are signed for a host, so a proxy can't forward them
        pytest.skip("AWS refuses requests that are signed for a proxy")
    return deployment.aws.endpoint


@contextmanager
def killed_at_swap(deployment: Deployment, name: str, log: Path, moment: Moment) -> Iterator[tuple[Runtime, Killer]]:
    """Run the function in containers that are killed at the first swap."""
    endpoint = upstream_endpoint(deployment)
    killer = Killer(endpoint, moment)
    with proxied(endpoint, killer):
        variables = {"AWS_ENDPOINT_URL_DYNAMODB": killer.endpoint}
        seconds = SHORT if moment == "timeout" else SECONDS
        with deployment.containers(name, log, seconds=seconds, variables=variables) as containers:
            killer.victim = containers
            yield containers, killer


def invoke_and_die(containers: Runtime, event: object, killer: Killer) -> None:
    """Invoke the function and check that it was killed at its swap."""
    with pytest.raises(FunctionError) as ended:
        containers(event)
    killer.ended.set()
    assert killer.killed.is_set()
    assert ended.value.kind == ("Sandbox.Timedout" if killer.moment == "timeout" else "Runtime.ExitError")


@pytest.mark.rest
@pytest.mark.parametrize("moment", ["before", "after", "late", "timeout"])
def test_a_writer_killed_at_its_swap_loses_and_duplicates_nothing(
    deployment: Deployment, tmp_path: Path, moment: Moment
) -> None:
    # Given two messages of three rows
    table = deployment.table(f"append-{moment}", COLUMNS)
    with deployment.paused():
        for version in (1, 2):
            upserts = [{"id": key, "v": version} for key in range(3)]
            deployment.invoke("ingest", {"table": table.uri, "upserts": upserts})
        first = deployment.take(1, hidden=1)

        # When a container with the first is killed at its swap, another gets both, and a late swap lands
        with killed_at_swap(deployment, "writer_flush", tmp_path / "log", moment) as (containers, killer):
            invoke_and_die(containers, batch(first), killer)
            again = until(deployment.take, lambda records: records)
            answer = deployment.invoke("writer_flush", batch(again))
            killer.land()
        deployment.settle(again, answer)

    # Then each version is in the log once, in order
    assert len(again) == 2
    assert answer == {"batchItemFailures": []}
    assert history(table) == {key: [1, 2] for key in range(3)}
    assert rows(table) == dict.fromkeys(range(3), 2)


@pytest.mark.rest
@pytest.mark.parametrize("moment", ["before", "after", "late"])
def test_a_flush_killed_at_its_commit_is_completed_once_by_the_next(
    deployment: Deployment, tmp_path: Path, moment: Moment
) -> None:
    # Given a log with two versions of three keys
    table = deployment.table(f"flush-{moment}", COLUMNS)
    for version in (1, 2):
        table.upsert([{"id": key, "v": version} for key in range(3)])

    # When the flush is killed at its commit, another flush runs, and a late commit lands
    with killed_at_swap(deployment, "compaction", tmp_path / "log", moment) as (containers, killer):
        invoke_and_die(containers, {"table": table.uri}, killer)
        rows_between = rows(table)
        flushed = deployment.invoke("compaction", {"table": table.uri})
        killer.land()

    # Then one generation has all rows, and it can be merged
    (region,) = table.status().regions
    assert rows_between == dict.fromkeys(range(3), 2)
    assert len(flushed["generations"]) == (0 if moment == "after" else 1)
    assert (region.wal_rows, region.generations) == (0, 1)
    assert deployment.invoke("merger", {"table": table.uri})["rows_upserted"] == 3
    assert rows(table) == rows_between


class Stalling(Proxy):
    """Delay the first swap until `free` is set."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.held, self.free = threading.Event(), threading.Event()

    def begin(self, action: str, body: bytes) -> str:
        if action == "UpdateItem" and not self.held.is_set():
            self.held.set()
            self.free.wait(SECONDS)
        return super().begin(action, body)


@pytest.mark.rest
def test_a_swap_that_lands_after_another_applied_its_message_is_lost(deployment: Deployment, tmp_path: Path) -> None:
    # Given a container that stalls between its entry and the swap
    table = deployment.table("stalled", COLUMNS)
    endpoint = upstream_endpoint(deployment)
    proxy = Stalling(endpoint)
    with deployment.paused(), proxied(endpoint, proxy):
        deployment.invoke("ingest", {"table": table.uri, "upserts": [{"id": 1, "v": 1}]})
        records = deployment.take(hidden=1)
        variables = {"AWS_ENDPOINT_URL_DYNAMODB": proxy.endpoint}
        with (
            deployment.containers("writer_flush", tmp_path / "log", variables=variables) as containers,
            ThreadPoolExecutor() as pool,
        ):
            stalled = pool.submit(containers, batch(records))
            assert proxy.held.wait(SECONDS)

            # When another container applies the message, a newer row is written, and then the first swap lands
            answer = deployment.invoke("writer_flush", batch(records))
            table.upsert([{"id": 1, "v": 2}])
            proxy.free.set()
            outcome = stalled.result()
        deployment.settle(records, answer)

    # Then the first container found its message applied and committed nothing
    assert answer == outcome == {"batchItemFailures": []}
    assert history(table) == {1: [1, 2]}
