"""Use an installed lancelsm: one table at a place, from its first row to a merge that holds all of them.

python -I tools/smoke_table.py PLACE
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lancelsm


def main(place: str) -> None:
    require(Path(lancelsm.__file__ or "").is_relative_to(sys.prefix), f"imported from {lancelsm.__file__}")
    require(find_spec("lancelsm.local") is None, "the emulator is installed")
    require(find_spec("local") is None, "the emulator is installed")

    rows = [{"id": number, "state": "new"} for number in range(100)]
    table = lancelsm.create(place, rows, primary_key="id", regions="bucket(id, 4)")
    first = table.status().base_version
    table.upsert([{"id": 1, "state": "paid"}, {"id": 100, "state": "new"}])
    table.delete([0])
    expected = {number: "paid" if number == 1 else "new" for number in range(1, 101)}
    require(states(table) == expected, "a scan differs from what was written")
    table.flush()
    require(states(table) == expected, "a scan after the flush differs from what was written")
    table.merge()
    again = lancelsm.open(place)
    require(states(again) == expected, "a scan after the merge differs from what was written")
    require(again.get([1]).to_pylist() == [{"id": 1, "state": "paid"}], "a row that was written is not found")
    require(again.status().base_version > first, "the merge made no version of the base")


def states(table: lancelsm.Table) -> dict[Any, Any]:
    return {row["id"]: row["state"] for row in table.scan().to_arrow().to_pylist()}


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SystemExit(otherwise)


if __name__ == "__main__":
    main(*sys.argv[1:])
