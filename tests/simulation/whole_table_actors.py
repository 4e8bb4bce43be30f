"""Run actors of every role on one region with its base, as a seed decides.

The roles write, flush, merge, read, hold snapshots, follow the change stream, deliver messages, claim and collect.
There are faults of storage (crashes, lost replies, late writes, stalls longer than a collection and a time to live,
listings that end early or fail), of delivery (repeated, in other batches), of clocks (an hour off) and of caches (an
old head). At the end healthy processes finish, and all results are checked for linearizability.

    replay: .venv/bin/python -m tests.simulation.whole_table_actors SEED
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from lancelsm.common.layout import generation_number, wal_entry
from lancelsm.common.settings import Settings
from lancelsm.errors import Ambiguous, Contended, Fenced, Invalid, LsmError, Unavailable
from lancelsm.history.snapshot import drop_snapshot
from lancelsm.objects import Listed
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.head import Head
from lancelsm.wal.claim import claim
from tests.simulation.actors import RIVAL
from tests.simulation.collecting import FILES
from tests.simulation.consumers import Act, Consumers
from tests.simulation.environment import OWNER, Environment
from tests.simulation.fault_rates import by_rate
from tests.simulation.faults import (
    CRASH_AFTER,
    CRASH_BEFORE,
    DENY,
    FAIL_AFTER,
    FAIL_BEFORE,
    WRITES,
    Crash,
    Fault,
    FaultPlan,
    late,
    stall,
)
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.schedule import Schedule
from tests.simulation.whole_table_env import WholeTableEnv

KEYS = range(6)
HOUR = 3600.0
TTL = 600.0
LONG = 2 * 24 * HOUR  # longer than any interval, lease and time to live
PASSING = (Contended, Fenced, Ambiguous, Unavailable)  # errors that any operation may raise; not `Corrupt`
FAULTS: dict[Fault, float] = {
    FAIL_AFTER: 0.04,
    FAIL_BEFORE: 0.02,
    late(2): 0.02,
    late(30): 0.02,
    late(400): 0.01,
    DENY: 0.01,
    CRASH_BEFORE: 0.004,
    CRASH_AFTER: 0.004,
    stall(5.0): 0.02,
    stall(LONG): 0.01,
}
WRITING = WRITES | {"commit", "clean_versions", "tag_version", "remove_tag"}


class InLongTurns(Schedule):
    """An actor mostly keeps its turn, so whole operations of one come between two calls of another one."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._dice = random.Random(f"long turns {seed}")

    def _next(self, names: list[str]) -> str:
        last = self.choices[-1] if self.choices else ""
        mine = last in names and last not in self._wakes and self._dice.random() < 0.97
        return super()._next([last] if mine else names)


