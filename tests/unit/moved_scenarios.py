"""Messages that wait on the queue for a region that a reshard seals."""

from __future__ import annotations

from lancelsm.common.layout import head_key
from lancelsm.errors import Contended
from lancelsm.stack.delivery.message import unpacked
from lancelsm.stack.delivery.newer_rows import LogIsCollected
from lancelsm.stack.delivery.quarantine import read_dead_letter
from tests.simulation.deployment import TABLE, Deployment


def moved(deployment: Deployment) -> dict[int, list[int | None]]:
    """Return the values of each key in its region under the newest region spec."""
    deployment.resharded()
    return {
        key: values
        for key in range(20)
        if any(one.values == deployment.values(key) and one.number > 1 for one in deployment.list_regions())
        and (values := [v for entry in deployment.entries(deployment.region(key)) for k, v in entry if k == key])
    }


def waiting_messages(container: str = "old") -> None:
    """Three messages wait, the first one is applied, when the table is resharded. They are delivered twice."""
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.send([(7, 2), (8, 2), (9, 2)], sequence=2)
    (last,) = deployment.send([(8, 3)], sequence=3)
    deployment.apply(deployment.queue.receive(1))
    region = deployment.region(7)
    deployment.reshard(3)
    tables = deployment.tables if container == "old" else deployment.container("new", faulty=False)

    for _ in range(2):  # also if they are delivered again
        deployment.clock.sleep(61)
        outcomes = deployment.apply(deployment.queue.receive(), tables=tables).outcomes
        assert [(one.rejection, one.retry) for one in outcomes] == [(None, None)] * 3

    assert moved(deployment) == {7: [2], 8: [2, 3], 9: [2]}
    assert deployment.region(8).head().applied(f"q@{region.id}") == int(last.sequence)
    assert deployment.dead_letters.bodies == []


def newer_row_in_a_new_region() -> None:
    """A message waits for a region that was never created. Its key gets a newer row in a new region."""
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1), (8, 1)], sequence=1)
    deployment.reshard(3)
    deployment.resharded()
    sent = deployment.send([(7, 5)], sequence=2)  # to the new region of the key
    newer = [one for one in deployment.queue.receive() if one.id in {part.id for part in sent}]
    deployment.apply(newer)
    deployment.clock.sleep(61)

    outcomes = deployment.deliver()

    assert {outcome.retry for outcome in outcomes} == {None}
    assert moved(deployment) == {7: [5], 8: [1]}


def messages_during_a_reshard() -> None:
    """Messages wait while the table is resharded."""
    deployment = Deployment(buckets=1)
    for number in (1, 2):
        deployment.send([(7, number)], sequence=number)
    deployment.apply(deployment.queue.receive(1))
    deployment.begin_reshard(3)
    deployment.clock.sleep(61)

    outcomes = deployment.deliver()

    assert [type(outcome.retry) for outcome in outcomes] == [Contended, Contended]
    assert deployment.dead_letters.bodies == []
    deployment.reshard(3)
    deployment.clock.sleep(61)
    deployment.deliver()
    assert moved(deployment) == {7: [2]}


def collected_log_of_a_new_region() -> None:
    """The log of a new region was collected, so that newer rows can't be ruled out."""
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1), (8, 1)], sequence=1)
    deployment.apply(deployment.queue.receive(1))
    deployment.send([(7, 2), (8, 2)], sequence=2)
    old = deployment.region(7)
    deployment.reshard(3)
    deployment.resharded()
    deployment.send([(7, 5)], sequence=3)
    deployment.apply([one for one in deployment.queue.receive() if old.id not in one.group])
    key = head_key(TABLE, deployment.region(7).id)
    deployment.records.swap(key, expect={"first_position": 1}, change={"first_position": 2})
    deployment.clock.sleep(61)

    outcomes = deployment.deliver()

    assert [type(outcome.rejection) for outcome in outcomes if outcome.rejection] == [LogIsCollected]
    (dead_letter,) = [read_dead_letter(body) for body in deployment.dead_letters.bodies]
    assert (dead_letter.message.region, dead_letter.position) == (old.id, 2)
    assert unpacked(dead_letter.message.rows).column("id").to_pylist() == [7]
    assert moved(deployment) == {7: [5], 8: [2]}


def collected_log_behind_a_moved_message() -> None:
    """A message is delivered again when its rows are in a new region whose log was collected since."""
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.reshard(2)
    deployment.apply(deployment.queue.receive(), tables=deployment.container("new", faulty=False))
    deployment.resharded()
    key = head_key(TABLE, deployment.region(7).id)
    deployment.records.swap(key, expect={"first_position": 1}, change={"first_position": 2})
    deployment.clock.sleep(61)

    (outcome,) = deployment.deliver()

    assert (outcome.rejection, outcome.retry) == (None, None)
    assert deployment.dead_letters.bodies == []


def region_that_was_never_created() -> None:
    """The first message of a region meets a reshard."""
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.begin_reshard(2)

    (waits,) = deployment.deliver()

    assert isinstance(waits.retry, Contended)
    deployment.reshard(2)
    deployment.clock.sleep(61)
    deployment.deliver()
    assert moved(deployment) == {7: [1]}


def sender_with_an_old_configuration() -> None:
    """A sender knows the old region spec when the table was resharded."""
    deployment = Deployment(buckets=1)
    deployment.send([(7, 1)], sequence=1)
    deployment.deliver()
    deployment.reshard(3)

    deployment.send([(7, 2)], sequence=2)

    (held,) = deployment.queue.receive()
    deployment.apply([held], tables=deployment.container("new", faulty=False))
    assert moved(deployment) == {7: [2]}
    assert deployment.region(7).head().applied("q") == held.sequence
