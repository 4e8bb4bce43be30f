"""Each guard of views, reads and streams carries weight: without it, a scenario ends badly."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from lancelsm import table
from lancelsm.common.layout import Epoch, head_key, region_key, table_key, wal_entry
from lancelsm.errors import Corrupt, Invalid
from lancelsm.history import changes
from lancelsm.read import reader, view
from lancelsm.region import catalog
from lancelsm.region import config as configs
from lancelsm.wal import replay
from lancelsm.wal.entry import draft, encode
from tests.simulation.environment import TABLE, a_nonce
from tests.simulation.faults import FaultPlan
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.removal import Edit, Scenario, anywhere, ends_badly
from tests.simulation.situations import recorded
from tests.simulation.whole_table_env import ROWS, WholeTableEnv, at_each_call, rows_of_entry
from tests.unit import test_reader, test_table

OBJECTS_THEN_HEAD = """\
    found = region.storage.each(region.storage.objects.get, keys)
    # Nothing of them is looked at before a head that is read after them: a swept slot may hold what came late.
    if region.head().first_position > positions[0] and not kept():
"""
HEAD_THEN_OBJECTS = """\
    floor = region.head().first_position
    found = region.storage.each(region.storage.objects.get, keys)
    if floor > positions[0] and not kept():
"""


@contextmanager
def a_table_env() -> Iterator[WholeTableEnv]:
    """Two entries, each in a generation that is not merged yet."""
    table_env = WholeTableEnv()
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
        for number in range(2):
            table_env.put("writer", {number: True})
            table_env.flush()
        yield table_env


def folded(table_env: WholeTableEnv) -> None:
    """All of it is merged and collected, and something comes late."""
    table_env.merge()
    table_env.collect("other")
    late_entries(table_env)


def late_entries(table_env: WholeTableEnv) -> None:
    """A stalled writer puts something into every slot that is free."""
    for position in table_env.environment.log:
        late = draft(pa.table([[0], [900 + position], [False]], schema=ROWS.stored))
        body = encode(late, position=position, epoch=Epoch(1), nonce=a_nonce(position)).body
        table_env.environment.store.create(wal_entry(table_env.environment.id, position), body)


def shown(table_env: WholeTableEnv, stream: Iterable[changes.Change]) -> None:
    """What a stream shows is what was committed."""
    for change in stream:
        rows = zip(*(change.rows.column(name).to_pylist() for name in ("k", "id")), strict=True)
        assert list(rows) == [
            (key, number) for key, number, _ in rows_of_entry(table_env.environment.log[change.position])
        ]


# What is lost


def corrupt(table_env: WholeTableEnv) -> None:
    """It is noticed that something is lost; the configuration is there, so the table was not dropped."""
    configs.create(table_env.environment.store, table_env.handle("reader").config, uri=table_env.context("reader").uri)
    with pytest.raises(Corrupt):
        table_env.scan("reader")


def restored_too_far_back(_: Path) -> None:
    with a_table_env() as table_env:
        first = table_env.base.versions[1]
        folded(table_env)
        table_env.base._add(first.file, first.metadata)
        corrupt(table_env)


def overwritten(_: Path) -> None:
    with a_table_env() as table_env:
        table_env.base._add(table_env.base.versions[1].file, {})
        corrupt(table_env)


def without_a_head(_: Path) -> None:
    with a_table_env() as table_env:
        table_env.environment.registry._records.pop(head_key(TABLE, table_env.environment.id))
        corrupt(table_env)


def without_a_registry(_: Path) -> None:
    with a_table_env() as table_env:
        for key in (
            region_key(TABLE, table_env.environment.id),
            table_key(TABLE),
            head_key(TABLE, table_env.environment.id),
        ):
            table_env.environment.registry._records.pop(key, None)
        corrupt(table_env)


# What a read is overtaken by


def scanned(table_env: WholeTableEnv) -> None:
    table_env.scan("victim")


def held(table_env: WholeTableEnv) -> None:
    table_env.hold("victim", "held", ttl_seconds=3600.0)
    table_env.read_held("victim", "held")
    table_env.read_held("victim", "held")


def tailed(table_env: WholeTableEnv) -> None:
    """A plain start may be told that it came too late."""
    with contextlib.suppress(Invalid):
        shown(table_env, changes.Changes(table_env.context("victim"), ROWS))


def followed(table_env: WholeTableEnv) -> None:
    shown(table_env, changes.Changes(table_env.context("victim"), ROWS, cursor="consumer"))


def overtaken(act: Callable[[WholeTableEnv], None]) -> None:
    """Before any call of a read: two writes, flush, a merge or a collection or both, late puts into swept slots."""
    for merged, swept in ((True, False), (True, True), (False, True)):
        with recorded(act, merged, swept):
            at_each_call(partial(_overtaken_at, act, merged=merged, swept=swept))


def _overtaken_at(act: Callable[[WholeTableEnv], None], at: int, *, merged: bool, swept: bool) -> FaultPlan:
    table_env = WholeTableEnv()
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
        table_env.put("writer", {0: True, 1: True})
        table_env.flush()
        table_env.put("writer", {0: True})
        plan = table_env.interrupt(lambda call: call.index == at, lambda: _pass(table_env, merged=merged, swept=swept))
        act(table_env)
        table_env.environment.plan = FaultPlan()
        table_env.check()
    return plan


def _pass(table_env: WholeTableEnv, *, merged: bool, swept: bool) -> None:
    table_env.put("other", {0: True})
    table_env.put("other", {1: True})
    table_env.flush(rows_max=100)
    if merged:
        table_env.merge()
    if swept:
        table_env.collect("other")
        late_entries(table_env)


@pytest.mark.parametrize("act", [scanned, held, tailed, followed])
def test_a_read_that_is_overtaken_before_any_call_shows_one_moment(act: Callable[[WholeTableEnv], None]) -> None:
    overtaken(act)


GUARDS: dict[str, tuple[list[Edit], Scenario]] = {
    "heads are read before the base of a view": (
        [
            (
                view.take_view,
                "found = context.each(_read, regions())\n        base = read_base()",
                "base = read_base()\n        found = context.each(_read, regions())",
            ),
            (view.mismatch, "if counter <= manifest.newest and not missing:", "if counter <= manifest.newest:"),
        ],
        anywhere(overtaken, scanned),
    ),
    "a counter is at most the newest generation of the heads": (
        [(view.mismatch, "if counter <= manifest.newest and not missing:", "if not missing:")],
        anywhere(overtaken, scanned),
    ),
    "every generation that the base lacks is listed": (
        [(view.mismatch, "if counter <= manifest.newest and not missing:", "if counter <= manifest.newest:")],
        restored_too_far_back,
    ),
    "a view has the table's own base": (
        [(view._problem, "if base.facts is None or base.facts.table != context.table:", "if False:")],
        overwritten,
    ),
    "a region whose head is lost is not empty": ([(view._without_head, "if not written:", "if True:")], without_a_head),
    "a table whose registry is lost is not empty": (
        [(catalog.regions, "if not found and context.registry.read(table_key(context.table)) is None:", "if False:")],
        without_a_registry,
    ),
    "a row of the base is hidden by a newer one that the condition leaves out": (
        [(reader._rows, "yield rows.filter(pa.array(above.level_of(rows, schema) == ABSENT))", "yield rows")],
        test_table.test_an_older_row_does_not_come_back_because_the_newer_one_fails_the_condition,
    ),
    "a row of a generation is hidden by a newer one that the condition leaves out": (
        [(reader._rows, "(above.level_of(rows, schema) == level.number) & ", "")],
        test_table.test_an_older_row_does_not_come_back_because_the_newer_one_fails_the_condition,
    ),
    "a key is asked for at the newest level first": (
        [(reader.get, "reversed(_levels(region))", "_levels(region)")],
        test_reader.test_the_newest_level_that_has_a_key_decides,
    ),
    "a key that was found is not asked for again": (
        [(reader.get, "missing = missing.filter(pc.invert(_among(missing, rows, schema)))", "pass")],
        test_reader.test_the_newest_level_that_has_a_key_decides,
    ),
    "changes are proven by a head": (
        [(changes.committed, "if region.head().first_position > positions[0] and not kept():", "if False:")],
        anywhere(overtaken, tailed),
    ),
    "changes are proven by a head that is read after them": (
        [(changes.committed, OBJECTS_THEN_HEAD, HEAD_THEN_OBJECTS)],
        anywhere(overtaken, tailed),
    ),
    "a view's base belongs to its heads": (
        [(view.take_view, "if not problem:", "if True:")],
        anywhere(overtaken, scanned),
    ),
    "a tail that was collected is no damage": (
        [(replay.tail, "if region.head().first_position > positions.start:", "if False:")],
        anywhere(overtaken, scanned),
    ),
    "what was collected under a reader is read anew": (
        [(table.Table._reading, "except Corrupt:", "except OSError:")],
        anywhere(overtaken, scanned),
    ),
}


@pytest.mark.parametrize("scenario", [overwritten, restored_too_far_back, without_a_head, without_a_registry])
def test_with_all_guards_a_story_ends_well(scenario: Scenario, tmp_path: Path) -> None:
    scenario(tmp_path)


@pytest.mark.parametrize("guard", GUARDS)
def test_without_the_guard_a_story_ends_badly(guard: str, tmp_path: Path) -> None:
    edits, scenario = GUARDS[guard]

    assert ends_badly(edits, partial(scenario, tmp_path))