class WholeTableActors:
    """One run. With `long_turns`, whole operations of one actor come between two calls of another one."""

    def __init__(self, seed: int, *, long_turns: bool = False) -> None:
        self.seed = seed
        self.dice = random.Random(f"whole crowd {seed}")
        self.schedule = InLongTurns(seed) if long_turns else Schedule(seed)
        environment = Environment(schedule=self.schedule, budget_seconds=self.dice.choice([0.5, 5.0]))
        self.table_env = WholeTableEnv(
            environment=environment,
            settings=Settings(
                snapshot_ttl_seconds=TTL,
                keep_versions_seconds=self.dice.choice([0.001, HOUR]),
                collect_floor_bytes=self.dice.choice([1_500, 1 << 20]),
            ),
            skews=self._skews(),
            wrap=self._with_broken_listings if self.dice.random() < 0.3 else lambda process, store: store,
        )
        self.messages = [(sequence, self.dice.choice(KEYS)) for sequence in range(1, 9)]
        self.expired = 0
        self.batches: set[tuple[int, ...]] = set()  # of messages, as they were delivered
        self.met: Counter[str] = Counter()  # circumstances other than faults of the plan
        self.consumers = Consumers(self.table_env, self.met)

    def run(self) -> WholeTableActors:
        with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(self.table_env.base):
            rate = self.dice.choice([0.0, 0.5, 1.0, 1.0, 2.0])
            faults = {fault: each * rate for fault, each in FAULTS.items()}
            environment = self.table_env.environment
            actors = self._actors()
            decide = by_rate(random.Random(f"whole faults {self.seed}"), faults, writing=WRITING, stalls_readers=True)
            environment.plan = FaultPlan(decide, clock=self.schedule.clock)
            self.schedule.run(actors)
            self.calls = len(environment.plan.calls)
            environment.plan.stop()
            environment.plan.forget() if self.dice.random() < 0.3 else environment.plan.land()
            self._finish()
        return self

    # Actors

    def _actors(self) -> dict[str, Callable[[], object]]:
        dice, actors = self.dice, dict[str, Callable[[], object]]()

        def add(name: str, act: Act, times: int) -> None:
            actors[name] = self._repeat(name, act, times, random.Random(dice.random()))

        for number in range(2):
            add(f"writer {number}", self._writer(), dice.choice([4, 8, 12]))
            add(f"collector {number}", self._collect, dice.choice([2, 4, 6]))
            add(f"merger {number}", self._merge, dice.choice([2, 4]))
            add(f"reader {number}", self._read, dice.choice([3, 6]))
        add("flusher", self._flush, dice.choice([4, 8]))
        for name, act, times, chance in (
            ("another flusher", self._flush, 4, 0.5),
            ("optimizer", self._optimize, 2, 0.3),
            ("compactor 0", self._compact, 10, 0.8),
            ("compactor 1", self._compact, 4, 0.3),
            ("holder 0", self._holder("s0"), 7, 0.8),
            ("holder 1", self._holder("s1"), 7, 0.5),
            ("consumer 0", self.consumers.consumer("c0"), 6, 0.8),
            ("consumer 1", self.consumers.consumer("c1"), 6, 0.3),
            ("sharer 0", self.consumers.share, 4, 0.4),
            ("sharer 1", self.consumers.share, 4, 0.4),
            ("tail", self.consumers.tail, 3, 0.4),
            ("container 0", self._deliver, 6, 0.5),
            ("container 1", self._deliver, 6, 0.5),
            ("claimer", lambda process, _: self.table_env.take_over(process, OWNER), 1, 0.3),
            ("rival", self._take_over, 1, 0.15),
        ):
            if dice.random() < chance:
                add(name, act, times)
        return actors

    def _repeat(self, name: str, act: Act, times: int, dice: random.Random) -> Callable[[], None]:
        """Return an actor that runs an operation several times. After a crash it continues as a new process."""

        def run() -> None:
            process = name
            for time in range(times):
                self.schedule.clock.sleep(dice.choice([0.0, 0.0, 0.1, 1.0]))
                with self.table_env.at(process):
                    self.table_env.operations += 1
                    try:
                        act(process, dice)
                    except Crash:
                        process = f"{name}, life {time + 2}"
                    except LsmError as error:
                        if not isinstance(error, PASSING):
                            raise AssertionError(f"{process} got {error!r}") from error

        return run

    # Operations

    def _writer(self) -> Act:
        held: list[Head] = []

        def write(process: str, dice: random.Random) -> None:
            keys = dice.sample(KEYS, dice.choice([1, 1, 1, 2]))
            if dice.random() < 0.1:
                self.schedule.clock.sleep(2 * HOUR)  # a held head is stale after this
            head = held[-1] if held and dice.random() < 0.5 else None
            self.met["a stale head"] += head is not None and head.next_position < 1 + max(
                self.table_env.environment.log
            )
            held[:] = [self.table_env.put(process, {key: dice.random() < 0.75 for key in keys}, held=head)]

        return write

    def _flush(self, process: str, dice: random.Random) -> None:
        self.table_env.flush(self.table_env.region(process, faulty=True), rows_max=dice.choice([1, 2, 4]))

    def _compact(self, process: str, dice: random.Random) -> None:
        self.met["a compaction"] += self.table_env.compact(self.table_env.region(process, faulty=True), dice)

    def _merge(self, process: str, dice: random.Random) -> None:
        self.table_env.merge(self.table_env.region(process, faulty=True))

    def _optimize(self, process: str, dice: random.Random) -> None:
        self.table_env.optimize(self.table_env.region(process, faulty=True))

    def _collect(self, process: str, dice: random.Random) -> None:
        self.table_env.collect(process, faulty=True, interval=dice.choice([0.0, 0.0, 0.5]))

    def _read(self, process: str, dice: random.Random) -> None:
        match dice.choice(["scan", "scan", "get", "head"]):
            case "scan":
                self.table_env.scan(process)
            case "get":
                self.table_env.scan(process, keys=dice.sample(KEYS, 2))
            case _:
                self.table_env.read_head(process)

    def _holder(self, name: str) -> Act:
        def act(process: str, dice: random.Random) -> None:
            if name not in self.table_env.held:
                with self._allowed(Invalid):  # there may be an unconfirmed one, or a drop without an answer was applied
                    drop_snapshot(self.table_env.handle(process), name)
                with self._allowed(Invalid):  # a late write may have taken the name
                    self.table_env.hold(process, name, ttl_seconds=TTL)
                return
            match dice.choice(["read", "read", "read", "renew", "wait", "drop"]):
                case "read":
                    with self._expirable(name):
                        self.table_env.read_held(process, name)
                case "renew":
                    with self._expirable(name):
                        self.table_env.renew(process, name, ttl_seconds=TTL)
                case "wait":
                    self.schedule.clock.sleep(dice.choice([TTL / 2, TTL + 301.0]))
                case _:
                    self.table_env.let_go(name)
                    with self._allowed(Invalid):  # it may have expired
                        drop_snapshot(self.table_env.handle(process), name)

        return act

    @contextlib.contextmanager
    def _expirable(self, name: str) -> Iterator[None]:
        """Accept `Invalid` for a snapshot that may have expired, and only for such a snapshot."""
        expires = self.table_env.held[name].pin.expires
        try:
            yield
        except Invalid as error:
            latest = self.schedule.clock.now() + self._early_seconds()
            if expires is None or expires > latest:
                raise AssertionError(f"{name} expires at {expires}, but it is {latest} at the latest") from error
            self.table_env.let_go(name)
            self.expired += 1

    def _early_seconds(self) -> float:
        """Return by how many seconds a snapshot may end too early.

        The clock of its reader may be fast. The clock of a collector may be fast by more than the allowance.
        """
        skews = self.table_env.skews
        readers = max(0.0, *(seconds for name, seconds in skews.items() if name.startswith("holder")))
        collectors = max(0.0, *(seconds for name, seconds in skews.items() if name.startswith("collector")))
        return max(readers, collectors - self.table_env.settings.skew_allowance_seconds)

    @contextlib.contextmanager
    def _allowed(self, *kinds: type[LsmError]) -> Iterator[None]:
        with contextlib.suppress(*kinds):
            yield

    def _deliver(self, process: str, dice: random.Random) -> None:
        """Deliver a batch from the oldest message on that is not deleted. Other batches share some of its messages."""
        done = self.table_env.region(process, faulty=True).head().applied("queue")
        first = max(0, min(done, len(self.messages) - 1) - dice.choice([0, 0, 1, 3]))
        batch = self.messages[first : first + dice.randrange(1, 4)]
        sequences = tuple(sequence for sequence, _ in batch)
        self.met["a batch again"] += sequences in self.batches
        self.met["a batch with other bounds"] += any(
            other != sequences and not set(other).isdisjoint(sequences) for other in self.batches
        )
        self.batches.add(sequences)
        self.table_env.deliver(process, batch)

    def _take_over(self, process: str, dice: random.Random) -> None:
        self.table_env.take_over(process, RIVAL)
        for _ in range(2):
            self.table_env.put(process, {dice.choice(KEYS): True}, owner=RIVAL)

    # Circumstances

    def _skews(self) -> dict[str, float]:
        if self.dice.random() < 0.5:
            return {"holder": 0.0, "collector": 0.0}
        names = ["writer 0", "collector 0", "collector 1", "holder 0", "holder 1", "consumer 0", "merger 0"]
        return {name: self.dice.choice([-HOUR, -150.0, 0.0, 150.0, 290.0, HOUR]) for name in names}

    def _with_broken_listings(self, process: str, store: Any) -> Any:
        if not process.startswith("collector"):
            return store
        return _BrokenListings(store, random.Random(f"{self.seed} {process}"), self.met)

    def slept_through_collections(self) -> int:
        """Return how many stalls were longer than a collection that deleted objects meanwhile."""
        calls = self.table_env.environment.plan.calls
        stalled = [call for call, fault in self.table_env.environment.plan.injected if fault.seconds == LONG]
        deletions = [call.index for call in calls if (call.port, call.method) == ("objects", "delete")]
        count = 0
        for call in stalled:
            woken = next((c.index for c in calls[call.index + 1 :] if c.process == call.process), len(calls))
            count += any(call.index < index < woken for index in deletions)
        return count

    # The end

    def _finish(self) -> None:
        """Finish with a healthy process and check: consumers catch up, snapshots hold, and no object leaks."""
        table_env = self.table_env
        with table_env.at("last"):
            claim(table_env.region("last"), owner=OWNER)
            table_env.put("last", {0: True})
            assert table_env.scan("last", faulty=False) == table_env.truth
            self._read_all_held()
            for _ in range(2):
                self.schedule.clock.advance(HOUR)
                while table_env.flush(rows_max=100) is not None:
                    pass
                table_env.merge()
                table_env.collect("last")
                assert table_env.scan("last", faulty=False) == table_env.truth
                self._read_all_held()
                table_env.audit()
            self._audit_fences()
            self.consumers.catch_up()
            table_env.check()
            self._check_no_leak()

    def _audit_fences(self) -> None:
        """The newest fence is never collected: it stops Lance's own writer."""
        newest_fence = max(position for position, entry in self.table_env.environment.log.items() if entry.fence)
        assert (
            self.table_env.environment.store.get(wal_entry(self.table_env.environment.id, newest_fence)) is not None
        ), "the newest fence is missing"

    def _read_all_held(self) -> None:
        for name in list(self.table_env.held):
            with self._expirable(name):
                self.table_env.read_held("last", name)

    def _check_no_leak(self) -> None:
        """After all pins are dropped, rounds of collection delete every object that is no longer named.

        A flush that crashed may have written many generations. They stay until later flushes have used their numbers.
        """
        table_env = self.table_env
        context = table_env.context("last", faulty=False)
        for partition in ("S", "C"):
            for key, record in context.registry.list(f"{partition}#{context.table}"):
                context.registry.delete(key, expect={"version": record["version"]})
        table_env.pinned.clear()
        names = [key.partition("/")[0] for key in table_env.stored()]
        last = max((number for name in names if (number := generation_number(name)) is not None), default=0)
        _, manifest = newest(table_env.region("last"), table_env.region("last").head())
        for _ in range(5 + max(0, last - manifest.newest)):
            self.schedule.clock.advance(LONG)
            table_env.put("last", {1: True})
            while table_env.flush(rows_max=100) is not None:
                pass
            table_env.merge()
            table_env.collect("last")
            table_env.audit()
        manifest = newest(table_env.region("last"), table_env.region("last").head())[1]
        named = {f"{g.path}/{name}" for g in manifest.generations for name in FILES}
        left = [key for key in table_env.stored() if "_gen_" in key and key not in named]
        assert left == [], f"not collected: {left}"
        data = [one.key for one in table_env.environment.store.list("data/")]
        assert set(data) <= {version.file for version in table_env.base.versions.values()}, f"not collected: {data}"


