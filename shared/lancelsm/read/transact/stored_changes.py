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
    found: list[pa.Table] = []
    fitting: list[RowChange] = []

    def part(some: Sequence[RowChange]) -> None:
        try:
            rows = _rows(some, selection, convert)
        except Invalid as error:
            if len(some) == 1:
                bad(some[0].event, Invalid(error.message, remedy=error.remedy, field=error.where.get("field")))
                return
            part(some[: len(some) // 2])
            part(some[len(some) // 2 :])
            return
        found.append(rows)
        fitting.extend(some)

    if changes:
        part(changes)
    return pa.concat_tables([selection.schema.stored.empty_table(), *found]), fitting


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
    changes: Sequence[RowChange], condition: str, *, selection: Selection, records: Sequence[Any], table: str
) -> list[RowChange]:
    """Make deletes of the upserts whose event meets an SQL condition over its fields.

    Args:
        records: the events by number.

    Raises:
        Invalid: the condition is not one over the fields of the events.
    """
    from lancelsm.dataset.conditions import read_condition  # noqa: PLC0415 - `ingest` never loads Lance

    chosen = [change for change in changes if not change.delete]
    if not chosen:
        return list(changes)
    every = dict.fromkeys(name for change in chosen for name in _fields(records[change.event], change))
    names = [name for name in every if name in condition] or list(selection.schema.primary_key)
    rows = [{name: _fields(records[change.event], change).get(name) for name in names} for change in chosen]
    given = json_rows(rows, schema=pa.schema([f for f in selection.schema.columns if f.name in names]))
    found = read_condition(condition, columns=given.schema, table=table).matching(
        given.append_column(_NUMBER, pa.array(range(len(chosen)), pa.int64())), table=table
    )
    matched = {id(chosen[at]) for at in found.column(_NUMBER).to_pylist()}
    return [selection.deletion(change.event, change.values) if id(change) in matched else change for change in changes]


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
