"""Find the guards that comments mark in the library, and change the syntax tree of a function at a mark.

A comment `# guard: NAME` stands at the end of the line on which its guard begins: a statement, or a part of an
expression on a line of its own. Names are unique in the library. `without`, `moved` and `changed` name a mark, and
`removal` runs the functions after these changes. So a test names no function and no text of the library, except in
`changed`.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import lancelsm

LIBRARY = Path(lancelsm.__file__).parent
_MARK = re.compile(r"# guard: (.+)")
_CHAINS = ast.BoolOp | ast.BinOp | ast.Compare | ast.IfExp  # begin where their first operand begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where a guard is marked."""

    name: str
    path: Path
    line: int

    @property
    def module(self) -> str:
        """The name of the module."""
        parts = self.path.relative_to(LIBRARY.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A change of the code at one mark. `act` gets the tree of the function, and the marked part of it."""

    mark: str
    act: Callable[[ast.FunctionDef, Part], None]


@dataclass(frozen=True, slots=True)
class Part:
    """A node of a syntax tree, with its parent, the field there, and the index if that field is a list."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None

    @property
    def siblings(self) -> list[ast.AST]:
        """The list that has the node."""
        found = getattr(self.parent, self.field)
        assert isinstance(found, list)
        return found

    def put(self, *nodes: ast.AST) -> None:
        """Put other nodes in the place of the node."""
        if self.index is None:
            (node,) = nodes
            setattr(self.parent, self.field, node)
        else:
            self.siblings[self.index : self.index + 1] = nodes


# Edits


def without(mark: str, *, instead: object = ...) -> Edit:
    """Remove a guard.

    Args:
        instead: a constant that replaces the marked expression, or the expression of the marked statement: the
            condition of `if` and `while`, the iterable of `for`, or the value that is returned or assigned.

    Without `instead`, the guard is removed by what is marked:

    * `if`, and the condition of a conditional expression: it is never true
    * `while`: the body runs at most once
    * `except`: the error is raised
    * any other statement: it is dropped
    * an operand of `and`, `or`, `&`, `|`, the first or last term of a comparison of three, an element, an argument, an
      entry of a dict, a condition of a comprehension: it is dropped
    """
    if instead is ...:
        return Edit(mark=mark, act=_drop)
    return changed(mark, repr(instead))


def changed(mark: str, code: str) -> Edit:
    """Replace what is marked by other code: by statements, or by an expression as in `without`.

    Use it only if nothing else fits: the code contains names of the library, so a rename there breaks it.
    """

    def change(tree: ast.FunctionDef, part: Part) -> None:
        statements = ast.parse(code).body
        for node in (node for one in statements for node in ast.walk(one) if isinstance(node, ast.expr | ast.stmt)):
            node.lineno = node.end_lineno = _line(part.node)
        if len(statements) == 1 and isinstance(statements[0], ast.Expr):
            _replace(part, statements[0].value)
        else:
            part.put(*statements)

    return Edit(mark=mark, act=change)


def moved(mark: str, by: int, *, out: int = 0) -> Edit:
    """Move the marked statement past the next `by` statements of its block, or past earlier ones if `by` is negative.

    Args:
        out: the number of blocks that the statement leaves first. Then 1 is right after the statement that it was in,
            and -1 right before that statement.
    """

    def move(tree: ast.FunctionDef, part: Part) -> None:
        anchor = part
        for _ in range(out):
            anchor = _part_of(tree, anchor.parent)
            while not isinstance(anchor.node, ast.stmt):
                anchor = _part_of(tree, anchor.parent)
        assert anchor.index is not None
        to = anchor.index + by + (1 if by < 0 and out else 0)
        part.put()
        anchor.siblings.insert(to, part.node)
        if not part.siblings:
            part.siblings.append(ast.copy_location(ast.Pass(), part.node))

    return Edit(mark=mark, act=move)


# Marks


@cache
def marks() -> tuple[Mark, ...]:
    """Return all marks of the library."""
    return tuple(mark for path in sorted(LIBRARY.rglob("*.py")) for mark in _marks_in(path))


@cache
def _text(path: Path) -> str:
    return path.read_text()  # once: an editor may change the file while tests run


def _marks_in(path: Path) -> Iterator[Mark]:
    text = _text(path)
    if "# guard: " not in text:
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (found := _MARK.fullmatch(token.string)):
            yield Mark(name=found[1], path=path, line=token.start[0])


def find_mark(name: str) -> Mark:
    """Return the only mark with this name."""
    found = [mark for mark in marks() if mark.name == name]
    assert len(found) == 1, f"{len(found)} guards have the mark {name!r}"
    return found[0]


def function_at(mark: Mark) -> tuple[str | None, ast.FunctionDef]:
    """Return the function or method with this mark, and the name of its class."""
    for one in ast.parse(_text(mark.path)).body:
        inside: Sequence[ast.stmt] = one.body if isinstance(one, ast.ClassDef) else [one]
        for function in inside:
            if isinstance(function, ast.FunctionDef) and function.lineno <= mark.line <= (function.end_lineno or 0):
                return (one.name if isinstance(one, ast.ClassDef) else None), function
    raise AssertionError(f"no function has the mark {mark.name!r}")


def edited(tree: ast.FunctionDef, edits: Sequence[tuple[int, Edit]]) -> ast.FunctionDef:
    """Apply these edits to a function, at these lines."""
    for line, edit in edits:
        edit.act(tree, _marked(tree, line))
    return ast.fix_missing_locations(tree)


def _marked(tree: ast.FunctionDef, line: int) -> Part:
    """Return the outermost part that begins on this line.

    The first operand of an expression of several lines counts, and not the expression. Several operands of a condition
    may be on one line; then the last one counts.
    """
    for part in _parts(tree):
        if _line(part.node) != line:
            continue
        if isinstance(part.node, _CHAINS) and part.node.end_lineno != line:
            continue
        if isinstance(part.parent, ast.comprehension) and part.field == "target":
            return Part(part.parent.iter, part.parent, "iter", None)
        if isinstance(part.node, ast.BoolOp) and isinstance(part.parent, ast.stmt):
            last = len(part.node.values) - 1
            return Part(part.node.values[last], part.node, "values", last)
        return part
    raise AssertionError(f"nothing begins on line {line} of {tree.name}")


def _parts(parent: ast.AST) -> Iterator[Part]:
    """Yield all nodes below this one, each before the nodes inside it."""
    for field, value in ast.iter_fields(parent):
        several = isinstance(value, list)
        for index, node in enumerate(value if several else [value]):
            if isinstance(node, ast.AST) and not isinstance(node, ast.JoinedStr):  # has wrong lines
                yield Part(node, parent, field, index if several else None)
                yield from _parts(node)


def _part_of(tree: ast.FunctionDef, node: ast.AST) -> Part:
    return next(part for part in _parts(tree) if part.node is node)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


# Changes


def _drop(tree: ast.FunctionDef, part: Part) -> None:
    parent = part.parent
    match part.node:
        case ast.If() as node:
            node.test = ast.Constant(False)
        case ast.While() as node:
            part.put(ast.copy_location(ast.If(test=node.test, body=node.body, orelse=[]), node))
        case ast.For() | ast.Expr() | ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Return() | ast.Raise():
            part.put(ast.copy_location(ast.Pass(), part.node))
        case ast.ExceptHandler():
            assert isinstance(parent, ast.Try)
            part.put()
            if not parent.handlers and not parent.finalbody:
                _part_of(tree, parent).put(*parent.body, *parent.orelse)
        case _:
            _drop_operand(tree, part)


def _drop_operand(tree: ast.FunctionDef, part: Part) -> None:
    match part.parent, part.field:
        case ast.BoolOp() as chain, _:
            part.put()
            if len(chain.values) == 1:
                _part_of(tree, chain).put(chain.values[0])
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr()) as chain, side:
            _part_of(tree, chain).put(chain.right if side == "left" else chain.left)
        case ast.Compare(comparators=[middle, *rest]) as chain, "left" if rest:
            chain.left, chain.comparators, chain.ops = middle, rest, chain.ops[1:]
        case ast.Compare(comparators=[*_, _, last]) as chain, "comparators" if part.node is last:
            chain.comparators.pop()
            chain.ops.pop()
        case ast.Call(func=ast.Name(id="min" | "max"), args=[_, _]) as call, "args":
            part.put()
            _part_of(tree, call).put(call.args[0])
        case ast.Dict() as entries, _:
            assert part.index is not None
            del entries.keys[part.index], entries.values[part.index]
        case ((ast.List() | ast.Set() | ast.Tuple()), "elts"):
            part.put()
        case ((ast.Call() | ast.comprehension()), "args" | "keywords" | "ifs"):
            part.put()
        case ast.IfExp() as choice, "test":
            choice.test = ast.Constant(False)
        case parent, field:
            raise AssertionError(f"say what replaces it: {ast.unparse(part.node)} ({type(parent).__name__}.{field})")


def _replace(part: Part, value: ast.expr) -> None:
    match part.node:
        case ast.If() | ast.While() as node:
            node.test = value
        case ast.For() as node:
            node.iter = value
        case ast.Return() | ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Expr() | ast.keyword() as node:
            node.value = value
        case ast.expr():
            if isinstance(part.parent, ast.Dict):
                assert part.index is not None
                part.parent.values[part.index] = value
            else:
                part.put(value)
        case node:
            raise AssertionError(f"a value can't replace {ast.unparse(node)}")
