"""What a scrub says of a table with which nothing is wrong, while others work on it and crash."""

from __future__ import annotations

from collections.abc import Sequence

from lancelsm.scrub.report import Problem
from lancelsm.table import Table


def wrongly_found(table: Table) -> Sequence[Problem]:
    """Every problem: what a crash leaves is none."""
    return list(table.scrub().problems)
