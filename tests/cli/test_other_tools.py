"""What the commands say about tables that other tools wrote to."""

from __future__ import annotations

from pathlib import Path

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
