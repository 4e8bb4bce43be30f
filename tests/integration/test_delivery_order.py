"""Messages are delivered again, late, in other batches and to several containers at once. Each key keeps its order."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from lancelsm.table import Table
from tests.handlers.runtime_api import Runtime
from tests.integration.deployment import Deployment, Records, batch, history, rows, until

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int64())])
KEYS = 3  # of each producer


def produce(deployment: Deployment, table: Table, producer: int, versions: int) -> None:
    """Send numbered versions of a producer's keys. Each is sent after the version before is acknowledged."""
    for version in range(versions):
        upserts = [{"id": 100 * producer + key, "v": version} for key in range(KEYS)]
        event = {"table": table.uri, "upserts": upserts, "producer": f"{table.uri} {producer}", "sequence": version}
        assert deployment.invoke("ingest", event)["rows"] == KEYS


@contextmanager
def polled(deployment: Deployment, containers: Runtime, *, seed: int) -> Iterator[list[Records]]:
    """Run three pollers that hide messages for only one second and lose replies. One calls the deployed function.

    Yields the delivered batches.
    """
    delivered: list[Records] = []
    ended = threading.Event()

    def poll(number: int) -> None:
        rng, answered = random.Random(f"{seed} {number}"), False
        while not ended.is_set():
            records = deployment.take(rng.randint(1, 10), hidden=1)
            if records:
                delivered.append(records)
                answer = containers(batch(records)) if number else deployment.invoke("writer_flush", batch(records))
                if answered and rng.random() < 0.6:  # the first reply of each poller is lost
                    deployment.settle(records, answer)
                answered = True

    with ThreadPoolExecutor() as pool:
        pollers = [pool.submit(poll, number) for number in range(3)]
        try:
            yield delivered
        finally:
            ended.set()
        for poller in pollers:
            poller.result()


def run_producers(deployment: Deployment, table: Table, log: Path, *, producers: int, versions: int, seed: int) -> int:
    """Send everything and wait until the queue is empty. Returns the number of repeated deliveries, at least one."""
    with (
        deployment.containers("writer_flush", log) as containers,
        deployment.paused(),
        polled(deployment, containers, seed=seed) as delivered,
        ThreadPoolExecutor() as pool,
    ):
        done = [pool.submit(produce, deployment, table, number, versions) for number in range(producers)]
        for one in done:
            one.result()
        until(
            lambda: repetitions(delivered), lambda count: count
        )  # a message is repeated only after its visibility timeout
    until(deployment.waiting, lambda remaining: remaining == 0)  # the service's poller receives the rest
    return repetitions(delivered)


def repetitions(delivered: list[Records]) -> int:
    ids = [one["messageId"] for records in list(delivered) for one in records]
    return len(ids) - len(set(ids))


@pytest.mark.parametrize(
    ("producers", "versions"),
    [pytest.param(2, 12, id="short"), pytest.param(4, 150, id="long", marks=pytest.mark.long)],
)
def test_each_key_keeps_its_order_under_concurrent_containers(
    deployment: Deployment, tmp_path: Path, producers: int, versions: int
) -> None:
    # Given two regions
    table = deployment.table("ordered", COLUMNS, regions="bucket(id, 2)")

    # When producers send versions of their keys, and several containers receive them and lose replies
    repeated = run_producers(deployment, table, tmp_path / "log", producers=producers, versions=versions, seed=7)

    # Then the log has each acknowledged version once, in order, and a reader sees the newest
    keys = [100 * producer + key for producer in range(producers) for key in range(KEYS)]
    assert repeated > 0
    assert history(table) == {key: list(range(versions)) for key in keys}
    assert rows(table) == dict.fromkeys(keys, versions - 1)


@pytest.mark.rest
def test_messages_delivered_again_in_other_batches_are_applied_once(deployment: Deployment) -> None:
    # Given six messages of a region; the first three were applied, but the reply was lost
    table = deployment.table("recut", COLUMNS)
    with deployment.paused():
        for version in range(6):
            deployment.invoke("ingest", {"table": table.uri, "upserts": [{"id": 1, "v": version}]})
        lost = deployment.take(3, hidden=1)
        deployment.invoke("writer_flush", batch(lost))

        # When they are delivered again together with newer ones, some of them twice or late
        again = until(lambda: deployment.take(5), lambda records: records)
        answer = deployment.invoke("writer_flush", batch([*again[:2], *again]))
        late = deployment.invoke("writer_flush", batch(lost[1:] + again[3:]))
        deployment.settle(again, answer)
        last = deployment.take()
        deployment.settle(last, deployment.invoke("writer_flush", batch(last)))

    # Then each is in the log once, in order
    assert [len(one) for one in (lost, again, last)] == [3, 5, 1]
    assert answer == late == {"batchItemFailures": []}
    assert history(table) == {1: [0, 1, 2, 3, 4, 5]}
    assert deployment.waiting() == 0


@pytest.mark.rest
def test_parallel_calls_with_overlapping_batches_apply_each_message_once(deployment: Deployment) -> None:
    # Given eight messages of two regions
    table = deployment.table("overlapping", COLUMNS, regions="bucket(id, 2)")
    with deployment.paused():
        for version in range(4):
            deployment.invoke("ingest", {"table": table.uri, "upserts": [{"id": k, "v": version} for k in range(6)]})
        records = deployment.take()

        # When three containers apply overlapping batches at once, as with a visibility timeout that is too short
        with ThreadPoolExecutor() as pool:
            cuts = [records, records[:5], records[:3]]
            answers = list(pool.map(lambda cut: deployment.invoke("writer_flush", batch(cut)), cuts))
        deployment.settle(records, answers[0])

        # Then each message is applied once, in order
        assert len(records) == 8
        assert answers[0] == {"batchItemFailures": []}
        assert history(table) == {key: [0, 1, 2, 3] for key in range(6)}
