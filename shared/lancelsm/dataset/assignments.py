"""Evaluate the expressions of an update: SQL in Lance's dialect, over the columns of a row as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import lance
import pyarrow as pa

from lancelsm.common.panics import is_panic
from lancelsm.dataset.conditions import checked_sql, described_problem
from lancelsm.dataset.native import USER, sql_remedy
from lancelsm.errors import Invalid
from lancelsm.record.batches import without_slices
from lancelsm.record.casts import as_schema, as_type, converted
from lancelsm.record.schema import TableSchema, unknown_column


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignments:
    """Expressions that Lance can plan, by the column that each one sets: the caller's text, and what Lance gets."""

    texts: Mapping[str, str]
    sql: Mapping[str, str]

    def applied(self, rows: pa.Table, schema: TableSchema, *, table: str) -> pa.Table:
        """Return the rows with new values. Every expression sees the old values of all columns.

        Raises:
            Invalid: an expression fails on a row, or its value does not fit the column.
        """
        found = self._evaluated(rows, schema, table)
        for number, name in enumerate(self.texts):
            field = schema.columns.field(name)
            try:
                values = _converted(found.column(number), field)
            except Invalid as error:
                quoted = " in 'quotes', as in JSON rows" if pa.types.is_temporal(field.type) else ""
                remedy = f"Give a value of {field.type}{quoted}; CAST(... AS ...) converts one"
                raise _refused(name, self.texts[name], error.message, table, remedy=remedy) from error
            rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), values)
        return rows

    def _evaluated(self, rows: pa.Table, schema: TableSchema, table: str) -> pa.RecordBatch:
        """Return the value of each expression, in the order of the rows."""
        names = list(self.texts)
        wide = pa.schema([pa.field(field.name, _wide(field.type)) for field in rows.schema])
        written = pa.Table.from_batches(map(without_slices, as_schema(rows, wide).to_batches()), schema=wide)
        # Lance refuses a scan of constants alone, so the first key column is read too.
        columns = {str(number): self.sql[name] for number, name in enumerate(names)}
        columns["key"] = f"`{schema.primary_key[0]}`"
        try:
            # Each handle has its own store in memory, which is freed with the handle.
            dataset = lance.write_dataset(written, "memory://rows", max_rows_per_file=max(1, rows.num_rows))
            found = dataset.scanner(columns=columns, scan_in_order=True).to_table()
        except BaseException as cause:
            if not isinstance(cause, (OSError, ValueError, RuntimeError)) and not is_panic(cause):
                raise
            failed = (
                names[0]
                if len(names) == 1
                else next((name for name in names if not self._of(name)._is_planned(rows, schema, table)), names[0])
            )
            why = USER.sub("", described_problem(cause))
            remedy = "Leave out the rows on which it fails, by the condition" if rows.num_rows else _remedy(why)
            raise _refused(failed, self.texts[failed], why, table, remedy=remedy) from cause
        return found.combine_chunks().to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], found.schema)

    def _of(self, name: str) -> Assignments:
        return Assignments(texts={name: self.texts[name]}, sql={name: self.sql[name]})

    def _is_planned(self, rows: pa.Table, schema: TableSchema, table: str) -> bool:
        try:
            self._evaluated(rows, schema, table)
        except Invalid:
            return False
        return True


def read_assignments(texts: Mapping[str, str], *, schema: TableSchema, table: str) -> Assignments:
    """Check the expressions of an update, and prepare them for Lance.

    Args:
        texts: SQL in Lance's dialect by column. `n + 1`, `'paid'`, `null`.

    Raises:
        Invalid: there is no column to set, a column is unknown or a key column, or a text is not an expression over
            the columns.
    """
    if not texts:
        raise Invalid("an update needs a column to set", remedy='Give set={"column": "expression"}', table=table)
    sql = {}
    for name, text in texts.items():
        if name not in schema.names:
            raise unknown_column(name, schema.names, table=table)
        if name in schema.primary_key:
            raise Invalid(
                f"column {name!r} is a key column, which an update can't set",
                remedy="Upsert rows with the new keys, and delete the old keys",
                table=table,
                field=name,
            )
        try:
            field = schema.columns.field(name)
            sql[name] = checked_sql(text, field=field, columns=schema.columns, table=table)
        except Invalid as error:
            why = error.message.replace(f"the condition {text!r} can't be applied: ", "", 1)
            raise _refused(name, text, why, table, remedy=error.remedy) from error
    found = Assignments(texts=dict(texts), sql=sql)
    plain = pa.schema([field.remove_metadata() for field in schema.columns])
    found.applied(plain.empty_table(), schema, table=table)
    return found


def expression_type(text: str, *, name: str, schema: TableSchema, table: str) -> pa.DataType:
    """Return the type of an expression over the columns of a table, as Lance computes it: integers have 64 bits.

    Args:
        name: a column that would get the values; the error names it.

    Raises:
        Invalid: the text is not an expression over the columns.
    """
    parenthesized = f"({text})"  # a literal alone would get the type of a column
    sql = checked_sql(parenthesized, field=pa.field(name, pa.null()), columns=schema.columns, table=table)
    plain = pa.schema([field.remove_metadata() for field in schema.columns])
    found = Assignments(texts={name: text}, sql={name: sql})
    return found._evaluated(plain.empty_table(), schema, table).schema.field(0).type


def _converted(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return values in the type of a column; raise `Invalid` if one does not fit."""
    if _is_number_for_time(values.type, field.type):
        raise Invalid(f"it has the type {values.type}, but the column has {field.type}")
    if len(values):
        return converted(values, field, range(len(values)))
    try:
        return as_type(values, field.type)
    except pa.ArrowException as error:
        raise Invalid(f"it has the type {values.type}, but the column has {field.type}") from error


def _is_number_for_time(given: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether Arrow would count the units of a time: `2024-01-31` without quotes is the number 1992."""
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return bool(pa.types.is_integer(given))
    return given.num_fields == kind.num_fields and any(
        _is_number_for_time(given.field(at).type, kind.field(at).type) for at in range(kind.num_fields)
    )


def _wide(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Lance computes: its arithmetic with narrow integers would wrap around silently."""
    if pa.types.is_integer(kind):
        return pa.int64() if kind.bit_width < 64 else kind
    if pa.types.is_dictionary(kind):
        return _wide(kind.value_type) if pa.types.is_integer(kind.value_type) else kind
    if pa.types.is_struct(kind):
        return pa.struct([_wide_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_wide_field(kind.key_field), _wide_field(kind.item_field), keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_wide_field(kind.value_field), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(_wide_field(kind.value_field))
    return pa.list_(_wide_field(kind.value_field)) if pa.types.is_list(kind) else kind


def _wide_field(field: pa.Field) -> pa.Field:
    return field.with_type(_wide(field.type))


def _remedy(why: str) -> str:
    if "is not supported SQL" in why or "an aggregate" in why:
        return "Lance evaluates no SQL of this kind, such as CASE or subqueries: use table.transact"
    return sql_remedy(why)


def _refused(name: str, text: str, why: str, table: str, *, remedy: str) -> Invalid:
    return Invalid(
        f"column {name!r} can't be set to {text!r}: {why.rstrip('.')}",
        remedy=remedy,
        redacted=f"column {name!r} can't be set: its expression fails, or its value does not fit",
        table=table,
        field=name,
    )
