"""Print what lancelsm does with small upserts: docs/comparison.md quotes it beside its peers."""

import subprocess
import sys
import tempfile
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import lancelsm
from lancelsm import Contended, Table


def rows(states: dict[int, str]) -> list[dict[str, object]]:
    return [{"id": key, "state": state, "vec": [float(key), 0.0]} for key, state in states.items()]


def states(table: Table) -> dict[int, str]:
    found = table.scan(where="id < 2 or id > 300", columns=["id", "state"]).to_arrow().sort_by("id")
    return {row["id"]: row["state"] for row in found.to_pylist()}


def objects(table: Table, pattern: str) -> int:
    return len(list(Path(table.uri).glob(pattern)))


def main() -> None:
    print("version: lancelsm", lancelsm.__version__)
    place = Path(tempfile.mkdtemp())
    schema = pa.schema([("id", pa.int64()), ("state", pa.string()), ("vec", pa.list_(pa.float32(), 2))])
    table = lancelsm.create(
        place / "orders", schema, primary_key="id", indexes={"vec": "IVF_FLAT", "state": "INVERTED"}
    )
    table.upsert(rows(dict.fromkeys(range(300), "new")))
    table.run()
    version, logged = lance.dataset(table.uri).version, objects(table, "_mem_wal/*/wal/*.arrow")

    held = lancelsm.open(table.uri)
    table.upsert(rows({1: "paid", 1000: "fresh"}))
    new = objects(table, "_mem_wal/*/wal/*.arrow") - logged
    print(f"upsert of 2 rows: {lance.dataset(table.uri).version - version} versions of the base, {new} log object")
    sys.stdout.flush()
    subprocess.run([sys.executable, __file__, table.uri], check=True)
    print("a handle that was open before sees", states(held))

    table.delete([1000])
    print("after the delete of a fresh row the writer sees", states(table))
    print("rows inserted if absent:", table.upsert(rows({1: "new", 1001: "new"}), if_absent=True).rows)

    other = lancelsm.open(table.uri)
    read = table.get([1], with_token=True)
    other.upsert(rows({1: "theirs"}))
    table.upsert(rows({0: "ours"}))
    print("two writers in turns:", states(table))
    try:
        table.upsert(rows({1: "ours"}), if_unchanged=read.token)
    except Contended as error:
        print("a write that depends on an older read:", error.kind)

    with table.holding_snapshot("monday"):
        table.upsert(rows({1: "later"}))
        print("the snapshot has", states(table.at("monday")))
    changes = [(row["_op"], row["id"], row["state"]) for change in table.changes() for row in change.rows.to_pylist()]
    print("the last changes:", changes[-4:])

    table.flush()
    done = table.merge()
    print(f"merge: {done.rows_upserted} rows upserted in the base, {done.rows_deleted} deleted")
    table.add_column("note", pa.string())
    table.rename_column("note", to="remark")
    print("the base alone has", lance.dataset(table.uri).to_table(["id", "remark"], filter="id > 300").to_pylist())


if sys.argv[1:]:
    opened = lancelsm.open(sys.argv[1])
    print("another process sees", states(opened))
    found = opened.search(np.array([1000.0, 0.0], dtype=np.float32), text="fresh", k=1).to_arrow()
    print("its hybrid search finds the fresh row:", found["id"].to_pylist())
else:
    main()
