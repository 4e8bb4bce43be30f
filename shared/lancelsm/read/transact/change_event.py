"""A change event in the form that all formats have in common, and the options that say what it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lancelsm.errors import Invalid
from lancelsm.record.schema import TableSchema, unknown_column


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """One row to upsert or one key to delete.

    Args:
        event: the number of its event in the call, from 0.
        values: by column; a delete has at least the key columns and those of the sequence.
        unchanged: columns that the event lacks: they keep the values of the stored row.
        needed: those of them that need a stored row; the others are null without one.
        missing: a column of the table that the event does not have; only a delete may lack it. It may leave out
            columns that were added to the table: they have their defaults.
    """

    event: int
    delete: bool
    values: Mapping[str, Any]
    unchanged: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    missing: str | None = None

    def check_whole(self) -> None:
        """Raise `Invalid` for an upsert of an event that lacks a column."""
        if self.missing is not None and not self.delete:
            raise Invalid(
                f"the event has no value of column {self.missing!r}",
                remedy="Check format and sequence_by, or keep the stored value with column_list or except_column_list",
                field=self.missing,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which columns events change, and which columns order them.

    Args:
        sequence: for each column of the sequence the path of its value in the event; empty for the usual place.
        kept: columns of the table that keep their stored values.
        dropped: fields of events that are no columns of the table and are left out; None for all.
        kinds: the types of the columns of the table.
        not_null: its columns that must not be null.
    """

    schema: TableSchema
    sequence: Mapping[str, str]
    kept: frozenset[str]
    dropped: frozenset[str] | None
    kinds: Mapping[str, pa.DataType]
    not_null: frozenset[str]
    ignore_null_updates: bool = False

    def change(self, event: int, values: Mapping[str, Any], unchanged: frozenset[str] = frozenset()) -> RowChange:
        """Return the upsert of these values.

        Args:
            unchanged: columns that the source did not send: the stored row has their values.

        Raises:
            Invalid: a field is not a column.
        """
        for name in values:
            if name not in self.kinds and self.dropped is not None and name not in self.dropped:
                error = unknown_column(name, self.schema.names)
                raise Invalid(
                    error.message,
                    remedy="Check the format, or leave the field out with column_list or except_column_list",
                    field=name,
                )
        keeps = self.kept | unchanged
        given = {*values, *keeps, *self.schema.optional}
        missing = next((name for name in self.kinds if name not in given), None)
        if self.ignore_null_updates:
            keeps |= {name for name in self.kinds if name not in self.schema.primary_key and values.get(name) is None}
        taken = {name: values[name] for name in self.kinds if name in values and name not in keeps}
        needed = unchanged | (keeps & self.not_null)
        return RowChange(event=event, delete=False, values=taken, unchanged=keeps, needed=needed, missing=missing)

    def deletion(self, event: int, values: Mapping[str, Any]) -> RowChange:
        """Return the delete of the key in these values.

        Raises:
            Invalid: a column of the key or of the sequence is missing.
        """
        needed = dict.fromkeys((*self.schema.primary_key, *self.sequence))
        if missing := [name for name in needed if name not in values]:
            raise Invalid(
                f"the delete event has no value of column {missing[0]!r}",
                remedy="Give the key and the sequence in each delete event; the key of a message counts too",
                field=missing[0],
            )
        return RowChange(event=event, delete=True, values={name: values[name] for name in needed})


def select(
    schema: TableSchema,
    *,
    sequence: Mapping[str, str],
    column_list: Sequence[str] | None,
    except_column_list: Sequence[str] | None,
    ignore_null_updates: bool,
) -> Selection:
    """Check the lists of columns.

    Raises:
        Invalid: both lists are given, or `column_list` lacks a column of the key or of the sequence.
    """
    names = set(schema.names)
    if column_list is not None and except_column_list is not None:
        what = "column_list and except_column_list exclude each other"
        raise Invalid(what, remedy="Give one of them", field="except_column_list")
    needed = {*schema.primary_key, *sequence}
    if column_list is not None:
        for name in column_list:
            if name not in names:
                raise unknown_column(name, schema.names, role="column_list: ")
        kept = frozenset(names - set(column_list))
    else:
        kept = frozenset(names & set(except_column_list or ()))
    if lost := sorted(needed & kept):
        raise Invalid(
            f"events can't leave out column {lost[0]!r}, which belongs to the key or to the sequence",
            remedy="Change column_list or except_column_list",
            field=lost[0],
        )
    return Selection(
        schema=schema,
        sequence=sequence,
        kept=kept,
        dropped=None if column_list is not None else frozenset(except_column_list or ()) - names,
        kinds={field.name: field.type for field in schema.columns},
        not_null=frozenset(field.name for field in schema.columns if not field.nullable),
        ignore_null_updates=ignore_null_updates,
    )
