"""Marks of guards: each is removed by a test, and each kind of removal changes the code as it says."""

from __future__ import annotations

import ast
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.marks import Edit, changed, edited, marks, moved, without

TESTS = Path(__file__).parents[1]
OWN = Path(__file__)


def removed_guards() -> set[str]:
    """Return the names that tests give to `without`, `moved` and `changed`."""
    names = set()
    for path in TESTS.rglob("*.py"):
        text = path.read_text()
        if path == OWN or "from tests.simulation.marks import" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Name(id="without" | "moved" | "changed"), args=[mark, *_]):
                    names.add(ast.literal_eval(mark))
    return names


def test_names_of_guards_are_unique() -> None:
    assert [name for name, count in Counter(mark.name for mark in marks()).items() if count > 1] == []


def test_every_marked_guard_is_removed_by_a_test() -> None:
    assert {mark.name for mark in marks()} == removed_guards()


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        ("if a:  # guard: x\n    b", without("x"), "if False:\n    b"),
        ("if a:  # guard: x\n    b", without("x", instead=True), "if True:\n    b"),
        ("if a:\n    b\nelif c:  # guard: x\n    d", without("x"), "if a:\n    b\nelif False:\n    d"),
        ("while a:  # guard: x\n    b", without("x"), "if a:\n    b"),
        ("for a in b:  # guard: x\n    c", without("x"), "pass"),
        ("for a in b:  # guard: x\n    c", changed("x", "d"), "for a in d:\n    c"),
        ("a(\n    b\n)\nc(  # guard: x\n    d\n)", without("x"), "a(b)\npass"),
        ("a = b  # guard: x", without("x", instead={}), "a = {}"),
        ("return a  # guard: x", without("x", instead=0), "return 0"),
        ("try:\n    a\nexcept b:  # guard: x\n    c", without("x"), "a"),
        ("return (\n    a  # guard: x\n    or b\n)", without("x"), "return b"),
        ("return (\n    a\n    or b  # guard: x\n    or c\n)", without("x"), "return a or c"),
        ("return (\n    a and b  # guard: x\n)", without("x"), "return a"),
        ("return (\n    a\n    or b  # guard: x\n)", without("x", instead=False), "return a or False"),
        ("return (\n    (a == b)  # guard: x\n    & c\n)", without("x"), "return c"),
        ("return (\n    a  # guard: x\n    <= b\n    <= c\n)", without("x"), "return b <= c"),
        ("return (\n    a\n    <= b\n    <= c  # guard: x\n)", without("x"), "return a <= b"),
        ("return (\n    a\n    if b and c  # guard: x\n    else d\n)", without("x"), "return a if False else d"),
        ("return [\n    a,  # guard: x\n    *b,\n]", without("x"), "return [*b]"),
        ("return {\n    a: b,  # guard: x\n    c: d,\n}", without("x"), "return {c: d}"),
        ("a(\n    b,\n    c=d,  # guard: x\n)", without("x"), "a(b)"),
        ("a(\n    b,\n    c=d,  # guard: x\n)", without("x", instead=None), "a(b, c=None)"),
        ("a = max(\n    b,  # guard: x\n    c,\n)", without("x"), "a = c"),
        ("a = [\n    b\n    for b in c\n    if d  # guard: x\n    and e\n]", without("x"), "a = [b for b in c if e]"),
        ("a = [\n    b\n    for b in c(d)  # guard: x\n]", changed("x", "d"), "a = [b for b in d]"),
        ("a\nb  # guard: x\nc\nd", moved("x", by=1), "a\nc\nb\nd"),
        ("a\nb\nc  # guard: x\nd", moved("x", by=-2), "c\na\nb\nd"),
        ("a\nif b:\n    c  # guard: x\nd", moved("x", out=1, by=-1), "a\nc\nif b:\n    pass\nd"),
        ("a\nif b:\n    c  # guard: x\nd", moved("x", out=1, by=2), "a\nif b:\n    pass\nd\nc"),
        ("if a:\n    if b:\n        c  # guard: x", moved("x", out=2, by=-1), "c\nif a:\n    if b:\n        pass"),
        ("a  # guard: x", changed("x", "b\nc"), "b\nc"),
    ],
)  # fmt: skip
def test_a_guard_is_removed_by_what_is_marked(before: str, edit: Edit, after: str) -> None:
    source = f"def f():\n{textwrap.indent(before, '    ')}\n"
    (line,) = [number for number, text in enumerate(source.splitlines(), 1) if text.endswith("# guard: x")]
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)

    found = edited(function, [(line, edit)])
    compile(ast.Module(body=[found], type_ignores=[]), "edited", "exec")
    assert ast.unparse(found) == f"def f():\n{textwrap.indent(after, '    ')}"


def test_what_can_not_be_dropped_must_be_replaced() -> None:
    (function,) = ast.parse("def f():\n    return a(\n        b\n        + c  # guard: x\n    )\n").body
    assert isinstance(function, ast.FunctionDef)

    with pytest.raises(AssertionError, match="say what replaces it"):
        edited(function, [(4, without("x"))])
