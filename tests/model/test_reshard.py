"""A reshard loses, reorders and repeats nothing in any interleaving, and needs every guard for it."""

from __future__ import annotations

import pytest

from tests.model import reshard, resharded_queue, resharded_read, resharded_stream
from tests.model.reshard import Reshard
from tests.model.resharded_queue import ReshardedQueue
from tests.model.resharded_read import ReshardedRead
from tests.model.resharded_stream import ReshardedStream
from tests.model.verdicts import check_broken, check_clean

KINDS = {
    resharded_queue.Guard.OLD_HEAD: "applied twice",
    resharded_queue.Guard.OWN_PRODUCER: "row lost",
    resharded_queue.Guard.NEWER_KEY: "older row wins",
    resharded_queue.Guard.LOWER_IS_OLDER: "row lost",
    resharded_queue.Guard.EVERY_HEAD: "older row wins",
    resharded_queue.Guard.ONE_SWAP: "applied twice",
    resharded_queue.Guard.EACH_REGION: "row lost",
    resharded_queue.Guard.COLLECTED: "older row wins",
}

KINDS_OF_READS = {
    resharded_read.Guard.OWN_SPEC: "older row",
    resharded_read.Guard.ALL_REGIONS: "older row",
    resharded_read.Guard.READ_AGAIN: "lost update",
}


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("model", "states"),
    [(ReshardedQueue(), 21_757), (ReshardedStream(), 290), (ReshardedRead(), 6_663), (Reshard(), 77_457)],
    ids=["queue", "stream", "read", "reshard"],
)
def test_a_reshard_keeps_its_promises_in_every_interleaving(
    model: Reshard | ReshardedQueue | ReshardedRead | ReshardedStream, states: int
) -> None:
    check_clean(model, states=states)


@pytest.mark.rest
@pytest.mark.parametrize("guard", reshard.Guard, ids=lambda guard: guard.name.lower())
def test_a_key_is_in_two_regions_without_the_guard(guard: reshard.Guard) -> None:
    check_broken(Reshard(without=guard), kind="two regions", guard=guard)


@pytest.mark.parametrize("guard", resharded_queue.Guard, ids=lambda guard: guard.name.lower())
def test_a_waiting_message_is_not_applied_once_without_the_guard(guard: resharded_queue.Guard) -> None:
    check_broken(ReshardedQueue(without=guard), kind=KINDS[guard], guard=guard)


@pytest.mark.parametrize("guard", resharded_stream.Guard, ids=lambda guard: guard.name.lower())
def test_a_stream_yields_rows_out_of_order_without_the_guard(guard: resharded_stream.Guard) -> None:
    check_broken(ReshardedStream(without=guard), kind="out of order", guard=guard)


@pytest.mark.parametrize("guard", resharded_read.Guard, ids=lambda guard: guard.name.lower())
def test_a_shared_table_misses_a_newer_row_without_the_guard(guard: resharded_read.Guard) -> None:
    check_broken(ReshardedRead(without=guard), kind=KINDS_OF_READS[guard], guard=guard)
