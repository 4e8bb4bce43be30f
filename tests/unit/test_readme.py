"""Run the examples of the README and compare their results with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCKS if found == language]


def run(*command: str, directory: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=directory, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.rest
def test_the_python_example_equals_the_file_and_prints_the_shown_output(tmp_path: Path) -> None:
    example = ROOT / "examples" / "quickstart.py"
    (shown,) = blocks("python")

    assert shown == example.read_text()
    assert run(sys.executable, str(example), directory=tmp_path) in blocks("")


def test_every_make_command_in_the_readme_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = set(re.findall(r"^make ([a-z0-9-]+)", "\n".join(blocks("sh")), re.MULTILINE))

    assert shown
    assert shown <= targets


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory in which the shell example ran, and what it printed."""
    directory = tmp_path_factory.mktemp("shell")
    (shown,) = blocks("bash")
    return directory, run("bash", "-euo", "pipefail", "-c", shown, directory=directory)


@pytest.mark.rest
def test_the_shell_example_prints_the_row_last(shell: tuple[Path, str]) -> None:
    _, printed = shell

    assert printed.splitlines()[-1] == '{"id": 2, "state": "paid", "total": 7.0}'


def test_the_directory_tree_matches_a_real_table(shell: tuple[Path, str]) -> None:
    table = shell[0] / "orders"
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
