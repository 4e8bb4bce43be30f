"""The interface of the runners that execute the tasks of a merge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeVar

Engine = Literal["auto", "inprocess", "spark"]
Item = TypeVar("Item")
Result = TypeVar("Result")


class TaskRunner(Protocol):
    """Applies a function to items. A runner with other processes pickles function, items and results."""

    @property
    def parallelism(self) -> int:
        """How many items the runner processes at once."""
        ...

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return the results in the order of the items. A task may run more than once; one of its results is returned.

        Raises:
            LsmError: the function raised it.
            Unavailable: tasks were lost too often.
        """
        ...
