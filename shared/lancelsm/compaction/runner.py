"""Where the tasks of a merge run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class TaskRunner(Protocol):
    """Applies a function to items, somewhere. Function, items and results are pickled if it is elsewhere."""

    @property
    def parallelism(self) -> int:
        """How many items it works on at once."""
        ...

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The results in the order of the items. A task may run more than once; one of its results is returned.

        Raises:
            What the function raised, if it is one of `lancelsm.errors`; `Unavailable` if tasks kept getting lost.
        """
        ...
