"""Print what Iceberg does with small upserts, through PyIceberg: docs/comparison.md quotes it."""

import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyiceberg
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import EqualTo, In
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

ARROW = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("state", pa.string())])
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True), NestedField(2, "state", StringType()), identifier_field_ids=[1]
)
logging.getLogger("pyiceberg").setLevel(logging.ERROR)


def opened(place: Path) -> Table:
    return catalog(place).load_table("shop.orders")


def catalog(place: Path) -> SqlCatalog:
    return SqlCatalog("local", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")


def rows(states: dict[int, str]) -> pa.Table:
    return pa.table({"id": list(states), "state": list(states.values())}, schema=ARROW)


def states(table: Table, snapshot: int | None = None) -> dict[int, str]:
    found = table.scan(row_filter=In("id", {1, 100_000}), snapshot_id=snapshot).to_arrow().to_pylist()
    return {row["id"]: row["state"] for row in sorted(found, key=lambda row: row["id"])}


def written(table: Table, since: int) -> int:
    """How many rows the snapshots after that number of snapshots added."""
    return sum(int(found.summary["added-records"] or 0) for found in table.snapshots()[since:] if found.summary)


def main() -> None:
    print("version: pyiceberg", pyiceberg.__version__)
    place = Path(tempfile.mkdtemp())
    catalog(place).create_namespace("shop")
    table = catalog(place).create_table("shop.orders", SCHEMA)
    table.append(rows(dict.fromkeys(range(100_000), "new")))
    files = set(place.rglob("*.*"))

    held = opened(place)
    table.upsert(rows({1: "paid", 100_000: "fresh"}))
    new = len(set(place.rglob("*.*")) - files)
    print(f"upsert of 2 rows: {len(table.snapshots()) - 1} snapshots, {new} files, {written(table, 1):,} rows written")
    sys.stdout.flush()
    subprocess.run([sys.executable, __file__, str(place)], check=True)
    print("a handle that was open before sees", states(held))

    table.delete(EqualTo("id", 100_000))
    print("after the delete of a fresh row the writer sees", states(table))

    first, second = opened(place), opened(place)
    first.upsert(rows({1: "first"}))
    try:
        second.upsert(rows({1: "second"}))
    except (CommitFailedException, ValidationException) as error:
        print("a concurrent upsert:", type(error).__name__)

    table = opened(place)
    table.append(rows({1: "twice"}))
    print("rows with the key 1 after an append:", table.scan(row_filter=EqualTo("id", 1)).count())
    print("the first snapshot has", states(table, table.snapshots()[0].snapshot_id))
    appended = table.incremental_append_scan(from_snapshot_id_exclusive=table.snapshots()[-2].snapshot_id)
    print("rows of the last append:", appended.to_arrow().to_pylist())

    data = set(place.rglob("*.parquet"))
    with table.update_schema() as schema:
        schema.add_column("note", StringType())
        schema.add_column("count", IntegerType())
    with table.update_schema() as schema:
        schema.rename_column("state", "status")
        schema.delete_column("note")
        schema.update_column("count", LongType())
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "bucket")
    with table.manage_snapshots() as snapshots:
        snapshots.create_branch(table.snapshots()[0].snapshot_id, "audit")
        snapshots.create_tag(table.snapshots()[0].snapshot_id, "first")
    new = len(set(place.rglob("*.parquet")) - data)
    print(f"columns added, renamed, widened, dropped, other partitions, a branch, a tag: {new} data files written")
    print("maintenance:", [name for name in dir(table.maintenance) if not name.startswith("_") and name != "tbl"])


if sys.argv[1:]:
    print("another process sees", states(opened(Path(sys.argv[1]))))
else:
    main()
