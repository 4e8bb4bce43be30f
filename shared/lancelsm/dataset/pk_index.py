"""Write, search and check the key index of a generation, which finds the row of a key in one page read.

`_pk_index/page_data.lance` holds (key, row offset) sorted by key, masked duplicates included, in pages of 8192 rows.
`_pk_index/page_lookup.lance` holds the bounds of each page. The format is that of Lance's scalar BTREE index; Lance's
own scan of a generation needs it. A composite key is one binary value (`lancelsm.record.key`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileSession

from lancelsm.common.bounded_cache import NOTHING_KEPT, BoundedCache
from lancelsm.common.layout import KEY_INDEX_FILES
from lancelsm.common.read_trace import NO_TRACE, Trace
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.counted_files import open_file
from lancelsm.errors import Corrupt
from lancelsm.record.key import key_column

_DATA, _LOOKUP = KEY_INDEX_FILES
_READ = "key_index.read"
_PAGE_ROWS = 8192
_PIECE = 1 << 20
_BOUNDS_BYTES = 512  # in memory, of the bounds of a page, about
_DEFAULT_PAGE_ROWS = 4096  # Lance assumes this if the metadata of the file has no value
_FILE_VERSION = "2.0"


def write_pk_index(*, keys: pa.Table, local: Path) -> tuple[Setsum, ...]:
    """Write both files of the index over these keys. The row offset of a key is its position in `keys`.

    Args:
        local: the local directory in which the files are written and summed.

    Returns:
        The setsum of each file of `KEY_INDEX_FILES`.
    """
    _write(LanceFileSession(str(local)), keys)
    setsums = []
    for name in KEY_INDEX_FILES:
        with open(local / name, "rb") as file:
            setsums.append(Setsum.of_pieces(chain([name.encode() + b"\0"], iter(partial(file.read, _PIECE), b""))))
    return tuple(setsums)


def _write(files: LanceFileSession, keys: pa.Table) -> None:
    values = key_column(keys, tuple(keys.column_names))
    order = pc.sort_indices(values)
    ordered = values.take(order)
    schema = pa.schema([pa.field("values", values.type), pa.field("ids", pa.uint64(), nullable=False)])
    with files.open_writer(_DATA, schema=schema, version=_FILE_VERSION) as data:
        data.write_batch(pa.table([ordered, order.cast(pa.uint64())], schema=schema))
    firsts = np.arange(0, len(ordered), _PAGE_ROWS)
    lasts = np.minimum(firsts + _PAGE_ROWS, len(ordered)) - 1
    schema = pa.schema(
        [
            pa.field("min", values.type),
            pa.field("max", values.type),
            pa.field("null_count", pa.uint32(), nullable=False),
            pa.field("page_idx", pa.uint32(), nullable=False),
        ]
    )
    pages = np.arange(len(firsts), dtype=np.uint32)
    bounds = [ordered.take(pa.array(firsts)), ordered.take(pa.array(lasts))]
    with files.open_writer(_LOOKUP, schema=schema, version=_FILE_VERSION) as lookup:
        lookup.add_schema_metadata("batch_size", str(_PAGE_ROWS))
        lookup.add_schema_metadata("range_partitioned", "false")
        lookup.write_batch(pa.table([*bounds, pa.array(np.zeros_like(pages)), pa.array(pages)], schema=schema))


def find_rows(
    *,
    files: LanceFileSession,
    values: pa.Array,
    uri: str = "",
    kept: BoundedCache = NOTHING_KEPT,
    trace: Trace = NO_TRACE,
) -> pa.Array | None:
    """Find the row offsets of these keys, masked duplicates included; None for a generation without an index.

    Reads the page bounds, then only the pages that may hold a key, neighbouring pages in one read.

    Args:
        values: keys in the form of `lancelsm.record.key.key_column`.
        uri: of the generation.
        kept: keeps the bounds and pages; a generation never changes, and its URI is used once.
        trace: counts the requests.
    """
    bounds: _Bounds | None = kept.get(("key index", uri))
    if bounds is None:
        bounds = _read_bounds(files, uri, trace)
        if bounds is None:
            return None
        kept.put(("key index", uri), bounds, size=_BOUNDS_BYTES * len(bounds.pages))
    wanted = values.unique()
    needed = [number for number, page in enumerate(bounds.pages) if _may_hold(page, wanted)]
    pages = {number: page for number in needed if (page := kept.get(("key index", uri, number))) is not None}
    if missing := [number for number in needed if number not in pages]:
        read = _read_pages(files, missing, bounds.page_rows, uri, trace)
        for number, page in read.items():
            kept.put(("key index", uri, number), page, size=page.nbytes)
        pages |= read
    if not pages:
        return pa.array([], pa.uint64())
    among = pa.concat_tables([pages[number] for number in needed])
    return among.filter(pc.is_in(among["values"], value_set=wanted))["ids"].combine_chunks()


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The least and the greatest key of each page of a key index, and the rows of a page."""

    pages: list[dict[str, Any]]
    page_rows: int


