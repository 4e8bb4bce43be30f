"""The rows of a region that are only in its log: the newest row of each key after the replay point.

A small tail is held in memory. Of a large one only the keys are held, and its entries are read again, the newest first,
when their rows are wanted. The first reading proves the entries; the second one compares each with its sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.layout import Position
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, error_context
from lancelsm.record.batches import coalesced, gathered
from lancelsm.record.key import fold, key_column, last_of_key
from lancelsm.record.schema import TOMBSTONE, TableSchema
from lancelsm.region.catalog import Region
from lancelsm.region.head import Summary
from lancelsm.wal.entry import Entry
from lancelsm.wal.replay import read_ahead, stored_rows

_HELD_BYTES = 64 << 20
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Winners:
    """An entry, and which of its rows are the newest of their keys: the bits of all rows, lowest first."""

    position: Position
    entry_setsum: Setsum
    rows: int
    size: int
    bits: bytes

    def mask(self) -> pa.Array:
        packed = np.frombuffer(self.bits, np.uint8)
        return pa.array(np.unpackbits(packed, count=self.rows, bitorder="little").astype(np.bool_))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The newest row of each key of a tail.

    Args:
        keys: the key columns and `_tombstone` of these rows, in arrival order.
        row_bytes: the mean size of a row in the log.
    """

    region: Region
    schema: TableSchema
    keys: pa.Table
    row_bytes: int
    _held: pa.Table | None = field(repr=False)
    _entries: tuple[_Winners, ...] = field(default=(), repr=False)

    @property
    def num_rows(self) -> int:
        return int(self.keys.num_rows)

    @property
    def nbytes(self) -> int:
        """The bytes in memory, about."""
        held = 0 if self._held is None else self._held.nbytes
        return int(self.keys.nbytes) + held + sum(len(one.bits) for one in self._entries)

    @property
    def is_held(self) -> bool:
        """Whether the rows are in memory, and not only their keys."""
        return self._held is not None

    def followed_by(self, entries: Iterable[Entry]) -> Tail:
        """Return the tail with the entries that follow it. Its rows must be in memory.

        Raises: the `Corrupt` of `wal.replay.stored_rows`.
        """
        collector = _Collector(self.region, self.schema, 1 << 62)
        for entry in entries:
            if entry.summary.rows:
                collector.add(entry)
        newer = collector.tail()
        rows = fold(coalesced(pa.concat_tables([self._held, newer._held])), self.schema.primary_key).rows
        return replace(
            self, keys=_key_columns(self.schema, rows), row_bytes=self.row_bytes or newer.row_bytes, _held=rows
        )

    @property
    def live_rows(self) -> int:
        """The number of rows that are no tombstones."""
        return self.num_rows - int(pc.sum(self.keys.column(TOMBSTONE)).as_py() or 0)

    def rows(self, columns: Sequence[str], *, among: pa.Table | None = None) -> Iterator[pa.Table]:
        """Yield the rows in stored form with these columns and `_tombstone`, the newest entries first.

        Args:
            among: return only rows with these keys, which are distinct.

        Raises:
            Corrupt: an entry is missing, or not the one that was read before.
            Unavailable: the store did not answer.
        """
        names = [*columns, TOMBSTONE]
        wanted = None if among is None else key_column(among, self.schema.primary_key)
        for table in self._newest_first():
            rows = table
            if wanted is not None:
                rows = table.filter(pc.is_in(key_column(table, self.schema.primary_key), value_set=wanted))
            yield rows.select(names)

    def in_order(self) -> Iterator[pa.Table]:
        """Yield all columns of the rows in stored form, in arrival order."""
        return iter([self._held]) if self._held is not None else self._read(self._entries)

    def _newest_first(self) -> Iterator[pa.Table]:
        return iter([self._held]) if self._held is not None else self._read(self._entries[::-1])

    def _read(self, winners: Sequence[_Winners]) -> Iterator[pa.Table]:
        positions, size = [one.position for one in winners], sum(one.size for one in winners)
        for one, entry in zip(winners, read_ahead(self.region, positions, size=size), strict=True):
            yield self._rows_of(one, entry)

    def _rows_of(self, wanted: _Winners, entry: Entry) -> pa.Table:
        if entry.summary.entry_setsum != wanted.entry_setsum:  # guard: entry that is read again is the same
            raise Corrupt(
                "an entry was replaced while the log was read",
                remedy="Read again",
                **self.region.where,
                position=wanted.position,
                object=entry.key,
            )
        with error_context(**self.region.where):
            return stored_rows(entry, self.schema).filter(wanted.mask())


