"""Decide how the columns of a table may change: pure functions from the columns to the next change.

Each returns None if the last change is the one that is asked for: then an interrupted call is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from lancelsm.common.error_text import shown
from lancelsm.errors import Invalid
from lancelsm.record.admission import check_columns, check_depth, declared, is_any
from lancelsm.record.casts import cast_column
from lancelsm.record.expected import expected
from lancelsm.record.schema import TableSchema, check_names, field_id, numbered_from, unknown_column
from lancelsm.record.schema_history import ChangeKind, SchemaChange
from lancelsm.record.values import column

_SIGNED: Final = (pa.types.is_signed_integer,)
_UNSIGNED: Final = (pa.types.is_unsigned_integer,)
_FLOATS: Final = (pa.types.is_floating,)
_ONLY_WIDTH: Final = (_SIGNED, _UNSIGNED, _FLOATS)
_LARGER: Final[dict[pa.DataType, pa.DataType]] = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}

Protected = Mapping[str, tuple[str, str]]
"""Columns that can't change: why, as the end of a sentence about the column, and what to do instead."""


def added(
    schema: TableSchema, name: str, kind: pa.DataType, *, default: Any, first_id: int, file_version: str
) -> SchemaChange | None:
    """Add a column that may be null, as the last one.

    Args:
        default: its value in rows that lack it: a Python value or a scalar of Arrow; None for null.
        first_id: an id such as that all ids from it on are free.
        file_version: of the files of the base.

    Raises:
        Invalid: the name is taken or not allowed, a table can't have the type, or the default does not fit it.
    """
    wanted = pa.field(name, kind)
    check_depth(pa.schema([wanted]))
    (field,) = declared(pa.schema([wanted]))
    check_columns(pa.schema([field]), file_version=file_version)
    number = numbered_from(field, first_id)
    value = _default(default, number)
    last = schema.history.changes[-1] if schema.history.changes else None
    change = SchemaChange(kind=ChangeKind.ADD, field=number, former=first_id, name=name, default=value)
    if last is not None and last.kind is ChangeKind.ADD and _same_column(last, change):
        return None
    if name in schema.names:
        raise Invalid(f"the table has a column {name!r}", remedy="Choose another name", field=name)
    check_names(pa.schema([*schema.columns, number]))
    return change


def _same_column(one: SchemaChange, other: SchemaChange) -> bool:
    """Return whether two changes add the same column, whatever its ids."""
    same_id = replace(other, field=one.field, former=one.former)
    return one.field == other.field and one == same_id


def dropped(schema: TableSchema, name: str, *, protected: Protected) -> SchemaChange | None:
    """Drop a column. Raises: `Invalid` if the table has no such column, or it is protected."""
    if name not in schema.names and _is_last(schema, ChangeKind.DROP, lambda field: field.name == name):
        return None
    field = _changeable(schema, name, protected, "dropped")
    return SchemaChange(kind=ChangeKind.DROP, field=field, former=field_id(field), name=name)


def renamed(schema: TableSchema, name: str, to: str, *, protected: Protected) -> SchemaChange | None:
    """Rename a column. Raises: `Invalid` if that is not possible, or the new name is taken or not allowed."""
    if name not in schema.names and _is_last(schema, ChangeKind.RENAME, lambda field: field.name == to):
        return None
    field = _changeable(schema, name, protected, "renamed")
    if to in schema.names:
        raise Invalid(f"the table has a column {to!r}", remedy="Choose another name", field=to)
    check_names(pa.schema([*schema.columns, field.with_name(to)]))
    return SchemaChange(kind=ChangeKind.RENAME, field=field.with_name(to), former=field_id(field), name=name)


def widened(
    schema: TableSchema, name: str, kind: pa.DataType, *, protected: Protected, first_id: int, file_version: str
) -> SchemaChange | None:
    """Give a column a wider type, which has all values of the old one.

    Raises:
        Invalid: the table has no such column, it is protected, or the type is not a wider one.
    """
    field = _changeable(schema, name, protected, "widened")
    if field.type == kind and _is_last(schema, ChangeKind.WIDEN, lambda one: one.name == name and one.type == kind):
        return None
    if not is_wider(field.type, kind):
        raise Invalid(
            f"column {name!r} of type {field.type} can't become {kind}",
            remedy="A column can be widened from an integer to a longer one with the same sign, from a float to a "
            "longer one, from a decimal to one of more digits and the same scale, and from text or binary to their "
            "large form. Else add a column, and set it: "
            f"table.update(where='true', set={{'NEW': 'CAST(`{name}` AS ...)'}})",
            field=name,
        )
    wide = numbered_from(pa.field(name, kind, field.nullable), first_id)
    check_columns(pa.schema([wide]), file_version=file_version)
    return SchemaChange(kind=ChangeKind.WIDEN, field=wide, former=field_id(field), name=name)


