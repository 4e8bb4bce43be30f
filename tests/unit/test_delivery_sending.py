"""Sending rows to the queue: few messages, refused before any message is sent, and safe to repeat."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from lancelsm.common.layout import head_key
from lancelsm.errors import Ambiguous, Contended, Corrupt, Fenced, Invalid, Unavailable
from lancelsm.record.normalize import upserts
from lancelsm.record.schema import TableSchema, declare_primary_key, numbered
from lancelsm.stack.delivery import message as delivery_message
from lancelsm.stack.delivery.message import BYTES_MAX, Message, decode, encode, packed, split, unpacked
from lancelsm.stack.delivery.queue import pause
from lancelsm.stack.delivery.stopped import record_stopped
from lancelsm.wal.claim import claim, seal
from tests.simulation.deployment import TABLE, URI, Deployment


class LargeRows(Deployment):
    """A deployment whose rows can be large."""

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string())])
        self.schema = TableSchema(columns=numbered(declare_primary_key(columns, ["id"])), primary_key=("id",))

    def send_texts(self, sizes: list[int], **options):
        chance = random.Random(1)
        rows = upserts(
            [{"id": n, "text": chance.randbytes(size).hex()[:size]} for n, size in enumerate(sizes)], schema=self.schema
        )
        return self.send_rows(rows, **options)


def keys_of_two_regions(deployment: Deployment) -> tuple[int, int]:
    return 0, next(key for key in range(1, 50) if deployment.values(key) != deployment.values(0))


def test_a_message_names_table_region_producer_and_sequence():
    deployment = Deployment(buckets=1)

    (sent,) = deployment.send([(7, 1)], sequence=3, producer="p")

    (held,) = deployment.queue.held
    message = decode(held.message.body)
    assert (message.table, message.region, message.producer, message.sequence) == (URI, sent.region, "p", 3)
    assert unpacked(message.rows).schema.equals(deployment.config.schema.stored, check_metadata=True)
    assert held.message.group == f"{TABLE}#{sent.region}"
    assert (sent.id, sent.sequence) == (held.id, str(held.sequence))
    assert encode(message) == held.message.body


def test_a_repeated_request_sends_the_same_messages():
    deployment = Deployment()
    one, other = keys_of_two_regions(deployment)
    first = deployment.send([(one, 1), (other, 1)], sequence=1)

    assert deployment.send([(one, 1), (other, 1)], sequence=1) == first
    assert len(deployment.queue.held) == 2
    deployment.send([(one, 1), (other, 1)], sequence=2)
    deployment.send([(one, 1), (other, 1)], sequence=2, producer="another")
    assert len(deployment.queue.held) == 6


def test_rows_too_large_for_one_message_are_split_in_order():
    deployment = LargeRows(buckets=1)

    sent = deployment.send_texts([300_000] * 12)

    ids = [unpacked(decode(body).rows).column("id").to_pylist() for body in deployment.queue.bodies]
    assert [one for part in ids for one in part] == list(range(12))
    assert len(sent) == len(ids) > 1
    assert max(len(body) for body in deployment.queue.bodies) <= BYTES_MAX


def test_a_single_row_too_large_for_a_message_is_refused_before_anything_is_sent():
    deployment = LargeRows(buckets=1)

    with pytest.raises(Invalid, match="by reference") as refused:
        deployment.send_texts([10, 3_000_000, 10])

    assert refused.value.where["row"] == 1
    assert deployment.queue.held == []


def test_a_row_too_large_for_a_message_can_be_sent_by_reference():
    deployment = LargeRows(buckets=1)

    deployment.send_texts([10, 3_000_000], by_reference=True)

    small, big = (decode(body) for body in deployment.queue.bodies)
    assert (small.object, big.rows) == (None, None)
    found = deployment.inbox.get(big.object)
    assert unpacked(found).column("id").to_pylist() == [1]


def test_rows_sent_by_reference_belong_to_their_own_request():
    deployment = LargeRows(buckets=1)
    deployment.send_texts([3_000_000], by_reference=True)
    deployment.clock.sleep(301)  # longer than the queue deduplicates

    deployment.send_texts([2_900_000], by_reference=True)

    found = [unpacked(deployment.inbox.get(decode(body).object)) for body in deployment.queue.bodies]
    assert [len(rows.column("text")[0].as_py()) for rows in found] == [3_000_000, 2_900_000]


def test_a_request_repeated_by_a_release_that_splits_differently_loses_no_row(monkeypatch):
    # Given only the first of many small messages on the queue
    deployment = LargeRows(buckets=1)
    deployment.queue.refuse = list(range(1, 1_000))
    with monkeypatch.context() as patch:
        patch.setattr(delivery_message, "SPARE", BYTES_MAX * 3 // 4)
        with pytest.raises(Unavailable):
            deployment.send_texts([200_000] * 8, seconds=0.0)
    (first,) = deployment.queue.bodies
    assert unpacked(decode(first).rows).num_rows < 3

    # When the same request is repeated and needs fewer messages
    deployment.queue.refuse = []
    sent = deployment.send_texts([200_000] * 8)

    assert len(sent) < 4
    ids = {one for body in deployment.queue.bodies for one in unpacked(decode(body).rows).column("id").to_pylist()}
    assert ids == set(range(8))


def test_rows_for_a_sealed_region_are_refused_and_nothing_is_sent_to_other_regions():
    deployment = Deployment()
    one, other = keys_of_two_regions(deployment)
    deployment.send([(one, 0)], sequence=0)
    deployment.deliver()
    seal(deployment.region(one))

    with pytest.raises(Invalid, match=r"sealed.*Nothing was sent"):
        deployment.send([(other, 1), (one, 1)], sequence=1)

    assert deployment.queue.held == []


def test_rows_for_a_region_with_too_many_unmerged_generations_are_refused():
    deployment = Deployment(buckets=1, settings={"pending_generations_stop": "2"})
    deployment.send([(7, 0)], sequence=0)
    deployment.deliver()
    deployment.records.swap(
        head_key(TABLE, deployment.region(7).id), expect={"merged": 0}, change={"current_generation": 3}
    )

    with pytest.raises(Unavailable, match=r"2 generations wait.*Nothing was sent"):
        deployment.send([(7, 1)], sequence=1)

    assert deployment.queue.held == []


def stopped_for(minutes: int) -> Deployment:
    """Return a deployment with one region whose messages have failed for this long, by one delivery a minute."""
    deployment = Deployment(buckets=1)
    deployment.send([(7, 0)], sequence=0)
    deployment.deliver()
    deployment.send([(7, 1)], sequence=1)
    claim(deployment.region(7), owner="rival")
    for _ in range(minutes + 1):
        (outcome,) = deployment.deliver()
        assert isinstance(outcome.retry, Fenced)
        deployment.clock.sleep(61)
    return deployment


def test_rows_for_a_region_whose_messages_have_failed_for_ten_minutes_are_refused():
    assert stopped_for(8).send([(7, 2)], sequence=2)

    deployment = stopped_for(11)
    held = len(deployment.queue.held)
    with pytest.raises(Unavailable, match=r"failed for 12 minutes: Fenced.*Nothing was sent") as raised:
        deployment.send([(7, 2)], sequence=2)

    assert raised.value.where["region"] == deployment.region(7).id
    assert len(deployment.queue.held) == held


def test_a_region_that_recovers_gets_rows_again_at_once():
    deployment = stopped_for(11)
    claim(deployment.region(7), owner="stack")
    deployment.deliver()

    assert deployment.send([(7, 2)], sequence=2)


def test_the_record_of_a_stopped_region_ends_five_minutes_after_the_last_delivery():
    deployment = stopped_for(11)
    deployment.clock.sleep(200)
    with pytest.raises(Unavailable, match="Fenced"):
        deployment.send([(7, 2)], sequence=2)
    deployment.clock.sleep(60)

    assert deployment.send([(7, 2)], sequence=2)


def test_the_record_outlasts_the_long_pauses_of_late_deliveries():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 0)], sequence=0)
    deployment.deliver()
    region = deployment.region(7)

    record_stopped(region.context, region.id, Corrupt("gone"), pause=pause(501))
    deployment.clock.sleep(1.25 * pause(501))
    record_stopped(region.context, region.id, Corrupt("gone"), pause=pause(502))

    with pytest.raises(Unavailable, match="52 minutes: Corrupt"):
        deployment.send([(7, 2)], sequence=2)


@pytest.mark.parametrize("error", [Unavailable("slow"), Ambiguous("lost"), Contended("busy")])
def test_an_error_that_a_retry_fixes_does_not_stop_a_region(error):
    deployment = Deployment(buckets=1)
    deployment.send([(7, 0)], sequence=0)
    deployment.deliver()
    region = deployment.region(7)

    record_stopped(region.context, region.id, error, pause=1)
    deployment.clock.sleep(299)
    record_stopped(region.context, region.id, Corrupt("gone"), pause=1)
    deployment.clock.sleep(299)
    record_stopped(region.context, region.id, Corrupt("gone"), pause=1)
    deployment.clock.sleep(299)

    assert deployment.send([(7, 2)], sequence=2), "598 s after the first lasting error"


def test_a_message_that_the_queue_rejected_is_sent_again():
    deployment = LargeRows(buckets=1)
    deployment.queue.refuse = [1]

    sent = deployment.send_texts([600_000] * 4)

    assert len({one.id for one in sent}) == len(deployment.queue.held) == len(sent)


def test_a_call_without_an_answer_is_retried_without_duplicates():
    deployment = Deployment(buckets=1)
    deployment.queue.failures = [Unavailable("no answer")]

    (sent,) = deployment.send([(7, 1)], sequence=1)

    assert [held.id for held in deployment.queue.held] == [sent.id]
    assert len(deployment.queue.calls) == 2


def test_a_failed_send_reports_how_many_rows_were_sent():
    deployment = LargeRows(buckets=1)
    deployment.queue.takes_before_failing = False
    deployment.queue.failures = [Unavailable("no answer")] * 100
    deployment.queue.refuse = []

    with pytest.raises(Unavailable, match="within 5 minutes") as failed:
        deployment.send_texts([10], seconds=1.0)
    assert "rows_sent" not in failed.value.where

    deployment.queue.failures = []
    deployment.queue.refuse = list(range(1, 1_000_000, 2))
    with pytest.raises(Unavailable) as failed:
        deployment.send_texts([900_000] * 2, seconds=0.0, sequence=9)
    assert failed.value.where["rows_sent"] == 1


def test_nothing_is_sent_again_after_the_deduplication_window():
    deployment = Deployment(buckets=1)
    deployment.queue.failures = [Unavailable("no answer")] * 10_000
    start = deployment.clock.monotonic()

    with pytest.raises(Unavailable):
        deployment.send([(7, 1)], sequence=1, seconds=3_600)

    assert deployment.clock.monotonic() - start < 300


def test_a_request_without_rows_sends_no_message():
    deployment = Deployment(buckets=1)
    assert deployment.send([], sequence=1) == []
    assert deployment.queue.calls == []


def test_the_same_rows_are_split_in_the_same_way_each_time():
    rows = pa.table({"id": list(range(1000)), "v": [random.Random(n).randbytes(2000) for n in range(1000)]})
    frame = Message(table=URI, region="r", values=(("f", None), ("g", b"\1")), producer="p", sequence=1, object="")

    first, second = ([stream for _, stream in split(rows, frame=frame)] for _ in range(2))

    assert first == second
    assert pa.concat_tables([unpacked(stream) for stream in first]).equals(rows)


@pytest.mark.parametrize("damage", ["rows", "both", "neither", "values", "sequence"])
def test_a_malformed_message_is_invalid(damage):
    intact = json.loads(encode(Message(table=URI, region="r", values=(), producer="p", sequence=1, rows=b"x")))
    change = {
        "rows": {"rows": "no base64!"},
        "both": {"object": "a"},
        "neither": {"rows": None},
        "values": {"values": [["a", "zz"]]},
        "sequence": {"sequence": float("inf")},
    }[damage]

    with pytest.raises(Invalid):
        decode(json.dumps(intact | change))


def test_a_truncated_stream_of_rows_is_invalid():
    stream = packed(pa.table({"id": list(range(1000))}))
    with pytest.raises(Invalid):
        unpacked(stream[: len(stream) // 2])
