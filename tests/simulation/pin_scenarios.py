"""Scenarios of pins that expire, are renewed, or are confirmed while a collection works."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

import pytest

import lancelsm
from lancelsm.common.layout import snapshots
from lancelsm.errors import Invalid
from lancelsm.gc import collect as collection
from lancelsm.gc.sweep import sweep_leftovers
from lancelsm.history import pins
from lancelsm.history.pin_records import Pin, RegionPin, pins_of
from lancelsm.region.handle import open_table
from tests.simulation.collecting import TTL, TableEnv, filled
from tests.simulation.collection_faults import LONG, calls_of_collection, run, small
from tests.simulation.environment import raised
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.removal import Scenario
from tests.simulation.situations import note_on_failure
from tests.simulation.whole_table_env import SkewedClock, WholeTableEnv, at_each_call
from tests.unit import tables

SHORT = 600.0  # the time to live of a snapshot that is about to expire
ALLOWANCE = 300.0  # how much clocks may differ


def snapshot_from_before_the_round() -> None:
    """The creator of a snapshot read the head before a round. It confirms the snapshot before any call of the round.

    Either the snapshot is confirmed and keeps everything that it needs, or it is not confirmed.
    """
    confirmed = 0

    def prepared() -> tuple[TableEnv, RegionPin]:
        table_env = small()
        needed = table_env.needs(table_env.region("maker"))
        table_env.merge()
        return table_env, needed

    for call in calls_of_collection(prepared()[0]):
        table_env, needed = prepared()

        def pins_late(
            now: Call, table_env: TableEnv = table_env, needed: RegionPin = needed, at: int = call.index
        ) -> None:
            if now.index == at:
                table_env.confirm_pin(table_env.begin_pin("late", needed))

        with note_on_failure(call):
            run(table_env, FaultPlan(pins_late))
        confirmed += len(table_env.pinned)
    assert 0 < confirmed < call.index


def renewed_during_the_sweep() -> None:
    """A pin expires between commit and sweep, and is renewed after the sweep has read it. It counts."""
    table_env = small()
    needed = table_env.needs(table_env.region("holder"))
    table_env.merge()
    context = table_env.region("holder").context
    renewed = []

    def created_then_renewed(call: Call) -> None:
        if call.process != "victim":
            return
        if call.method == "create" and "/manifest/staged/" in call.key and not table_env.pinned:
            assert table_env.confirm_pin(table_env.begin_pin("held", needed))  # after the verifier, before the commit
            table_env.environment.schedule.clock.advance(LONG)
        if call.port == "registry" and call.method == "delete" and table_env.pinned and not renewed:
            pin = table_env.pinned.pop()
            renewed.append(pins.update_pin(context, replace(pin, expires=context.clock.now() + TTL)))
            table_env.pinned += renewed

    run(table_env, FaultPlan(created_then_renewed))
    assert renewed


def begun_while_leftovers_are_listed() -> None:
    """A pin is begun between two pages of the listing that looks for leftover records. Its records are kept."""
    table_env = filled()
    context = table_env.region("holder").context

    class TwoPages:
        """A registry that lists in two pages, between which a pin is begun."""

        def __init__(self, inner) -> None:
            self._inner = inner

        def __getattr__(self, name: str):
            return getattr(self._inner, name)

        def list(self, partition: str):
            first = self._inner.list(partition)
            if partition == snapshots(context.table) and not first:
                table_env.begin_pin("begun")
                return [line for line in self._inner.list(partition) if "#" in line[0].sort]
            return first

    assert sweep_leftovers(replace(context, registry=TwoPages(context.registry))) == 0
    assert [len(pin.regions) for pin in pins_of(context.registry.list(snapshots(context.table)))] == [1]


def collected_before_it_expires(table_env: TableEnv, *, skew: float) -> list[Pin]:
    """Collect a minute before a pin expires, with a clock that is wrong by `skew`. Return the remaining pins."""
    table_env.merge()
    table_env.environment.schedule.clock.advance(TTL - 60)
    handle = table_env.handle("collector", faulty=False)
    handle.context = replace(handle.context, clock=SkewedClock(handle.context.clock, skew))
    with table_env.collecting():
        collection.collect(handle, yes=True, interval_seconds=0)
    context = table_env.region("holder").context
    return pins_of(context.registry.list(snapshots(context.table)))


def clock_ahead_within_the_allowance() -> None:
    """The clock of a collector is ahead by less than the allowance. The pin is kept."""
    table_env = small()
    table_env.pin("held")

    assert len(collected_before_it_expires(table_env, skew=120.0)) == 1
    table_env.audit()


# Reads of an expiring snapshot


@contextmanager
def with_old_snapshot() -> Iterator[WholeTableEnv]:
    """Yield a table environment with a snapshot of the state before a merge."""
    table_env = WholeTableEnv(skews={"fast": ALLOWANCE - 1.0, "slow": 1.0 - ALLOWANCE})
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
        table_env.put("writer", {0: True, 1: True})
        table_env.flush()
        table_env.hold("holder", "held", ttl_seconds=SHORT)
        table_env.put("writer", {0: True, 1: False})
        table_env.flush()
        table_env.merge()
        yield table_env


def collected_shortly_before_expiry(clock: str) -> None:
    """A collector with a right, fast or slow clock collects when a snapshot is about to expire."""
    with with_old_snapshot() as table_env:
        table_env.environment.schedule.clock.advance(SHORT - 1.0)
        table_env.collect(clock)
        table_env.read_held("holder", "held")


def expires_before_any_call_of_a_read() -> None:
    """A snapshot expires and is collected before any call of a read."""
    at_each_call(_expires_at)


def _expires_at(at: int) -> FaultPlan:
    with with_old_snapshot() as table_env:

        def expires() -> None:
            table_env.pinned.clear()
            table_env.environment.schedule.clock.advance(SHORT + ALLOWANCE + 1.0)
            table_env.collect("other")

        plan = table_env.interrupt(lambda call: call.index == at, expires)
        error = raised(lambda: table_env.read_held("victim", "held"))
    assert type(error) is (Invalid if at < len(plan.calls) else NoneType), repr(error)
    return plan


# A real table


def with_two_regions(scenario: Callable[..., None], **options: Any) -> Scenario:
    """Run a scenario on a table with two regions of three entries each."""

    def run_on_table(path: Path) -> None:
        table = lancelsm.create(path / "table", tables.COLUMNS, primary_key="id", regions="bucket(id, 2)")
        for value in "abc":
            table.upsert([tables.row(key, value) for key in range(8)])
        with pytest.MonkeyPatch.context() as patch:
            scenario(open_table(table.uri), patch, **options)

    return run_on_table
