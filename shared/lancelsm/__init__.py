"""A log-structured merge tree in front of Lance tables: acknowledged writes are durable and visible at once.

import lancelsm

table = lancelsm.create("orders", rows, primary_key="id", regions="bucket(id, 4)")
table.upsert([{"id": 1, "state": "paid"}])
table.scan(where="state = 'paid'").to_arrow()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lancelsm.admin.copy_table import copy_table
    from lancelsm.common.committed import Committed
    from lancelsm.dataset.versions import BaseVersion
    from lancelsm.errors import Ambiguous, Contended, Corrupt, Fenced, Invalid, LsmError, LsmWarning, Unavailable
    from lancelsm.namespace import Namespace, connect
    from lancelsm.read.result import Rows
    from lancelsm.read.sources.arrow_dataset import arrow_dataset, datafusion_table, duckdb_relation
    from lancelsm.read.sources.polars_frame import polars_frame
    from lancelsm.read.status import TableStatus
    from lancelsm.read.transact.change_capture import Applied
    from lancelsm.read.transact.edits import Edits
    from lancelsm.read.transact.read_token import RowsWithToken
    from lancelsm.table import Table, create, open  # noqa: A004
    from lancelsm.wal.writer import Writer

_HOMES = {
    "admin.copy_table": ("copy_table",),
    "dataset.versions": ("BaseVersion",),
    "errors": ("Ambiguous", "Contended", "Corrupt", "Fenced", "Invalid", "LsmError", "LsmWarning", "Unavailable"),
    "namespace": ("Namespace", "connect"),
    "read.transact.change_capture": ("Applied",),
    "read.status": ("TableStatus",),
    "read.transact.edits": ("Edits",),
    "read.transact.read_token": ("RowsWithToken",),
    "read.result": ("Rows",),
    "read.sources.arrow_dataset": ("arrow_dataset", "datafusion_table", "duckdb_relation"),
    "read.sources.polars_frame": ("polars_frame",),
    "table": ("Table", "create", "open"),
    "common.committed": ("Committed",),
    "wal.writer": ("Writer",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Ambiguous",
    "Applied",
    "BaseVersion",
    "Committed",
    "Contended",
    "Corrupt",
    "Edits",
    "Fenced",
    "Invalid",
    "LsmError",
    "LsmWarning",
    "Namespace",
    "Rows",
    "RowsWithToken",
    "Table",
    "TableStatus",
    "Unavailable",
    "Writer",
    "arrow_dataset",
    "connect",
    "copy_table",
    "create",
    "datafusion_table",
    "duckdb_relation",
    "open",
    "polars_frame",
]


def __getattr__(name: str) -> object:
    # Import on first use: Lance, numpy and Spark would make the cold start of a writer slow.
    if name in _HOME:
        return getattr(import_module(f"lancelsm.{_HOME[name]}"), name)
    raise AttributeError(f"module 'lancelsm' has no attribute {name!r}")
