"""Entries of rows whose values repeat: compressed, counted as if they were not, and never trusted if damaged."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.layout import Epoch, Nonce, Position
from lancelsm.errors import Corrupt
from lancelsm.record.normalize import upserts
from lancelsm.record.schema import TableSchema, numbered
from lancelsm.wal.entry import Encoded, decode, draft, encode
from lancelsm.wal.replay import stored_rows

SCHEMA = TableSchema(
    columns=numbered(pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("n", pa.binary())])),
    primary_key=("id",),
)
ROWS = 3000
TEXTS = [os.urandom(400).hex() for _ in range(256)]
REPEATED = [TEXTS[number % 256] for number in range(ROWS)]


def rows_of(texts: list[str | None], blobs: list[bytes] | None = None) -> pa.Table:
    columns = [range(len(texts)), texts, blobs or [b""] * len(texts)]
    given = pa.table([pa.array(column) for column in columns], names=["id", "v", "n"])
    return upserts(given.cast(SCHEMA.columns), schema=SCHEMA)


def entry_of(rows: pa.Table) -> Encoded:
    return encode(draft(rows), position=Position(1), epoch=Epoch(1), nonce=Nonce("ab" * 16))


def test_rows_with_few_distinct_long_values_take_a_fraction_of_the_bytes_and_count_as_plain() -> None:
    rows = rows_of([*REPEATED[:-1], None])
    plain = pa.MockOutputStream()
    with pa.ipc.new_stream(plain, rows.schema) as writer:
        writer.write_table(rows)

    entry = entry_of(rows)

    read = decode(bytes(entry.body), position=Position(1), key="entry")
    assert 5 * len(entry.body) < entry.summary.bytes == plain.size()
    assert read.summary == entry.summary
    assert (read.summary.rows, read.sound) == (ROWS, True)
    assert stored_rows(read, SCHEMA).equals(rows)


@pytest.mark.parametrize(
    "made",
    [
        lambda: rows_of([os.urandom(400).hex() for _ in range(ROWS)]),
        lambda: rows_of(["short"] * ROWS),
        lambda: rows_of([text * 2 for text in REPEATED[:900]]),
        lambda: rows_of(REPEATED, [os.urandom(400) for _ in range(ROWS)]),
        lambda: rows_of([f"{number % 40:04000}" for number in range(1200)]),
    ],
    ids=["distinct", "small", "few", "beside random", "too far apart"],
)
def test_other_rows_are_not_compressed(made: Callable[[], pa.Table]) -> None:
    entry = entry_of(made())

    assert len(entry.body) == entry.summary.bytes
    assert b"lancelsm.plain_bytes" not in bytes(entry.body[:4096])


def test_a_damaged_compressed_entry_is_never_decompressed() -> None:
    entry = entry_of(rows_of(REPEATED))
    generator = random.Random("damage")
    size = len(entry.body)

    for at in [*range(0, 1600, 7), *(generator.randrange(size) for _ in range(200))]:
        body = bytearray(entry.body)
        body[at] ^= 1 << generator.randrange(8)
        try:
            read = decode(bytes(body), position=Position(1), key="entry")
        except Corrupt:
            continue
        assert not read.sound
        if read.compressed:
            with pytest.raises(Corrupt, match=r"don't have the sum|not the rows"):
                stored_rows(read, SCHEMA)


@pytest.mark.rest
def test_a_table_reads_and_flushes_compressed_entries(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = lancelsm.create(tmp_path / "t", schema, primary_key="id", settings={"flush_bytes": 3 << 20})
    given = pa.table({"id": pa.array(range(ROWS), pa.int64()), "v": REPEATED}).cast(schema)
    for start in (0, 1000, 2000):
        table.upsert(given.set_column(0, schema.field("id"), pa.array(range(start, start + ROWS), pa.int64())))
    objects = [path.stat().st_size for path in (tmp_path / "t").glob("_mem_wal/*/wal/*")]

    assert table.status().regions[0].wal_bytes > 5 * sum(objects)
    assert table.count_rows() == 5000
    assert table.get([2999]).to_pylist() == [{"id": 2999, "v": REPEATED[999]}]
    assert len(table.flush()) == 3  # the limit counts the bytes without compression
    assert table.scrub().ok
    assert table.count_rows() == 5000
