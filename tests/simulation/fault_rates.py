"""Draw faults by their rates, so that a seed replays them."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping

from tests.simulation.faults import WRITES, Call, Fault


def by_rate(
    dice: random.Random,
    rates: Mapping[Fault, float],
    *,
    writing: Collection[str] = WRITES,
    stalls_readers: bool = False,
) -> Callable[[Call], Fault | None]:
    """Return a function that draws a fault or None for each call. Reads fail less often: adapters retry them.

    Args:
        writing: the methods that write.
        stalls_readers: reads stall as often as writes.
    """
    faults, weights = [None, *rates], [1 - sum(rates.values()), *rates.values()]

    def decide(call: Call) -> Fault | None:
        fault = dice.choices(faults, weights)[0]
        if stalls_readers and fault is not None and fault.seconds:
            return fault
        return fault if call.method in writing or dice.random() < 0.1 else None

    return decide
