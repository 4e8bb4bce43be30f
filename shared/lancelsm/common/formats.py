"""Refuse what was stored in a format that this release does not read.

The algorithm of setsums is a fact of a table: running totals can't mix two. So every object and record that contains a
setsum has a format number. In format 1 the sums are SHA3-256, since format 2 they are xxh3 (`common.setsum`).
"""

from __future__ import annotations

from typing import Final

from lancelsm.errors import Invalid

TABLE_FORMAT: Final = 2  # of the configuration, and of the facts in the base
_SHA3: Final = 1


def check_format(stored: int, *, newest: int, what: str, remedy: str = "", **context: str) -> None:
    """Compare a stored format number with the newest one that this release reads.

    Args:
        what: what has the format, for the error.
        remedy: what to do about format 1; empty: write the rows into a new table.
        context: the table or the object, for the error.

    Raises:
        Invalid: it is newer, or its sums are SHA3-256.
    """
    if stored > newest:
        raise Invalid(
            f"the {what} has format {stored}, this release reads up to {newest}",
            remedy="Install a newer lancelsm",
            **context,
        )
    if stored == _SHA3:
        raise Invalid(
            f"the {what} has format {stored}, whose sums are SHA3-256; the sums of this release are xxh3",
            remedy=remedy or "Export the rows with the release that wrote them, and load them into a new table",
            **context,
        )
