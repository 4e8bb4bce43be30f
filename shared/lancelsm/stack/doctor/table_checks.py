"""The checks of one table: it opens, its base belongs to it, its regions can be read, its backlog is short, and its
cursors are used.

The last checks are what other tools did to it: `read.problems`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lancelsm.common.argument_checks import checked
from lancelsm.dataset.base_table import BaseTable
from lancelsm.errors import LsmError
from lancelsm.history.changes import cursor_lag
from lancelsm.history.cursor import list_cursors
from lancelsm.read.problems import find_problems, promise_problems
from lancelsm.region.catalog import regions, with_heads
from lancelsm.region.handle import TableHandle, canonical, check_base, open_configured
from lancelsm.region.resharding import read_resharding
from lancelsm.stack.doctor import Check, evaluate
from lancelsm.table import Table

CURSORS = "cursors"
INDEXES = "indexes"
OTHER_TOOLS = "other tools"  # the name of the checks for what other tools did to the table

_DAY = 86_400
_UNREAD_SECONDS = 7 * _DAY


@checked
def doctor(table: Table | str | Path, *, storage_options: Mapping[str, str] | None = None) -> list[Check]:
    """Check a table: configuration, base, regions, backlog, cursors, other tools, indexes. Nothing is repaired.

    Args:
        table: the table, or its location. An open table is read with the options of the store that it has.

    Returns:
        The checks. The first one that fails may be the last one. No error of the table is raised: `found` of the check
        has it.

    Raises:
        Invalid: an argument has another type, or is not a location.
    """
    if isinstance(table, Table):
        return table_checks(table.uri, storage_options=storage_options or table._handle.storage_options)
    return table_checks(canonical(table), storage_options=storage_options)


def table_checks(uri: str, *, storage_options: Mapping[str, str] | None = None) -> list[Check]:
    """Run checks until one fails that later ones depend on.

    Reads a few small objects, the heads, and the newest version of the base with its keys. Lists `_mem_wal/`.
    """
    found: list[Check] = []
    try:
        handle = open_configured(uri, storage_options=storage_options)
        found.append(Check(name="configuration", ok=True, found=f"{handle.config.registry}, {handle.config.table}"))
        base = handle.read_base()
        check_base(base, handle.config)
        found.append(Check(name="base", ok=True, found=f"version {base.version}"))
        found.append(_regions(handle))
        unfinished = _reshard(handle)
        found += _cursors(handle)
        found += _other_tools(handle, base)
        found += [_indexes(handle), *unfinished]
    except LsmError as error:
        name = ("configuration", "base", "regions", CURSORS, OTHER_TOOLS, INDEXES)[min(len(found), 5)]
        found.append(Check(name=name, ok=False, found=f"{error.kind}: {error.message}", remedy=error.remedy))
    return found


def _reshard(handle: TableHandle) -> list[Check]:
    """Return a check that fails if a reshard is not done. Writers wait for it."""
    found = read_resharding(handle.context)
    if found is None or found.done:
        return []
    problem = f"a reshard to {found.spec} is running, or was interrupted"
    return [Check(name="reshard", ok=False, found=problem, remedy=f"Finish it: lancelsm reshard {handle.context.uri}")]


def _cursors(handle: TableHandle) -> list[Check]:
    """Report cursors that have left rows unread for a week: they keep the log from then on."""
    context = handle.context
    known = list_cursors(context)
    checks = []
    for one in known:
        lag = cursor_lag(context, one)
        age = 0.0 if lag.since is None else context.clock.now() - lag.since
        if age >= _UNREAD_SECONDS:
            days = f"has not read rows of {age / _DAY:.0f} days ago, and keeps {lag.entries} entries of the log"
            remedy = f"If its consumer is gone: lancelsm cursor drop {context.uri} --name {one.name}"
            checks.append(Check(name=CURSORS, ok=False, found=f"{one.name} {days}", remedy=remedy))
    return checks or [Check(name=CURSORS, ok=True, found=f"{len(known)}, none a week behind")]


def _other_tools(handle: TableHandle, base: BaseTable) -> list[Check]:
    problems = find_problems(handle, base=base, every_key=True)
    return [Check(name=OTHER_TOOLS, ok=False, found=one.message, remedy=one.remedy) for one in problems] or [
        Check(name=OTHER_TOOLS, ok=True, found="nothing that the table does not know")
    ]


def _indexes(handle: TableHandle) -> Check:
    for one in promise_problems(handle):
        return Check(name=INDEXES, ok=False, found=one.message, remedy=one.remedy)
    return Check(name=INDEXES, ok=True, found="every generation has those that Lance's readers rely on")


def _regions(handle: TableHandle) -> Check:
    heads = [head for _, head in with_heads(handle.context, regions(handle.context))]
    pending = max((head.pending_generations for head in heads), default=0)
    slow = handle.settings.pending_generations_slow
    merge = f"Merge: lancelsm merge {handle.context.uri}"
    return evaluate(
        "regions",
        f"{len(heads)} with a head, at most {pending} generations to merge",
        (pending >= slow, f"{pending} generations wait to be merged, appends slow down from {slow}", merge),
    )
