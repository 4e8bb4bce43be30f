"""Every code block of the pages runs as it is shown, and prints what the page says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.snippets import SHELL, blocks, run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_CODE = [page for page in PAGES if any(block.code and not block.reason for block in blocks(page.read_text()))]


@pytest.mark.rest
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.spark if page.name == "spark.md" else ()) for page in WITH_CODE],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name == "spark.md":  # the Java of a process keeps the directory in which it began
        paths = os.pathsep.join([str(ROOT), str(ROOT / "shared")])
        command = [sys.executable, "-m", "tests.snippets", str(page)]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return
    monkeypatch.chdir(tmp_path)
    run(page, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_block_that_does_not_run_says_why(page: Path) -> None:
    """Only what needs an account of AWS, or a server of another vendor, is left out."""
    short = [block.line for block in blocks(page.read_text()) if block.reason and len(block.reason) < 20]
    fences = page.read_text().count("\n```python") + sum(page.read_text().count(f"\n```{name}") for name in SHELL)

    assert not short
    assert fences <= len(list(blocks(page.read_text())))


def test_blocks_are_read_with_their_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- before\nx = 2\n-->\n```py\nprint(x + 1)\nawait __import__('asyncio').sleep(0)\n```\n"
        "```output\n3\n```\n\n<!-- not run: it needs an account -->\n```sh\nfalse\n```\n\n"
        "1. a list\n\n    ```sh\n    echo a; echo b\n    ```\n\n    ```output\n    a\n    ...\n    ```\n"
    )
    monkeypatch.chdir(tmp_path)

    found = list(blocks(page.read_text()))
    run(page, tmp_path)

    assert [(block.language, block.line, block.reason) for block in found] == [
        ("py", 4, ""),
        ("output", 8, ""),
        ("sh", 13, "it needs an account"),
        ("sh", 19, ""),
        ("output", 23, ""),
    ]


@pytest.mark.parametrize("wrong", ["```py\nprint(4)\n```\n```output\n3\n```\n", "```sh\nfalse\n```\n"])
def test_a_page_that_is_wrong_fails(wrong: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(wrong)
    with pytest.raises(AssertionError, match=r"page\.md:1|page\.md:4"):
        run(page, tmp_path)
