"""CPU time of an append before its first request: validate, encode and sum 1,000 rows of 1 KB.

The peer is a bare Arrow IPC stream of the same rows, without validation and sums.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa

from benchmarks.figures import Figure, cpu_seconds
from lancelsm.common.layout import Epoch, Nonce, Position
from lancelsm.common.setsum import Setsum
from lancelsm.record.normalize import upserts
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TableSchema, declare_primary_key, numbered
from lancelsm.wal.entry import draft, encode

ROWS = 1000
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("body", pa.string())])


def run(scale: float) -> Iterator[Figure]:
    rounds = max(20, int(200 * scale))
    schema = TableSchema(columns=numbered(declare_primary_key(COLUMNS, ("id",))), primary_key=("id",))
    table = pa.table([range(ROWS), [os.urandom(496).hex() for _ in range(ROWS)]], schema=COLUMNS)
    rows = upserts(table, schema=schema)
    drafted = draft(rows)

    def bare() -> None:
        with pa.ipc.new_stream(pa.BufferOutputStream(), table.schema) as stream:
            stream.write_table(table)

    def encoded() -> None:
        encode(drafted, position=Position(1), epoch=Epoch(1), nonce=Nonce("0" * 32))

    steps = {
        "check": cpu_seconds(lambda: upserts(table, schema=schema), rounds=rounds),
        "encode": cpu_seconds(lambda: draft(rows), rounds=rounds) + cpu_seconds(encoded, rounds=rounds),
    }
    sums = {
        "of rows": cpu_seconds(lambda: row_setsum(rows), rounds=rounds),
        "of the entry": cpu_seconds(lambda: Setsum.of_item(drafted.payload), rounds=rounds),
    }
    total = sum(steps.values())
    peer = cpu_seconds(bare, rounds=rounds)
    share = sum(sums.values()) / total
    split = ", ".join(f"{name} {1000 * took:.1f} ms" for name, took in sums.items())
    yield Figure(
        what="CPU of an append of 1,000 rows of 1 KB",
        ours=total * 1000,
        unit="ms",
        peer=peer * 1000,
        peer_name="bare Arrow stream",
        limit=True,
        how=f"setsums {share:.0%} of ours ({split})",
    )
