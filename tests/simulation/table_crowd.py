"""Everybody at once on one table, as a seed decides: writers, readers, flushers, mergers, claimers, another tool."""

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
from tests.simulation.crowd import ROUGH
from tests.simulation.faults import Crash, FaultPlan
from tests.simulation.rates import by_rate
from tests.simulation.schedule import Schedule
from tests.simulation.table_log import keys
from tests.simulation.table_world import WRITING, TableWorld, lease
from tests.simulation.world import OWNER, PASSING, RIVAL

KEYS = (*keys(0)[:5], *keys(1)[:5])


def table_crowd(seed: int, place: Path) -> TableWorld:
    """Run everybody to their end, recover and audit; raises at the first violation."""
    dice = random.Random(f"table crowd {seed}")
    world = TableWorld(place, schedule=Schedule(seed), settings={"flush_rows": dice.choice([1, 3, 100])})
    with contextlib.redirect_stdout(io.StringIO()), world, lease(held=dice.random() < 0.5):
        world.create("creator", loaded=KEYS[::2])
        world.indexed = dice.random() < 0.5
        if world.indexed:
            world.index()
        actors = _actors(world, dice)
        rates = {fault: rate * dice.choice([0, 0.3, 1, 2]) for fault, rate in ROUGH.items()}
        decide = by_rate(random.Random(f"table faults {seed}"), rates, writing=WRITING)
        world.plan = FaultPlan(decide, clock=world.schedule.clock)
        world.schedule.run(actors)
        world.plan.stop()
        world.plan.forget() if dice.random() < 0.3 else world.plan.land()
        world.recover("recoverer")
    return world


def _actors(world: TableWorld, dice: random.Random) -> dict[str, Callable[[], object]]:
    actors: dict[str, Callable[[], object]] = {}

    def add(name: str, act: Callable[[TableWorld, str, Table, random.Random], object], times: int) -> None:
        own = random.Random(dice.random())

        def run() -> None:
            life, table = name, None
            for time in range(times):
                with world.at(life):
                    try:
                        table = table or world.table(life)
                        act(world, life, table, own)
                    except Crash:
                        life, table = f"{name}, life {time}", None
                    except LsmError as error:
                        if not isinstance(error, PASSING):
                            raise AssertionError(f"{life} was told {error!r}") from error

        actors[name] = run

    for number in range(2):
        add(f"writer {number}", _writes, dice.choice([3, 6, 10]))
        add(f"reader {number}", _reads, dice.choice([3, 6]))
        add(f"flusher {number}", _flushes, dice.choice([3, 8]))
        add(f"merger {number}", _merges, dice.choice([3, 6, 9]))
    add("another tool", _acts_on_the_base, dice.choice([0, 3, 9]))
    if dice.random() < 0.4:
        add("claimer", _claims, 1)
    if dice.random() < 0.2:
        add("rival", _takes_over, 1)
    return actors


def _writes(world: TableWorld, name: str, table: Table, dice: random.Random) -> None:
    chosen = dice.sample(KEYS, dice.choice([1, 1, 2, 3]))
    if dice.random() < 0.4:
        world.write_by(table, name, delete=chosen)
    else:
        world.write_by(table, name, upsert=chosen)


def _reads(world: TableWorld, name: str, table: Table, dice: random.Random) -> None:
    world.schedule.clock.sleep(dice.choice([0.0, 0.0, 0.1]))
    world.read(table, get=dice.sample(KEYS, 3) if dice.random() < 0.4 else ())


def _flushes(world: TableWorld, name: str, table: Table, dice: random.Random) -> None:
    world.schedule.clock.sleep(dice.choice([0.0, 0.0, 0.1]))
    world.flush(name, table)


def _merges(world: TableWorld, name: str, table: Table, dice: random.Random) -> None:
    world.schedule.clock.sleep(dice.choice([0.0, 0.0, 0.1]))
    match dice.choice(["merge", "merge", "merge", "optimize", "run"]):
        case "merge":
            world.merge(name, table)
        case "optimize":
            world.optimize(name)
        case _:
            table.run(engine="inprocess")


def _claims(world: TableWorld, name: str, table: Table, dice: random.Random) -> None:
    for region in table.regions():
        claim(region, owner=OWNER)


def _takes_over(world: TableWorld, name: str, table: Table, dice: random.Random) -> None:
    for region in table.regions():
        claim(region, owner=RIVAL)


def _acts_on_the_base(world: TableWorld, name: str, table: Table, dice: random.Random) -> None:
    """Open the base through pylance, let it change meanwhile, then try a commit."""
    world.schedule.switch()
    dataset = lance.dataset(world.place)
    world.schedule.switch()
    world.foreign_commit(dataset, dice.choice(["append", "append", "delete", "compact", "configure"]))
