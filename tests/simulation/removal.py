"""Take a guard out of a function's source: what is reworded there must be reworded in its test."""

from __future__ import annotations

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

Edit = tuple[Callable[..., object], str, str]  # a function, its text, the text without the guard
Scenario = Callable[[Path], object]  # at a place of its own


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check, and what it refuses that must not pass: `forged` makes it, then judges it as often as it is called.

    `behind` are checks that would refuse it too.
    """

    edits: tuple[Edit, ...]
    forged: Callable[[], Callable[[], None]]
    behind: tuple[Edit, ...] = ()


def carries_weight(check: Check) -> None:
    """What is forged is refused, and accepted without the check.

    If others stand behind it, each of the two refuses alone.
    """
    judged = check.forged()
    with pytest.raises(LsmError):
        judged()
    assert accepts(judged, (*check.edits, *check.behind)), "another check refuses it"
    if check.behind:
        assert not accepts(judged, check.behind), "this check does nothing"
        assert not accepts(judged, check.edits), "nothing stands behind this check"


def accepts(judged: Callable[[], None], edits: Iterable[Edit]) -> bool:
    """Whether it passes without these checks."""
    with pytest.MonkeyPatch.context() as patch:
        remove_all(patch, edits)
        try:
            judged()
        except (LsmError, ValueError):
            return False
    return True


def anywhere(scenario: Callable[..., object], *arguments: object) -> Scenario:
    """A scenario that needs no place."""
    return lambda _: scenario(*arguments)


def ends_badly(edits: Iterable[Edit], scenario: Callable[[], object]) -> bool:
    """Whether a scenario does not end as it should without these guards."""
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
    """The two tests of a table of guards: with all of them the scenarios end well, without one its story ends badly.

    Args:
        own: the scenarios that no other test tells.
    """

    @pytest.mark.parametrize("scenario", own)
    def ends_well(scenario: Scenario, tmp_path: Path) -> None:
        scenario(tmp_path)

    @pytest.mark.parametrize("guard", guards)
    def ends_badly_without(guard: str, tmp_path: Path) -> None:
        edits, scenario = guards[guard]
        assert ends_badly(edits, partial(scenario, tmp_path))

    return ends_well, ends_badly_without


def remove_all(patch: pytest.MonkeyPatch, edits: Iterable[Edit]) -> None:
    """As `remove`, of several texts in several functions."""
    edits = list(edits)
    for function in dict.fromkeys(function for function, _, _ in edits):
        remove(patch, function, {text: instead for of, text, instead in edits if of is function})


def remove(patch: pytest.MonkeyPatch, function: Callable[..., object], changes: Mapping[str, str]) -> None:
    """Wherever the function or method is used, use it with other texts in place of its own, which it has once each."""
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    for text, instead in changes.items():
        assert source.count(text) == 1, f"{function.__qualname__} says {text!r} {source.count(text)} times"
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
