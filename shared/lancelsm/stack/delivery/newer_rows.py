"""Find out which rows of a message have newer rows in the log of a region: no older row may replace them.

The entries from a position on are newer than the rows, except those of the same producer with lower sequences. The sum
of the entries proves that all of them were read, for every head. Once the log is collected past the position, newer
rows can't be ruled out. Models: tests/model/redelivery.py, tests/model/resharded_queue.py.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.layout import Position, wal_entry
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, Invalid
from lancelsm.record.key import key_column
from lancelsm.record.schema import TableSchema, conform
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.wal.entry import Entry, decode


class LogIsCollected(Invalid):
    """The log is collected past the position, so newer rows can't be ruled out."""


class NewerRows:
    """The newer rows that the log of a region was found to have. Reads each entry once.

    Args:
        rows: in stored form.
        producer, sequence: entries of this producer with a lower sequence are older than the rows.
        position: the first entry that may be newer.
        entry_setsum: of the entries before it.
    """

    def __init__(
        self,
        region: Region,
        schema: TableSchema,
        rows: pa.Table,
        *,
        producer: str,
        sequence: int,
        position: Position,
        entry_setsum: Setsum,
    ) -> None:
        self._region = region
        self._schema = schema
        self._rows = rows
        self._producer = producer
        self._sequence = sequence
        self._position = position
        self._keys = key_column(rows, schema.primary_key)
        self._newer = pa.repeat(False, rows.num_rows)
        self._next = position
        self._sum = entry_setsum

    def rows_to_append(self, head: Head) -> pa.Table:
        """Return the rows whose keys have no newer row in the log, as of this head.

        Raises:
            LogIsCollected: see above.
            Corrupt: the entries don't add up to what was committed.
        """
        if head.first_position > self._position:  # guard: log behind older rows is not collected
            raise self._collected(head)
        entries_sum, newer = self._sum, self._newer
        for number in range(self._next, head.next_position):
            entry = self._entry(Position(number))
            if entry is not None:
                newer = pc.or_(newer, pc.is_in(self._keys, value_set=self._newer_keys(entry)))
                entries_sum = entries_sum + entry.summary.entry_setsum
        if entries_sum != head.entry_setsum:
            fresh = self._region.head()
            raise self._collected(fresh) if fresh.first_position > self._position else self._corrupt()
        self._next, self._sum, self._newer = head.next_position, entries_sum, newer
        return self._rows.filter(pc.invert(newer))

    def _entry(self, position: Position) -> Entry | None:
        """Return the entry at a position if it can be read. The sum shows later whether an entry is missing."""
        key = wal_entry(self._region.id, position)
        found = self._region.context.objects.get(key)
        try:
            return None if found is None else decode(found.body, position=position, key=key)
        except Corrupt:
            return None

    def _newer_keys(self, entry: Entry) -> pa.Array:
        """Return the keys of an entry if the entry is newer than the rows."""
        sequence = int(entry.summary.applied_sequences.get(self._producer, self._sequence))
        if entry.fence or sequence < self._sequence:  # guard: lower message of the same producer is older
            return self._keys.slice(0, 0)
        return key_column(conform(entry.table(), self._schema), self._schema.primary_key)

    def _corrupt(self) -> Corrupt:
        return Corrupt(
            f"the entries from position {self._position} on don't add up to what was committed", **self._region.where
        )

    def _collected(self, head: Head) -> LogIsCollected:
        return LogIsCollected(
            f"the log is collected below {head.first_position}, so newer rows can't be ruled out",
            remedy="Compare its rows with the table, then write them again or delete the dead letter",
            **self._region.where,
        )