def made_nullable(schema: TableSchema, name: str, *, protected: Protected) -> SchemaChange | None:
    """Let a column be null. Raises: `Invalid` if the table has no such column, or it is protected."""
    field = _changeable(schema, name, protected, "nullable")
    if field.nullable:
        return None
    return SchemaChange(kind=ChangeKind.NULLABLE, field=field.with_nullable(True), former=field_id(field), name=name)


def adopted(known: TableSchema, found: TableSchema, *, protected: Protected) -> list[SchemaChange]:
    """Return the changes that lead from the columns of a table to those that another tool made of them by one commit.

    Raises:
        Invalid: a protected column was changed, a type or a nested column was changed, or a column must not be null any
            more. Older rows can't be read under such columns.
    """
    changes: list[SchemaChange] = []
    now = {field_id(field): field for field in found.columns}
    for field in known.columns:
        other = now.get(field_id(field))
        if other is None:
            changes.append(_of_other_tool(ChangeKind.DROP, field, field, protected))
            continue
        if other.type != field.type or (field.nullable and not other.nullable):
            what = f"type {other.type}" if other.type != field.type else "no nulls"
            raise _not_adoptable(f"column {field.name!r} has {what} now", field.name)
        renamed_field = field.with_name(other.name)
        if other.name != field.name:
            changes.append(_of_other_tool(ChangeKind.RENAME, renamed_field, field, protected))
        if other.nullable and not field.nullable:
            made = _of_other_tool(ChangeKind.NULLABLE, renamed_field.with_nullable(True), field, protected)
            changes.append(replace(made, name=other.name))
    known_ids = {field_id(one) for one in known.columns}
    for number, field in now.items():
        if number not in known_ids:
            if not field.nullable:
                raise _not_adoptable(f"the new column {field.name!r} must not be null", field.name)
            changes.append(SchemaChange(kind=ChangeKind.ADD, field=field, former=number, name=field.name))
    return changes


def _of_other_tool(kind: ChangeKind, field: pa.Field, before: pa.Field, protected: Protected) -> SchemaChange:
    if before.name in protected:
        why, _ = protected[before.name]
        raise _not_adoptable(f"column {before.name!r} was changed ({kind.value}), and it {why}", before.name)
    return SchemaChange(kind=kind, field=field, former=field_id(before), name=before.name)


def _not_adoptable(what: str, name: str) -> Invalid:
    return Invalid(
        f"the change of another tool can't be taken up: {what}",
        remedy="Undo it with Lance: `lancelsm doctor` names the version to restore. Then change the columns with "
        "lancelsm, or copy the table",
        field=name,
    )


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether a column of the old type can be widened to the new one."""
    for kinds in _ONLY_WIDTH:
        if is_any(old, kinds):
            return is_any(new, kinds) and bool(new.bit_width > old.bit_width)
    if pa.types.is_decimal(old):
        is_decimal = pa.types.is_decimal128(new) or pa.types.is_decimal256(new)
        return is_decimal and bool(new.scale == old.scale and new.precision > old.precision)
    return bool(_LARGER.get(old) == new)


def _changeable(schema: TableSchema, name: str, protected: Protected, what: str) -> pa.Field:
    if name not in schema.names:
        raise unknown_column(name, schema.names)
    if name in protected:
        why, remedy = protected[name]
        raise Invalid(f"column {name!r} can't be {what}: it {why}", remedy=remedy, field=name)
    return schema.columns.field(name)


def _is_last(schema: TableSchema, kind: ChangeKind, is_it: Callable[[pa.Field], bool]) -> bool:
    last = schema.history.changes[-1] if schema.history.changes else None
    return last is not None and last.kind is kind and is_it(last.field)


def _default(value: Any, field: pa.Field) -> pa.Array | None:
    """Return an array of the default; None for null."""
    if value is None or (isinstance(value, pa.Scalar) and not value.is_valid):
        return None
    try:
        if isinstance(value, pa.Scalar):
            return cast_column(pa.chunked_array([pa.repeat(value, 1)]), field)
        return column([value], field)
    except (Invalid, pa.ArrowException) as error:
        what, remedy = (error.message, error.remedy) if isinstance(error, Invalid) else (str(error), "")
        raise Invalid(
            f"the default {shown(value)} does not fit column {field.name!r}: {what}",
            remedy=remedy or f"Give {expected(field.type)}",
            field=field.name,
        ) from error
