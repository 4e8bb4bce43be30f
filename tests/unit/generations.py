"""Schemas, rows and generations for tests of single generations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lancelsm.common.setsum import Setsum
from lancelsm.dataset.generation import check_generation
from lancelsm.dataset.generation_writer import write_generation
from lancelsm.errors import Corrupt
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import FIELD_ID, TOMBSTONE, TableSchema, declare_primary_key


def field(name: str, data_type: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, data_type, metadata={FIELD_ID: str(number).encode()})


def table_schema(*columns: pa.Field, key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema(columns=declare_primary_key(pa.schema(columns), key), primary_key=key)


ORDERS = table_schema(field("id", pa.int64(), 0), field("name", pa.utf8(), 1))


def stored_rows(schema: TableSchema, *rows: dict[str, Any]) -> pa.Table:
    filled = [{name: row.get(name) for name in schema.names} | {TOMBSTONE: row.get(TOMBSTONE, False)} for row in rows]
    return pa.Table.from_pylist(filled, schema=schema.stored)


def write(path: Path, schema: TableSchema, rows: pa.Table, version: str = "2.2") -> str:
    write_generation(uri=str(path), keys=rows, rows=rows.to_batches(), schema=schema, data_storage_version=version)
    return str(path)


def check_notices_lost_and_changed_rows(directory: Path) -> None:
    """A check of a written generation fails if rows are missing or their sum differs."""
    rows = stored_rows(ORDERS, {"id": 1, "name": "a"}, {"id": 2, "name": "b"})
    uri = write(directory / "g", ORDERS, rows)

    check_generation(uri=uri, schema=ORDERS, rows=2, setsum=row_setsum(rows))
    with pytest.raises(Corrupt, match="2 rows, but 3 were written"):
        check_generation(uri=uri, schema=ORDERS, rows=3, setsum=row_setsum(rows))
    with pytest.raises(Corrupt, match="differ from those that were written"):
        check_generation(uri=uri, schema=ORDERS, rows=2, setsum=Setsum.ZERO)
