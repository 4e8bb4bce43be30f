"""Runs the tasks of a merge here, one after the other: Lance uses all cores within each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lancelsm.compaction.runner import Item, Result


class InProcess:
    """The runner of tables that fit one machine."""

    parallelism = 1

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        return [function(item) for item in items]
