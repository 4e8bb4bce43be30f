"""How fresh a read must be."""

from __future__ import annotations

from typing import Literal

from lancelsm.errors import Invalid

Consistency = Literal["strong", "eventual"]


def read_staleness(consistency: Consistency, max_staleness: float | None, *, interval: float) -> float | None:
    """Return how old the view of a read may be, in seconds; None for a strong read.

    Args:
        interval: `collect_interval_seconds`. What a view reads exists this long after the view was current, and not
            always longer.

    Raises:
        Invalid: the two arguments don't belong together, or `max_staleness` is not above 0 and below the interval.
    """
    if consistency == "strong":
        if max_staleness is not None:
            raise Invalid(
                "a strong read has no staleness",
                remedy="Leave out max_staleness, or give consistency='eventual'",
                field="max_staleness",
            )
        return None
    if max_staleness is None:
        raise Invalid(
            "an eventual read needs to know how old its rows may be",
            remedy=f"Give max_staleness in seconds, below {interval:,g}",
            field="max_staleness",
        )
    if not 0 < max_staleness < interval:
        raise Invalid(
            f"max_staleness is {max_staleness:g}, not above 0 and below {interval:,g}",
            remedy="Give seconds below the setting collect_interval_seconds: what older reads need may be collected",
            field="max_staleness",
        )
    return max_staleness
