"""Translate a panic of native code, which is not an `Exception` in Python, into an error of lancelsm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lancelsm.errors import Corrupt

_REMEDY = "lancelsm scrub names every wrong file; if it finds none, report what you called"


def is_panic(error: BaseException) -> bool:
    """Return whether native code panicked, usually because of damaged bytes. Its class can't be imported."""
    return type(error).__name__ == "PanicException"


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise `Corrupt` for a panic in the block. It is the last resort: code that knows its file names the file."""
    try:
        yield
    except BaseException as cause:
        if not is_panic(cause):
            raise
        raise Corrupt(f"native code failed: {cause}", remedy=_REMEDY) from cause
