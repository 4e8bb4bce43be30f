"""Inject a fault or another operation at a chosen call of one process, the victim, that works on a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lancelsm.region.catalog import Region
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.manifest import Manifest
from tests.simulation.faults import Call, Fault, FaultPlan
from tests.simulation.table_environment import TableEnvironment
from tests.simulation.table_log import keys

KEYS = keys(0)[:8]  # keys of the left region
Event = Fault | Callable[[], object]


@contextmanager
def when(
    environment: TableEnvironment, wanted: Callable[[Call], bool], event: Event, *, times: int = 1
) -> Iterator[FaultPlan]:
    """Within this context, a wanted call of the victim meets a fault, or another operation comes right before it."""
    met = []

    def decide(call: Call) -> Fault | None:
        if len(met) == times or call.process != "victim" or not wanted(call):
            return None
        met.append(call)
        if isinstance(event, Fault):
            return event
        event()
        return None

    environment.plan = FaultPlan(decide, clock=environment.schedule.clock)
    with environment.at("victim"):
        yield environment.plan
    assert met, "the victim made no wanted call"
    environment.plan.stop()


def call_number(index: int) -> Callable[[Call], bool]:
    return lambda call: call.index == index


def puts_entry(call: Call) -> bool:
    return call.method == "create" and "/wal/" in call.key


def swaps_head(call: Call) -> bool:
    return call.method == "swap" and call.key.startswith("H#")


def calls_method(name: str) -> Callable[[Call], bool]:
    return lambda call: call.method == name


def region(environment: TableEnvironment) -> Region:
    """Return the left region."""
    (left,) = (one for one in environment.table("observer").list_regions() if environment.sides[one.id] == 0)
    return left


def manifest(environment: TableEnvironment) -> Manifest:
    """Return the manifest of the left region that its head names."""
    of = region(environment)
    return newest(of, of.head())[1]


def ranges(environment: TableEnvironment) -> list[tuple[int, int]]:
    """Return the first and last position of each generation of the left region."""
    return [(g.folded.first, g.folded.last) for g in manifest(environment).generations if g.folded]
