"""Find rows that another tool added to a base: keys that are there twice.

Each merge records how many rows the base has by its own count. Other tools do not maintain this number, so a base with
more rows was added to. Before the first merge the number is that of version 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.dataset.base_table import BaseTable, VersionGone, open_base
from lancelsm.record.casts import shown_value
from lancelsm.record.key import key_column

ROWS = "lancelsm.rows"
_EXAMPLES = 20
CREATED = 2  # the version of a new base: rows, then the MemWAL index


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Keys that several rows of a base have: their number, and examples."""

    keys: int
    examples: tuple[str, ...]


def counted_rows(base: BaseTable) -> int:
    """Return the number of rows that the base has by the count of lancelsm's own commits.

    It is the actual number if nothing is known: an earlier release merged, version 1 was cleaned up, or another tool
    changed the number to something else.
    """
    if (counted := base.metadata.get(ROWS)) is not None:
        return int(counted) if counted.isdecimal() else base.rows
    if base.counters or base.version <= CREATED:
        return base.rows
    try:
        return open_base(uri=base.uri, version=1, storage_options=base.storage_options).rows
    except VersionGone:
        return base.rows


def repeated_keys(base: BaseTable) -> Repeated:
    """Read the keys of all rows, and find those that are there twice. Holds all keys in memory.

    Raises: the same errors as `dataset.base_reads.scan_base`.
    """
    from lancelsm.dataset.base_reads import scan_base  # noqa: PLC0415 - loads Lance

    key = base.schema.primary_key
    batches = list(scan_base(base, columns=list(key)))
    rows = pa.Table.from_batches(batches) if batches else base.schema.key.empty_table()
    keys = key_column(rows, key) if rows.num_rows else pa.array([], pa.int64())
    first = pc.index_in(keys, value_set=keys)
    again = pc.not_equal(first, pa.arange(0, len(keys)))
    found = rows.take(pc.unique(first.filter(again)))
    return Repeated(keys=found.num_rows, examples=described_keys(found.slice(0, _EXAMPLES), key))


def described_keys(rows: pa.Table, primary_key: tuple[str, ...]) -> tuple[str, ...]:
    """Return the key of each row as text."""
    columns = {name: rows.column(name) for name in primary_key}
    return tuple(
        ", ".join(f"{name}={shown_value(column[row])}" for name, column in columns.items())
        for row in range(rows.num_rows)
    )
