"""Collections of a lake under faults: what one asks of its ports, a run of it, and those that end what it left."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

from lancelsm.errors import Unavailable
from tests.simulation.collecting import TTL, Lake, filled
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.world import told

LONG = 2 * 24 * TTL


def collected_by(lake: Lake) -> list[Call]:
    """What a collection asks of its ports when all goes well."""
    lake.world.plan = FaultPlan()
    lake.collect("victim", faulty=True)
    return [call for call in lake.world.plan.calls if call.process == "victim"]


def finish(lake: Lake) -> None:
    """A healthy collector ends what others left; then nothing that is not needed is there."""
    lake.world.plan.stop()
    lake.collect("second")
    lake.audit()
    lake.world.plan.land()
    lake.audit()
    lake.collect("third")
    lake.audit()


def run(lake: Lake, plan: FaultPlan) -> BaseException | None:
    """What a collection under this plan was told; nothing that is needed is gone after it, nor after the next ones."""
    with contextlib.redirect_stdout(io.StringIO()):
        lake.world.plan = plan
        heard = told(lambda: lake.collect("victim", faulty=True))
        lake.audit()
        finish(lake)
    return heard


def small(*, merged: int = 1) -> Lake:
    return filled(flushed=2, merged=merged, tail_rows=1)


def expired(lake: Lake) -> Lake:
    """With a pin that has expired, of what was before a merge."""
    lake.pin("expired")
    lake.merge()
    lake.pinned.clear()
    lake.world.schedule.clock.advance(LONG)
    return lake


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
