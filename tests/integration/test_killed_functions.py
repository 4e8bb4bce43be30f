"""Functions that are killed between what they write and its commit, and what their successors make of it."""

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
SHORT = 10.0  # enough to start in


class Gallows(Proxy):
    """Ends the function at its first swap: before it arrives, after it is applied, or with it on its way; or holds the
    swap up until the function's time is over."""

    def __init__(self, upstream: str, moment: Moment) -> None:
        super().__init__(upstream)
        self.moment = moment
        self.victim: Runtime | None = None
        self.struck, self.ended = threading.Event(), threading.Event()

    def begin(self, action: str, body: bytes) -> str:
        if action != "UpdateItem" or self.struck.is_set() or self.moment == "after":
            return super().begin(action, body)
        if self.moment == "timeout":
            self.struck.set()
            self.ended.wait(SECONDS)
        else:
            self.strike()
        return "drop" if self.moment == "before" else "late"

    def forward(self, target: str, body: bytes, authorization: str) -> tuple[int, bytes]:
        answer = super().forward(target, body, authorization)
        if target.endswith("UpdateItem") and self.moment == "after" and not self.struck.is_set():
            self.strike()
        return answer

    def strike(self) -> None:
        self.struck.set()
        assert self.victim is not None
        self.victim.kill()


def between(deployment: Deployment) -> str:
    """The endpoint that a proxy stands before."""
    if deployment.aws.endpoint is None:  # a signature names the host, so nothing can stand between: killed elsewhere
        pytest.skip("AWS takes no request that was signed for a proxy")
    return deployment.aws.endpoint


@contextmanager
def doomed(deployment: Deployment, name: str, log: Path, moment: Moment) -> Iterator[tuple[Runtime, Gallows]]:
    """The function in a container that does not survive its first swap."""
    endpoint = between(deployment)
    gallows = Gallows(endpoint, moment)
    with proxied(endpoint, gallows):
        more = {"AWS_ENDPOINT_URL_DYNAMODB": gallows.endpoint}
        seconds = SHORT if moment == "timeout" else SECONDS
        with deployment.containers(name, log, seconds=seconds, more=more) as containers:
            gallows.victim = containers
            yield containers, gallows


def killed(containers: Runtime, event: object, gallows: Gallows) -> None:
    with pytest.raises(FunctionError) as ended:
        containers(event)
    gallows.ended.set()
    assert gallows.struck.is_set()
    assert ended.value.kind == ("Sandbox.Timedout" if gallows.moment == "timeout" else "Runtime.ExitError")


@pytest.mark.parametrize("moment", ["before", "after", "late", "timeout"])
def test_a_writer_killed_at_its_swap_loses_and_doubles_nothing(
    deployment: Deployment, tmp_path: Path, moment: Moment
) -> None:
    # Given a message of three rows and one behind it
    table = deployment.table(f"append-{moment}", COLUMNS)
    with deployment.paused():
        for version in (1, 2):
            upserts = [{"id": key, "v": version} for key in range(3)]
            deployment.invoke("ingest", {"table": table.uri, "upserts": upserts})
        first = deployment.take(1, hidden=1)

        # When a container dies with the first at its swap, another one gets both, and the swap of the dead lands
        with doomed(deployment, "writer_flush", tmp_path / "log", moment) as (containers, gallows):
            killed(containers, batch(first), gallows)
            again = until(deployment.take, lambda records: records)
            answer = deployment.invoke("writer_flush", batch(again))
            gallows.land()
        deployment.settle(again, answer)

    # Then each version is in the log once, in order
    assert len(again) == 2
    assert answer == {"batchItemFailures": []}
    assert history(table) == {key: [1, 2] for key in range(3)}
    assert rows(table) == dict.fromkeys(range(3), 2)


@pytest.mark.parametrize("moment", ["before", "after", "late"])
def test_a_flush_killed_at_its_commit_is_done_by_the_next_one_once(
    deployment: Deployment, tmp_path: Path, moment: Moment
) -> None:
    # Given a log with two versions of three keys
    table = deployment.table(f"flush-{moment}", COLUMNS)
    for version in (1, 2):
        table.upsert([{"id": key, "v": version} for key in range(3)])

    # When the flush dies at its commit, another one runs, and the commit of the dead lands
    with doomed(deployment, "compaction", tmp_path / "log", moment) as (containers, gallows):
        killed(containers, {"table": table.uri}, gallows)
        between = rows(table)
        made = deployment.invoke("compaction", {"table": table.uri})
        gallows.land()

    # Then there is one generation with everything, and it merges
    (region,) = table.status().regions
    assert between == dict.fromkeys(range(3), 2)
    assert len(made["generations"]) == (0 if moment == "after" else 1)
    assert (region.wal_rows, region.generations) == (0, 1)
    assert deployment.invoke("merger", {"table": table.uri})["rows_upserted"] == 3
    assert rows(table) == between


class Stalling(Proxy):
    """Holds the first swap up until it is told to let it go."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.held, self.free = threading.Event(), threading.Event()

    def begin(self, action: str, body: bytes) -> str:
        if action == "UpdateItem" and not self.held.is_set():
            self.held.set()
            self.free.wait(SECONDS)
        return super().begin(action, body)


def test_a_swap_that_lands_after_a_successor_s_commits_nothing_again(deployment: Deployment, tmp_path: Path) -> None:
    # Given a container that stalls between its entry and the swap
    table = deployment.table("stalled", COLUMNS)
    endpoint = between(deployment)
    proxy = Stalling(endpoint)
    with deployment.paused(), proxied(endpoint, proxy):
        deployment.invoke("ingest", {"table": table.uri, "upserts": [{"id": 1, "v": 1}]})
        records = deployment.take(hidden=1)
        more = {"AWS_ENDPOINT_URL_DYNAMODB": proxy.endpoint}
        with (
            deployment.containers("writer_flush", tmp_path / "log", more=more) as containers,
            ThreadPoolExecutor() as pool,
        ):
            stalled = pool.submit(containers, batch(records))
            assert proxy.held.wait(SECONDS)

            # When another one gets the message, something newer is written, and then the first one's swap lands
            answer = deployment.invoke("writer_flush", batch(records))
            table.upsert([{"id": 1, "v": 2}])
            proxy.free.set()
            outcome = stalled.result()
        deployment.settle(records, answer)

    # Then it found its message applied, and wrote nothing
    assert answer == outcome == {"batchItemFailures": []}
    assert history(table) == {1: [1, 2]}
