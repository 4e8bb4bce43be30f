"""English texts that every machine with Python has: the docstrings of the installed packages."""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_SHORTEST = 40
_NODES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(count: int) -> list[str]:
    """Return so many different docstrings, or all if there are fewer."""
    found: dict[str, None] = {}
    for text in _all_docstrings():
        found[text] = None
        if len(found) == count:
            break
    return list(found)


def _all_docstrings() -> Iterator[str]:
    for name in ("stdlib", "purelib"):
        for file in sorted(Path(sysconfig.get_paths()[name]).rglob("*.py")):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tree = ast.parse(file.read_bytes())
            except (OSError, SyntaxError, ValueError):
                continue
            for node in ast.walk(tree):
                text = ast.get_docstring(node) if isinstance(node, _NODES) else None
                if text and len(text) >= _SHORTEST:
                    yield text


def queries(texts: list[str], count: int, *, words: int = 3) -> list[str]:
    """Return queries of words that occur in one text together."""
    generator = np.random.default_rng(11)
    chosen = []
    while len(chosen) < count:
        text = texts[int(generator.integers(len(texts)))]
        known = sorted({word.lower() for word in text.split() if word.isalpha() and len(word) > 3})
        if len(known) >= words:
            chosen.append(" ".join(generator.choice(known, words, replace=False)))
    return chosen
