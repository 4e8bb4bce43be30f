"""Hide modules that Arrow would load to recognise their values, if they are installed. Loading them is slow."""

from __future__ import annotations

import sys
from typing import Any


class _Hidden:
    """A finder of modules that finds none of some names."""

    def __init__(self) -> None:
        self.names = {"pandas"}  # no command has frames of it

    def find_spec(self, name: str, *_: Any) -> None:
        if name in self.names:
            raise ModuleNotFoundError(f"this command does not load {name}", name=name)


_HIDDEN = _Hidden()


def hide_slow_modules() -> None:
    """Never load pandas in this process."""
    sys.meta_path.insert(0, _HIDDEN)


def without_numpy() -> None:
    """Never load numpy either: for a command that works without Lance. Call it before Arrow is loaded."""
    if _HIDDEN in sys.meta_path:
        _HIDDEN.names.add("numpy")


def load_arrow_without_numpy() -> None:
    """Load Arrow before numpy, which Lance may load later: for a command that works without Lance for most tables.

    Then Arrow converts no values from or to numpy in this process.
    """
    if _HIDDEN in sys.meta_path:
        _HIDDEN.names.add("numpy")
        import pyarrow.compute  # noqa: F401

        _HIDDEN.names.discard("numpy")
