"""Run the tasks of a merge in this process, one after the other. Lance uses all cores within each task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lancelsm.compaction.runner import Item, Result


class InProcess:
    """The runner for tables that one machine can merge."""

    parallelism = 1

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        return [function(item) for item in items]
