"""What a deployment costs, item by item: a quantity a month, a unit, a price.

`running` is what rows cost on their way to the base, `resting` what stands there while nothing is written. Numbers of
requests are measured (`requests`), durations are assumed (`running`), prices are AWS's list of one day (`prices`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lancelsm.stack.cost.prices import Price


@dataclass(frozen=True, slots=True, kw_only=True)
class CostItem:
    """One line of the bill.

    Attributes:
        part: of the work it belongs to.
        quantity: a month, in the price's unit.
    """

    part: str
    what: str
    quantity: float
    price: Price

    @property
    def usd(self) -> float:
        """US dollars a month, by the list: what is free for a start or up to some amount is not taken off."""
        return self.quantity * self.price.usd


def total(items: Iterable[CostItem]) -> float:
    return sum(item.usd for item in items)
