"""Applying a batch of the queue: each message once, in order; bad rows become dead letters, blocked regions wait."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import NoneType

import pyarrow as pa
import pytest

from lancelsm.common.layout import Position, head_key, wal_entry
from lancelsm.errors import Ambiguous, Corrupt, Fenced, Invalid, Unavailable
from lancelsm.record.normalize import upserts
from lancelsm.record.schema import TableSchema
from lancelsm.region import config as configs
from lancelsm.region.catalog import SealedRegion
from lancelsm.registry import SwapApplied as Swapped
from lancelsm.routing.spec import RegionSpec, parse_regions
from lancelsm.stack.delivery import apply as applying
from lancelsm.stack.delivery import message, quarantine
from lancelsm.stack.delivery.apply import apply
from lancelsm.stack.delivery.message import packed
from lancelsm.stack.delivery.quarantine import read_dead_letter
from lancelsm.wal.claim import claim, seal
from tests.simulation.deployment import TABLE, URI, Deployment
from tests.simulation.faults import CRASH_AFTER, FAIL_AFTER, FAIL_BEFORE, Call, Crash, FaultPlan


def keys_of_two_regions(deployment: Deployment) -> tuple[int, int]:
    first = 0
    second = next(key for key in range(1, 50) if deployment.values(key) != deployment.values(first))
    return first, second


def test_a_batch_of_two_regions_becomes_one_entry_in_each():
    deployment = Deployment()
    one, other = keys_of_two_regions(deployment)
    deployment.send([(one, 1), (other, 1)], sequence=1)
    deployment.send([(one, 2), (other, 2)], sequence=2)

    outcomes = deployment.deliver()

    assert [(outcome.rejection, outcome.retry) for outcome in outcomes] == [(None, None)] * 4
    assert [deployment.entries(deployment.region(key)) for key in (one, other)] == [
        [[(one, 1), (one, 2)]],
        [[(other, 1), (other, 2)]],
    ]
    assert deployment.queue.held == []


def test_the_head_remembers_the_highest_sequence_of_the_queue():
    deployment = Deployment(buckets=1)
    sent = [deployment.send([(1, number)], sequence=number)[0] for number in (1, 2)]

    deployment.deliver()

    assert deployment.region(1).head().applied("q") == int(sent[-1].sequence)


def test_a_batch_that_was_partly_applied_appends_only_the_rest():
    # Given a container that died after it committed an entry with two of three messages
    deployment = Deployment(buckets=1)
    for number in (1, 2, 3):
        deployment.send([(7, number)], sequence=number)
    deployment.apply(deployment.queue.receive(2))
    deployment.clock.sleep(61)

    # When all three are delivered again together
    outcomes = deployment.deliver()

    # Then each is in the log once
    assert deployment.log() == {7: [1, 2, 3]}
    assert [outcome.retry for outcome in outcomes] == [None] * 3


def test_a_batch_that_was_applied_before_appends_nothing():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.apply(deployment.queue.receive())
    deployment.clock.sleep(61)

    deployment.deliver()

    assert deployment.log() == {7: [1]}
    assert deployment.queue.held == []


def test_a_message_that_is_twice_in_a_batch_is_applied_once():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    (one,) = deployment.queue.receive()

    deployment.apply([one, replace(one, receipt="another")])

    assert deployment.log() == {7: [1]}


def test_a_batch_out_of_order_is_applied_in_order():
    deployment = Deployment(buckets=1)
    for number in (1, 2, 3):
        deployment.send([(7, number)], sequence=number)

    deployment.apply(deployment.queue.receive()[::-1])

    assert deployment.log() == {7: [1, 2, 3]}


def test_sequences_are_compared_as_numbers():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.send([(7, 2)], sequence=2)
    early, late = deployment.queue.receive()

    deployment.apply([replace(early, sequence=9)])
    deployment.apply([replace(late, sequence=10)])

    assert deployment.log() == {7: [1, 2]}


def test_a_queue_that_was_created_again_may_start_at_a_lower_sequence():
    # Given a head that has applied a high sequence of a queue
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.apply([replace(one, sequence=99) for one in deployment.queue.receive()])

    # When the queue is deleted and created again, and delivers a lower sequence
    deployment.queue.name = "created again"
    deployment.queue.held = []
    deployment.send([(7, 2)], sequence=2)
    deployment.apply([replace(one, sequence=5) for one in deployment.queue.receive()])

    assert deployment.log() == {7: [1, 2]}


def test_messages_too_large_for_one_entry_become_several_entries():
    deployment = Deployment(buckets=1, settings={"group_commit_bytes": "40"})
    for number in range(4):
        deployment.send([(number, number)], sequence=number)

    deployment.deliver()

    entries = deployment.entries(deployment.region(0))
    assert [len(entry) for entry in entries] == [2, 2]


def test_a_missing_region_is_created():
    deployment = Deployment(buckets=1)
    assert deployment.list_regions() == []
    deployment.send([(7, 1)], sequence=1)

    deployment.deliver()

    assert deployment.log() == {7: [1]}


# Messages that can never be applied


def dead_letter(deployment: Deployment):
    (body,) = deployment.dead_letters.bodies
    return json.loads(body)


def test_only_the_bad_row_becomes_a_dead_letter_and_the_others_are_applied_in_order():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.put((7, 2), (8, None), (9, 2), like=7)
    deployment.send([(8, 3)], sequence=3)

    outcomes = deployment.deliver()

    assert deployment.log() == {7: [1, 2], 9: [2], 8: [3]}
    assert [type(outcome.rejection) for outcome in outcomes] == [type(None), Invalid, type(None)]
    assert deployment.queue.held == []
    found = dead_letter(deployment)
    assert found["reason"]["field"] == "v"
    assert (found["position"], found["table"]) == (2, URI)
    assert read_dead_letter(deployment.dead_letters.bodies[0]).sequence == outcomes[1].delivery.sequence


def test_a_row_of_another_region_becomes_a_dead_letter():
    deployment = Deployment()
    one, other = keys_of_two_regions(deployment)
    deployment.put((one, 1), (other, 1), like=one)

    deployment.deliver()

    assert deployment.log() == {one: [1]}
    assert "another region" in dead_letter(deployment)["reason"]["message"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("not JSON", "can't be read"),
        ('{"format": 1}', "can't be read"),
        ('{"format": "1"}', "can't be read"),
        ("[" * 100_000, "can't be read"),
    ],
    ids=["not JSON", "without fields", "format as text", "deep"],
)
def test_an_unreadable_message_is_dead_lettered_unchanged(body, reason):
    deployment = Deployment(buckets=1)
    deployment.put_text(body, like=7)
    deployment.send([(7, 1)], sequence=1)

    first, second = deployment.deliver()

    assert isinstance(first.rejection, Invalid)
    assert second.rejection is second.retry is None
    assert dead_letter(deployment)["body"] == body
    assert reason in dead_letter(deployment)["reason"]["message"]
    assert deployment.log() == {7: [1]}


def test_an_unreadable_message_too_large_for_a_dead_letter_is_kept_in_the_inbox():
    deployment = Deployment(buckets=1)
    body = '"' * 900_000
    deployment.put_text(body, like=7)

    (outcome,) = deployment.deliver()

    assert isinstance(outcome.rejection, Invalid)
    dead_letter = json.loads(deployment.dead_letters.bodies[0])
    assert dead_letter["inbox"] == deployment.inbox.uri
    assert deployment.inbox.get(dead_letter["object"]) == body.encode()
    assert deployment.queue.held == []


def test_a_message_for_a_missing_table_is_dead_lettered():
    deployment = Deployment(buckets=1)
    deployment.put((7, 1), like=7, table="memory://lake/tables/missing")

    (outcome,) = deployment.deliver()

    assert isinstance(outcome.rejection, Invalid)
    assert deployment.log() == {}


@pytest.mark.parametrize("table", ["memory://elsewhere/orders", f"{URI}/../orders"])
def test_a_message_for_a_table_outside_the_root_waits(table):
    deployment = Deployment(buckets=1)
    deployment.put((7, 1), like=7, table=table)

    (outcome,) = deployment.deliver()

    assert isinstance(outcome.retry, Invalid)
    assert outcome.retry.where["table"] == table
    assert (deployment.log(), deployment.dead_letters.bodies, len(deployment.queue.held)) == ({}, [], 1)


def test_a_message_in_the_group_of_another_region_is_dead_lettered():
    deployment = Deployment()
    one, other = keys_of_two_regions(deployment)
    deployment.put((one, 1), like=one)
    (held,) = deployment.queue.held
    deployment.put_text(held.message.body, like=other)

    outcomes = deployment.deliver()

    assert [type(outcome.rejection) for outcome in outcomes] == [type(None), Invalid]
    assert deployment.log() == {one: [1]}


def test_rows_with_a_column_name_that_is_not_utf8_are_dead_lettered():
    deployment = Deployment(buckets=1)
    stream = packed(deployment.stored((7, 1))).replace(b"_tombstone", b"\xfftombstone")
    deployment.put((7, 1), like=7, rows=stream)

    (outcome,) = deployment.deliver()

    assert isinstance(outcome.rejection, Invalid)
    assert deployment.queue.held == []


def test_rows_without_columns_are_dead_lettered():
    deployment = Deployment(buckets=1)
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    deployment.put((7, 1), like=7, rows=packed(pa.Table.from_batches([batch])))

    (outcome,) = deployment.deliver()

    assert isinstance(outcome.rejection, Invalid)
    assert deployment.queue.held == []


def test_damaged_rows_and_a_missing_object_are_dead_lettered():
    deployment = Deployment(buckets=1)
    deployment.put((7, 1), like=7, rows=b"not a stream")
    deployment.put((7, 2), like=7, rows=None, object="parts/missing.arrow")

    outcomes = deployment.deliver()

    assert [type(outcome.rejection) for outcome in outcomes] == [Invalid, Invalid]
    assert len(deployment.dead_letters.bodies) == 2


def test_messages_for_a_sealed_region_are_dead_lettered_unless_already_applied():
    deployment = Deployment(buckets=1)
    for number in (1, 2, 3):
        deployment.send([(7, number)], sequence=number)
    deployment.apply(deployment.queue.receive(1))
    seal(deployment.region(7))
    deployment.clock.sleep(61)

    outcomes = deployment.deliver()

    assert [type(outcome.rejection) for outcome in outcomes] == [type(None), SealedRegion, SealedRegion]
    assert deployment.log() == {7: [1]}
    assert [read_dead_letter(body).position for body in deployment.dead_letters.bodies] == [2, 2]


def test_a_crash_between_dead_letter_and_append_loses_nothing():
    # Given a container that dies right after it sent the bad row to the dead-letter queue
    deployment = Deployment(buckets=1)
    deployment.send([(1, 0)], sequence=0)
    deployment.deliver()
    deployment.put((7, 1), (8, None), like=7)
    deployment.plan = FaultPlan(lambda call: CRASH_AFTER if call.method == "create" else None)
    with pytest.raises(Crash):
        deployment.apply(deployment.queue.receive(), tables=deployment.container("dying"))
    assert len(deployment.dead_letters.bodies) == 1

    # When the message is delivered again
    deployment.clock.sleep(61)
    deployment.deliver()

    # Then the good row is in the log once, and the bad row is on the dead-letter queue once
    assert deployment.log() == {1: [0], 7: [1]}
    assert len(deployment.dead_letters.bodies) == 1


def test_a_bad_row_whose_dead_letter_cannot_be_sent_blocks_the_messages_behind_it():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.put((8, None), like=7)
    deployment.send([(7, 3)], sequence=3)
    deployment.dead_letters.failures = [Unavailable("no dead letters today")]
    deployment.dead_letters.takes_before_failing = False

    outcomes = deployment.deliver()

    assert [type(outcome.retry) for outcome in outcomes] == [type(None), Unavailable, Unavailable]
    assert deployment.log() == {7: [1]}

    deployment.deliver()

    assert deployment.log() == {7: [1, 3]}
    assert len(deployment.dead_letters.bodies) == 1


def inbox_keys(deployment: Deployment) -> set[str]:
    return {item.key for item in deployment.beside.list("")}


@pytest.mark.parametrize("text", [None, '"' * 900_000])
def test_a_repeated_dead_letter_names_a_new_object_in_the_inbox(text, monkeypatch):
    # Given a dead letter too large for the queue, whose first send failed
    deployment = Deployment(buckets=1)
    if text is None:
        monkeypatch.setattr(quarantine, "fits", lambda *_: False)
        deployment.put((7, None), like=7)
    else:
        deployment.put_text(text, like=7)
    deployment.dead_letters.failures = [Unavailable("no dead letters today")]
    deployment.dead_letters.takes_before_failing = False
    deployment.deliver()
    early = inbox_keys(deployment)

    # When the message is delivered again
    deployment.clock.sleep(61)
    deployment.deliver()

    # Then the dead letter names a new object, not the one of the first attempt
    found = dead_letter(deployment)
    options = found["object"] if text else found["message"]["object"]
    assert len(early) == 1
    assert {options} == inbox_keys(deployment) - early


def test_rows_of_an_unknown_schema_are_checked_against_the_newest_configuration():
    # Given a container that read the configuration before a column was added
    deployment = Deployment(buckets=1)
    old = deployment.container("old", faulty=False)
    old.open(URI)
    schema = deployment.config.schema
    note = pa.field("note", pa.string(), metadata={"lance:field_id": "2"})
    newer = TableSchema(columns=schema.columns.append(note), primary_key=("id",))
    changed = replace(deployment.config, schema=newer)
    found = deployment.store.get(configs.CONFIG)
    deployment.store.replace(configs.CONFIG, configs.encode(changed), expect=found.etag)
    deployment.send([(6, 1)], sequence=1)  # with the old schema
    deployment.handle = deployment.container("new", faulty=False).open(URI)
    deployment.config = changed
    deployment.send_rows(upserts([{"id": 7, "v": 2, "note": "x"}], schema=newer), sequence=2)

    outcomes = deployment.deliver(tables=old)

    assert [(outcome.rejection, outcome.retry) for outcome in outcomes] == [(None, None)] * 2
    assert deployment.log() == {6: [1], 7: [2]}


# Messages that can't be applied now


def faults_in_region_of(deployment: Deployment, key: int, fault):
    """Inject the fault at every write of an entry to the region of this key."""
    region = deployment.region(key).id
    return FaultPlan(lambda call: fault if call.writes and region in call.key and "/wal/" in call.key else None)


def test_a_blocked_region_does_not_hold_back_other_regions():
    deployment = Deployment()
    one, other = keys_of_two_regions(deployment)
    deployment.send([(one, 0), (other, 0)], sequence=0)
    deployment.deliver()
    for number in (1, 2):
        deployment.send([(one, number), (other, number)], sequence=number)
    deployment.plan = faults_in_region_of(deployment, one, FAIL_BEFORE)

    outcomes = deployment.deliver(tables=deployment.container("cut off"), seconds=100)

    assert {type(outcome.retry) for outcome in outcomes} == {Ambiguous, type(None)}
    assert deployment.log() == {one: [0], other: [0, 1, 2]}

    deployment.deliver()

    assert deployment.log() == {one: [0, 1, 2], other: [0, 1, 2]}


@pytest.mark.parametrize("step", ["judged", "appended"])
def test_an_unexpected_error_in_one_region_does_not_stop_others(monkeypatch, step):
    deployment = Deployment()
    one, other = keys_of_two_regions(deployment)
    deployment.send([(one, 1)], sequence=1)
    deployment.send([(one, 2)], sequence=2)
    deployment.send([(other, 1)], sequence=3)
    failing_region = deployment.values(one)

    def fails(original, values_of):
        def wrapped(*arguments, **options):
            if values_of(arguments, options) == failing_region:
                raise ZeroDivisionError(f"{arguments}")
            return original(*arguments, **options)

        return wrapped

    with monkeypatch.context() as patch:
        if step == "judged":
            patch.setattr(
                applying, "partition_valid", fails(applying.partition_valid, lambda _, options: options["values"])
            )
        else:
            patch.setattr(
                applying,
                "find_or_create_region",
                fails(applying.find_or_create_region, lambda arguments, _: arguments[1]),
            )
        outcomes = deployment.deliver()
    assert [type(outcome.retry) for outcome in outcomes] == [Unavailable, Unavailable, type(None)]
    assert [type(outcome.bug) for outcome in outcomes] == [ZeroDivisionError, type(None), type(None)]

    deployment.deliver()

    assert deployment.log() == {one: [1, 2], other: [1]}


def test_messages_for_a_region_of_another_owner_wait():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.deliver()
    claim(deployment.region(7), owner="loader")
    deployment.send([(7, 2)], sequence=2)

    (outcome,) = deployment.deliver()

    assert isinstance(outcome.retry, Fenced)
    assert deployment.dead_letters.bodies == []
    claim(deployment.region(7), owner="stack")
    deployment.deliver()
    assert deployment.log() == {7: [1, 2]}


def test_messages_for_a_corrupt_region_wait():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.deliver()
    deployment.store.create(wal_entry(deployment.region(7).id, Position(2)), b"not an entry")
    deployment.send([(7, 2)], sequence=2)

    (outcome,) = deployment.deliver()

    assert isinstance(outcome.retry, Corrupt)
    assert deployment.dead_letters.bodies == []


def test_messages_for_a_region_with_too_many_unmerged_generations_wait():
    deployment = Deployment(buckets=1, settings={"pending_generations_stop": "2", "pending_generations_slow": "1"})
    deployment.send([(7, 1)], sequence=1)
    deployment.send([(7, 2)], sequence=2)
    deployment.deliver(1)
    key = head_key(TABLE, deployment.region(7).id)
    head = deployment.records.read(key)
    changed = deployment.records.swap(
        key, expect={"manifest_version": head["manifest_version"]}, change={"current_generation": 3}
    )
    assert isinstance(changed, Swapped)

    (outcome,) = deployment.deliver()

    assert isinstance(outcome.retry, Unavailable)
    assert deployment.log() == {7: [1]}


def test_messages_for_a_region_whose_head_has_a_newer_format_wait():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.deliver()
    key = head_key(TABLE, deployment.region(7).id)
    deployment.send([(7, 2)], sequence=2)
    deployment.records.swap(key, expect={"format": 3}, change={"format": 5})

    (outcome,) = deployment.deliver()

    assert isinstance(outcome.retry, Invalid)
    assert deployment.dead_letters.bodies == []


def test_messages_of_the_next_format_wait_for_the_next_release_and_others_are_applied(monkeypatch):
    """A canary of `ingest` runs beside an old `writer_flush`, and beside an old `ingest`."""
    deployment = Deployment(buckets=2)
    other = next(key for key in range(8, 99) if deployment.values(key) != deployment.values(7))

    def send(release: int, key: int, value: int) -> None:
        with monkeypatch.context() as deployed:
            deployed.setattr(message, "FORMAT", release)
            deployment.send([(key, value)], sequence=10 * key + value)

    this = message.FORMAT
    for release, key, value in ((this - 1, 7, 1), (this, 7, 2), (this + 1, 7, 3), (this - 1, 7, 4), (this, other, 1)):
        send(release, key, value)

    outcomes = deployment.deliver()

    assert [type(outcome.retry) for outcome in outcomes] == [NoneType, NoneType, Unavailable, Unavailable, NoneType]
    assert deployment.log() == {7: [1, 2], other: [1]}
    with monkeypatch.context() as deployed:
        deployed.setattr(message, "FORMAT", this + 1)
        deployment.clock.sleep(3600)
        deployment.deliver()
    assert deployment.log() == {7: [1, 2, 3, 4], other: [1]}
    assert deployment.dead_letters.bodies == []


def test_messages_for_a_table_that_cannot_be_opened_now_wait():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.plan = FaultPlan(lambda call: FAIL_BEFORE if call.method == "get" else None)

    (outcome,) = deployment.deliver(tables=deployment.container("cut off"))

    assert isinstance(outcome.retry, Unavailable)


def test_rows_whose_region_cannot_be_computed_here_wait(monkeypatch):
    # Given a table whose region spec is an expression, and a function without the layer that evaluates it
    class Halves(Deployment):
        def spec(self, schema: TableSchema) -> RegionSpec:
            return parse_regions("expr(id % 2)", schema=schema)

    deployment = Halves()
    deployment.send([(7, 1)], sequence=1)
    with monkeypatch.context() as bare:
        bare.setitem(sys.modules, "datafusion", None)
        deployment.clock.sleep(61)
        (outcome,) = deployment.deliver()
    assert isinstance(outcome.retry, Invalid)
    assert deployment.dead_letters.bodies == []

    # When the layer is installed
    deployment.deliver()

    assert deployment.log() == {7: [1]}


def test_messages_for_a_table_of_a_newer_format_wait():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    found = deployment.store.get(configs.CONFIG)
    changed = json.loads(found.body) | {"format": 3}
    deployment.store.replace(configs.CONFIG, json.dumps(changed).encode(), expect=found.etag)

    (outcome,) = deployment.deliver(tables=deployment.container("older", faulty=False))

    assert isinstance(outcome.retry, Invalid)
    assert deployment.dead_letters.bodies == []


def test_a_delivery_with_an_ambiguous_outcome_is_safe_to_repeat():
    # Given a swap of the head that is applied, but whose reply and all later calls are lost
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.deliver()
    deployment.send([(7, 2)], sequence=2)
    swapped = False

    def decide(call: Call):
        nonlocal swapped
        if call.method == "swap":
            swapped = True
            return FAIL_AFTER
        return FAIL_BEFORE if swapped else None

    deployment.plan = FaultPlan(decide)

    (outcome,) = deployment.deliver(tables=deployment.container("cut off"))
    assert isinstance(outcome.retry, Ambiguous)
    deployment.deliver()

    assert deployment.log() == {7: [1, 2]}


def test_messages_wait_untried_if_no_time_is_left():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)

    (outcome,) = deployment.deliver(seconds=0)

    assert isinstance(outcome.retry, Unavailable)
    assert deployment.list_regions() == []


def test_no_further_region_is_tried_after_a_slow_store_used_the_time(monkeypatch):
    deployment = Deployment()
    for key in keys_of_two_regions(deployment):
        deployment.send([(key, 1)], sequence=key)
    calls = []

    def find(table: str, **_: object) -> None:
        calls.append(table)
        deployment.clock.sleep(30)
        raise Unavailable("the store did not answer for 30 s")

    monkeypatch.setattr(deployment.tables, "find", find)

    outcomes = deployment.deliver(seconds=30)

    assert [type(outcome.retry) for outcome in outcomes] == [Unavailable, Unavailable]
    assert len(calls) == 1


def test_an_append_retries_no_longer_than_the_call_has_time():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.deliver()
    deployment.send([(7, 2)], sequence=2)
    deployment.plan = faults_in_region_of(deployment, 7, FAIL_BEFORE)
    start = deployment.clock.monotonic()

    deployment.deliver(tables=deployment.container("cut off"), seconds=3)

    assert deployment.clock.monotonic() - start <= 3


def test_an_empty_batch_has_no_outcomes():
    assert apply([], ports=Deployment().ports(Deployment().tables), seconds=1).outcomes == ()
