"""Run a notebook of `examples` in this process, cell by cell, as a kernel would."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

EXAMPLES = Path(__file__).parents[1] / "examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of code, with what a reader of the file sees below it."""

    source: str
    tags: tuple[str, ...]
    text: str
    figures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a cell printed and returned, and for each figure that it drew whether there is something in it."""

    cell: Cell
    text: str
    figures: tuple[bool, ...]


def read_cells(name: str) -> list[Cell]:
    """Read the cells of code of `examples/NAME.ipynb`."""
    cells = json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"]
    return [_cell(cell) for cell in cells if cell["cell_type"] == "code"]


def run_cells(name: str, **parameters: object) -> Iterator[Ran]:
    """Run the cells in order, and yield what each one did. `parameters` replace values of the cell with this tag."""
    names: dict[str, Any] = {}
    with asyncio.Runner() as loop, mpl.rc_context():
        for cell in read_cells(name):
            plt.close("all")
            text = _run(cell.source, names, loop)
            if "parameters" in cell.tags:
                assert parameters.keys() <= names.keys(), f"{name} has other parameters"
                names |= parameters
            figures = (plt.figure(number) for number in plt.get_fignums())
            drawn = tuple(bool(figure.axes) and all(axes.has_data() for axes in figure.axes) for figure in figures)
            yield Ran(cell=cell, text=text, figures=drawn)
        plt.close("all")


def _cell(cell: dict[str, Any]) -> Cell:
    images = [one for one in cell["outputs"] if "image/png" in one.get("data", {})]
    texts = (one.get("text") or one["data"]["text/plain"] for one in cell["outputs"] if one not in images)
    return Cell(
        source="".join(cell["source"]),
        tags=tuple(cell["metadata"].get("tags", ())),
        text="".join("".join(text) for text in texts).strip(),
        figures=len(images),
    )


def _run(source: str, names: dict[str, Any], loop: asyncio.Runner) -> str:
    """Run a cell, which may await. Return what it prints, and the value of an expression at its end."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        _value(tree, "exec", names, loop)
        value = _value(ast.Expression(last.value), "eval", names, loop) if isinstance(last, ast.Expr) else None
    return (out.getvalue() + ("" if value is None else repr(value))).strip()


def _value(tree: ast.Module | ast.Expression, mode: str, names: dict[str, Any], loop: asyncio.Runner) -> Any:
    code = compile(tree, "cell", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(code, names)
    return loop.run(value) if code.co_flags & inspect.CO_COROUTINE else value
