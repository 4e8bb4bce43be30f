"""Run many actors on one table as a seed decides: writers, readers, flushers, mergers, claimers, another tool."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable
from pathlib import Path

import lance

from lancelsm.errors import LsmError
from lancelsm.table import Table
from lancelsm.wal.claim import claim
from tests.simulation.actors import ROUGH
from tests.simulation.environment import OWNER, PASSING, RIVAL
from tests.simulation.fault_rates import by_rate
from tests.simulation.faults import Crash, FaultPlan
from tests.simulation.schedule import Schedule
from tests.simulation.table_environment import WRITING, TableEnvironment, lease
from tests.simulation.table_log import keys

KEYS = (*keys(0)[:5], *keys(1)[:5])


def run_table_actors(seed: int, path: Path) -> TableEnvironment:
    """Run all actors to their end, then recover and audit. The first violation raises."""
    dice = random.Random(f"table crowd {seed}")
    environment = TableEnvironment(path, schedule=Schedule(seed), settings={"flush_rows": dice.choice([1, 3, 100])})
    with contextlib.redirect_stdout(io.StringIO()), environment, lease(held=dice.random() < 0.5):
        environment.create("creator", loaded=KEYS[::2])
        environment.indexed = dice.random() < 0.5
        if environment.indexed:
            environment.index()
        actors = _actors(environment, dice)
        rates = {fault: rate * dice.choice([0, 0.3, 1, 2]) for fault, rate in ROUGH.items()}
        decide = by_rate(random.Random(f"table faults {seed}"), rates, writing=WRITING)
        environment.plan = FaultPlan(decide, clock=environment.schedule.clock)
        environment.schedule.run(actors)
        environment.plan.stop()
        environment.plan.forget() if dice.random() < 0.3 else environment.plan.land()
        environment.recover("recoverer")
    return environment


def _actors(environment: TableEnvironment, dice: random.Random) -> dict[str, Callable[[], object]]:
    actors: dict[str, Callable[[], object]] = {}

    def add(name: str, act: Callable[[TableEnvironment, str, Table, random.Random], object], times: int) -> None:
        own = random.Random(dice.random())

        def run() -> None:
            process, table = name, None
            for time in range(times):
                with environment.at(process):
                    try:
                        table = table or environment.table(process)
                        act(environment, process, table, own)
                    except Crash:
                        process, table = f"{name}, life {time}", None
                    except LsmError as error:
                        if not isinstance(error, PASSING):
                            raise AssertionError(f"{process} got {error!r}") from error

        actors[name] = run

    for number in range(2):
        add(f"writer {number}", _write, dice.choice([3, 6, 10]))
        add(f"reader {number}", _read, dice.choice([3, 6]))
        add(f"flusher {number}", _flush, dice.choice([3, 8]))
        add(f"merger {number}", _merge, dice.choice([3, 6, 9]))
    add("another tool", _commit_to_base, dice.choice([0, 3, 9]))
    if dice.random() < 0.4:
        add("claimer", _claim, 1)
    if dice.random() < 0.2:
        add("rival", _take_over, 1)
    return actors


def _write(environment: TableEnvironment, name: str, table: Table, dice: random.Random) -> None:
    chosen = dice.sample(KEYS, dice.choice([1, 1, 2, 3]))
    if dice.random() < 0.4:
        environment.write_by(table, name, delete=chosen)
    else:
        environment.write_by(table, name, upsert=chosen)


def _read(environment: TableEnvironment, name: str, table: Table, dice: random.Random) -> None:
    environment.schedule.clock.sleep(dice.choice([0.0, 0.0, 0.1]))
    environment.read(table, get=dice.sample(KEYS, 3) if dice.random() < 0.4 else ())


def _flush(environment: TableEnvironment, name: str, table: Table, dice: random.Random) -> None:
    environment.schedule.clock.sleep(dice.choice([0.0, 0.0, 0.1]))
    environment.flush(name, table)


def _merge(environment: TableEnvironment, name: str, table: Table, dice: random.Random) -> None:
    environment.schedule.clock.sleep(dice.choice([0.0, 0.0, 0.1]))
    match dice.choice(["merge", "merge", "merge", "optimize", "run"]):
        case "merge":
            environment.merge(name, table)
        case "optimize":
            environment.optimize(name)
        case _:
            table.run(engine="inprocess")


def _claim(environment: TableEnvironment, name: str, table: Table, dice: random.Random) -> None:
    for region in table.list_regions():
        claim(region, owner=OWNER)


def _take_over(environment: TableEnvironment, name: str, table: Table, dice: random.Random) -> None:
    for region in table.list_regions():
        claim(region, owner=RIVAL)


def _commit_to_base(environment: TableEnvironment, name: str, table: Table, dice: random.Random) -> None:
    """Open the base with pylance, let other actors continue, then try a commit."""
    environment.schedule.switch()
    dataset = lance.dataset(environment.path)
    environment.schedule.switch()
    environment.foreign_commit(dataset, dice.choice(["append", "append", "delete", "compact", "configure"]))
