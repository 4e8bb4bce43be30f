"""Drift: another tool changed the base so that rows of this table can't be merged into it.

Flushes continue, since they write by the configuration. Merges stop. The first flush or merge that meets drift marks
the head of each region, so writers that never read the base stop too. A merge that finds the base in order again
removes the marks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancelsm.errors import Contended, Invalid, LsmError
from lancelsm.record.schema import field_id
from lancelsm.region import head as heads
from lancelsm.region.catalog import Region, TableContext, regions, with_heads
from lancelsm.region.config import Config
from lancelsm.region.handle import Overwritten, check_base
from lancelsm.region.head import Head

if TYPE_CHECKING:
    from lancelsm.dataset.base_table import BaseTable


_VERSIONS_READ = 32


class Drifted(Invalid):
    """The base has other columns or another key than the table, or has lost its MemWAL index."""


def drift(base: BaseTable, config: Config) -> LsmError | None:
    """Return why the rows of a table can't be merged into this version of its base; None if they can.

    If the columns changed, it opens older versions, to name one to restore.

    Raises:
        Corrupt: the indexes of the base can't be read.
        Unavailable: the store did not answer.
    """
    try:
        check_base(base, config)
    except LsmError as error:
        return error
    change = _change_of_schema(base, config)
    if change:
        undo = f"ndo it with Lance: {_restore(base, config)}. Then: lancelsm merge {base.uri}"
        is_older = base.schema.version < config.schema.version  # rows would lose values
        return Drifted(
            f"another tool changed the base: {change}",
            remedy=f"U{undo}" if is_older else f"Take it up: lancelsm schema sync {base.uri}. Or u{undo}",
            table=base.uri,
            version=base.version,
        )
    if base.mem_wal_index() is None:
        return Drifted(
            "another tool dropped the MemWAL index of the base",
            remedy=f"Install it again: lancelsm region adopt {base.uri}",
            table=base.uri,
            version=base.version,
        )
    return None


def _restore(base: BaseTable, config: Config) -> str:
    """Say how to restore the last version of the base with the columns and the key of the table."""
    from lancelsm.dataset.base_table import open_base  # noqa: PLC0415 - a writer never loads Lance

    for version in range(base.version - 1, max(0, base.version - 1 - _VERSIONS_READ), -1):
        try:
            older = open_base(uri=base.uri, version=version, storage_options=base.storage_options)
        except LsmError:
            break
        if not _change_of_schema(older, config):
            return f"lance.dataset({base.uri!r}, version={version}).restore(), which undoes every later commit"
    return f"restore its last version with the columns that `lancelsm describe {base.uri}` shows"


def stop_writers(context: TableContext, wrong: LsmError) -> None:
    """Mark the head of each region if another tool changed or overwrote the base.

    When this returns, no append that began before is acknowledged any more. An error of another kind, such as a base of
    a newer release, marks nothing.

    Args:
        wrong: what `drift` returned.

    Raises:
        Contended: a head kept changing until the retry budget was spent.
        Unavailable: the registry did not answer. Some heads may have the mark.
    """
    if isinstance(wrong, Drifted | Overwritten):
        context.each(lambda pair: _stop(*pair, wrong.message), with_heads(context, regions(context)))


def resume(region: Region, head: Head) -> Head:
    """Remove the mark of a region whose base is in order. Return the newest head that was seen."""
    step = heads.resumed(head)
    outcome = region.swap(step) if step is not None else head
    return outcome if isinstance(outcome, Head) else head


def _stop(region: Region, head: Head, reason: str) -> None:
    for _ in region.context.budget().attempts():
        step = heads.stopped(head, reason, nonce=region.context.ids.nonce())
        if step is None:
            return
        outcome = region.swap(step)
        head = outcome if isinstance(outcome, Head) else region.head_after(outcome)
    raise Contended("the region could not be stopped", **region.where)


def _change_of_schema(base: BaseTable, config: Config) -> str:
    """Describe how the columns or the key of the base differ from the configuration; empty if they don't."""
    wanted, found = config.schema, base.schema
    if found == wanted:
        return ""
    if found.version < wanted.version:
        return f"it restored version {found.version} of the columns, and the table has version {wanted.version}"
    try:
        wanted = wanted.at(found.history)  # the change of this release is in the base before the configuration
    except ValueError:
        return "its columns have another history"
    if found == wanted:
        return ""
    for column in wanted.columns:
        if column.name not in found.names:
            now = next((other.name for other in found.columns if field_id(other) == field_id(column)), None)
            return f"column {column.name!r} is " + ("gone" if now is None else f"called {now!r} now")
        other = found.columns.field(column.name)
        if other.type != column.type:
            return f"column {column.name!r} has type {other.type}, not {column.type}"
        if other.nullable != column.nullable:
            return f"column {column.name!r} is {'nullable' if other.nullable else 'not nullable'} now"
    for name in found.names:
        if name not in wanted.names:
            return f"it added column {name!r}"
    if found.primary_key != wanted.primary_key:
        return f"its key is {list(found.primary_key)}, not {list(wanted.primary_key)}"
    return "the ids or the order of its columns differ"
