"""Generate rows: of six columns for a base, changes, and a table with generations; of 1 KB for writes.

The key is `id`, an integer, if nothing else is said. `keyed` turns it into a text or a composite key.
"""

from __future__ import annotations

import os
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import lancelsm
from lancelsm.table import Table

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("account", pa.int32()),
        ("amount", pa.float64()),
        ("at", pa.timestamp("us")),
        ("name", pa.string()),
        ("note", pa.string()),
    ]
)

KEYS = {"int64": ("id",), "text": ("id",), "composite": ("tenant", "id")}
KILOBYTE = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("amount", pa.float64()), ("body", pa.string())]
)
_REPEATED = [os.urandom(496).hex() for _ in range(256)]


def keyed(table: pa.Table, kind: str) -> pa.Table:
    """Return the rows with their integer `id` as it is, as a text of 21 characters, or behind one of 100 tenants."""
    if kind == "int64":
        return table
    ids = table.column("id")
    if kind == "text":
        texts = pc.binary_join_element_wise("customer-", pc.utf8_lpad(pc.cast(ids, pa.string()), 12, "0"), "")
        return table.set_column(0, pa.field("id", pa.string(), nullable=False), texts)
    numbers = np.asarray(ids) % 100
    tenants = pa.array([f"tenant {number}" for number in range(100)]).take(pa.array(numbers))
    return table.add_column(0, pa.field("tenant", pa.string(), nullable=False), tenants)


def kilobyte_rows(count: int, start: int, *, kind: str = "int64", distinct: bool = True) -> pa.Table:
    """Return rows of 1 KB with the keys `start`, `start + 1`, ...; bodies are distinct, or 256 are repeated."""
    numbers = range(start, start + count)
    body = [os.urandom(496).hex() for _ in numbers] if distinct else [_REPEATED[number % 256] for number in numbers]
    columns = [numbers, [f"name {number % 100}" for number in numbers], [number / 7 for number in numbers], body]
    return keyed(pa.table([pa.array(column) for column in columns], schema=KILOBYTE), kind)


def rows(ids: np.ndarray, *, seed: int = 0) -> pa.Table:
    """Return rows with these keys. The seed decides the other columns."""
    generator = np.random.default_rng(seed)
    count = len(ids)
    words = pa.array([f"note {number:04d} of what happened" for number in range(1000)])
    columns = [
        pa.array(ids, pa.int64()),
        pa.array(generator.integers(0, 10_000, count), pa.int32()),
        pa.array(generator.random(count)),
        pa.array(1_700_000_000_000_000 + generator.integers(0, 1 << 40, count), pa.timestamp("us")),
        words.take(pa.array(generator.integers(0, 1000, count))),
        words.take(pa.array(generator.integers(0, 1000, count))),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def base_rows(count: int) -> pa.Table:
    """Return rows with the keys 0, 2, 4, ... in random order."""
    return rows(np.random.default_rng(1).permutation(count) * 2)


def changes(base: int, count: int, *, seed: int) -> pa.Table:
    """Return rows of which four of five replace a row of the base and the others are new. Keys are distinct."""
    generator = np.random.default_rng(seed)
    old = generator.choice(base, count * 4 // 5, replace=False) * 2
    new = generator.choice(base, count - len(old), replace=False) * 2 + 1
    return rows(generator.permutation(np.concatenate([old, new])), seed=seed)


def with_generations(
    uri: Path, *, base: int, count: int, generations: int, kind: str = "int64", **settings: object
) -> Table:
    """Return a table with `base` rows in its base and with generations of `count` changes each."""
    table = lancelsm.create(
        uri,
        keyed(base_rows(base), kind),
        primary_key=list(KEYS[kind]),
        settings={"flush_rows": 1 << 30, "flush_bytes": 1 << 40, **settings},
    )
    for number in range(generations):
        table.upsert(keyed(changes(base, count, seed=100 + number), kind))
        table.flush()
    return table


def plain_copy(table: Table, uri: Path) -> lance.LanceDataset:
    """Write a copy of the base without regions, for the peer."""
    return lance.write_dataset(lance.dataset(table.uri).scanner().to_reader(), str(uri))
