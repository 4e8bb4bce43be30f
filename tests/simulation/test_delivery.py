"""Producers, containers of one stack and a redriver, with lost replies, crashes and timeouts, as seeds decide."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from lancelsm.stack.delivery.apply import _RegionBatch
from lancelsm.stack.delivery.message import encode, packed, unpacked
from lancelsm.stack.delivery.newer_rows import NewerRows
from lancelsm.stack.delivery.quarantine import read_dead_letter
from lancelsm.stack.delivery.redrive import Openers, Verdict, redrive
from tests.simulation.actors import QUIET, ROUGH
from tests.simulation.deployment import Deployment
from tests.simulation.environment import PASSING
from tests.simulation.fault_rates import by_rate
from tests.simulation.faults import Crash, FaultPlan
from tests.simulation.schedule import Schedule

KEYS = range(4)


class Delivery:
    """One run. The rows of each key are numbered in the order in which they were sent; a quarter of them is bad."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(f"delivery {seed}")
        self.schedule = Schedule(seed)
        rates = self.dice.choice([QUIET, ROUGH, {fault: rate * 3 for fault, rate in ROUGH.items()}])
        self.deployment = Deployment(schedule=self.schedule, settings={"group_commit_bytes": "60"})
        self.deployment.queue.visibility = self.dice.choice([2.0, 20.0])
        self.faults = by_rate(random.Random(f"faults {seed}"), rates)
        self.sent: dict[int, list[int]] = {key: [] for key in KEYS}
        self.bad: dict[int, set[int]] = {key: set() for key in KEYS}

    def run(self) -> Delivery:
        self._produce(12)
        self.deployment.plan = FaultPlan(self.faults, clock=self.schedule.clock)
        actors: dict[str, Callable[[], object]] = {
            f"poller {number}": lambda number=number: self._poll(number, rounds=6) for number in range(3)
        }
        actors["producer"] = lambda: self._produce(6)
        if self.dice.random() < 0.5:
            actors["redriver"] = self._repair_and_redrive
        outcomes = self.schedule.run(actors)
        assert {name: one.error for name, one in outcomes.items() if one.error} == {}
        self.deployment.plan.land() if self.dice.random() < 0.7 else self.deployment.plan.forget()
        self.deployment.plan.stop()
        self._drain()
        self.schedule.clock.sleep(61)
        self.redrive("last redriver", faulty=False)
        return self

    def _produce(self, count: int) -> None:
        """Send messages of one or two rows as one producer, in order. The keys of a message belong to one region."""
        for _ in range(count):
            key = self.dice.choice(KEYS)
            others = [other for other in KEYS if other != key and self._region(other) == self._region(key)]
            keys = [key, *self.dice.sample(others, min(len(others), self.dice.randrange(2)))]
            numbers = {one: len(self.sent[one]) + 1 for one in keys}
            for one, number in numbers.items():
                self.sent[one].append(number)
                if self.dice.random() < 0.25:
                    self.bad[one].add(number)
            rows = [(one, None if number in self.bad[one] else number) for one, number in numbers.items()]
            self.deployment.put(*rows, like=key, producer=json.dumps(numbers))
            self.schedule.switch()

    def _region(self, key: int) -> object:
        return self.deployment.values(key)

    def _poll(self, number: int, *, rounds: int) -> None:
        """Poll as one slot of the event source. A crash of its container starts another one."""
        for life in range(rounds):
            tables = self.deployment.container(f"container {number}.{life}")
            with contextlib.suppress(*PASSING, Crash):
                for _ in range(3):
                    batch = self.deployment.queue.receive(self.dice.randrange(1, 6))
                    applied = self.deployment.apply(batch, tables=tables, seconds=self.dice.choice([3.0, 10.0]))
                    self.schedule.switch()
                    self.deployment.finish(batch, applied)
                    self.schedule.clock.sleep(self.dice.random() * 3)

    def _drain(self) -> None:
        for _ in range(200):
            if not self.deployment.queue.held:
                return
            self.deployment.deliver(self.dice.randrange(1, 6))
            self.schedule.clock.sleep(61)
        raise AssertionError(f"remaining messages: {[held.id for held in self.deployment.queue.held]}")

    def _repair_and_redrive(self) -> None:
        with contextlib.suppress(*PASSING, Crash):
            for _ in range(4):
                self.redrive("redriver", faulty=True)
                self.schedule.clock.sleep(4)

    def redrive(self, process: str, *, faulty: bool) -> list[Verdict]:
        """Redrive all dead letters, with the values that their rows should have."""
        deployment = self.deployment
        for held in deployment.dead_letters.held:
            held.message = replace(held.message, body=self._repaired(held.message.body))
        tables = deployment.container(process, faulty=faulty)
        openers = Openers(table=tables.open, inbox=lambda _: deployment.beside)
        return [done.verdict for done in redrive(deployment.dead_letters, openers=openers, dry=False)]

    def _repaired(self, body: str) -> str:
        """Put the number of a bad row in its place. The name of the producer carries the numbers."""
        dead_letter = read_dead_letter(body)
        numbers = json.loads(dead_letter.message.producer)
        keys = unpacked(dead_letter.message.rows or b"").column("id").to_pylist()
        repaired_rows = [(key, numbers[str(key)]) for key in keys]
        message = replace(dead_letter.message, rows=packed(self.deployment.stored(*repaired_rows)))
        return json.dumps(json.loads(body) | {"message": json.loads(encode(message))})

    def audit(self) -> None:
        """The log has each valid row of a key once, in ascending order, and ends with the last row that was sent."""
        log = self.deployment.log()
        assert self.deployment.dead_letters.held == []
        for key in KEYS:
            values = [value for value in log.get(key, []) if value is not None]
            assert values == sorted(set(values)), f"key {key}: {values}"
            lacking = set(self.sent[key]) - self.bad[key] - set(values)
            assert not lacking, f"key {key} lacks {lacking}: {values}"
            assert values[-1:] == self.sent[key][-1:], f"key {key} ends with {values[-1:]}, not {self.sent[key][-1:]}"


def _run(seed: int) -> Delivery:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            delivery = Delivery(seed).run()
            delivery.audit()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        return delivery


@pytest.mark.one_case
@pytest.mark.parametrize("block", range(3))
def test_no_row_is_lost_or_duplicated_or_replaced_by_an_older_one(block):
    for seed in range(block * 10, block * 10 + 10):
        _run(seed)


@pytest.mark.long
@pytest.mark.parametrize("block", range(3, 63))
def test_no_row_is_lost_or_duplicated_or_replaced_by_an_older_one_in_many_more_seeds(block):
    for seed in range(block * 10, block * 10 + 10):
        _run(seed)


@pytest.mark.parametrize(
    ("of", "guard", "broken"),
    [
        (_RegionBatch, "_is_applied", lambda *_: False),
        (NewerRows, "_newer_keys", lambda newer, entry: newer._keys.slice(0, 0)),
    ],
    ids=["applied messages are dropped", "newer rows win"],
)
def test_the_seeds_find_a_broken_promise_without_the_guard(monkeypatch, of, guard, broken):
    monkeypatch.setattr(of, guard, broken)

    def fails(seed: int) -> bool:
        try:
            _run(seed)
        except AssertionError:
            return True
        return False

    assert any(fails(seed) for seed in range(20))
