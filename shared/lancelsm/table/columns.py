"""The methods of a table that change its columns."""

from __future__ import annotations

import pyarrow as pa

from lancelsm.common.argument_checks import checked
from lancelsm.common.row_types import Value
from lancelsm.errors import Invalid
from lancelsm.record.type_names import TYPES, is_type_name
from lancelsm.region.handle import TableHandle
from lancelsm.table.writes import TableWrites


class TableColumns(TableWrites):
    """Changes of the columns, while other processes read and write. `docs/how-to/schema.md` has the rules.

    Each change is one commit of the base. When a call returns, every new read has the change, whatever level the rows
    are in. Writers that are open take the change up with a later write; until then they may write rows in the old
    columns, which stay valid. Columns of the primary key, the region spec, `sequence_by`, the time to live and of an
    index can't be changed.
    """

    @checked
    def add_column(self, name: str, type: pa.DataType | str, *, default: Value | None = None) -> int:  # noqa: A002 - as in SQL
        """Add a column, as the last one. It may be null.

        Args:
            type: a type of Arrow, or its name, such as `int64`, `string` or `timestamp[us, tz=UTC]`. Other text is an
                SQL expression over the columns, such as `price * quantity`: the column has its type, integers have 64
                bits, and all rows that are there get its value by an `update`, which holds them in memory. Rows that
                are written later have null if they leave the column out. For a table that is larger than memory, give a
                type, and update it in parts.
            default: the value of the column in all rows that are there, and in rows that are written without it later.
                Not with an expression.

        Returns:
            The number of the version of the columns that has the change.

        Raises:
            Invalid: the table has such a column, the name or the type is not allowed, or the default does not fit. Or
                another tool changed the base. Or the text is neither a type nor an expression over the columns.
            Contended: another process, such as a merge, worked on the base until the retry budget was spent. Nothing
                was changed.
            Ambiguous, Unavailable: the change may be in the base. Make the same call again: it finishes the change.

        After a crash, the same call gives a value to the rows where an expression has not been computed yet.
        With a default, the column is written for every row of the base.
        """
        from lancelsm.admin.change_columns import add_column  # noqa: PLC0415 - Lance is slow
        from lancelsm.dataset.assignments import expression_type  # noqa: PLC0415

        self._check_writable()
        if not isinstance(type, str) or is_type_name(type):
            return self._changed(add_column(self._handle, name, type, default=default))
        if default is not None:
            what = f"column {name!r} has the values of an expression, and a default"
            raise Invalid(what, remedy="Leave out one of them", table=self.uri, field=name)
        try:
            kind = self._with_columns(lambda: expression_type(type, name=name, schema=self._schema, table=self.uri))
        except Invalid as error:
            what = f"{type!r} is neither a type of Arrow nor an SQL expression over the columns: {error.message}"
            remedy = f"Give a type such as {TYPES}, or an expression such as price * quantity"
            raise Invalid(what, remedy=remedy, table=self.uri, field=name) from error
        self._check_takes_plain_writes()
        version = self._changed(add_column(self._handle, name, kind))
        self.update(where=f"`{name}` IS NULL", set={name: type})
        return version

    @checked
    def drop_column(self, name: str) -> int:
        """Drop a column. Its values are gone for every read of now; snapshots keep them.

        Returns:
            The number of the version of the columns that has the change.

        Raises:
            Invalid: the table has no such column, or it can't be changed: it is of the primary key, the region spec,
                `sequence_by` or the time to live, or has an index.
            Contended: another process, such as a merge, worked on the base until the retry budget was spent. Nothing
                was changed.
            Ambiguous, Unavailable: the change may be in the base. Make the same call again: it finishes the change.
        """
        from lancelsm.admin.change_columns import drop_column  # noqa: PLC0415

        self._check_writable()
        return self._changed(drop_column(self._handle, name))

    @checked
    def rename_column(self, name: str, to: str) -> int:
        """Rename a column. Writes no row.

        Returns:
            The number of the version of the columns that has the change.

        Raises:
            Invalid: the table has no such column, or it can't be changed: it is of the primary key, the region spec,
                `sequence_by` or the time to live, or has an index;
                or the new name is taken or not allowed.
            Contended: another process, such as a merge, worked on the base until the retry budget was spent. Nothing
                was changed.
            Ambiguous, Unavailable: the change may be in the base. Make the same call again: it finishes the change.
        """
        from lancelsm.admin.change_columns import rename_column  # noqa: PLC0415

        self._check_writable()
        return self._changed(rename_column(self._handle, name, to))

    @checked
    def widen_column(self, name: str, type: pa.DataType | str) -> int:  # noqa: A002 - as in SQL
        """Give a column a wider type: a longer integer or float, a decimal with more digits, or large text or binary.

        The column is written again for every row of the base.

        Returns:
            The number of the version of the columns that has the change.

        Raises:
            Invalid: the table has no such column, or it can't be changed: it is of the primary key, the region spec,
                `sequence_by` or the time to live, or has an index;
                or the type does not have all values of the old one.
            Contended: another process, such as a merge, worked on the base until the retry budget was spent. Nothing
                was changed.
            Ambiguous, Unavailable: the change may be in the base. Make the same call again: it finishes the change.
        """
        from lancelsm.admin.change_columns import widen_column  # noqa: PLC0415

        self._check_writable()
        return self._changed(widen_column(self._handle, name, type))

    @checked
    def set_nullable(self, name: str) -> int:
        """Let a column be null. The opposite is not possible. Writes no row.

        Returns:
            The number of the version of the columns that has the change.

        Raises:
            Invalid: the table has no such column, or it can't be changed: it is of the primary key, the region spec,
                `sequence_by` or the time to live, or has an index.
            Contended: another process, such as a merge, worked on the base until the retry budget was spent. Nothing
                was changed.
            Ambiguous, Unavailable: the change may be in the base. Make the same call again: it finishes the change.
        """
        from lancelsm.admin.change_columns import set_nullable  # noqa: PLC0415

        self._check_writable()
        return self._changed(set_nullable(self._handle, name))

    @checked
    def sync_schema(self) -> list[str]:
        """Take up columns that another tool has added, dropped, renamed or made nullable in the base.

        Until then, rows can't be merged, and writers are stopped once a flush or merge has met the change; this call
        lets them go on. A column that another tool added is null in rows that are not merged yet.

        Returns:
            The changes, such as `add n`; empty if there were none.

        Raises:
            Invalid: rows that are not merged yet can't be read under the columns: a type, or a column of the key was
                changed. The remedy says how to undo it.
            Contended, Unavailable: retry. A repeated call finishes what this one began.
            Corrupt: the base belongs to another table.
        """
        from lancelsm.admin.sync_columns import sync_columns  # noqa: PLC0415

        self._check_writable()
        handle, changes = sync_columns(self._handle)
        self._take_columns(handle)
        return [one.described for one in changes]

    def _changed(self, handle: TableHandle) -> int:
        self._take_columns(handle)
        return handle.config.schema.version
