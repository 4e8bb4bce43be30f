"""Keep the newest rows of some keys of one region up to date, deletes included, as of any head."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.read.transact.read_token import point_of
from lancelsm.read.transact.rows_at_head import RowsAtHead, ViewedRows
from lancelsm.record.casts import as_schema
from lancelsm.record.key import has_key_of


class NewestAtHead(RowsAtHead):
    """Like `RowsAtHead`, but a delete stays as a tombstone, with the values of its sequence. Rows have stored form."""

    def _take(self, viewed: ViewedRows) -> None:
        self._rows = as_schema(viewed.rows, self._schema.stored)
        self._point, self._expiry = point_of(viewed.end), viewed.expiry

    def _after(self, found: pa.Table, rows: pa.Table) -> pa.Table:
        replaced = has_key_of(found, rows, self._schema.primary_key)
        added = self._select(as_schema(rows, self._schema.stored))
        return pa.concat_tables([found.filter(pc.invert(replaced)), added])
