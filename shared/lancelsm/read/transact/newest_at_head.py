"""Keep the newest rows of some keys of one region up to date, deletes included, as of any head."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.read.transact.read_token import point_of
from lancelsm.read.transact.rows_at_head import RowsAtHead, ViewedRows
from lancelsm.record.casts import as_schema
from lancelsm.record.key import key_column


class NewestAtHead(RowsAtHead):
    """Like `RowsAtHead`, but a delete stays as a tombstone, with the values of its sequence. Rows have stored form."""

    def _take(self, viewed: ViewedRows) -> None:
        self._rows = as_schema(viewed.rows, self._schema.stored)
        self._point = point_of(viewed.end)

    def _after(self, found: pa.Table, rows: pa.Table) -> pa.Table:
        names = self._schema.primary_key
        replaced = pc.is_in(key_column(found, names), value_set=key_column(rows, names))
        added = self._select(as_schema(rows, self._schema.stored))
        return pa.concat_tables([found.filter(pc.invert(replaced)), added])
