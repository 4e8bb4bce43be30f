"""Estimate the cost of a deployment, item by item: quantity per month, unit, price.

`per_row.monthly_bill` covers rows on their way to the base, `at_rest.bill_at_rest` the resources of an idle deployment.
Numbers of requests are measured (`requests`), durations are assumed (`per_row`), prices are AWS list prices of one day
(`prices`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lancelsm.stack.cost.prices import Price


@dataclass(frozen=True, slots=True, kw_only=True)
class CostItem:
    """One line of the bill.

    Attributes:
        part: the part of the work that causes the cost.
        quantity: per month, in the unit of the price.
    """

    part: str
    item: str
    quantity: float
    price: Price

    @property
    def usd(self) -> float:
        """US dollars per month by the list price, without free tiers."""
        return self.quantity * self.price.usd


def total(items: Iterable[CostItem]) -> float:
    return sum(item.usd for item in items)
