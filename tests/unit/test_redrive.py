"""Redrive: what was set aside comes back where nothing newer is, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lancelsm.common.layout import Position, head_key, wal_entry
from lancelsm.errors import LsmError, Unavailable
from lancelsm.objects import ObjectStore
from lancelsm.record.normalize import upserts
from lancelsm.region.handle import TableHandle
from lancelsm.routing.route import route
from lancelsm.stack.delivery.message import decode, encode, packed, unpacked
from lancelsm.stack.delivery.redrive import Places, Redriven, Verdict, redrive
from lancelsm.wal.claim import seal
from lancelsm.wal.region_writer import RegionWriters
from tests.simulation.deployment import TABLE, URI, Deployment


def places(deployment: Deployment) -> Places:
    def table(uri: str) -> TableHandle:
        return deployment.container("redriver", faulty=False).open(uri)

    def inbox(_: str) -> ObjectStore:
        return deployment.beside

    return Places(table=table, inbox=inbox)


def redriven(deployment: Deployment, *, dry: bool = False) -> list[Redriven]:
    deployment.clock.sleep(61)
    return list(redrive(deployment.dead_letters, places=places(deployment), dry=dry))


def verdicts(done: list[Redriven]) -> list[Verdict]:
    return [one.verdict for one in done]


def set_aside(deployment: Deployment, *rows: tuple[int, int | None], good: tuple[int, int] | None = None) -> None:
    """Letters with these rows, as of a time when they did not fit: a value was null, say."""
    deployment.put(*(rows + ((good,) if good else ())), like=rows[0][0], sequence=len(deployment.queue.calls))
    deployment.deliver()


def mended(deployment: Deployment) -> None:
    """Make all letters fit: the rows that they hold get the value 99."""
    for held in deployment.dead_letters.held:
        document = json.loads(held.message.body)
        message = document["message"]
        raised = decode(json.dumps(message))
        keys = unpacked(raised.rows).column("id").to_pylist()
        document["message"] = json.loads(
            encode(replace(raised, rows=packed(deployment.stored(*((k, 99) for k in keys)))))
        )
        held.message = replace(held.message, body=json.dumps(document))


def write(deployment: Deployment, key: int, value: int) -> None:
    """A row past the queue."""
    target = deployment.handle.target()
    rows = upserts([{"id": key, "v": value}], schema=target.schema)
    RegionWriters(target, owner=target.owner).append_all(route(rows, target.regions))


def test_a_row_that_fits_now_is_appended_and_its_letter_deleted():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    set_aside(deployment, (7, None))
    mended(deployment)

    done = redriven(deployment)

    assert verdicts(done) == [Verdict.APPENDED]
    assert (done[0].table, done[0].rows) == (URI, 1)
    assert deployment.log() == {7: [1, 99]}
    assert deployment.dead_letters.bodies == []


def test_a_dry_run_changes_nothing_and_says_the_same():
    deployment = Deployment(buckets=1)
    set_aside(deployment, (7, None), good=(8, 1))
    mended(deployment)

    dry = redriven(deployment, dry=True)

    assert deployment.log() == {8: [1]}
    assert len(deployment.dead_letters.bodies) == 1
    assert dry == list(redrive(deployment.dead_letters, places=places(deployment), dry=False))
    assert deployment.log() == {8: [1], 7: [99]}


def test_an_old_row_never_beats_a_newer_one():
    deployment = Deployment(buckets=1)
    set_aside(deployment, (7, None))
    deployment.send([(7, 2)], sequence=2)
    deployment.deliver()
    mended(deployment)

    done = redriven(deployment)

    assert verdicts(done) == [Verdict.SUPERSEDED]
    assert deployment.log() == {7: [2]}
    assert deployment.dead_letters.bodies == []


def test_a_newer_delete_supersedes_too():
    deployment = Deployment(buckets=1)
    set_aside(deployment, (7, None))
    deployment.send_rows(deployment.dead(7), sequence=2)
    deployment.deliver()
    mended(deployment)

    assert verdicts(redriven(deployment)) == [Verdict.SUPERSEDED]
    assert deployment.log() == {7: [None]}


def test_of_several_rows_those_without_a_newer_one_are_appended():
    deployment = Deployment(buckets=1)
    set_aside(deployment, (7, None), (8, None))
    write(deployment, 7, 2)
    mended(deployment)

    (done,) = redriven(deployment)

    assert (done.verdict, done.rows) == (Verdict.APPENDED, 1)
    assert "other keys" in done.reason
    assert deployment.log() == {7: [2], 8: [99]}


def test_a_newer_row_that_comes_between_the_look_and_the_append_wins():
    # Given a redriver that has looked, and a writer who is faster
    deployment = Deployment(buckets=1)
    write(deployment, 1, 0)
    set_aside(deployment, (7, None))
    mended(deployment)
    region = deployment.region(7).id
    beaten = False

    class Overtaken:
        """The store of the redriver: its first entry finds another's in its place."""

        def __init__(self, inner: ObjectStore) -> None:
            self.inner = inner

        def __getattr__(self, name: str):
            return getattr(self.inner, name)

        def create(self, key: str, body: bytes):
            nonlocal beaten
            if not beaten and key.startswith(f"_mem_wal/{region}/wal/"):
                beaten = True
                write(deployment, 7, 2)
            return self.inner.create(key, body)

    def table(uri: str) -> TableHandle:
        handle = deployment.container("redriver", faulty=False).open(uri)
        return replace(handle, context=replace(handle.context, objects=Overtaken(handle.context.objects)))

    deployment.clock.sleep(61)
    done = list(redrive(deployment.dead_letters, places=Places(table=table, inbox=places(deployment).inbox), dry=False))

    assert beaten
    assert verdicts(done) == [Verdict.SUPERSEDED]
    assert deployment.log() == {1: [0], 7: [2]}


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_letters_of_one_key_the_newer_row_wins_whichever_is_driven_back_first(first):
    # Given two rows of one key that were set aside, one of which still does not fit at the first redrive
    deployment = Deployment(buckets=1)
    set_aside(deployment, (7, None))
    set_aside(deployment, (7, None))
    held = deployment.dead_letters.held
    for number, one in enumerate(held):
        _value(deployment, one, None if number != first else number)

    redriven(deployment)
    if deployment.dead_letters.held:
        _value(deployment, deployment.dead_letters.held[0], 1 - first)
    redriven(deployment)

    assert deployment.log()[7][-1] == 1
    assert deployment.dead_letters.bodies == []


