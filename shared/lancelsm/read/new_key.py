"""Check that the rows of a view can have another primary key: no two rows with the same one, and no null in it.

Keys are compared in passes over the key columns, so that memory holds a part of the keys at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.dataset.foreign_rows import described_keys
from lancelsm.errors import Invalid
from lancelsm.read import reader
from lancelsm.read.difference import most_rows
from lancelsm.read.view import View
from lancelsm.record.key import key_column
from lancelsm.record.rowsum import row_words

KEYS_AT_ONCE = 4_000_000
_EXAMPLES = 5


def check_new_key(view: View, primary_key: tuple[str, ...], *, uri: str) -> None:
    """Raise `Invalid` with examples if the rows of a view can't have this primary key.

    Raises also the errors of `read.reader.scan`.
    """
    passes = max(1, -(-most_rows(view) // KEYS_AT_ONCE))
    for number in range(passes):
        found = pa.concat_tables(_keys(view, primary_key, uri=uri, part=number, of=passes))
        _check_not_null(found, view, primary_key, uri=uri)
        _check_distinct(found, primary_key, uri=uri)


def _keys(view: View, primary_key: tuple[str, ...], *, uri: str, part: int, of: int) -> Iterator[pa.Table]:
    fields = pa.schema([view.base.schema.columns.field(name) for name in primary_key])
    yield pa.schema([field.remove_metadata() for field in fields]).empty_table()
    for batch in reader.scan(view, uri=uri, columns=primary_key):
        rows = pa.Table.from_batches([batch])
        if of > 1:
            numbered = pa.Table.from_arrays(rows.columns, schema=fields)
            rows = rows.filter(pa.array(row_words(numbered)[:, 0] % np.uint64(of) == part))
        yield rows


def _check_not_null(rows: pa.Table, view: View, primary_key: tuple[str, ...], *, uri: str) -> None:
    for name in primary_key:
        if not rows.column(name).null_count:
            continue
        old = view.base.schema.primary_key
        columns = list(dict.fromkeys([*old, name]))
        found = reader.scan(view, uri=uri, columns=columns, where=f"`{name}` IS NULL", limit=_EXAMPLES).read_all()
        examples = "; ".join(described_keys(found, old))
        raise Invalid(
            f"{rows.column(name).null_count} rows have null in column {name!r} of the new key, such as {examples}",
            remedy="Give them a value, or choose other columns as the key",
            redacted=f"{rows.column(name).null_count} rows have null in column {name!r} of the new key",
            table=uri,
            field=name,
        )


def _check_distinct(rows: pa.Table, primary_key: tuple[str, ...], *, uri: str) -> None:
    if rows.num_rows < 2:
        return
    keys = key_column(rows, primary_key)
    counted = pc.value_counts(keys)
    counts = counted.field("counts")
    if pc.max(counts).as_py() == 1:
        return
    again = counted.field("values").filter(pc.greater(counts, 1))
    found = rows.take(pc.index_in(again.slice(0, _EXAMPLES), value_set=keys))
    examples = "; ".join(
        f"{key} ({times} rows)"
        for key, times in zip(
            described_keys(found, primary_key), counts.filter(pc.greater(counts, 1)).to_pylist(), strict=False
        )
    )
    raise Invalid(
        f"rows have the same new key: {examples}",
        remedy="Choose a key that is different in every row, or delete the rows that repeat it, then copy again",
        redacted="rows have the same new key",
        table=uri,
        field="primary_key",
    )
