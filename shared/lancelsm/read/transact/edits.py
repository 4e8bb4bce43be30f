"""What the function of a transaction returns: rows to upsert, and keys to delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.row_types import ArrowLike, Keys
from lancelsm.errors import Invalid
from lancelsm.record.casts import shown_value
from lancelsm.record.key import has_key_of, newest
from lancelsm.record.normalize import deletes, upserts
from lancelsm.record.schema import TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """The changes of a transaction. A delete wins over an upsert of the same key.

    Args:
        upserts: whole rows, in any form that `Table.upsert` takes.
        deletes: keys, in any form that `Table.delete` takes.
    """

    upserts: ArrowLike = ()
    deletes: Keys = ()


def stored_edits(returned: Any, schema: TableSchema) -> pa.Table:
    """Convert the result of the function to stored form, one row per key: None, `Edits`, or rows to upsert.

    Raises:
        Invalid: a row or a key does not fit the schema.
    """
    if returned is None:
        return schema.stored.empty_table()
    edits = returned if isinstance(returned, Edits) else Edits(upserts=returned)
    written, deleted = upserts(edits.upserts, schema=schema), deletes(edits.deletes, schema=schema)
    return newest(pa.concat_tables([written, deleted]), schema.primary_key)


def check_keys(rows: pa.Table, keys: pa.Table, schema: TableSchema) -> None:
    """Raise `Invalid` if a row has a key that the transaction did not read.

    Args:
        keys: the keys of the transaction.
    """
    names = schema.primary_key
    foreign = rows.filter(pc.invert(has_key_of(rows, keys, names)))
    if foreign.num_rows:
        key = ", ".join(f"{name} {shown_value(foreign.column(name)[0])}" for name in names)
        raise Invalid(
            f"the function of the transaction returned a row with the key {key}, which the transaction did not read",
            remedy="Add the key to `keys`, or leave the row out",
            redacted="the function of a transaction returned a row with a key that the transaction did not read",
            field=names[0],
        )