def _value(deployment: Deployment, held, value: int | None) -> None:
    document = json.loads(held.message.body)
    raised = replace(decode(json.dumps(document["message"])), rows=packed(deployment.stored((7, value))))
    held.message = replace(held.message, body=json.dumps(document | {"message": json.loads(encode(raised))}))


def test_a_letter_twice_is_appended_once():
    deployment = Deployment(buckets=1)
    set_aside(deployment, (7, None))
    mended(deployment)
    (held,) = deployment.dead_letters.held
    deployment.dead_letters.held.append(replace(held, id="copy"))

    done = redriven(deployment)

    assert sorted(verdicts(done)) == [Verdict.APPENDED, Verdict.SUPERSEDED]
    assert deployment.log() == {7: [99]}


def test_a_row_that_still_does_not_fit_stays_and_is_back_on_the_queue():
    deployment = Deployment(buckets=1)
    set_aside(deployment, (7, None))

    (done,) = redriven(deployment)

    assert done.verdict is Verdict.LEFT
    assert "is null" in done.reason
    assert "is null" in done.set_aside
    assert len(deployment.dead_letters.receive()) == 1


def test_a_letter_waits_while_other_rows_of_its_message_are_still_to_be_applied():
    # Given a container that died after it set the bad row aside
    deployment = Deployment(buckets=1)
    write(deployment, 1, 0)
    deployment.put((7, None), (8, 1), like=7)
    applied = deployment.apply(deployment.queue.receive(), seconds=30)
    assert applied.entries
    deployment.records.swap(  # as if the entry had not come to be
        head_key(TABLE, deployment.region(7).id), expect={"next_position": 3}, change={"source": "{}"}
    )
    mended(deployment)

    (done,) = redriven(deployment)

    assert done.verdict is Verdict.LEFT
    assert "still to be applied" in done.reason


def test_a_message_that_could_not_be_read_stays():
    deployment = Deployment(buckets=1)
    deployment.put_text("what is this", like=7)
    deployment.deliver()

    (done,) = redriven(deployment)

    assert done.verdict is Verdict.LEFT
    assert done.reason == "it is not known where in the log it belongs. Write its rows again, or drop it"
    assert "can't be read" in done.set_aside
    (body,) = deployment.dead_letters.bodies
    assert done.id == json.loads(body)["id"]


def test_a_letter_that_the_queue_itself_put_there_stays_and_does_not_say_why():
    deployment = Deployment(buckets=1)
    set_aside(deployment, (7, None))
    (held,) = deployment.dead_letters.held
    held.message = replace(held.message, body="what is this")

    (done,) = redriven(deployment)

    assert (done.verdict, done.set_aside) == (Verdict.LEFT, "")
    assert done.reason.startswith("the letter can't be read")
    assert done.id


