"""Run scenarios on the real code without some of its guards, which comments mark (see `marks`)."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from lancelsm.errors import LsmError
from tests.simulation.marks import Edit, edited, find_mark, function_at

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
        remove(patch, edits)
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
        remove(patch, edits)
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


def remove(patch: pytest.MonkeyPatch, edits: Iterable[Edit]) -> None:
    """Replace functions of the library by copies with these edits, wherever they are used."""
    functions: dict[tuple[str, str | None, str], tuple[ast.FunctionDef, list[tuple[int, Edit]]]] = {}
    for edit in edits:
        mark = find_mark(edit.mark)
        owner, tree = function_at(mark)
        _, lines = functions.setdefault((mark.module, owner, tree.name), (tree, []))
        lines.append((mark.line, edit))
    for (name, owner, function), (tree, lines) in functions.items():
        module = importlib.import_module(name)
        body: list[ast.stmt] = [edited(tree, lines)]
        made: dict[str, object] = {}
        exec(compile(ast.Module(body=body, type_ignores=[]), str(module.__file__), "exec"), vars(module), made)
        if owner is None:
            _replace_everywhere(patch, getattr(module, function), made[function])
        else:
            patch.setattr(getattr(module, owner), function, made[function])


def _replace_everywhere(patch: pytest.MonkeyPatch, old: object, new: object) -> None:
    ours = [module for name, module in sys.modules.items() if name.startswith(("lancelsm", "tests."))]
    for module in ours:
        for attribute, value in list(vars(module).items()):
            if value is old:
                patch.setattr(module, attribute, new)
