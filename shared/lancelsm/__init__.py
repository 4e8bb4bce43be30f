"""A log-structured merge tree in front of Lance tables: acknowledged writes are durable and visible at once.

    import lancelsm

    table = lancelsm.create("orders", rows, primary_key="id", regions="bucket(id, 4)")
    table.upsert([{"id": 1, "state": "paid"}])
    table.scan(where="state = 'paid'").to_arrow()

`create` and `open` return a `Table`, whose methods write, read and maintain it; `open_async` is for asyncio. `connect`
returns the tables below a directory by name. `backup`, `restore`, `clone`, `copy` and `drop` copy and delete whole
tables; `doctor` and `scrub` check one. `arrow_dataset`, `datafusion_table`, `duckdb_relation` and `polars_frame` give a
table to other engines. `LsmError` is the base class of all errors; each of its six kinds says what to do next. The
other names are types that calls take or return. `lancelsm.spark` works on data frames of Spark, `lancelsm.client` is
the client of a deployment on AWS, and `lancelsm.testing` is for tests.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lancelsm.admin.clone import Copied
    from lancelsm.admin.reshard import Resharded
    from lancelsm.common.row_types import ArrowLike, KeyRow, Keys, KeyValue, Value, Vector
    from lancelsm.common.settings import Settings
    from lancelsm.common.write_result import Committed, CommittedEntry
    from lancelsm.compaction.background import Ran
    from lancelsm.compaction.compact import CompactedGeneration
    from lancelsm.compaction.maintenance import Flushed
    from lancelsm.compaction.merge import Merged
    from lancelsm.compaction.optimize import Optimized
    from lancelsm.dataset.lance_readers import LanceSnapshot
    from lancelsm.dataset.versions import BaseVersion
    from lancelsm.errors import Ambiguous, Contended, Corrupt, Fenced, Invalid, LsmError, LsmWarning, Unavailable
    from lancelsm.gc.collect import Candidate, Collected
    from lancelsm.gc.mark import Kept
    from lancelsm.history.changes import Change, Changes
    from lancelsm.history.pin_records import Pin
    from lancelsm.history.restore import Restored
    from lancelsm.namespace import Namespace, connect
    from lancelsm.read.explain import Explanation, ReadLevel, ReadStep, RequestCount, SkippedLevel
    from lancelsm.read.index_status import IndexStatus
    from lancelsm.read.problems import TableProblem
    from lancelsm.read.pruning.region_pruning import SkippedRegion
    from lancelsm.read.result import Rows
    from lancelsm.read.sources.arrow_dataset import ArrowDataset, arrow_dataset, datafusion_table, duckdb_relation
    from lancelsm.read.sources.polars_frame import polars_frame
    from lancelsm.read.status import RegionStatus, TableStatus
    from lancelsm.read.transact.change_capture import Applied
    from lancelsm.read.transact.edits import Edits
    from lancelsm.read.transact.read_token import RowsWithToken
    from lancelsm.record.schema import TableSchema
    from lancelsm.region.catalog import Region
    from lancelsm.region.config import Config
    from lancelsm.region.head import Head
    from lancelsm.routing.spec import RegionSpec
    from lancelsm.scrubbing.report import Problem, Report
    from lancelsm.stack.doctor import Check
    from lancelsm.stack.doctor.table_checks import doctor
    from lancelsm.table import Table, create, open  # noqa: A004
    from lancelsm.table.async_table import AsyncRows, AsyncTable, open_async
    from lancelsm.table.whole_tables import backup, clone, copy, drop, restore, scrub
    from lancelsm.wal.writer import Writer

    __version__: str

_HOMES = {
    "admin.clone": ("Copied",),
    "admin.reshard": ("Resharded",),
    "common.write_result": ("Committed", "CommittedEntry"),
    "common.settings": ("Settings",),
    "compaction.background": ("Ran",),
    "compaction.compact": ("CompactedGeneration",),
    "compaction.maintenance": ("Flushed",),
    "compaction.merge": ("Merged",),
    "compaction.optimize": ("Optimized",),
    "dataset.lance_readers": ("LanceSnapshot",),
    "dataset.versions": ("BaseVersion",),
    "errors": ("Ambiguous", "Contended", "Corrupt", "Fenced", "Invalid", "LsmError", "LsmWarning", "Unavailable"),
    "gc.collect": ("Candidate", "Collected"),
    "gc.mark": ("Kept",),
    "history.changes": ("Change", "Changes"),
    "history.pin_records": ("Pin",),
    "history.restore": ("Restored",),
    "namespace": ("Namespace", "connect"),
    "read.explain": ("Explanation", "ReadLevel", "ReadStep", "RequestCount", "SkippedLevel"),
    "read.index_status": ("IndexStatus",),
    "read.problems": ("TableProblem",),
    "read.pruning.region_pruning": ("SkippedRegion",),
    "read.result": ("Rows",),
    "read.sources.arrow_dataset": ("ArrowDataset", "arrow_dataset", "datafusion_table", "duckdb_relation"),
    "read.sources.polars_frame": ("polars_frame",),
    "read.status": ("RegionStatus", "TableStatus"),
    "read.transact.change_capture": ("Applied",),
    "read.transact.edits": ("Edits",),
    "read.transact.read_token": ("RowsWithToken",),
    "record.schema": ("TableSchema",),
    "region.catalog": ("Region",),
    "region.config": ("Config",),
    "region.head": ("Head",),
    "routing.spec": ("RegionSpec",),
    "scrubbing.report": ("Problem", "Report"),
    "stack.doctor": ("Check",),
    "stack.doctor.table_checks": ("doctor",),
    "common.row_types": ("ArrowLike", "KeyRow", "KeyValue", "Keys", "Value", "Vector"),
    "table": ("Table", "create", "open"),
    "table.async_table": ("AsyncRows", "AsyncTable", "open_async"),
    "table.whole_tables": ("backup", "clone", "copy", "drop", "restore", "scrub"),
    "wal.writer": ("Writer",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Ambiguous",
    "Applied",
    "ArrowDataset",
    "ArrowLike",
    "AsyncRows",
    "AsyncTable",
    "BaseVersion",
    "Candidate",
    "Change",
    "Changes",
    "Check",
    "Collected",
    "Committed",
    "CommittedEntry",
    "CompactedGeneration",
    "Config",
    "Contended",
    "Copied",
    "Corrupt",
    "Edits",
    "Explanation",
    "Fenced",
    "Flushed",
    "Head",
    "IndexStatus",
    "Invalid",
    "Kept",
    "KeyRow",
    "KeyValue",
    "Keys",
    "LanceSnapshot",
    "LsmError",
    "LsmWarning",
    "Merged",
    "Namespace",
    "Optimized",
    "Pin",
    "Problem",
    "Ran",
    "ReadLevel",
    "ReadStep",
    "Region",
    "RegionSpec",
    "RegionStatus",
    "Report",
    "RequestCount",
    "Resharded",
    "Restored",
    "Rows",
    "RowsWithToken",
    "Settings",
    "SkippedLevel",
    "SkippedRegion",
    "Table",
    "TableProblem",
    "TableSchema",
    "TableStatus",
    "Unavailable",
    "Value",
    "Vector",
    "Writer",
    "arrow_dataset",
    "backup",
    "clone",
    "connect",
    "copy",
    "create",
    "datafusion_table",
    "doctor",
    "drop",
    "duckdb_relation",
    "open",
    "open_async",
    "polars_frame",
    "restore",
    "scrub",
]


def __getattr__(name: str) -> object:
    # Import on first use: Lance, numpy and Spark would make the cold start of a writer slow.
    if name in _HOME:
        return getattr(import_module(f"lancelsm.{_HOME[name]}"), name)
    if name == "__version__":
        from importlib import metadata  # noqa: PLC0415 - slow, and few processes ask for it

        return metadata.version("lancelsm")
    from lancelsm.common.other_names import MODULE, other_name  # noqa: PLC0415 - few processes need it

    raise other_name("lancelsm", name, MODULE) or AttributeError(f"module 'lancelsm' has no attribute {name!r}")


def __dir__() -> list[str]:
    # What a user completes: no import of this module, and the modules that have pages of their own.
    special = (name for name in globals() if name.startswith("__"))
    return sorted({*special, *__all__, "__version__", "client", "errors", "spark", "testing"})
