"""Take up columns that another tool has changed in the base.

The versions of the base since the last one with the columns of the table are read one by one, since only each step says
what was meant: Lance may give the id of a dropped column to the next one that is added. The history of the columns is
then committed to the base, as for a change of our own. Model: tests/model/schema_change.py.
"""

from __future__ import annotations

from lancelsm.admin.change_columns import holding_base, protected_columns
from lancelsm.common.clock import SLOW_ATTEMPTS
from lancelsm.dataset.adoption import write_facts
from lancelsm.dataset.base_table import BaseTable, VersionGone, open_base
from lancelsm.dataset.statement import Stating
from lancelsm.errors import Contended, Invalid, error_context
from lancelsm.record.schema import TableSchema
from lancelsm.record.schema_changes import adopted
from lancelsm.record.schema_history import SchemaChange, SchemaHistory, metadata_of
from lancelsm.region.catalog import regions, with_heads
from lancelsm.region.drift import Drifted, drift, resume
from lancelsm.region.handle import TableHandle
from lancelsm.region.unfinished_change import finish_change

_VERSIONS_READ = 1000


def sync_columns(handle: TableHandle) -> tuple[TableHandle, list[SchemaChange]]:
    """Take up what another tool changed; see `Table.sync_schema`. Return the handle with the columns, and the changes.

    Raises:
        Invalid: rows of the log can't be read under these columns, or it is not known any more what was changed.
        Contended: until the retry budget was spent, another process held the lease of the base, or others changed it.
        Corrupt: the base belongs to another table.
        Unavailable: a store did not answer. The same call finishes it.
    """
    context = handle.context
    with error_context(table=context.uri), holding_base(context):
        handle = handle.with_newest_columns()  # another tool may have restored a base with those that the handle knows
        for _ in context.budget().attempts(least=SLOW_ATTEMPTS):
            base = handle.read_base()
            handle = handle.with_columns_of(base)
            wrong = drift(base, handle.config)
            if wrong is None:
                return _finished(handle, base), []
            is_older = base.schema.version < handle.config.schema.version  # it was restored: rows would lose values
            if not isinstance(wrong, Drifted) or base.mem_wal_index() is None or is_older:
                raise wrong
            changes = _changes(handle, base)
            if not changes:  # it is not the columns that differ
                raise wrong
            history = SchemaHistory(changes=(*handle.config.schema.history.changes, *changes))
            try:
                write_facts(base, metadata_of(history), stating=Stating(objects=context.objects))
            except Contended:
                continue
            now = handle.read_base()
            return _finished(handle.with_columns_of(now), now), changes
    raise Contended("other processes kept changing the base", remedy="Nothing was changed: retry", table=context.uri)


def _finished(handle: TableHandle, base: BaseTable) -> TableHandle:
    handle = finish_change(handle, base)
    context = handle.context
    context.each(lambda pair: resume(*pair), with_heads(context, regions(context)))
    return handle


def _changes(handle: TableHandle, newest: BaseTable) -> list[SchemaChange]:
    """Return the changes from the columns of the table to those of the newest base, version by version."""
    protected, start = protected_columns(handle, newest), handle.config.schema
    steps: list[TableSchema] = []
    base = newest
    while base.schema != start:
        steps.append(base.schema)
        base = _before(handle, base)
    changes: list[SchemaChange] = []
    known = start
    for found in reversed(steps):
        if found.primary_key != known.primary_key:
            raise Invalid(
                f"another tool changed the key of the base to {list(found.primary_key)}",
                remedy="Undo it with Lance: `lancelsm doctor` names the version to restore",
                table=newest.uri,
            )
        changes += adopted(known, found, protected=protected)
        known = start.at(SchemaHistory(changes=(*start.history.changes, *changes)))
    return changes


def _before(handle: TableHandle, base: BaseTable) -> BaseTable:
    try:
        if base.version == 1:
            raise VersionGone("there is no older version")
        options = handle.storage_options
        return open_base(uri=handle.context.uri, version=base.version - 1, storage_options=options)
    except VersionGone as gone:
        raise Invalid(
            "it is not known what another tool changed: a version of the base since then was removed",
            remedy="Copy the table, or undo the change with Lance: name and type of each column as in "
            f"`lancelsm describe {handle.context.uri}`",
            table=handle.context.uri,
            version=base.version - 1,
        ) from gone
