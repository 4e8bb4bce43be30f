"""Run the examples of the README and compare their results with it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import lancelsm
from lancelsm.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCKS if found == language]


def run(*command: str, directory: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=directory, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_example_equals_the_file() -> None:
    assert blocks("python") == [(ROOT / "examples" / "quickstart.py").read_text()]


@pytest.mark.rest
def test_the_example_of_transactions_loses_no_payment(tmp_path: Path) -> None:
    balances, absent, newer, refused = run(
        sys.executable, str(ROOT / "examples" / "transactions.py"), directory=tmp_path
    ).splitlines()

    assert [row["balance"] for row in ast.literal_eval(balances)] == [0, 100]
    assert (absent, newer) == ("1", "1")
    assert "was written since it was read" in refused


@pytest.mark.rest
def test_the_example_of_a_reshard_loses_no_row(tmp_path: Path) -> None:
    done = run(sys.executable, str(ROOT / "examples" / "reshard.py"), directory=tmp_path)

    assert done.splitlines() == ["bucket(id, 8) 2 8", "bucket(id, 8)", "True"]


@pytest.mark.rest
def test_the_example_of_time_travel_undoes_a_mistake(tmp_path: Path) -> None:
    old, done, copied, opened, refused = run(
        sys.executable, str(ROOT / "examples" / "time_travel.py"), directory=tmp_path
    ).splitlines()

    assert [row["total"] for row in ast.literal_eval(old)] == [12.5, 7.0, 1.5]
    assert (done, opened) == ("3 0 3", "3")
    assert ast.literal_eval(copied) == [{"id": 2, "email": "bob@example", "total": 7.0}]
    assert refused == "rows have the same new key: email='bob@example' (2 rows)"


def test_every_make_command_in_the_readme_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = set(re.findall(r"^make ([a-z0-9-]+)", "\n".join(blocks("sh")), re.MULTILINE))

    assert shown
    assert shown <= targets


@pytest.mark.rest
def test_every_shown_way_to_create_an_index_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "how-to" / "search.md").read_text()
    (call,) = re.findall(r"`table\.create_index\((.*?)\)`", page)
    (command,) = re.findall(r"`lancelsm (index create .*?)`", page)
    ((kept, option),) = re.findall(
        r"`create\(\.\.\., indexes=(\{.*?\})\)` \| `lancelsm init \.\.\. --index (\S+)`", page
    )
    monkeypatch.chdir(tmp_path)
    vectors = pa.FixedSizeListArray.from_arrays(np.random.default_rng(0).random(300 * 32, dtype=np.float32), 32)
    rows = pa.table({"id": range(300), "vec": vectors})
    names = {"table": lancelsm.create("docs", rows, primary_key="id", indexes=ast.literal_eval(kept))}
    pa.parquet.write_table(rows, "docs.parquet")

    eval(f"table.create_index({call}, replace=True)", names)
    assert main([*command.split(), "--replace"]) == 0
    assert main(f"init other --schema docs.parquet --primary-key id --load --index {option}".split()) == 0


def test_the_directory_tree_matches_a_real_table(tmp_path: Path) -> None:
    made = lancelsm.create(tmp_path / "orders", [{"id": 1}, {"id": 2}], primary_key="id")
    made.delete([1])
    made.flush()
    made.merge()
    table = tmp_path / "orders"
    (tree,) = (text for text in blocks("") if text.startswith("orders/\n"))
    position = "[01]" * 64

    for shown, pattern in (
        ("data/", "data"),
        ("_versions/", "_versions"),
        ("_transactions/", "_transactions"),
        ("_deletions/", "_deletions"),
        ("wal/{position}.arrow", f"_mem_wal/*/wal/{position}.arrow"),
        ("{8 hex}_gen_{number}/", "_mem_wal/*/" + "[0-9a-f]" * 8 + "_gen_1/data"),
        ("manifest/{version}.binpb", f"_mem_wal/*/manifest/{position}.binpb"),
        ("version_hint.json", "_mem_wal/*/manifest/version_hint.json"),
        ("manifest/staged/", "_mem_wal/*/manifest/staged/*.binpb"),
        ("_lancelsm/config.json", "_lancelsm/config.json"),
        ("_lancelsm/registry.sqlite", "_lancelsm/registry.sqlite"),
    ):
        assert shown in tree
        assert list(table.glob(pattern)), pattern


@pytest.mark.rest
def test_the_example_of_sessions_shows_no_session_that_has_expired(tmp_path: Path) -> None:
    done = run(sys.executable, str(ROOT / "examples" / "sessions.py"), directory=tmp_path)

    assert done.splitlines() == ["['a', 'c'] 0", "3 30m on seen_at", "['b', 'c'] 0", "1d on seen_at"]
