"""Remove a guard from the source of a function. A guard that is reworded there must be reworded in its table."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType

import pytest

from lancelsm.errors import LsmError
from tests.simulation import marks

TextEdit = tuple[Callable[..., object], str, str]  # a function, its text, the text without the guard
Edit = TextEdit | marks.Edit
Scenario = Callable[[Path], object]  # gets a directory of its own


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check, and an input that it must refuse.

    `forged` makes that input and returns a function that judges it; the function can be called many times. `behind` are
    other checks that refuse the same input.
    """

    edits: tuple[Edit, ...]
    forged: Callable[[], Callable[[], None]]
    behind: tuple[Edit, ...] = ()


def check_is_needed(check: Check) -> None:
    """Assert that the forged input is refused, and accepted without the check.

    If there are checks behind it, both kinds of checks refuse the input alone.
    """
    judged = check.forged()
    with pytest.raises(LsmError):
        judged()
    assert accepts(judged, (*check.edits, *check.behind)), "another check refuses it"
    if check.behind:
        assert not accepts(judged, check.behind), "this check does nothing"
        assert not accepts(judged, check.edits), "no check behind this one refuses it"


def accepts(judged: Callable[[], None], edits: Iterable[Edit]) -> bool:
    """Return whether the input passes without these checks."""
    with pytest.MonkeyPatch.context() as patch:
        remove_all(patch, edits)
        try:
            judged()
        except (LsmError, ValueError):
            return False
    return True


def anywhere(scenario: Callable[..., object], *arguments: object) -> Scenario:
    """Adapt a scenario that needs no directory."""
    return lambda _: scenario(*arguments)


def fails(edits: Iterable[Edit], scenario: Callable[[], object]) -> bool:
    """Return whether a scenario fails without these guards."""
    with pytest.MonkeyPatch.context() as patch:
        remove_all(patch, edits)
        try:
            scenario()
        except (AssertionError, ValueError, KeyError, OSError, LsmError, pytest.fail.Exception):
            return True
    return False


Test = Callable[..., None]


def with_and_without(
    guards: Mapping[str, tuple[Iterable[Edit], Scenario]], *, own: Iterable[Scenario]
) -> tuple[Test, Test]:
    """Make the two tests of a table of guards: scenarios pass with all guards, and fail without their guard.

    Args:
        own: the scenarios that have no test of their own elsewhere.
    """

    @pytest.mark.parametrize("scenario", own)
    def passes(scenario: Scenario, tmp_path: Path) -> None:
        scenario(tmp_path)

    @pytest.mark.parametrize("guard", guards)
    def fails_without(guard: str, tmp_path: Path) -> None:
        edits, scenario = guards[guard]
        assert fails(edits, partial(scenario, tmp_path))

    return passes, fails_without


def remove_all(patch: pytest.MonkeyPatch, edits: Iterable[Edit]) -> None:
    """Like `remove`, for several texts in several functions."""
    remove_marked(patch, [edit for edit in edits if isinstance(edit, marks.Edit)])
    edits = [edit for edit in edits if not isinstance(edit, marks.Edit)]
    for function in dict.fromkeys(function for function, _, _ in edits):
        remove(patch, function, {text: instead for of, text, instead in edits if of is function})


def remove_marked(patch: pytest.MonkeyPatch, edits: Iterable[marks.Edit]) -> None:
    """Replace functions of the library by copies with these edits, wherever they are used."""
    functions: dict[tuple[str, str | None, str], tuple[ast.FunctionDef, list[tuple[int, marks.Edit]]]] = {}
    for edit in edits:
        mark = marks.find_mark(edit.mark)
        owner, tree = marks.function_at(mark)
        _, lines = functions.setdefault((mark.module, owner, tree.name), (tree, []))
        lines.append((mark.line, edit))
    for (name, owner, _), (tree, lines) in functions.items():
        module = importlib.import_module(name)
        body: list[ast.stmt] = [marks.edited(tree, lines)]
        code = compile(ast.Module(body=body, type_ignores=[]), str(module.__file__), "exec")
        made: dict[str, object] = {}
        exec(code, vars(module), made)
        if owner is None:
            _replace_everywhere(patch, getattr(module, tree.name), made[tree.name])
        else:
            patch.setattr(getattr(module, owner), tree.name, made[tree.name])


def _replace_everywhere(patch: pytest.MonkeyPatch, old: object, new: object) -> None:
    ours = [module for name, module in sys.modules.items() if name.startswith(("lancelsm", "tests."))]
    for module in ours:
        for attribute, value in list(vars(module).items()):
            if value is old:
                patch.setattr(module, attribute, new)


def remove(patch: pytest.MonkeyPatch, function: Callable[..., object], changes: Mapping[str, str]) -> None:
    """Replace texts in the source of a function or method, wherever it is used. It contains each text exactly once."""
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    for text, instead in changes.items():
        assert source.count(text) == 1, f"{function.__qualname__} has {text!r} {source.count(text)} times"
        source = source.replace(text, instead)
    made: dict[str, object] = {}
    known = inspect.unwrap(function).__globals__
    code = "from __future__ import annotations\n" + source
    exec(compile(code, f"{function.__name__} without a guard", "exec"), known, made)
    owner, _, name = function.__qualname__.rpartition(".")
    if owner:
        patch.setattr(known[owner], name, made[name])
        return
    ours = [module for name, module in sys.modules.items() if name.startswith(("lancelsm", "tests."))]
    for module in ours:
        for attribute, value in list(vars(module).items()):
            if value is function:
                patch.setattr(module, attribute, made[name])
