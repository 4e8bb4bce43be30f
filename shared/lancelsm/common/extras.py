"""Name the command that installs a missing package which only some features need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lancelsm.errors import Invalid


@contextmanager
def needing(package: str, *, extra: str | None = None) -> Iterator[None]:
    """Import a package in the `with` block. If it is missing, raise `Invalid` with the command that installs it.

    Args:
        extra: the extra of lancelsm that has the package; by default it has the name of the package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise Invalid(f"{package} is not installed", remedy=f"pip install 'lancelsm[{extra or package}]'") from error
