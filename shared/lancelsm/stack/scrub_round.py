"""Scrub the tables of a deployment on a schedule: each in an invocation of its own, and only if it has changed.

A run reads a part of a large table. The next one continues after it, so a cycle of runs reads everything once. The
record of the table (`scheduled_tables`) has for each scope `SCOPE_next`, where the next run continues; `SCOPE_cycle`,
the state of the table when the cycle began; and `SCOPE`, the state that a whole cycle has found intact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from lancelsm.common.layout import TableId
from lancelsm.errors import Corrupt, Invalid
from lancelsm.registry import Registry
from lancelsm.scrubbing.report import Report
from lancelsm.scrubbing.table import scrub_location
from lancelsm.stack.scheduled_tables import (
    OpenTable,
    decode_message,
    location,
    no_table,
    read_last,
    state_of,
    write_last,
)

Scope = Literal["sample", "everything"]
KIND = "scrub"
SAMPLE_OBJECTS = 1000
_COVERED_BY: Mapping[Scope, tuple[Scope, ...]] = {"sample": get_args(Scope), "everything": ("everything",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The content of a message: a table to scrub."""

    table: TableId
    scope: Scope


def decode_wanted(body: object) -> Wanted:
    """Decode a message of `scheduled_tables.start_round`. Raises `Invalid` if the text is something else."""
    table, scope = decode_message(body, kind=KIND)
    if scope not in get_args(Scope):
        raise no_table(KIND)
    return Wanted(table=table, scope=scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrubbed:
    """What became of a message. `report` is None if the table has not changed since its last scrub.

    `noted`: the record says so; else the next run reads the same objects again.
    """

    uri: str
    report: Report | None
    noted: bool = True


def scrub_changed(
    registry: Registry,
    wanted: Wanted,
    *,
    open_table: OpenTable,
    has_time: Callable[[], bool],
    scrub: Callable[..., Report] = scrub_location,
) -> Scrubbed | None:
    """Scrub a table unless scrubs of this scope, or of everything, have read the same state of it and found it intact.

    Args:
        open_table: opens a table by its URI, without Lance.
        has_time: whether there is time for one more object.

    Returns:
        None if the table was dropped.

    Raises:
        Corrupt: the record of the table is damaged.
        Invalid: the table is not at its location, or another table is there.
        Unavailable: a store or the registry did not answer.
    """
    uri = location(registry, wanted.table)
    if uri is None:
        return None
    scope, last = wanted.scope, read_last(registry, wanted.table)
    found = last or {}
    state = _state(uri, wanted.table, open_table)
    if state and any(found.get(one) == state for one in _COVERED_BY[scope]):
        return Scrubbed(uri=uri, report=None)
    after = str(found.get(f"{scope}_next", ""))
    limit = SAMPLE_OBJECTS if scope == "sample" else None
    report = scrub(uri, limit=limit, has_time=has_time, after=after)
    began = str(found.get(f"{scope}_cycle", "")) if after else state
    cycle = began if report.ok else ""
    change = {f"{scope}_next": report.next or "", f"{scope}_cycle": cycle}
    if state and cycle == state and report.next is None:  # nothing has changed since the cycle began
        change[scope] = state
    noted = write_last(registry, wanted.table, last, change)
    return Scrubbed(uri=uri, report=report, noted=noted)


def _state(uri: str, table: TableId, open_table: OpenTable) -> str:
    """Return the state of the table; empty if damage hides it. Then a scrub reports the damage."""
    try:
        handle = open_table(uri)
    except (Corrupt, Invalid):
        return ""
    try:
        return state_of(handle, table)
    except Corrupt:
        return ""
