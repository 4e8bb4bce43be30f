"""Print what LanceDB does with small upserts: docs/comparison.md quotes it."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import lancedb
import pyarrow as pa
from lancedb import LsmWriteSpec
from lancedb.index import FTS

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("state", pa.string()),
        pa.field("vec", pa.list_(pa.float32(), 2)),
    ]
)
place = Path(tempfile.mkdtemp())
database = lancedb.connect(place)


def rows(states: dict[int, str]) -> pa.Table:
    found = [{"id": key, "state": state, "vec": [float(key), 0.0]} for key, state in states.items()]
    return pa.Table.from_pylist(found, schema=SCHEMA)


def upsert(table: lancedb.Table, key: int, state: str) -> None:
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows({key: state}))


def states(table: lancedb.Table, **options: bool) -> dict[int, str]:
    query = table.search().where("id < 2 or id > 300").limit(100)
    for name, value in options.items():
        query = getattr(query, name)(value)
    return {row["id"]: row["state"] for row in sorted(query.to_list(), key=lambda row: row["id"])}


def in_another_process(action: str) -> None:
    """Run this file once more: `read` prints what that process sees, `write` upserts a row."""
    sys.stdout.flush()
    subprocess.run([sys.executable, __file__, action, str(place)], check=True, stderr=subprocess.DEVNULL)


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    # LanceDB refuses with one of these: NotImplementedError is that of a call that its open source lacks.
    except (NotImplementedError, RuntimeError, ValueError) as error:
        return str(error).split(", /")[0].split(": ", 1)[-1].split(" (")[0]
    return "no error"


def main() -> None:
    print("version: lancedb", lancedb.__version__)

    without_log()
    with_log()


def without_log() -> None:
    stable = {"new_table_enable_stable_row_ids": "true"}
    plain = database.create_table("plain", rows({0: "new", 1: "new"}), storage_options=stable)
    for number in range(5):
        upsert(plain, 1, f"state {number}")
    upsert(plain, 1000, "fresh")
    print(f"6 upserts without a log: {plain.version - 1} versions of the table")
    changes = plain.to_lance().delta(compared_against=plain.version - 2)
    inserted, updated = changes.get_inserted_rows().read_all(), changes.get_updated_rows().read_all()
    print(f"changes of two versions: inserted {inserted['id'].to_pylist()}, updated {updated['id'].to_pylist()}")

    stale = database.open_table("plain")
    upsert(plain, 1, "first")
    print("a handle that was open before sees", states(stale), "and opened again", states(database.open_table("plain")))
    upsert(stale, 1, "second")
    print("after upserts through two handles:", states(database.open_table("plain")))
    only_new = plain.merge_insert("id").when_matched_update_all(where="target.state = 'new'")
    only_new.execute(rows({0: "paid", 1: "paid"}))
    plain.delete("id = 1000")
    print("after a conditional update and a delete:", states(plain))
    plain.add(rows({0: "twice"}))
    print("rows with the key 0 after an add:", plain.count_rows("id = 0"))
    plain.checkout(1)
    print("version 1 has", states(plain))


def with_log() -> None:
    table = database.create_table("orders", rows(dict.fromkeys(range(300), "new")))
    table.to_lance().create_index("vec", "IVF_FLAT", name="vec_idx", num_partitions=1)
    table = database.open_table("orders")
    table.create_index("state", config=FTS())
    table.set_unenforced_primary_key("id")
    table.set_lsm_write_spec(LsmWriteSpec.unsharded())
    before = table.version
    for number in range(5):
        upsert(table, 1, f"state {number}")
    upsert(table, 1000, "fresh")
    logged = len(list(place.glob("orders.lance/_mem_wal/*/wal/*.arrow")))
    print(f"6 upserts with a log: {table.version - before} versions of the table, {logged} objects in the log")

    print("the writer sees", states(table))
    in_another_process("read")
    print("count_rows of the writer:", table.count_rows())
    found = table.search([1000.0, 0.0]).limit(1).to_list()
    print("the writer's vector search finds the fresh row:", found[0]["id"] == 1000)
    hybrid = table.search(query_type="hybrid").vector([1000.0, 0.0]).text("fresh").limit(1)
    print("hybrid search with the log:", refusal(hybrid.to_arrow))

    print("rows deleted by delete('id = 1000'):", table.delete("id = 1000").num_deleted_rows)
    print("afterwards the writer sees", states(table))
    only_new = table.merge_insert("id").when_not_matched_insert_all()
    print("insert if absent, with the log:", refusal(lambda: only_new.execute(rows({1000: "new"}))))

    table.close_lsm_writers()
    print("after close_lsm_writers:")
    in_another_process("read")
    table.optimize()
    print("the base after optimize:", states(table, use_lsm=False))
    for call in (table.flush_lsm, table.compact_lsm, table.checkpoint_lsm):
        print(f"{call.__name__}:", refusal(call))

    print("a computed column, with the log:", refusal(lambda: table.add_columns({"twice": "id * 2"})))

    upsert(table, 1001, "ours")
    in_another_process("write")
    print("our next upsert, after one of another process:", refusal(lambda: upsert(table, 1002, "ours")))


if sys.argv[1:]:
    action, directory = sys.argv[1:]
    opened = lancedb.connect(directory).open_table("orders")
    if action == "read":
        print("another process sees", states(opened))
    else:
        upsert(opened, 2000, "theirs")
else:
    main()
