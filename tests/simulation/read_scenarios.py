"""Scenarios of reads, snapshots and change streams that are overtaken by writes, flushes, merges and collections."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow as pa

from lancelsm.common.layout import Epoch, wal_entry
from lancelsm.errors import Invalid
from lancelsm.history import changes
from lancelsm.table import Table
from lancelsm.wal.entry import draft, encode
from tests.simulation.environment import a_nonce
from tests.simulation.faults import FaultPlan
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.situations import note_on_failure
from tests.simulation.whole_table_env import ROWS, WholeTableEnv, at_each_call, rows_of_entry


@contextmanager
def with_pending_generations() -> Iterator[WholeTableEnv]:
    """Yield a table environment with two entries, each in a generation that is not merged yet."""
    table_env = WholeTableEnv()
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
        for number in range(2):
            table_env.put("writer", {number: True})
            table_env.flush()
        yield table_env


def merge_and_collect(table_env: WholeTableEnv) -> None:
    """Merge and collect everything. Then late entries land."""
    table_env.merge()
    table_env.collect("other")
    put_late_entries(table_env)


def put_late_entries(table_env: WholeTableEnv) -> None:
    """Put an entry of a stalled writer into every free slot."""
    for position in table_env.environment.log:
        late = draft(pa.table([[0], [900 + position], [False]], schema=ROWS.stored))
        body = encode(late, position=position, epoch=Epoch(1), nonce=a_nonce(position)).body
        table_env.environment.store.create(wal_entry(table_env.environment.id, position), body)


def check_changes(table_env: WholeTableEnv, stream: Iterable[changes.Change]) -> None:
    """Check that a stream shows exactly the rows of the committed entries."""
    for change in stream:
        rows = zip(*(change.rows.column(name).to_pylist() for name in ("k", "id")), strict=True)
        assert list(rows) == [
            (key, number) for key, number, _ in rows_of_entry(table_env.environment.log[change.position])
        ]


# Kinds of reads


def scan(table_env: WholeTableEnv) -> None:
    table_env.scan("victim")


def scan_held(table_env: WholeTableEnv) -> None:
    """Scan several times with one table, which uses parts of earlier views."""
    table = Table(table_env.handle("victim"))
    for _ in range(3):
        table_env.scan("victim", held=table)


def create_and_read_snapshot(table_env: WholeTableEnv) -> None:
    table_env.hold("victim", "held", ttl_seconds=3600.0)
    table_env.read_held("victim", "held")
    table_env.read_held("victim", "held")


def read_changes(table_env: WholeTableEnv) -> None:
    """Read the change stream without a cursor. A collection may end it with `Invalid`."""
    with contextlib.suppress(Invalid):
        check_changes(table_env, changes.Changes(table_env.context("victim"), ROWS))


def read_changes_with_a_cursor(table_env: WholeTableEnv) -> None:
    check_changes(table_env, changes.Changes(table_env.context("victim"), ROWS, cursor="consumer"))


def overtaken_before_any_call(read: Callable[[WholeTableEnv], None]) -> None:
    """Two writes, a flush, and a merge or a collection or both come before any call of a read.

    After a collection, late entries land in the swept slots.
    """
    for merged, swept in ((True, False), (True, True), (False, True)):
        with note_on_failure(read, merged, swept):
            at_each_call(partial(_overtaken_at, read, merged=merged, swept=swept))


def _overtaken_at(read: Callable[[WholeTableEnv], None], at: int, *, merged: bool, swept: bool) -> FaultPlan:
    table_env = WholeTableEnv()
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
        table_env.put("writer", {0: True, 1: True})
        table_env.flush()
        table_env.put("writer", {0: True})
        plan = table_env.interrupt(
            lambda call: call.index == at, lambda: _overtake(table_env, merged=merged, swept=swept)
        )
        read(table_env)
        table_env.environment.plan = FaultPlan()
        table_env.check()
    return plan


def _overtake(table_env: WholeTableEnv, *, merged: bool, swept: bool) -> None:
    table_env.put("other", {0: True})
    table_env.put("other", {1: True})
    table_env.flush(rows_max=100)
    if merged:
        table_env.merge()
    if swept:
        table_env.collect("other")
        put_late_entries(table_env)
