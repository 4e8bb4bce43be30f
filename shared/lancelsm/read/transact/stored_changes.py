"""Convert changes to rows and tombstones in stored form, and find those that don't fit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.errors import Invalid
from lancelsm.read.transact.change_event import RowChange, Selection
from lancelsm.record.casts import attempt
from lancelsm.record.schema import TableSchema
from lancelsm.record.values import column, json_column

if TYPE_CHECKING:
    from lancelsm.dataset.conditions import Condition

Bad = Callable[[int, Invalid], None]
"""Gets the number of an event that does not fit, and why."""

_PLAIN_KINDS = (pa.string(), pa.int64(), pa.float64(), pa.bool_())  # of a field that is null in all events


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
    for change in changes:
        change.check_whole()
    arrays = []
    for field in schema.columns:
        values = [change.values.get(field.name) for change in changes]
        needed = field.name in schema.primary_key or field.name in selection.sequence
        array = convert(values, field.with_nullable(not needed))
        if field.name in schema.optional:
            array = _with_default(array, changes, field, schema)
        if field.name in selection.sequence and pa.types.is_floating(field.type) and pc.any(pc.is_nan(array)).as_py():
            raise Invalid(
                f"column {field.name!r} orders events, so it takes no NaN", remedy="Give a number", field=field.name
            )
        if not field.nullable and not needed:
            _check_not_null(changes, field.name, array)
        arrays.append(array)
    arrays.append(pa.array([change.delete for change in changes], pa.bool_()))
    return pa.Table.from_arrays(arrays, schema=schema.stored)


def _with_default(array: pa.Array, changes: Sequence[RowChange], field: pa.Field, schema: TableSchema) -> pa.Array:
    """Return the values of a column that was added; its default where an upsert leaves it out."""
    left_out = [
        not change.delete and field.name not in change.values and field.name not in change.unchanged
        for change in changes
    ]
    both = pa.concat_arrays([array, schema.left_out(field, 1)])
    return both.take(pa.array([len(array) if out else at for at, out in enumerate(left_out)], pa.int64()))


def _check_not_null(changes: Sequence[RowChange], name: str, array: pa.Array) -> None:
    for change, valid in zip(changes, array.is_valid().to_pylist(), strict=True):
        if not valid and not change.delete and name not in change.unchanged:
            raise Invalid(f"column {name!r} must not be null", remedy="Give a value", field=name)


def as_deletes(
    changes: Sequence[RowChange],
    condition: str,
    *,
    selection: Selection,
    records: Sequence[Any],
    is_json: bool,
    bad: Bad,
    table: str,
) -> list[RowChange]:
    """Make deletes of the upserts whose event meets an SQL condition over its fields.

    Args:
        records: the events by number.
        is_json: values are as `json.loads` returns them; else Python objects.
        bad: gets each event whose values the condition can't be applied to. Its changes are left out.

    Raises:
        Invalid: the condition is not one over the fields of the events.
    """
    upserts = [change for change in changes if not change.delete]
    if not upserts:
        return list(changes)
    fields = {id(change): _fields(records[change.event], change) for change in upserts}
    every = dict.fromkeys([*(name for one in fields.values() for name in one), *(selection.dropped or ())])
    names = [name for name in every if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", condition)]
    possible = [
        (name, [selection.kinds[name]] if name in selection.kinds else _kinds(name, fields.values()))
        for name in names or selection.schema.primary_key
    ]
    try:
        columns, found = _planned(condition, possible, table=table)
    except Invalid as error:  # it lists only the fields that the condition names
        remedy = f"{error.remedy}. The events have the fields {', '.join(sorted(every))}"
        raise Invalid(error.message, remedy=remedy, redacted=error.redacted, field="apply_as_deletes") from None
    convert = json_column if is_json else column

    def converted(some: Sequence[RowChange]) -> pa.Table:
        arrays = []
        for field in columns:
            values = [fields[id(change)].get(field.name) for change in some]
            is_own = field.name in selection.kinds
            arrays.append(
                convert(values, field) if is_own else attempt(values, partial(pa.array, type=field.type), field)
            )
        return pa.Table.from_arrays(arrays, schema=columns)

    tables, fitting = _fitting(upserts, converted, bad)
    rows = pa.concat_tables([columns.empty_table(), *tables])
    result = {id(change): change for change in (*fitting, *(one for one in changes if one.delete))}
    for at in numbers(found.matching(numbered(rows), table=table)):
        try:
            result[id(fitting[at])] = selection.deletion(fitting[at].event, fitting[at].values)
        except Invalid as error:
            bad(fitting[at].event, error)
    return [result[id(change)] for change in changes if id(change) in result]


def _planned(
    condition: str, columns: Sequence[tuple[str, Sequence[pa.DataType]]], *, table: str
) -> tuple[pa.Schema, Condition]:
    """Return the condition over these columns, with the first of their possible types that it can be applied to."""
    from lancelsm.dataset.conditions import read_condition  # noqa: PLC0415 - `ingest` never loads Lance

    problem: Invalid | None = None
    for kinds in product(*(possible for _, possible in columns)):
        schema = pa.schema([pa.field(name, kind) for (name, _), kind in zip(columns, kinds, strict=True)])
        try:
            return schema, read_condition(condition, columns=schema, table=table)
        except Invalid as error:
            problem = problem or error
    raise problem or Invalid(
        "the condition names no column", remedy="Name a column in the condition", field="apply_as_deletes"
    )


def _kinds(name: str, records: Iterable[Mapping[str, Any]]) -> list[pa.DataType]:
    """Return the types that a field of events may have: that of most of its values first."""
    values = [value for one in records if (value := one.get(name)) is not None]
    most = Counter(map(type, values)).most_common(1)
    found: list[pa.DataType] = []
    for some in (values, [value for value in values if type(value) is most[0][0]]):
        try:
            found += [pa.infer_type(some)] if some else []
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
    return list(dict.fromkeys([*found, *_PLAIN_KINDS]))


def _fields(event: Any, change: RowChange) -> Mapping[str, Any]:
    return {**(event if isinstance(event, Mapping) else {}), **change.values}


def without_numbers(rows: pa.Table) -> pa.Table:
    """Return routed rows in stored form, without the column that numbers them."""
    return rows.select(rows.column_names[:-1])


def numbered(rows: pa.Table) -> pa.Table:
    """Add a last column that numbers the rows, to find their changes after they are routed."""
    name = max(["", *rows.column_names], key=len) + "_"  # no column of the table has it
    return rows.append_column(name, pa.array(range(rows.num_rows), pa.int64()))


def numbers(rows: pa.Table) -> list[int]:
    """Return the numbers of routed rows."""
    found: list[int] = rows.column(rows.num_columns - 1).to_pylist()
    return found
