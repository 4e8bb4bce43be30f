"""Collect what a read does, for `Table.explain`. By default nothing is collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

T = TypeVar("T")


class Trace:
    """Each step of a read gets it, and reports to it. This one ignores everything; that of `read.explain` does not."""

    def step(self, _name: str) -> AbstractContextManager[None]:
        """Measure the time that a block takes."""
        return nullcontext()

    def steps(self, _name: str, values: Iterator[T]) -> Iterator[T]:
        """Return the same values. Measure the time that it takes to get them."""
        return values

    def request(self, kind: str, size: int = 0, *, count: int = 1) -> None:
        """Count a request or several, and the bytes that they read."""

    def opened(self, _kind: str, _dataset: Any) -> None:
        """Count what Lance read to open this dataset, by kind, and what it reads of it from now on."""

    def reads(self, _dataset: Any) -> None:
        """Count what Lance reads of this dataset from now on."""

    def apart(self, _kind: str, _dataset: Any) -> AbstractContextManager[None]:
        """Count what Lance reads of this dataset in a block, by kind."""
        return nullcontext()

    def planned(self, _explain: Callable[[], str]) -> None:
        """Take note of a scan of the base. The function returns Lance's plan of it."""

    def searched(self, _column: str) -> None:
        """Take note of a column that is searched by vector or text."""

    def skipped(self, _what: str, _why: str) -> None:
        """Take note of a level that the read leaves out."""

    def viewed(self, _view: Any) -> None:
        """Take note of the view that the read takes its rows from. Of several, the last one counts."""


NO_TRACE: Final = Trace()