def test_a_sealed_region_s_letters_stay():
    deployment = Deployment(buckets=1)
    write(deployment, 1, 0)
    deployment.send([(7, 1)], sequence=1)
    seal(deployment.region(7))
    deployment.deliver()

    for dry in (True, False):
        (done,) = redriven(deployment, dry=dry)
        assert (done.verdict, "sealed" in done.reason) == (Verdict.LEFT, True)


def test_letters_for_a_region_of_an_earlier_division_stay_and_name_it():
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    write(deployment, 1, 0)
    region = deployment.region(1)
    deployment.divide_anew()
    deployment.deliver(tables=deployment.container("new", faulty=False))

    (done,) = redriven(deployment)

    assert (done.verdict, done.region) == (Verdict.LEFT, region.id)
    assert "no such region any more" in done.reason


def test_what_is_newer_can_t_be_told_once_the_log_is_collected():
    deployment = Deployment(buckets=1)
    set_aside(deployment, (7, None))
    write(deployment, 1, 0)
    mended(deployment)
    region = deployment.region(7)
    deployment.records.swap(head_key(TABLE, region.id), expect={"first_position": 1}, change={"first_position": 2})

    (done,) = redriven(deployment)

    assert done.verdict is Verdict.LEFT
    assert "collected" in done.reason


def test_a_log_that_does_not_add_up_is_not_believed():
    # Given an entry with a newer row that was replaced by another
    deployment = Deployment(buckets=1)
    set_aside(deployment, (7, None))
    write(deployment, 7, 2)
    write(deployment, 1, 0)
    mended(deployment)
    region = deployment.region(7).id
    other = deployment.store.get(wal_entry(region, Position(2)))
    newer = deployment.store.get(wal_entry(region, Position(1)))
    deployment.store.replace(wal_entry(region, Position(1)), other.body, expect=newer.etag)

    (done,) = redriven(deployment)

    assert done.verdict is Verdict.LEFT
    assert "add up" in done.reason


def test_letters_that_were_not_looked_at_are_back_on_the_queue_when_the_redriver_fails():
    deployment = Deployment(buckets=1)
    set_aside(deployment, (7, None))
    set_aside(deployment, (8, None))
    deployment.clock.sleep(61)
    walk = redrive(deployment.dead_letters, places=places(deployment), dry=False)
    next(walk)

    walk.close()

    assert len(deployment.dead_letters.receive()) == 2


def test_a_letter_that_was_appended_is_told_even_if_its_deletion_fails(monkeypatch: pytest.MonkeyPatch):
    deployment = Deployment(buckets=1)
    set_aside(deployment, (7, None))
    mended(deployment)
    deployment.clock.sleep(61)

    def fail(_: str) -> None:
        raise Unavailable("the queue gave no answer")

    monkeypatch.setattr(deployment.dead_letters, "delete", fail)
    walk = redrive(deployment.dead_letters, places=places(deployment), dry=False)

    assert next(walk).verdict is Verdict.APPENDED
    with pytest.raises(Unavailable):
        next(walk)


def test_letters_are_taken_as_many_at_a_time_as_can_be_judged_before_their_time_is_over():
    deployment = Deployment(buckets=1)
    for key in range(12):
        set_aside(deployment, (key, None))
    deployment.clock.sleep(61)

    walk = redrive(deployment.dead_letters, places=places(deployment), dry=True)
    next(walk)

    assert sum(held.receives for held in deployment.dead_letters.held) == 10
    assert len(list(walk)) == 11


def test_letters_that_are_left_and_come_again_are_told_once():
    # Given more letters than can be judged in the time that the queue gives for the first
    deployment = Deployment(buckets=1)
    for key in range(12):
        set_aside(deployment, (key, None))
    deployment.clock.sleep(61)
    slow = places(deployment)

    def table(uri: str) -> TableHandle:
        deployment.clock.sleep(20)
        return slow.table(uri)

    done = list(redrive(deployment.dead_letters, places=Places(table=table, inbox=slow.inbox), dry=True))

    assert len({one.id for one in done}) == len(done) == 12
    assert len(deployment.dead_letters.receive()) == 10


def test_an_error_of_a_store_leaves_the_letter():
    deployment = Deployment(buckets=1)
    set_aside(deployment, (7, None))
    mended(deployment)

    def table(uri: str) -> TableHandle:
        raise LsmError("not today")

    deployment.clock.sleep(61)
    (done,) = redrive(deployment.dead_letters, places=Places(table=table, inbox=places(deployment).inbox), dry=False)

    assert (done.verdict, done.reason) == (Verdict.LEFT, "not today")
