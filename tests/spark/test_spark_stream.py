"""Streams into a table: the driver is killed, and each row is in the log once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import lancelsm
from tests.unit.tables import create

pytestmark = [pytest.mark.spark, pytest.mark.rest]
ROOT = Path(__file__).parents[2]
ROWS = 60  # of a file


def start(*arguments: object) -> int:
    environment = {**os.environ, "PYTHONPATH": f"{Path(lancelsm.__file__).parents[1]}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.spark.stream_worker", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode


def test_each_row_is_in_the_log_once_after_kills_of_the_driver(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 4)")
    (tmp_path / "files").mkdir()
    for file in range(3):
        lines = [json.dumps({"id": n, "v": "a"}) for n in range(file * ROWS, (file + 1) * ROWS)]
        (tmp_path / "files" / f"{file}.json").write_text("\n".join(lines))
    stream = (table.uri, tmp_path / "files", tmp_path / "checkpoint")

    assert start(*stream, 1, "amid") == -signal.SIGKILL
    assert start(*stream, 1, "after") == -signal.SIGKILL
    assert start(*stream, 0, "never") == 0

    logged = Counter(key for change in table.changes(start="earliest") for key in change.rows["id"].to_pylist())
    assert logged == dict.fromkeys(range(3 * ROWS), 1)
