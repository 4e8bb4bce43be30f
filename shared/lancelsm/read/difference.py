"""Find what turns the rows of one view into those of another: rows to write and keys to delete, streamed.

Rows are compared by both words of their hash. The key is a part of a row, so a row with the same hash in both views is
the same row under the same key. The hashes of a part of the rows are in memory at a time, 16 bytes each, and the keys
of the rows to write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.read import reader
from lancelsm.read.view import View
from lancelsm.record.batches import gathered
from lancelsm.record.key import key_column
from lancelsm.record.rowsum import row_words
from lancelsm.record.schema import TOMBSTONE, TableSchema, conform

HASHES_AT_ONCE = 8_000_000  # of one view, in memory
_ROWS_AT_ONCE = 50_000
_BYTES_AT_ONCE = 64 << 20


class Difference:
    """The difference between two views of a table, in its newest columns.

    Args:
        wanted: the view with the rows that should be there.
        present: the view with the rows that are there.
        schema: the newest columns. Rows of a view with older ones are converted, as when older rows are read.
    """

    def __init__(self, wanted: View, present: View, *, schema: TableSchema, uri: str) -> None:
        self._wanted = wanted
        self._present = present
        self._schema = schema
        self._uri = uri
        self._parts = max(1, -(-max(most_rows(wanted), most_rows(present)) // HASHES_AT_ONCE))
        self._written: list[pa.Array] = []  # the keys of the rows that `to_write` has yielded

    def to_write(self) -> Iterator[pa.Table]:
        """Yield the rows of the wanted view that are not in the present one, in tables of some ten thousand rows."""
        for rows in gathered(self._only_in(self._wanted, self._present), rows=_ROWS_AT_ONCE, size=_BYTES_AT_ONCE):
            self._written.append(key_column(rows, self._schema.primary_key))
            yield rows

    def to_delete(self) -> Iterator[pa.Table]:
        """Yield the keys that only the present view has. Call it after the end of `to_write`."""
        written = pa.chunked_array(self._written) if self._written else None
        names = list(self._schema.primary_key)
        for rows in gathered(self._only_in(self._present, self._wanted, columns=names), rows=_ROWS_AT_ONCE):
            keys = key_column(rows, self._schema.primary_key)
            left = rows if written is None else rows.filter(pc.invert(pc.is_in(keys, value_set=written)))
            if left.num_rows:
                yield left

    def _only_in(self, one: View, other: View, *, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield rows of a view that the other one does not have, with these columns."""
        for part in range(self._parts):
            hashes = _sorted(words for words, _ in self._scan(other, part))
            for words, rows in self._scan(one, part):
                found = rows.filter(pa.array(~_is_in(words, hashes)))
                if found.num_rows:
                    yield found if columns is None else found.select(columns)

    def _scan(self, view: View, part: int) -> Iterator[tuple[Any, pa.Table]]:
        """Yield the hashes of the rows of one part, and the rows."""
        stored = view.base.schema.stored
        for batch in reader.scan(view, uri=self._uri, columns=view.base.schema.names):
            given = pa.Table.from_arrays([*batch.columns, pa.repeat(False, batch.num_rows)], schema=stored)
            rows = conform(given, self._schema).drop_columns([TOMBSTONE])
            words = row_words(rows)
            if self._parts > 1:
                is_own = words[:, 0] % np.uint64(self._parts) == part
                words, rows = words[is_own], rows.filter(pa.array(is_own))
            yield words, rows


def most_rows(view: View) -> int:
    """Return a number of rows that a view does not exceed."""
    above = sum(region.tail.num_rows + sum(one.rows or 0 for one in region.generations) for region in view.regions)
    return view.base.rows + above


def _sorted(parts: Iterable[Any]) -> Any:
    """Return hashes in the order of their first words, as two arrays of words."""
    words = np.concatenate([np.empty((0, 2), np.uint64), *parts])
    order = np.argsort(words[:, 0], kind="stable")
    return words[order, 0], words[order, 1]


def _is_in(words: Any, hashes: Any) -> Any:
    """Return for each hash whether it is among the sorted ones."""
    firsts, seconds = hashes
    order = np.argsort(words[:, 0])  # words in order are found much faster
    wanted = words[order]
    at = np.searchsorted(firsts, wanted[:, 0])
    found, left = np.zeros(len(words), bool), np.arange(len(words))
    while len(left):  # two rows rarely have the same first word
        left = left[at[left] < len(firsts)]
        left = left[firsts[at[left]] == wanted[left, 0]]
        found[order[left]] |= seconds[at[left]] == wanted[left, 1]
        at[left] += 1
    return found
