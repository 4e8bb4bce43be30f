"""Change the columns of a table while writers, readers and maintenance run.

The commit of the base makes the change, under the lease of the base, so that no merge has to repeat its work. Then the
configuration and the heads follow (`region.unfinished_change`). The log, generations and messages stay as they are:
their rows name the version that they were written under, and are converted when they are read.
Model: tests/model/schema_change.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa

from lancelsm.common.clock import SLOW_ATTEMPTS
from lancelsm.dataset.base_rows import CommittedVersion
from lancelsm.dataset.base_table import BaseTable
from lancelsm.dataset.column_changes import commit_change, first_unused_id
from lancelsm.dataset.indexes import base_indexes, wanted_list
from lancelsm.errors import Ambiguous, Contended, Unavailable, error_context
from lancelsm.record import schema_changes as changes
from lancelsm.record.schema import TableSchema
from lancelsm.record.schema_changes import Protected
from lancelsm.record.schema_history import SchemaChange
from lancelsm.record.type_names import type_named
from lancelsm.region.catalog import TableContext
from lancelsm.region.config import newest_sequence
from lancelsm.region.drift import drift
from lancelsm.region.handle import TableHandle
from lancelsm.region.lease import BASE_LEASE, INDEXES_LEASE, lease
from lancelsm.region.unfinished_change import finish_change

Decide = Callable[[BaseTable, TableSchema], SchemaChange | None]
"""Return the next change of these columns; None if there is nothing to do."""


def add_column(handle: TableHandle, name: str, kind: pa.DataType | str, *, default: Any = None) -> TableHandle:
    """Add a column; see `Table.add_column`."""
    wanted = type_named(kind, column=name)

    def decide(base: BaseTable, schema: TableSchema) -> SchemaChange | None:
        first, version = first_unused_id(base), base.data_storage_version
        return changes.added(schema, name, wanted, default=default, first_id=first, file_version=version)

    return _change(handle, decide)


def drop_column(handle: TableHandle, name: str) -> TableHandle:
    """Drop a column; see `Table.drop_column`."""
    return _change(
        handle, lambda base, schema: changes.dropped(schema, name, protected=protected_columns(handle, base))
    )


def rename_column(handle: TableHandle, name: str, to: str) -> TableHandle:
    """Rename a column; see `Table.rename_column`."""
    return _change(
        handle, lambda base, schema: changes.renamed(schema, name, to, protected=protected_columns(handle, base))
    )


def widen_column(handle: TableHandle, name: str, kind: pa.DataType | str) -> TableHandle:
    """Give a column a wider type; see `Table.widen_column`."""
    wanted = type_named(kind, column=name)

    def decide(base: BaseTable, schema: TableSchema) -> SchemaChange | None:
        first, version = first_unused_id(base), base.data_storage_version
        protected = protected_columns(handle, base)
        return changes.widened(schema, name, wanted, protected=protected, first_id=first, file_version=version)

    return _change(handle, decide)


def set_nullable(handle: TableHandle, name: str) -> TableHandle:
    """Let a column be null; see `Table.set_nullable`."""
    return _change(
        handle, lambda base, schema: changes.made_nullable(schema, name, protected=protected_columns(handle, base))
    )


@contextmanager
def holding_base(context: TableContext) -> Iterator[None]:
    """Hold the leases of the base and of its indexes. Wait for a merge that is running, within the retry budget.

    Raises:
        Contended: other processes held a lease all the time.
    """
    with ExitStack() as held:
        busy: Contended | None = None
        for _ in context.budget().attempts():
            try:
                with ExitStack() as taken:
                    for name in (BASE_LEASE, INDEXES_LEASE):
                        taken.enter_context(lease(context, name))
                    held.enter_context(taken.pop_all())
                    break
            except Contended as error:
                busy = error
        else:
            raise busy or Contended("the base could not be locked", table=context.uri)
        yield


def _change(handle: TableHandle, decide: Decide) -> TableHandle:
    """Commit a change to the base, then bring configuration and heads to it. Return the handle with the new columns.

    Raises:
        Invalid: `decide` raised it, or another tool changed the base.
        Contended: until the retry budget was spent, another process held the lease of the base, or others changed the
            base. Nothing was changed.
        Ambiguous: neither the commit nor the read of the base after it had an answer. The same call finishes it.
        Unavailable: a store did not answer. The change may be in the base: the same call finishes it.
    """
    context = handle.context
    with error_context(table=context.uri), holding_base(context):
        handle = handle.with_newest_columns()  # another tool may have restored a base with those that the handle knows
        for _ in context.budget().attempts(least=SLOW_ATTEMPTS):
            base = handle.read_base()
            handle = handle.with_columns_of(base)
            if (wrong := drift(base, handle.config)) is not None:  # guard: foreign columns are not changed
                raise wrong
            change = decide(base, handle.config.schema)
            if change is None:
                return finish_change(handle, base)
            committed = _committed(handle, base, change)
            if committed is not None:
                return finish_change(handle, committed)
    raise Contended("other processes kept changing the base", remedy="Nothing was changed: retry", table=context.uri)


def _committed(handle: TableHandle, base: BaseTable, change: SchemaChange) -> BaseTable | None:
    """Commit a change; return a version of the base that has it, or None if another commit came first."""
    try:
        outcome = commit_change(base, change, objects=handle.context.objects)
    except Unavailable as cause:
        newest = _after_lost_reply(handle, cause)
        history = newest.schema.history.changes[len(base.schema.history.changes) :]
        return newest if history[:1] == (change,) else None
    return handle.read_base() if isinstance(outcome, CommittedVersion) else None


def _after_lost_reply(handle: TableHandle, cause: Unavailable) -> BaseTable:
    try:
        return handle.read_base()
    except Unavailable:
        raise Ambiguous(
            f"the change may have been committed: {cause.message}",
            remedy="Make the same call again: it finishes the change",
        ) from cause


def protected_columns(handle: TableHandle, base: BaseTable) -> Protected:
    """Return the columns that can't be dropped, renamed, widened or made nullable, each with the reason."""
    config, uri = handle.config, handle.context.uri
    found: dict[str, tuple[str, str]] = {}
    indexed = [(name, index.name) for index in base_indexes(base) for name in index.columns]
    for name, index in [*indexed, *((one.column, one.name) for one in wanted_list(base).indexes)]:
        found[name] = (f"has the index {index!r}", f"Drop the index first: lancelsm index drop {uri} {index}")
    if base.ttl is not None:
        remedy = "Remove the time to live first: table.set_ttl(None). Set it again after the change"
        found[base.ttl.column] = ("has the times from which rows expire", remedy)
    copy = "Create another table with the columns that you want, and copy the rows: "
    copy += "lancelsm.create(NEW, lancelsm.open(URI).scan(), primary_key=...)"
    for name in newest_sequence(handle.context.objects, config, uri=uri):
        found[name] = ("orders the change events of the table", copy)
    for field in () if config.regions is None else config.regions.fields:
        for name in field.columns:
            found[name] = ("is a column of the region spec", copy)
    for name in config.schema.primary_key:
        found[name] = ("is a column of the primary key", copy)
    return found
