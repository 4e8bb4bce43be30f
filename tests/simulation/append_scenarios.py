"""Scenarios of an append that meets a collection, a foreign or damaged entry, or a store that refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lancelsm.common.layout import Position, wal_entry
from lancelsm.errors import Ambiguous, Contended, Corrupt, Invalid
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.region.producers import IDLE_SECONDS, MOST
from lancelsm.wal.append import append_after
from lancelsm.wal.claim import claim
from lancelsm.wal.entry import Draft, decode
from lancelsm.wal.slot import Appended
from tests.simulation.environment import OWNER, RIVAL, Environment, collect, raised, row
from tests.simulation.faults import Call, Fault, FaultPlan, late
from tests.simulation.situations import orphan


def stalled_writer() -> None:
    """A writer stalls while its position is collected. Its append must not be acknowledged.

    See slatedb 352 and 1622, Lance 6699: a collection makes the position free again.
    """
    for overtake in (collect, lambda environment, region: (claim(region, owner=RIVAL), collect(environment, region))):
        environment = Environment()
        held = environment.write(environment.region("stalled"), 1).head
        environment.write(environment.region("sibling"), 2)
        overtake(environment, environment.region("other"))
        assert environment.store.get(wal_entry(environment.id, held.next_position)) is None

        error = raised(
            lambda environment=environment, held=held: environment.write(environment.region("stalled"), 3, held=held)
        )

        assert isinstance(error, Ambiguous)
        assert "collected below" in str(error)
        environment.audit()


def refilled_slot() -> None:
    """A late put refills a collected slot between two reads of it.

    The object is ours and the head is past it, but the committed entry was another one.
    """
    environment = Environment()
    first = []

    def decide(call: Call) -> Fault | None:
        if call.method == "create":
            first.append(call.index)
            return late(1_000_000) if len(first) == 1 else None
        reads = (
            [c for c in environment.plan.calls if c.index > first[0] and c.method in ("get", "read")] if first else []
        )
        if len(reads) == 1 and call is reads[0]:
            environment.write(environment.region("sibling", faulty=False), 2)
        if len(reads) == 4 and call is reads[3]:
            collect(environment, environment.region("collector", faulty=False))
            environment.plan.land()
        return None

    error = raised(lambda: environment.write(region_with_plan(environment, decide), 1))

    assert isinstance(error, Ambiguous)
    environment.audit()


def foreign_or_damaged_entry() -> None:
    """An entry of the same epoch has no nonce, as those of Lance's own writer, or a wrong sum. It is left alone."""
    for spoil in (without_nonce, lambda body, _: damaged(body)):
        environment = Environment()
        head = environment.write(environment.region("writer"), 1).head
        body = orphan(environment, 2, position=head.next_position, epoch=head.epoch)
        key = wal_entry(environment.id, head.next_position)
        environment.store.remove(key)
        spoiled = spoil(bytes(body), head.next_position)
        environment.store.create(key, spoiled)

        with pytest.raises(Corrupt, match=r"not an entry that this release writes.*lancelsm region claim") as error:
            environment.write(environment.region("next"), 3)

        assert error.value.where["position"] == head.next_position
        assert environment.store.get(key).body == spoiled
        assert environment.region("reader").head().next_position == head.next_position


def without_nonce(body: bytes, position: Position) -> bytes:
    """Return a sound entry without a nonce."""
    renamed = body.replace(b"lancelsm.nonce", b"lancelsm.n0nce")
    old, new = (decode(one, position=position, key="").summary.entry_setsum.hex().encode() for one in (body, renamed))
    return renamed.replace(old, new)


def batches_out_of_order() -> None:
    """Batches of a queue are committed out of order. The applied sequence stays the highest one."""
    environment = Environment()
    region = environment.region("writer")
    for number in (100, 9):
        environment.write(region, number)
    assert environment.audit().applied("q") == 100


def more_producers_than_a_head_remembers() -> None:
    """More producers append than a head remembers. One is forgotten only when none of its appends is repeated."""
    environment = Environment()
    region, clock = environment.region("writer"), environment.schedule.clock

    def deliver(name: str, sequence: int) -> bool:
        """Return whether the entry was appended. It was if the head did not have it yet."""

        def next_draft(head: Head) -> Draft | None:
            sequences = {name: str(sequence)}
            return None if head.applied(name) >= sequence else replace(row(1), applied_sequences=sequences, at=at)

        at = clock.now()
        return isinstance(append_after(region, next_draft, owner=OWNER), Appended)

    environment.writers[1] = OWNER
    names = [f"producer {number}" for number in range(MOST)]
    for number, name in enumerate(names):
        assert deliver(name, 1000 - number)
        clock.sleep(3600)
    for sleeps in (0, IDLE_SECONDS - 2 * 86_400):
        clock.sleep(sleeps)
        with pytest.raises(Contended, match=r"can't remember 'late'.*lancelsm region forget --region .* -- memory://t"):
            deliver("late", 1)
        assert not deliver(names[0], 1000)  # nothing was forgotten
    clock.sleep(3 * 86_400)
    assert deliver(names[1], 2000)
    assert deliver("late", 1)
    assert [deliver(name, 1) for name in (*names[1:], "late")] == [False] * MOST


def refusal_after_an_unanswered_put() -> None:
    """A put has no answer, then the store refuses all puts. The first one may still land."""
    environment = Environment()

    class Revoked:
        def __init__(self, inner):
            self.inner, self.puts = inner, 0

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def create(self, key, body):
            self.puts += 1
            if self.puts > 1:
                raise Invalid("the credentials were revoked")
            return self.inner.create(key, body)

    region = region_with_plan(environment, lambda call: late(1_000_000) if call.method == "create" else None)
    revoked = replace(region.context, objects=Revoked(region.context.objects))

    assert isinstance(raised(lambda: environment.write(replace(region, context=revoked), 1)), Ambiguous)
    environment.audit()


def region_with_plan(environment: Environment, decide: Callable[[Call], Fault | None]) -> Region:
    """Return the region for a writer, after setting a plan that decides with this function."""
    environment.plan = FaultPlan(decide, clock=environment.schedule.clock)
    return environment.region("writer")


def damaged(body: bytes) -> bytes:
    """Change one byte of the row with number 2."""
    at = body.rindex((2).to_bytes(8, "little"))
    return body[:at] + b"\x03" + body[at + 1 :]