def _read_bounds(files: LanceFileSession, uri: str, trace: Trace) -> _Bounds | None:
    try:
        lookup = open_file(files, _LOOKUP, uri=uri, kind=_READ, trace=trace)
    except (OSError, ValueError) as cause:
        if "not found" in str(cause).lower():
            return None
        raise
    stored = (lookup.reader.metadata().schema.metadata or {}).get(b"batch_size")
    with lookup.reading() as reader:
        bounds = reader.read_all().to_table()
    if not {"min", "max"} <= set(bounds.column_names):
        raise Corrupt(f"the key index has unexpected columns: {bounds.column_names}", object=_LOOKUP)
    return _Bounds(bounds.to_pylist(), int(stored) if stored else _DEFAULT_PAGE_ROWS)


def _read_pages(
    files: LanceFileSession, numbers: list[int], page_rows: int, uri: str, trace: Trace
) -> dict[int, pa.Table]:
    """Read these pages, in ascending order; neighbouring pages in one read."""
    data = open_file(files, _DATA, uri=uri, kind=_READ, trace=trace)
    found: dict[int, pa.Table] = {}
    for first, last in _runs(numbers):
        start = first * page_rows
        rows = min(last * page_rows, data.reader.num_rows()) - start
        with data.reading() as reader:
            pages = reader.read_range(start, rows, batch_size=page_rows).to_table()
        found |= {number: pages.slice((number - first) * page_rows, page_rows) for number in range(first, last)}
    return found


def index_problem(*, files: LanceFileSession, values: pa.Array, exact: bool) -> str | None:
    """Read the whole index and compare it with these keys. Return the problem as a clause, or None.

    Args:
        values: the keys of the generation's rows in order, in the form of `lancelsm.record.key.key_column`.
        exact: whether the generation masks no rows, so that the index must hold exactly these keys.

    Raises errors of Lance if a file is missing or unreadable.
    """
    lookup = files.open_reader(_LOOKUP)
    page_rows = int((lookup.metadata().schema.metadata or {}).get(b"batch_size", _DEFAULT_PAGE_ROWS))
    bounds = lookup.read_all().to_table()
    data = files.open_reader(_DATA).read_all().to_table()
    if not {"min", "max"} <= set(bounds.column_names) or data.column_names != ["values", "ids"] or page_rows < 1:
        return "it has unexpected columns"
    keys, ids = data["values"].combine_chunks(), data["ids"].combine_chunks()
    if keys.type != values.type or keys.null_count or len(keys) < len(values):
        return f"it has {len(keys)} keys, but the generation has {len(values)}"
    if exact and (len(keys) != len(values) or len(ids.unique()) != len(values) or pc.max(ids).as_py() >= len(values)):
        return f"it is not an index of {len(values)} rows"
    if exact and not values.take(ids).equals(keys):
        return "it points to rows with other keys"
    if not exact and not pc.all(pc.is_in(values, value_set=keys)).as_py():
        return "it lacks a key"
    if len(keys) > 1 and not pc.all(pc.less_equal(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py():
        return "its keys are not in order"
    firsts = np.arange(0, len(keys), page_rows)
    lasts = np.minimum(firsts + page_rows, len(keys)) - 1
    for bound, offsets in (("min", firsts), ("max", lasts)):
        if not bounds[bound].combine_chunks().equals(keys.take(pa.array(offsets))):
            return "its page bounds don't match its pages"
    return None


def _may_hold(page: dict[str, Any], wanted: pa.Array) -> bool:
    low, high = (pa.scalar(page[bound], wanted.type) for bound in ("min", "max"))
    within = pc.and_(pc.greater_equal(wanted, low), pc.less_equal(wanted, high))
    return bool(pc.any(within).as_py())


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Return the half-open ranges of consecutive numbers."""
    ordered = np.array(numbers)
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
    return [(int(run[0]), int(run[-1]) + 1) for run in runs]
