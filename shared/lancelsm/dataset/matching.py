"""Apply SQL conditions to rows in memory by Lance itself, so that they mean the same as in generations and base."""

from __future__ import annotations

import re
from collections.abc import Iterable

import lance
import pyarrow as pa

from lancelsm.dataset.native import read_errors
from lancelsm.errors import Invalid

_QUOTED = re.compile(r"""'[^']*'|`[^`]*`|"([^"]*)\"""")


def check_condition(where: str, *, columns: Iterable[str], table: str) -> None:
    """Refuse a column name in double quotes. Lance reads it as text, so the condition would silently be wrong.

    Raises:
        Invalid: the condition has a column name in double quotes.
    """
    doubly_quoted = {found[1] for found in _QUOTED.finditer(where)}
    for name in columns:
        if name in doubly_quoted:
            raise Invalid(
                f'"{name}" in double quotes is text in a condition, not the column',
                remedy=f"Write `{name}` for the column, '{name}' for the text",
                table=table,
                field=name,
            )


def matching(rows: pa.Table, where: str, *, table: str) -> pa.Table:
    """The rows for which the condition is true, in the same order.

    Raises:
        Invalid: the condition is not valid SQL over these columns.
    """
    if rows.num_rows == 0:
        return rows
    plain = pa.schema([pa.field(field.name, field.type) for field in rows.schema])
    with read_errors(f"the condition {where!r} can't be applied", condition=where, columns=plain, table=table):
        # Each handle has its own store in memory, which is freed with the handle.
        dataset = lance.write_dataset(rows.cast(plain), "memory://rows", max_rows_per_file=rows.num_rows)
        offsets = dataset.scanner(columns=[], filter=where, with_row_id=True).to_table().column("_rowid")
    return rows.take(offsets)
