"""Actors that run transactions in the environment of a whole table; what they saw and wrote is in the history."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from lancelsm.errors import Contended, LsmError
from lancelsm.read.transact.rows_at_head import RowsAtHead, ViewedRows
from lancelsm.read.transact.transaction import Decision, Transaction
from lancelsm.read.view import View
from lancelsm.region.catalog import regions
from lancelsm.region.head import Head
from lancelsm.table import Table
from lancelsm.wal.append import append_after
from tests.simulation.environment import NOT_IN_THE_LOG, OWNER
from tests.simulation.faults import Crash
from tests.simulation.linearizable import NEVER, Read, Transact
from tests.simulation.whole_table_actors import KEYS, WholeTableActors
from tests.simulation.whole_table_env import ROWS, Content, WholeTableEnv

Choose = Callable[[Content], Mapping[int, bool]]
"""Given the live rows: the keys to upsert (True) or to delete (False)."""


def transact(
    env: WholeTableEnv, process: str, keys: Sequence[int], choose: Choose, *, table: Table, held: Head | None = None
) -> Head:
    """Run one transaction as `Table.transact` does, and record what the last call of its function saw and wrote."""
    region, called = env.region(process, faulty=True), env.tick()
    saw: Content = {}
    numbers: Content = {}
    changes: Mapping[int, bool] = {}

    def decide(current: pa.Table) -> Decision:
        nonlocal saw, numbers, changes
        for number in numbers.values():
            env.environment.raised[number] = Contended("the function runs again")
        saw = dict(zip(current["k"].to_pylist(), current["id"].to_pylist(), strict=True))
        changes = choose(saw)
        numbers = {key: next(env._numbers) for key in changes}
        env._start(numbers.values(), OWNER)
        columns = [list(numbers), list(numbers.values()), [not changes[key] for key in numbers]]
        return Decision(rows=pa.table(columns, schema=ROWS.stored))

    def of_view(view: View) -> ViewedRows:
        rows = env._of_view(view, table._handle.context)
        return ViewedRows.of(live({key: rows[key] for key in keys if key in rows}), view, region)

    rows = RowsAtHead(
        region,
        ROWS,
        read_view=lambda: table._read_with_retry(
            of_view, lambda: regions(table._handle.context), spec=None, select=list
        ),
        select=lambda found: found.filter(pa.array([key in keys for key in found["k"].to_pylist()], pa.bool_())),
    )
    try:
        done = append_after(region, Transaction(region, decide, rows=rows).draft_after, owner=OWNER, held=held)
    except (LsmError, Crash) as error:
        for number in numbers.values():
            env.environment.raised[number] = error
        if numbers and not isinstance(error, NOT_IN_THE_LOG):
            env._note(Transact, process, called, NEVER, rows=shown(numbers, changes), saw=saw, keys=frozenset(keys))
        raise
    if isinstance(done, Head):
        env._note(Read, process, called, env.tick(), rows=saw, keys=frozenset(keys))
        return done
    position = done.summary.position
    for number in numbers.values():
        env.environment.acknowledged[number] = position
    written = shown(numbers, changes)
    env._note(
        Transact, process, called, env.tick(), rows=written, saw=saw, keys=frozenset(keys), position=int(position)
    )
    return done.head


def live(content: Content) -> pa.Table:
    return pa.table([list(content), list(content.values())], schema=ROWS.columns)


def shown(numbers: Content, changes: Mapping[int, bool]) -> dict[int, int | None]:
    return {key: number if changes[key] else None for key, number in numbers.items()}


class Transactors(WholeTableActors):
    """Transactions beside writers, readers, flushers, mergers and collectors."""

    def _actors(self) -> dict[str, Callable[[], object]]:
        acts = {
            **{f"transactor {number}": (self._transactor(), 6) for number in range(3)},
            "writer": (self._writer(), 5),
            "reader": (self._read, 5),
            "flusher": (self._flush, 5),
            "merger": (self._merge, 4),
            "collector": (self._collect, 5),
        }
        return {name: self._repeat(name, *act, random.Random(self.dice.random())) for name, act in acts.items()}

    def _transactor(self) -> Callable[[str, random.Random], None]:
        tables: dict[str, Table] = {}
        held: list[Head] = []

        def act(process: str, dice: random.Random) -> None:
            keys = dice.sample(KEYS, dice.choice([1, 2]))
            if process not in tables or dice.random() < 0.3:
                tables[process] = Table(self.table_env.handle(process))

            def choose(saw: Content) -> dict[int, bool]:
                self.met["a function runs again"] += bool(calls)
                calls.append(1)
                return {key: key not in saw or dice.random() < 0.6 for key in keys if dice.random() < 0.8}

            calls: list[int] = []
            head = held[-1] if held and dice.random() < 0.6 else None
            held[:] = [transact(self.table_env, process, keys, choose, table=tables[process], held=head)]

        return act
