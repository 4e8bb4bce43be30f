"""Tables with vectors and texts, and what Lance itself sees of their indexes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lancelsm
from lancelsm.common.layout import generation_path
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.manifest import FlushedGeneration
from lancelsm.table import Table

DIMENSIONS = 8
WORDS = ("red", "green", "blue", "amber", "black")
COLUMNS = pa.schema([("id", pa.int64()), ("vec", pa.list_(pa.float32(), DIMENSIONS)), ("text", pa.string())])


def vector(seed: int, *, dimensions: int = DIMENSIONS) -> list[float]:
    return [float(value) for value in np.random.default_rng(seed).normal(size=dimensions).astype(np.float32)]


def text(seed: int) -> str:
    return f"{WORDS[seed % 5]} {WORDS[seed % 3]} item{seed}"


def rows(ids: Iterable[int], *, version: int = 0) -> list[dict[str, Any]]:
    """Rows whose vector and text follow from id and version."""
    return [{"id": one, "vec": vector(one + 10_000 * version), "text": text(one + 100 * version)} for one in ids]


def create(path: Path, base: Iterable[int] = range(40), **options: Any) -> Table:
    data = pa.Table.from_pylist(rows(base), schema=COLUMNS)
    return lancelsm.create(path / "table", data, primary_key="id", **options)


def generations(table: Table) -> list[tuple[str, FlushedGeneration]]:
    """Every listed generation with its location."""
    return [
        (f"{table.uri}/{generation_path(region.id, one.path)}", one)
        for region in table.list_regions()
        if (head := region.find_head()) is not None
        for one in newest(region, head)[1].generations
    ]


def indexes_of(uri: str) -> dict[str, str]:
    """Name and kind of each index that Lance finds in the newest version of a dataset."""
    found = lance.dataset(uri).describe_indices()
    return {one.name: one.index_type for one in found if not one.name.startswith("__")}


def promised(table: Table) -> set[str]:
    """The indexes that the MemWAL index promises to be in every generation."""
    base = lance.dataset(table.uri)
    details = base.mem_wal_index_details()
    assert details is not None
    names = set(details["maintained_indexes"])
    return names | set(indexes_of(table.uri)) if details["maintain_all_indexes"] else names


def check_promise(table: Table) -> None:
    """Every listed generation has every index that is promised."""
    wanted = promised(table)
    for uri, _ in generations(table):
        assert wanted <= set(indexes_of(uri)), f"{uri} lacks {wanted - set(indexes_of(uri))}"
