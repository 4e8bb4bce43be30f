"""Entries of the log keep rows of any type, whatever their chunks."""

from __future__ import annotations

import itertools

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lancelsm.common.layout import Epoch, Nonce, Position
from lancelsm.record.rowsum import row_setsum
from lancelsm.wal.entry import decode, draft, encode
from tests.properties.test_rowsum import tables


@given(tables(), st.lists(st.integers(0, 6), max_size=4), st.integers(1, 3))
def test_an_entry_has_the_same_rows_for_every_chunking_and_attempt(table, cuts, attempts):
    bounds = [0, *sorted(min(cut, table.num_rows) for cut in cuts), table.num_rows]
    chunks = pa.concat_tables([table.slice(first, last - first) for first, last in itertools.pairwise(bounds)])

    drafted = draft(chunks)
    entries = [
        encode(drafted, position=Position(number), epoch=Epoch(number), nonce=Nonce(f"{number}"))
        for number in range(1, attempts + 1)
    ]

    for number, entry in enumerate(entries, start=1):
        read = decode(bytes(entry.body), position=Position(number), key="k")
        assert read.sound
        assert read.nonce == f"{number}"
        assert read.table().schema.equals(table.schema, check_metadata=True)
        assert repr(read.table().to_pylist()) == repr(table.to_pylist())
        assert read.row_setsum == row_setsum(read.table()) == row_setsum(table)
        assert read.summary == entry.summary
