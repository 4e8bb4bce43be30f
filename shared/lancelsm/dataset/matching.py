"""SQL conditions over rows in memory, in Lance's own dialect: they mean the same at every level of a table."""

from __future__ import annotations

import re
from collections.abc import Iterable

import lance
import pyarrow as pa

from lancelsm.dataset.native import read_errors
from lancelsm.errors import Invalid

_QUOTED = re.compile(r"""'[^']*'|`[^`]*`|"([^"]*)\"""")


def check_condition(where: str, *, columns: Iterable[str], table: str) -> None:
    """Refuse a column's name in double quotes: a name in standard SQL, text in Lance's, so silently true or false.

    Raises:
        Invalid: there is one.
    """
    doubly_quoted = {found[1] for found in _QUOTED.finditer(where)}
    for name in columns:
        if name in doubly_quoted:
            raise Invalid(
                f'"{name}" is text in a condition, not the column',
                remedy=f"Write `{name}` for the column, '{name}' for the text",
                table=table,
                field=name,
            )


def matching(rows: pa.Table, where: str, *, table: str) -> pa.Table:
    """The rows for which the condition is true, in their order.

    Raises:
        Invalid: the condition is no SQL over these columns.
    """
    if rows.num_rows == 0:
        return rows
    plain = pa.schema([pa.field(field.name, field.type) for field in rows.schema])
    with read_errors(f"the condition {where!r} can't be applied", condition=where, columns=plain, table=table):
        # A store in memory of its own, gone with the handle.
        dataset = lance.write_dataset(rows.cast(plain), "memory://rows", max_rows_per_file=rows.num_rows)
        offsets = dataset.scanner(columns=[], filter=where, with_row_id=True).to_table().column("_rowid")
    return rows.take(offsets)