def held_bytes(regions: int) -> int:
    """Return how many bytes of each region a view may hold, if it has this number of regions."""
    return _HELD_BYTES // max(regions, 1)


def read_tail(region: Region, schema: TableSchema, entries: Iterable[Entry], *, held_bytes: int) -> Tail:
    """Find the newest row of each key in the entries of a tail.

    Args:
        entries: the tail in order, see `wal.replay`. Read once.
        held_bytes: if the entries are larger, only their keys are held.

    Raises: the same errors as iterating over `entries`, and the `Corrupt` of `wal.replay.stored_rows`.
    """
    collector = _Collector(region, schema, held_bytes)
    for entry in entries:
        if entry.summary.rows:
            collector.add(entry)
    return collector.tail()


class _Collector:
    def __init__(self, region: Region, schema: TableSchema, held_bytes: int) -> None:
        self._region = region
        self._schema = schema
        self._left = held_bytes
        self._held: list[pa.Table] | None = []
        self._keys: list[pa.Table] = []
        self._facts: list[tuple[Summary, int]] = []

    def add(self, entry: Entry) -> None:
        with error_context(**self._region.where):
            rows = stored_rows(entry, self._schema)
        self._left -= entry.summary.bytes
        self._facts.append((entry.summary, rows.num_rows))
        if self._held is not None and self._left >= 0:
            self._held.append(rows)
            return
        for table in [*(self._held or ()), rows]:
            self._keys.append(self._copied_keys(table))
        self._held = None

    def tail(self) -> Tail:
        if self._held is not None:
            rows = self._schema.stored.empty_table()
            if self._held:
                rows = pa.concat_tables(gathered(self._held, rows=_ROWS_AT_ONCE))
                rows = fold(rows, self._schema.primary_key).rows
            return Tail(
                region=self._region,
                schema=self._schema,
                keys=_key_columns(self._schema, rows),
                row_bytes=self._row_bytes(),
                _held=rows,
            )
        keys = pa.concat_tables(gathered(self._keys, rows=_ROWS_AT_ONCE)).combine_chunks()
        last = last_of_key(keys, self._schema.primary_key)
        wins = np.asarray(pc.equal(last, pa.arange(0, keys.num_rows)))
        return Tail(
            region=self._region,
            schema=self._schema,
            keys=keys.filter(pa.array(wins)),
            row_bytes=self._row_bytes(),
            _held=None,
            _entries=tuple(self._winners(wins)),
        )

    def _row_bytes(self) -> int:
        return sum(summary.bytes for summary, _ in self._facts) // max(1, sum(rows for _, rows in self._facts))

    def _winners(self, wins: npt.NDArray[np.bool_]) -> Iterator[_Winners]:
        start = 0
        for summary, rows in self._facts:
            own = wins[start : start + rows]
            start += rows
            if own.any():
                bits = np.packbits(own, bitorder="little").tobytes()
                yield _Winners(
                    position=summary.position,
                    entry_setsum=summary.entry_setsum,
                    rows=rows,
                    size=summary.bytes,
                    bits=bits,
                )

    def _copied_keys(self, rows: pa.Table) -> pa.Table:
        """Return the key columns in memory of their own, so that the bytes of the entry can be freed."""
        keys = _key_columns(self._schema, rows)
        return keys.take(pa.arange(0, keys.num_rows))


def _key_columns(schema: TableSchema, rows: pa.Table) -> pa.Table:
    return rows.select([name for name in schema.stored.names if name in {*schema.primary_key, TOMBSTONE}])
