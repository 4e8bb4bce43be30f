"""Convert changes to rows and tombstones in stored form, and find those that don't fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.errors import Invalid
from lancelsm.read.transact.change_event import RowChange, Selection
from lancelsm.record.files import json_rows
from lancelsm.record.values import column, json_column

Bad = Callable[[int, Invalid], None]
"""Gets the number of an event that does not fit, and why."""

_NUMBER = "__event"


def stored(
    changes: Sequence[RowChange], selection: Selection, *, is_json: bool, bad: Bad
) -> tuple[pa.Table, list[RowChange]]:
    """Return the changes that fit, and their rows in stored form. `bad` gets each of the others.

    Args:
        is_json: values are as `json.loads` returns them; else Python objects.
    """
    convert = json_column if is_json else column
    rows, fitting = _fitting(changes, lambda some: _rows(some, selection, convert), bad)
    return pa.concat_tables([selection.schema.stored.empty_table(), *rows]), fitting


def _fitting(
    changes: Sequence[RowChange], convert: Callable[[Sequence[RowChange]], pa.Table], bad: Bad
) -> tuple[list[pa.Table], list[RowChange]]:
    """Return the changes that can be converted, in order, and their tables. `bad` gets each of the others."""
    if not changes:
        return [], []
    try:
        return [convert(changes)], list(changes)
    except Invalid as error:
        if len(changes) == 1:
            bad(changes[0].event, _without_row(error))
            return [], []
    middle = len(changes) // 2
    rows, fitting = _fitting(changes[:middle], convert, bad)
    more, others = _fitting(changes[middle:], convert, bad)
    return rows + more, fitting + others


def _without_row(error: Invalid) -> Invalid:
    """Return the error of a table with one row, without the number of the row."""
    message, redacted = (text.replace(", row 0:", ":", 1) for text in (error.message, error.redacted))
    return Invalid(message, remedy=error.remedy, redacted=redacted, field=error.where.get("field"))


def _rows(changes: Sequence[RowChange], selection: Selection, convert: Callable[..., pa.Array]) -> pa.Table:
    schema = selection.schema
    arrays = []
    for field in schema.columns:
        values = [change.values.get(field.name) for change in changes]
        needed = field.name in schema.primary_key or field.name in selection.sequence
        array = convert(values, field.with_nullable(not needed))
        if field.name in selection.sequence and pa.types.is_floating(field.type) and pc.any(pc.is_nan(array)).as_py():
            raise Invalid(f"column {field.name!r} orders events, so it takes no NaN", field=field.name)
        if not field.nullable and not needed:
            _check_not_null(changes, field.name, array)
        arrays.append(array)
    arrays.append(pa.array([change.delete for change in changes], pa.bool_()))
    return pa.Table.from_arrays(arrays, schema=schema.stored)


def _check_not_null(changes: Sequence[RowChange], name: str, array: pa.Array) -> None:
    for change, valid in zip(changes, array.is_valid().to_pylist(), strict=True):
        if not valid and not change.delete and name not in change.unchanged:
            raise Invalid(f"column {name!r} must not be null", field=name)


def as_deletes(
    changes: Sequence[RowChange],
    condition: str,
    *,
    selection: Selection,
    records: Sequence[Any],
    table: str,
    bad: Bad,
) -> list[RowChange]:
    """Make deletes of the upserts whose event meets an SQL condition over its fields.

    Args:
        records: the events by number.
        bad: gets the events with a value that does not fit its column; they are left out.

    Raises:
        Invalid: the condition is not one over the fields of the events.
    """
    from lancelsm.dataset.conditions import read_condition  # noqa: PLC0415 - `ingest` never loads Lance

    upserts = [change for change in changes if not change.delete]
    every = dict.fromkeys(name for change in upserts for name in _fields(records[change.event], change))
    names = [name for name in every if name in condition] or list(selection.schema.primary_key)
    kinds = pa.schema([field for field in selection.schema.columns if field.name in names])

    def converted(some: Sequence[RowChange]) -> pa.Table:
        rows = [{name: _fields(records[change.event], change).get(name) for name in names} for change in some]
        return json_rows(rows, schema=kinds)

    tables, chosen = _fitting(upserts, converted, bad)
    if not chosen:
        return [change for change in changes if change.delete]
    given = tables[0] if len(tables) == 1 else converted(chosen)
    found = read_condition(condition, columns=given.schema, table=table).matching(
        given.append_column(_NUMBER, pa.array(range(len(chosen)), pa.int64())), table=table
    )
    matched = {id(chosen[at]) for at in found.column(_NUMBER).to_pylist()}
    fitting = set(map(id, chosen))
    return [
        selection.deletion(change.event, change.values) if id(change) in matched else change
        for change in changes
        if change.delete or id(change) in fitting
    ]


def _fields(event: Any, change: RowChange) -> Mapping[str, Any]:
    return {**(event if isinstance(event, Mapping) else {}), **change.values}


def without_numbers(rows: pa.Table) -> pa.Table:
    """Return routed rows in stored form, without the column that numbers them."""
    return rows.drop_columns([_NUMBER])


def numbered(rows: pa.Table) -> pa.Table:
    """Add a column that numbers the rows, to find their changes after they are routed."""
    return rows.append_column(_NUMBER, pa.array(range(rows.num_rows), pa.int64()))


def numbers(rows: pa.Table) -> list[int]:
    """Return the numbers of routed rows."""
    found: list[int] = rows.column(_NUMBER).to_pylist()
    return found
