"""Run collections under faults, and finish what they leave behind."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

from lancelsm.common.layout import MEM_WAL
from lancelsm.errors import Unavailable
from tests.simulation.collecting import TTL, TableEnv, filled
from tests.simulation.environment import raised
from tests.simulation.faults import Call, FaultPlan

LONG = 2 * 24 * TTL


def calls_of_collection(table_env: TableEnv) -> list[Call]:
    """Return the port calls of a collection without faults."""
    table_env.environment.plan = FaultPlan()
    table_env.collect("victim", faulty=True)
    return [call for call in table_env.environment.plan.calls if call.process == "victim"]


def finish(table_env: TableEnv) -> None:
    """Collect with healthy collectors until nothing is left that is not needed, and audit after each one."""
    table_env.environment.plan.stop()
    table_env.collect("second")
    table_env.audit()
    table_env.environment.plan.land()
    table_env.audit()
    table_env.collect("third")
    table_env.audit()


def run(table_env: TableEnv, plan: FaultPlan) -> BaseException | None:
    """Run a collection under this plan, audit, and finish with healthy collectors. Return the error of the first."""
    with contextlib.redirect_stdout(io.StringIO()):
        table_env.environment.plan = plan
        error = raised(lambda: table_env.collect("victim", faulty=True))
        table_env.audit()
        finish(table_env)
    return error


def small(*, merged: int = 1) -> TableEnv:
    """Return a small table environment, to try all its calls quickly."""
    return filled(flushed=2, merged=merged, tail_rows=1)


def with_expired_pin(table_env: TableEnv) -> TableEnv:
    """Add a snapshot from before a merge. It has expired by now."""
    table_env.pin("expired")
    table_env.merge()
    table_env.pinned.clear()
    table_env.environment.schedule.clock.advance(LONG)
    return table_env


class BrokenListings:
    """A store whose listings of a region fail after a number of objects.

    The listing of all regions does not fail: without it, a collection can't know that no other tool has a shard.
    """

    def __init__(self, inner, after: int) -> None:
        self._inner = inner
        self._after = after

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def list(self, prefix: str) -> Iterator:
        for number, line in enumerate(self._inner.list(prefix)):
            if number == self._after and prefix != f"{MEM_WAL}/":
                raise Unavailable("the listing failed")
            yield line
