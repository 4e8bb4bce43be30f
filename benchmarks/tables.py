"""Generate rows of six columns with an integer key: a base, changes, and a table with generations."""

from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

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


def with_generations(uri: Path, *, base: int, count: int, generations: int, **settings: object) -> Table:
    """Return a table with `base` rows in its base and with generations of `count` changes each."""
    table = lancelsm.create(
        uri, base_rows(base), primary_key="id", settings={"flush_rows": 1 << 30, "flush_bytes": 1 << 40, **settings}
    )
    for number in range(generations):
        table.upsert(changes(base, count, seed=100 + number))
        table.flush()
    return table


def plain_copy(table: Table, uri: Path) -> lance.LanceDataset:
    """Write a copy of the base without regions, for the peer."""
    return lance.write_dataset(lance.dataset(table.uri).scanner().to_reader(), str(uri))
