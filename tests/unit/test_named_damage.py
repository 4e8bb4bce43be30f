"""If Lance fails on a file of the base, the error names the file, since the statement of files has its sum."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.compaction.maintenance import optimize_table
from lancelsm.dataset.statement import files_of
from lancelsm.errors import Corrupt
from lancelsm.table import Table

COLUMNS = pa.schema({"id": pa.int64(), "v": pa.string(), "vec": pa.list_(pa.float32(), 8)})


def rows(keys: range, value: str) -> pa.Table:
    vectors = np.random.default_rng(len(keys)).random(len(keys) * 8, dtype=np.float32)
    vec = pa.FixedSizeListArray.from_arrays(pa.array(vectors), 8)
    return pa.table([pa.array(keys), pa.array([f"{value} {key}" for key in keys]), vec], schema=COLUMNS)


def filled(path: Path) -> Table:
    """Create a table with a generation, whose base has a stated file of each kind."""
    table = lancelsm.create(path / "table", COLUMNS, primary_key="id")
    table.upsert(rows(range(600), "a"))
    merge(table)
    table.create_index("vec", kind="IVF_FLAT", num_partitions=1)
    table.create_index("id", kind="BTREE")
    table.create_index("v", kind="INVERTED")
    table.upsert(rows(range(0, 300, 2), "b"))
    merge(table)
    table.upsert(rows(range(100, 400), "c"))
    table.flush()
    return table


def merge(table: Table) -> object:
    table.flush()
    return table.merge(engine="inprocess")


CALLS: dict[str, Callable[[Table], object]] = {
    "scan": lambda table: table.scan(where="v != 'x'").to_arrow(),
    "count": lambda table: table.scan(columns=["id"]).to_arrow(),
    "get": lambda table: table.get([1, 500]),
    "search": lambda table: table.search(np.zeros(8, np.float32), k=400).to_arrow(),
    "text search": lambda table: table.search("a", k=400).to_arrow(),
    "merge": merge,
    "optimize": lambda table: optimize_table(table._handle),
}
FILES = {  # by folder, or by name in the directory of an index: the calls that read such a file
    "data/": tuple(CALLS),
    "_deletions/": tuple(CALLS),
    "page_data.lance": ("get", "optimize"),
    "auxiliary.idx": ("search", "optimize"),
    "part_0_invert.lance": ("text search",),
}
DAMAGE: tuple[Callable[[bytes], bytes | None], ...] = (
    lambda _: None,
    lambda body: body[: len(body) // 2],
    lambda body: bytes(len(body)),
)


@pytest.mark.rest
def test_a_call_that_fails_on_a_damaged_file_of_the_base_names_it(tmp_path: Path) -> None:
    named = [one.key for one in files_of(filled(tmp_path)._handle.read_base())]
    damages = cycle(DAMAGE)
    for kind, calls in FILES.items():
        key, file = next(
            (key, file)
            for key in named
            for file in [tmp_path / "table" / key, *(tmp_path / "table" / key).glob("*")]
            if key.startswith(kind) or file.name == kind
        )
        for call in calls:
            shutil.copytree(tmp_path / "table", tmp_path / "damaged/table")
            damaged = tmp_path / "damaged" / file.relative_to(tmp_path)
            body = next(damages)(damaged.read_bytes())
            damaged.unlink()
            if body is not None:
                damaged.write_bytes(body)

            with pytest.raises(Corrupt) as caught:
                CALLS[call](lancelsm.open(tmp_path / "damaged/table"))

            assert caught.value.where["object"] == key, (kind, call)
            assert "scrub" in caught.value.remedy
            shutil.rmtree(tmp_path / "damaged")


def test_the_error_stays_as_it_is_if_no_sum_says_that_a_file_is_damaged(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path / "table", [{"id": 1}], primary_key="id")
    (file,) = Path(table.uri, "data").iterdir()
    file.write_bytes(bytes(file.stat().st_size))

    with pytest.raises(Corrupt, match="the base can't be read") as caught:
        table.scan().to_arrow()

    assert caught.value.where["object"] == f"{table.uri}/data"
    assert "not the file that was written" not in caught.value.message
