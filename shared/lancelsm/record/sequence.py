"""The highest sequence of some change events: values of the columns that order events, as text in schema metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from lancelsm.common.json_text import parse_json
from lancelsm.errors import Corrupt
from lancelsm.record.json_lines import json_objects
from lancelsm.record.schema import TableSchema
from lancelsm.record.values import json_column


def highest(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the row with the highest values in these columns, compared in order; no row if each one has a null."""
    whole = rows.select(list(names)).drop_null()
    return whole.sort_by([(name, "descending") for name in names]).slice(0, 1)


def to_text(row: pa.Table) -> str:
    """Encode one row; empty for no row."""
    return json.dumps(next(iter(json_objects(row)))) if row.num_rows else ""


def from_text(text: str, schema: TableSchema, names: Sequence[str]) -> pa.Table:
    """Decode `to_text`.

    Raises:
        Corrupt: the text has not exactly these columns.
    """
    fields = [schema.stored.field(name).with_nullable(True) for name in names]
    try:
        values = parse_json(text) if text else None
        arrays = [json_column([] if values is None else [values[field.name]], field) for field in fields]
    except (ValueError, LookupError, TypeError) as error:
        raise Corrupt(f"the sequence {text!r} of forgotten deletes is unreadable: {error!r}") from error
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def names_in(text: str) -> tuple[str, ...]:
    """Return the columns of `to_text`. Raise `Corrupt` if it is unreadable."""
    try:
        return tuple(dict(parse_json(text)))
    except (ValueError, TypeError) as error:
        raise Corrupt(f"the sequence {text!r} of forgotten deletes is unreadable: {error!r}") from error
