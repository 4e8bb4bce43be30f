"""Redrive: rows of dead letters are appended again, but never after a newer row of their key."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lancelsm.common.layout import Position, head_key, wal_entry
from lancelsm.errors import LsmError, Unavailable
from lancelsm.objects import ObjectStore
from lancelsm.record.normalize import upserts
from lancelsm.region import head as heads
from lancelsm.region.handle import TableHandle
from lancelsm.stack.delivery.message import decode, encode, packed, unpacked
from lancelsm.stack.delivery.redrive import Openers, Redriven, Verdict, redrive
from lancelsm.wal.claim import seal
from lancelsm.wal.region_writer import RegionWriters
from tests.simulation.deployment import TABLE, URI, Deployment


def openers(deployment: Deployment) -> Openers:
    def table(uri: str) -> TableHandle:
        return deployment.container("redriver", faulty=False).open(uri)

    def inbox(_: str) -> ObjectStore:
        return deployment.beside

    return Openers(table=table, inbox=inbox)


def redrive_after_a_minute(deployment: Deployment, *, dry: bool = False) -> list[Redriven]:
    deployment.clock.sleep(61)
    return list(redrive(deployment.dead_letters, openers=openers(deployment), dry=dry))


def verdicts(done: list[Redriven]) -> list[Verdict]:
    return [one.verdict for one in done]


def add_dead_letter(deployment: Deployment, *rows: tuple[int, int | None], good: tuple[int, int] | None = None) -> None:
    """Deliver messages with these rows, so that invalid rows, such as a null value, become dead letters."""
    deployment.put(*(rows + ((good,) if good else ())), like=rows[0][0], sequence=len(deployment.queue.calls))
    deployment.deliver()


def make_valid(deployment: Deployment) -> None:
    """Make all dead letters valid: their rows get the value 99."""
    for held in deployment.dead_letters.held:
        document = json.loads(held.message.body)
        message = decode(json.dumps(document["message"]))
        keys = unpacked(message.rows).column("id").to_pylist()
        document["message"] = json.loads(
            encode(replace(message, rows=packed(deployment.stored(*((k, 99) for k in keys)))))
        )
        held.message = replace(held.message, body=json.dumps(document))


def write(deployment: Deployment, key: int, value: int) -> None:
    """Write a row directly, not through the queue."""
    target = deployment.handle.target()
    rows = upserts([{"id": key, "v": value}], schema=target.schema)
    RegionWriters(target, owner=target.owner).append_all(rows)


@pytest.mark.parametrize("dry", [True, False])
def test_a_row_of_a_table_that_takes_only_events_stays(dry):
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    add_dead_letter(deployment, (7, None))
    make_valid(deployment)
    region = deployment.region(7)
    region.swap(heads.ordered(region.head()))

    done = redrive_after_a_minute(deployment, dry=dry)

    assert verdicts(done) == [Verdict.LEFT]
    assert "takes no plain writes. Use table.apply_changes" in done[0].reason
    assert len(deployment.dead_letters.held) == 1


def test_a_row_that_is_valid_now_is_appended_and_its_dead_letter_deleted():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    add_dead_letter(deployment, (7, None))
    make_valid(deployment)

    done = redrive_after_a_minute(deployment)

    assert verdicts(done) == [Verdict.APPENDED]
    assert (done[0].table, done[0].rows) == (URI, 1)
    assert deployment.log() == {7: [1, 99]}
    assert deployment.dead_letters.bodies == []


def test_a_dry_run_changes_nothing_and_reports_the_same():
    deployment = Deployment(buckets=1)
    add_dead_letter(deployment, (7, None), good=(8, 1))
    make_valid(deployment)

    dry = redrive_after_a_minute(deployment, dry=True)

    assert deployment.log() == {8: [1]}
    assert len(deployment.dead_letters.bodies) == 1
    assert dry == list(redrive(deployment.dead_letters, openers=openers(deployment), dry=False))
    assert deployment.log() == {8: [1], 7: [99]}


def test_a_redriven_row_never_replaces_a_newer_row():
    deployment = Deployment(buckets=1)
    add_dead_letter(deployment, (7, None))
    deployment.send([(7, 2)], sequence=2)
    deployment.deliver()
    make_valid(deployment)

    done = redrive_after_a_minute(deployment)

    assert verdicts(done) == [Verdict.SUPERSEDED]
    assert deployment.log() == {7: [2]}
    assert deployment.dead_letters.bodies == []


def test_a_newer_delete_supersedes_a_dead_letter():
    deployment = Deployment(buckets=1)
    add_dead_letter(deployment, (7, None))
    deployment.send_rows(deployment.tombstones(7), sequence=2)
    deployment.deliver()
    make_valid(deployment)

    assert verdicts(redrive_after_a_minute(deployment)) == [Verdict.SUPERSEDED]
    assert deployment.log() == {7: [None]}


def test_only_rows_of_a_dead_letter_without_a_newer_row_are_appended():
    deployment = Deployment(buckets=1)
    add_dead_letter(deployment, (7, None), (8, None))
    write(deployment, 7, 2)
    make_valid(deployment)

    (done,) = redrive_after_a_minute(deployment)

    assert (done.verdict, done.rows) == (Verdict.APPENDED, 1)
    assert "other keys" in done.reason
    assert deployment.log() == {7: [2], 8: [99]}


def test_a_newer_row_written_between_the_read_and_the_append_wins():
    # Given a writer that writes a newer row after the redrive has read the log
    deployment = Deployment(buckets=1)
    write(deployment, 1, 0)
    add_dead_letter(deployment, (7, None))
    make_valid(deployment)
    region = deployment.region(7).id
    overtaken = False

    class Overtaken:
        """The store of the redrive. A newer row is written right before its first entry."""

        def __init__(self, inner: ObjectStore) -> None:
            self.inner = inner

        def __getattr__(self, name: str):
            return getattr(self.inner, name)

        def create(self, key: str, body: bytes):
            nonlocal overtaken
            if not overtaken and key.startswith(f"_mem_wal/{region}/wal/"):
                overtaken = True
                write(deployment, 7, 2)
            return self.inner.create(key, body)

    def table(uri: str) -> TableHandle:
        handle = deployment.container("redriver", faulty=False).open(uri)
        return replace(handle, context=replace(handle.context, objects=Overtaken(handle.context.objects)))

    deployment.clock.sleep(61)
    done = list(
        redrive(deployment.dead_letters, openers=Openers(table=table, inbox=openers(deployment).inbox), dry=False)
    )

    assert overtaken
    assert verdicts(done) == [Verdict.SUPERSEDED]
    assert deployment.log() == {1: [0], 7: [2]}


@pytest.mark.parametrize("first", [0, 1])
def test_the_newer_of_two_dead_letters_for_one_key_wins_in_any_order(first):
    # Given two dead letters for one key, one of which is still invalid at the first redrive
    deployment = Deployment(buckets=1)
    add_dead_letter(deployment, (7, None))
    add_dead_letter(deployment, (7, None))
    held = deployment.dead_letters.held
    for number, one in enumerate(held):
        set_value(deployment, one, None if number != first else number)

    redrive_after_a_minute(deployment)
    if deployment.dead_letters.held:
        set_value(deployment, deployment.dead_letters.held[0], 1 - first)
    redrive_after_a_minute(deployment)

    assert deployment.log()[7][-1] == 1
    assert deployment.dead_letters.bodies == []


def set_value(deployment: Deployment, held, value: int | None) -> None:
    document = json.loads(held.message.body)
    message = replace(decode(json.dumps(document["message"])), rows=packed(deployment.stored((7, value))))
    held.message = replace(held.message, body=json.dumps(document | {"message": json.loads(encode(message))}))


def test_a_duplicate_of_a_dead_letter_is_appended_once():
    deployment = Deployment(buckets=1)
    add_dead_letter(deployment, (7, None))
    make_valid(deployment)
    (held,) = deployment.dead_letters.held
    deployment.dead_letters.held.append(replace(held, id="copy"))

    done = redrive_after_a_minute(deployment)

    assert sorted(verdicts(done)) == [Verdict.APPENDED, Verdict.SUPERSEDED]
    assert deployment.log() == {7: [99]}


def test_a_row_that_is_still_invalid_goes_back_to_the_queue():
    deployment = Deployment(buckets=1)
    add_dead_letter(deployment, (7, None))

    (done,) = redrive_after_a_minute(deployment)

    assert done.verdict is Verdict.LEFT
    assert "is null" in done.reason
    assert "is null" in done.quarantine_reason
    assert len(deployment.dead_letters.receive()) == 1


def test_a_dead_letter_waits_until_the_other_rows_of_its_message_are_applied():
    # Given a container that crashed after it sent the invalid row to the dead-letter queue
    deployment = Deployment(buckets=1)
    write(deployment, 1, 0)
    deployment.put((7, None), (8, 1), like=7)
    applied = deployment.apply(deployment.queue.receive(), seconds=30)
    assert applied.entries
    deployment.records.swap(  # as if the entry had never been committed
        head_key(TABLE, deployment.region(7).id), expect={"next_position": 3}, change={"source": "{}"}
    )
    make_valid(deployment)

    (done,) = redrive_after_a_minute(deployment)

    assert done.verdict is Verdict.LEFT
    assert "not applied yet" in done.reason


def test_an_unreadable_message_stays_in_the_dead_letter_queue():
    deployment = Deployment(buckets=1)
    deployment.put_text("what is this", like=7)
    deployment.deliver()

    (done,) = redrive_after_a_minute(deployment)

    assert done.verdict is Verdict.LEFT
    assert done.reason == "its position in the log is unknown. Write its rows again, or delete it"
    assert "can't be read" in done.quarantine_reason
    (body,) = deployment.dead_letters.bodies
    assert done.id == json.loads(body)["id"]


def test_a_dead_letter_that_the_queue_itself_moved_stays_and_has_no_reason():
    deployment = Deployment(buckets=1)
    add_dead_letter(deployment, (7, None))
    (held,) = deployment.dead_letters.held
    held.message = replace(held.message, body="what is this")

    (done,) = redrive_after_a_minute(deployment)

    assert (done.verdict, done.quarantine_reason) == (Verdict.LEFT, "")
    assert done.reason.startswith("the dead letter can't be read")
    assert done.id


def test_dead_letters_of_a_sealed_region_stay():
    deployment = Deployment(buckets=1)
    write(deployment, 1, 0)
    deployment.send([(7, 1)], sequence=1)
    seal(deployment.region(7))
    deployment.deliver()

    for dry in (True, False):
        (done,) = redrive_after_a_minute(deployment, dry=dry)
        assert (done.verdict, "sealed" in done.reason) == (Verdict.LEFT, True)


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize("newer", ["", "old", "new"])
def test_rows_of_a_region_before_a_reshard_go_to_the_new_region_of_their_key(newer, dry):
    deployment = Deployment(buckets=1)
    add_dead_letter(deployment, (7, None), (8, None))
    region = deployment.region(7)
    make_valid(deployment)
    if newer == "old":
        write(deployment, 7, 5)
    deployment.reshard(3)
    deployment.resharded()
    if newer == "new":
        write(deployment, 7, 5)

    (done,) = redrive_after_a_minute(deployment, dry=dry)

    assert (done.verdict, done.region, done.rows) == (Verdict.APPENDED, region.id, 1 if newer else 2)
    if not dry:
        new = [one for one in deployment.list_regions() if one.number > 1]
        rows = [row for one in new for entry in deployment.entries(one) for row in entry]
        found = {key: [value for k, value in rows if k == key] for key in (7, 8)}
        assert found[8] == [99]
        assert found[7] == {"": [99], "old": [], "new": [5]}[newer]


def test_a_dead_letter_stays_if_the_log_behind_it_was_collected():
    deployment = Deployment(buckets=1)
    add_dead_letter(deployment, (7, None))
    write(deployment, 1, 0)
    make_valid(deployment)
    region = deployment.region(7)
    deployment.records.swap(head_key(TABLE, region.id), expect={"first_position": 1}, change={"first_position": 2})

    (done,) = redrive_after_a_minute(deployment)

    assert done.verdict is Verdict.LEFT
    assert "collected" in done.reason


def test_a_dead_letter_stays_if_the_sum_of_the_log_does_not_balance():
    # Given a log in which another entry replaced the one with the newer row
    deployment = Deployment(buckets=1)
    add_dead_letter(deployment, (7, None))
    write(deployment, 7, 2)
    write(deployment, 1, 0)
    make_valid(deployment)
    region = deployment.region(7).id
    other = deployment.store.get(wal_entry(region, Position(2)))
    newer = deployment.store.get(wal_entry(region, Position(1)))
    deployment.store.replace(wal_entry(region, Position(1)), other.body, expect=newer.etag)

    (done,) = redrive_after_a_minute(deployment)

    assert done.verdict is Verdict.LEFT
    assert "add up" in done.reason


def test_unprocessed_dead_letters_go_back_to_the_queue_when_a_redrive_ends_early():
    deployment = Deployment(buckets=1)
    add_dead_letter(deployment, (7, None))
    add_dead_letter(deployment, (8, None))
    deployment.clock.sleep(61)
    walk = redrive(deployment.dead_letters, openers=openers(deployment), dry=False)
    next(walk)

    walk.close()

    assert len(deployment.dead_letters.receive()) == 2


def test_an_appended_dead_letter_is_reported_even_if_its_deletion_fails(monkeypatch: pytest.MonkeyPatch):
    deployment = Deployment(buckets=1)
    add_dead_letter(deployment, (7, None))
    make_valid(deployment)
    deployment.clock.sleep(61)

    def fail(_: str) -> None:
        raise Unavailable("the queue gave no answer")

    monkeypatch.setattr(deployment.dead_letters, "delete", fail)
    walk = redrive(deployment.dead_letters, openers=openers(deployment), dry=False)

    assert next(walk).verdict is Verdict.APPENDED
    with pytest.raises(Unavailable):
        next(walk)


def test_a_redrive_receives_no_more_dead_letters_at_once_than_it_can_process_in_time():
    deployment = Deployment(buckets=1)
    for key in range(12):
        add_dead_letter(deployment, (key, None))
    deployment.clock.sleep(61)

    walk = redrive(deployment.dead_letters, openers=openers(deployment), dry=True)
    next(walk)

    assert sum(held.receives for held in deployment.dead_letters.held) == 10
    assert len(list(walk)) == 11


def test_a_dead_letter_that_is_received_again_is_reported_once():
    # Given more dead letters than the redrive can process before the first ones become visible again
    deployment = Deployment(buckets=1)
    for key in range(12):
        add_dead_letter(deployment, (key, None))
    deployment.clock.sleep(61)
    slow = openers(deployment)

    def table(uri: str) -> TableHandle:
        deployment.clock.sleep(20)
        return slow.table(uri)

    done = list(redrive(deployment.dead_letters, openers=Openers(table=table, inbox=slow.inbox), dry=True))

    assert len({one.id for one in done}) == len(done) == 12
    assert len(deployment.dead_letters.receive()) == 10


def test_an_error_of_the_store_leaves_the_dead_letter():
    deployment = Deployment(buckets=1)
    add_dead_letter(deployment, (7, None))
    make_valid(deployment)

    def table(uri: str) -> TableHandle:
        raise LsmError("not today")

    deployment.clock.sleep(61)
    (done,) = redrive(deployment.dead_letters, openers=Openers(table=table, inbox=openers(deployment).inbox), dry=False)

    assert (done.verdict, done.reason) == (Verdict.LEFT, "not today")
