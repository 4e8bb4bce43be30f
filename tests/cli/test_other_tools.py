"""What the commands say about tables that other tools wrote to."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tests.cli.conftest import Run
from tests.interop.lancedb_writes import create, lancedb_merges

pytestmark = pytest.mark.interop


def test_doctor_exits_4_and_status_lists_the_problem(tmp_path: Path, run: Run) -> None:
    table = create(tmp_path)
    assert run("doctor", table.uri).code == 0
    lancedb_merges(table, [{"id": 2, "v": 50}])

    assert run("doctor", table.uri).code == 4
    assert "Problem: another tool writes to shard" in run("status", table.uri).out
    (problem,) = run("status", table.uri, "--output", "json").document["problems"]
    assert problem["kind"] == "foreign_shard"


def test_doctor_exits_4_if_the_base_was_overwritten(tmp_path: Path, run: Run) -> None:
    table = create(tmp_path)
    lance.write_dataset(pa.table({"x": [1]}), table.uri, mode="overwrite")

    assert run("doctor", table.uri).code == 4


def test_region_adopt_lists_keys_of_unknown_order_until_an_option_decides(tmp_path: Path, run: Run) -> None:
    table = create(tmp_path)
    lancedb_merges(table, [{"id": 2, "v": 50}])
    table.upsert([{"id": 2, "v": 100}])

    refused = run("region", "adopt", table.uri)
    assert (refused.code, "id=2" in refused.err, "--theirs, or --ours" in refused.err) == (1, True, True)
    assert run("region", "adopt", table.uri, "--theirs", "--ours").code == 2
    assert run("region", "adopt", table.uri, "--theirs").code == 0
    assert table.get([2]).to_pylist() == [{"id": 2, "v": 50}]
    assert run("doctor", table.uri).code == 0
