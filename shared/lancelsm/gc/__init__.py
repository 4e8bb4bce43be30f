"""Garbage collection: mark, verify, commit, sweep. Only a sweep deletes."""

from __future__ import annotations

from typing import NoReturn

from lancelsm.errors import Invalid


def refuse(step: str, *, table: str) -> NoReturn:
    """Say that this release has no such step; nothing is read or changed.

    Raises:
        Invalid: always.
    """
    raise Invalid(
        "this release does not collect yet",
        remedy="Leave the schedule of collection off: what is merged stays, and costs storage alone",
        table=table,
        step=step,
    )