class _BrokenListings:
    """A store whose listings sometimes end early, with or without an error."""

    def __init__(self, inner: Any, dice: random.Random, met: Counter[str]) -> None:
        self._inner = inner
        self._dice = dice
        self._met = met

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def list(self, prefix: str) -> Iterator[Listed]:
        found = list(self._inner.list(prefix))
        if self._dice.random() < 0.6:
            return iter(found)
        return self._cut(found, self._dice.randrange(len(found) + 1), fails=self._dice.random() < 0.5)

    def _cut(self, found: list[Listed], end: int, *, fails: bool) -> Iterator[Listed]:
        self._met["a listing that fails" if fails else "a listing that ends early"] += end < len(found)
        yield from found[:end]
        if fails:
            raise Unavailable("the listing failed")


def run_whole_table_actors(seed: int, *, long_turns: bool = False) -> WholeTableActors:
    """Run all actors to their end and check everything. The first violation raises, with a command that replays it."""
    try:
        return WholeTableActors(seed, long_turns=long_turns).run()
    except BaseException as error:
        how = " --long-turns" if long_turns else ""
        error.add_note(f"replay: .venv/bin/python -m tests.simulation.whole_table_actors {seed}{how}")
        raise


if __name__ == "__main__":
    for given in (word for word in sys.argv[1:] if word.isdecimal()):
        done = run_whole_table_actors(int(given), long_turns="--long-turns" in sys.argv)
        print(f"seed {given}: {done.calls} calls, {done.table_env.operations} operations, no violation")
