"""Collections of a table environment under faults: what one asks of its ports, a run of it, and those that end what it
left.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

from lancelsm.errors import Unavailable
from tests.simulation.collecting import TTL, TableEnv, filled
from tests.simulation.environment import raised
from tests.simulation.faults import Call, FaultPlan

LONG = 2 * 24 * TTL


def collected_by(table_env: TableEnv) -> list[Call]:
    """What a collection asks of its ports when all goes well."""
    table_env.environment.plan = FaultPlan()
    table_env.collect("victim", faulty=True)
    return [call for call in table_env.environment.plan.calls if call.process == "victim"]


def finish(table_env: TableEnv) -> None:
    """A healthy collector ends what others left; then nothing that is not needed is there."""
    table_env.environment.plan.stop()
    table_env.collect("second")
    table_env.audit()
    table_env.environment.plan.land()
    table_env.audit()
    table_env.collect("third")
    table_env.audit()


def run(table_env: TableEnv, plan: FaultPlan) -> BaseException | None:
    """What a collection under this plan was told; nothing that is needed is gone after it, nor after the next ones."""
    with contextlib.redirect_stdout(io.StringIO()):
        table_env.environment.plan = plan
        heard = raised(lambda: table_env.collect("victim", faulty=True))
        table_env.audit()
        finish(table_env)
    return heard


def small(*, merged: int = 1) -> TableEnv:
    return filled(flushed=2, merged=merged, tail_rows=1)


def expired(table_env: TableEnv) -> TableEnv:
    """With a pin that has expired, of what was before a merge."""
    table_env.pin("expired")
    table_env.merge()
    table_env.pinned.clear()
    table_env.environment.schedule.clock.advance(LONG)
    return table_env


class TornListings:
    """A store whose listings break off after so many lines."""

    def __init__(self, inner, after: int) -> None:
        self._inner = inner
        self._after = after

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def list(self, prefix: str) -> Iterator:
        for number, line in enumerate(self._inner.list(prefix)):
            if number == self._after:
                raise Unavailable("the listing broke off")
            yield line
