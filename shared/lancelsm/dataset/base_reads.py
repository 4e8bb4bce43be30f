"""Read rows of a base by condition or by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.bounded_cache import NOTHING_KEPT, BoundedCache
from lancelsm.common.read_trace import NO_TRACE, Trace
from lancelsm.dataset.base_table import BaseTable
from lancelsm.dataset.conditions import Condition
from lancelsm.dataset.damaged import naming_damage
from lancelsm.dataset.literals import literals
from lancelsm.dataset.native import read_errors
from lancelsm.dataset.scan_options import scan_options, scanned
from lancelsm.record.casts import as_schema
from lancelsm.record.key import has_key_of

_MANY_KEYS = 256
_PAGE_KEYS = 4096  # of Lance's BTREE
_NEIGHBOURS = 64  # integers that are this close to each other share pages


def scan_base(
    base: BaseTable,
    *,
    columns: Sequence[str],
    where: Condition | None = None,
    limit: int | None = None,
    offset: int | None = None,
    fragments: Sequence[int] | None = None,
    trace: Trace = NO_TRACE,
) -> Iterator[pa.RecordBatch]:
    """Yield the live rows that match the condition, with these columns in this order.

    Args:
        offset: how many of these rows to leave out first. Rows of a version always come in the same order.
        fragments: the ids of the fragments to read; all by default.

    Raises:
        Invalid: a column is unknown, or the condition is not valid SQL over the table's columns.
        Corrupt: a file is missing or unreadable.
        Unavailable: the store did not answer.
    """
    with _errors(base, where):
        scanner = base.dataset.scanner(
            columns=scanned(base.dataset.schema, columns),
            filter=where and where.sql,
            limit=limit,
            offset=offset,
            fragments=None if fragments is None else _fragments(base, fragments),
            **scan_options(base.dataset, columns),
        )
        trace.planned(scanner.explain_plan)
        for batch in scanner.to_batches():
            yield as_schema(batch, pa.schema([base.schema.columns.field(name) for name in batch.schema.names]))


def rows_of_keys(
    base: BaseTable,
    keys: pa.Table,
    *,
    columns: Sequence[str],
    kept: BoundedCache = NOTHING_KEPT,
    trace: Trace = NO_TRACE,
) -> pa.Table:
    """Read the live rows with these keys, in no order. Uses an index if the base has one on a key column.

    Keys all over the base need most pages of its index, one by one. Until Lance has them in memory, a scan of the key
    columns is faster, and reads less. So the first lookup of many keys is a scan.

    Args:
        keys: the key columns; at least one row, all distinct.
        columns: must include the key columns.
        kept: remembers that there was such a lookup.

    Raises: the same errors as `scan_base`.
    """
    # The filter is SQL: when Lance converts an Arrow expression, it loses columns of many types, key or not.
    wanted = " AND ".join(
        f"`{name}` IN ({', '.join(literals(pc.unique(keys.column(name))))})" for name in keys.column_names
    )
    with _errors(base):
        options = _without_index(base, keys) if _is_first_of_many(base, keys, kept) else {}
        scanner = base.dataset.scanner(columns=scanned(base.dataset.schema, columns), filter=wanted, **options)
        trace.planned(scanner.explain_plan)
        found: pa.Table = scanner.to_table()
    # With several key columns, the condition also matches combinations that are not in `keys`.
    return found if keys.num_columns == 1 else found.filter(has_key_of(found, keys, tuple(keys.column_names)))


def _is_first_of_many(base: BaseTable, keys: pa.Table, kept: BoundedCache) -> bool:
    """Return whether this is the first lookup of keys that need most of the pages of an index."""
    if keys.num_rows < max(_MANY_KEYS, len(base.fragments), base.rows / _PAGE_KEYS) or not kept.takes(0):
        return False
    if pa.types.is_integer(keys.column(0).type):
        bounds = pc.min_max(keys.column(0)).as_py()
        if bounds["max"] - bounds["min"] < _NEIGHBOURS * keys.num_rows:
            return False
    lookup = "many keys of the base", base.version
    is_first = kept.get(lookup) is None
    kept.put(lookup, True, size=0)
    return is_first


def _without_index(base: BaseTable, keys: pa.Table) -> dict[str, Any]:
    """Return options for a scan that reads the other columns of the found rows alone, as it does with an index."""
    names = set(keys.column_names)
    indexes = base.dataset.describe_indices()
    if not any(names >= set(index.field_names) > set() and index.index_type == "BTree" for index in indexes):
        return {}
    options = scan_options(base.dataset, keys.column_names)
    return {"use_scalar_index": False, "late_materialization": True, **options}


def _fragments(base: BaseTable, ids: Sequence[int]) -> list[Any]:
    wanted = set(ids)
    return [one for one in base.dataset.get_fragments() if one.fragment_id in wanted]


@contextmanager
def _errors(base: BaseTable, where: Condition | None = None) -> Iterator[None]:
    with (
        naming_damage(uri=base.uri, opened=lambda: base.dataset, options=base.storage_options),
        read_errors("the base can't be read", condition=where.text if where else None, table=base.uri),
    ):
        yield
