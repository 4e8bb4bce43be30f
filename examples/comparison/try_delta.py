"""Print what Delta does with small upserts, through delta-rs: docs/comparison.md quotes it."""

import os
import subprocess
import sys
import tempfile

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

SCHEMA = pa.schema([("id", pa.int64()), ("state", pa.string())])
KEYS = [1, 100_000]


def rows(states: dict[int, str]) -> pa.Table:
    return pa.table({"id": list(states), "state": list(states.values())}, schema=SCHEMA)


def upsert(table: DeltaTable, states: dict[int, str]) -> dict[str, int]:
    merger = table.merge(rows(states), "t.id = s.id", source_alias="s", target_alias="t")
    return merger.when_matched_update_all().when_not_matched_insert_all().execute()


def states(table: DeltaTable) -> dict[int, str]:
    found = table.to_pyarrow_dataset().to_table(filter=ds.field("id").isin(KEYS)).to_pylist()
    return {row["id"]: row["state"] for row in sorted(found, key=lambda row: row["id"])}


def main() -> None:
    print("version: deltalake", deltalake.__version__)
    place = f"{tempfile.mkdtemp()}/orders"
    change_feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(place, rows(dict.fromkeys(range(100_000), "new")), configuration=change_feed)
    table = DeltaTable(place)

    held = DeltaTable(place)
    done = upsert(table, {1: "paid", 100_000: "fresh"})
    copied = done["num_target_rows_copied"]
    print(f"upsert of 2 rows: version {table.version()}, {copied:,} unchanged rows written again")
    sys.stdout.flush()
    subprocess.run([sys.executable, __file__, place], check=True)
    print("a handle that was open before sees", states(held))

    done = table.delete("id = 100000")
    print(f"delete of a fresh row: {done['num_deleted_rows']} deleted, {done['num_copied_rows']:,} rows written again")
    print("afterwards the writer sees", states(DeltaTable(place)))

    first, second = DeltaTable(place), DeltaTable(place)
    upsert(first, {1: "first"})
    try:
        upsert(second, {1: "second"})
    except CommitFailedError as error:
        print("a concurrent upsert:", str(error).splitlines()[0].split(": ", 1)[1])

    write_deltalake(place, rows({1: "twice"}), mode="append")
    keys = DeltaTable(place).to_pyarrow_dataset().to_table(filter=ds.field("id") == 1)
    print("rows with the key 1 after an append:", keys.num_rows)

    print("version 0 has", states(DeltaTable(place, version=0)))
    changes = pa.table(DeltaTable(place).load_cdf(starting_version=1, ending_version=2).read_all())
    found = [(row["_change_type"], row["id"], row["state"]) for row in changes.to_pylist()]
    print("changes of versions 1 and 2:", sorted(found))

    job = CommitProperties(app_transactions=[Transaction("job", 7)])
    write_deltalake(place, rows({200_000: "new"}), mode="append", commit_properties=job)
    print("last transaction of the writer 'job':", DeltaTable(place).transaction_version("job"))

    wider = rows({200_001: "new"}).append_column("note", pa.array(["hello"]))
    write_deltalake(place, wider, mode="append", schema_mode="merge")
    table = DeltaTable(place)
    print("columns after an append with one more:", [field.name for field in table.schema().fields])

    compacted = table.optimize.compact()
    table.create_checkpoint()
    unused = table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True)
    removed, added = compacted["numFilesRemoved"], compacted["numFilesAdded"]
    print(f"compact: {removed} files into {added}; vacuum would delete {len(unused)} files")


if sys.argv[1:]:
    print("another process sees", states(DeltaTable(sys.argv[1])))
else:
    main()
sys.stdout.flush()
os._exit(0)  # a thread that has read through delta-rs sometimes aborts Python while it ends
