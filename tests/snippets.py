"""Read the code blocks of a page, and run them as a reader does: in order, in one empty directory.

A block of `python` or `py` runs in the namespace of the page. A block of `sh` or `bash` runs in a shell of its own. A
block of `output` is what the blocks since the last one printed; `...` stands for any text.

    <!-- before        code that runs before the next block and is not shown
    -->
    <!-- not run: the reason, and what covers it instead -->
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lancelsm

PYTHON = ("python", "py")
SHELL = ("sh", "bash")
_BLOCK = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>.*?) -->\n\n?)?(?:^ *<!-- before\n(?P<before>.*?)^ *-->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page, with what stands before it in comments."""

    language: str
    text: str
    line: int
    before: str = ""
    reason: str = ""  # why it is not run

    @property
    def code(self) -> bool:
        return self.language in (*PYTHON, *SHELL)


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks that have a language, from top to bottom."""
    for found in _BLOCK.finditer(text):
        indent = len(found["indent"])
        lines = found["text"].splitlines(keepends=True)
        yield Block(
            language=found["language"],
            text="".join(line[indent:] if line.strip() else line for line in lines),
            line=text.count("\n", 0, found.start("language")) + 1,
            before=found["before"] or "",
            reason=" ".join((found["reason"] or "").split()),
        )


def run(page: Path, directory: Path) -> None:
    """Run the blocks of a page in `directory`, which is the current one, and compare what they print."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page.read_text()):
        at = f"{page.name}:{block.line}"
        if block.language == "output":
            right = doctest.OutputChecker().check_output(
                block.text, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            )
            assert right, f"{at} shows\n{block.text}but the blocks before it printed\n{printed}"
            printed = ""
        if not block.code or block.reason:
            continue
        source = f"{block.before}\n{block.text}" if block.before else block.text
        printed += python(source, at, names) if block.language in PYTHON else shell(source, at, directory)


def python(source: str, at: str, names: dict[str, Any]) -> str:
    code = compile(source, at, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        result = eval(code, names)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    return out.getvalue()


def shell(source: str, at: str, directory: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", source],
        cwd=directory,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(Path(lancelsm.__file__).parents[1]), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{at} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path.cwd())
