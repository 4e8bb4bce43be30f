"""Read what a condition says about key columns, from its tokens.

Lance's parser decides whether the condition is valid (`dataset.conditions`). This one only looks for comparisons of a
key column with literals, and for AND, OR, NOT and parentheses around them. Everything else may be true or false.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from lancelsm.dataset.condition_tokens import Kind, Token, read_tokens
from lancelsm.errors import Invalid
from lancelsm.read.pruning.key_boxes import ANY, NOTHING, UNKNOWN, Boxes, Truth, conjunction, disjunction
from lancelsm.record.ordered import Ordered, after, limits, ordered
from lancelsm.record.ranges import Ranges
from lancelsm.record.schema import TableSchema
from lancelsm.record.values import json_column

_COMPARED: Final[dict[str, Callable[[Ordered], Ranges]]] = {
    "=": lambda value: Ranges.points([value]),
    "<": lambda value: Ranges(((None, value),)),
    "<=": lambda value: Ranges(((None, after(value)),)),
    ">": lambda value: Ranges(((after(value), None),)),
    ">=": lambda value: Ranges(((value, None),)),
}
_SAME: Final = {"==": "=", "<>": "!="}
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ENDS: Final = frozenset({"", "and", "or", ")"})
_NOT_CONNECTED: Final = frozenset({"between", "case", "when", "then", "else", "end"})  # an AND after them may be theirs
_MOST_DIGITS: Final = 4300  # Python converts no longer text to a number
_RESERVED: Final = _NOT_CONNECTED | {"and", "or", "not", "is", "in", "null", "true", "false"}


def key_boxes(where: str | None, schema: TableSchema) -> Boxes:
    """Return boxes that contain the key of each row for which the condition is true. Key columns are never null.

    Args:
        where: a condition, see `dataset.conditions.read_condition`. If it is not valid, the boxes mean nothing.
    """
    if where is None:
        return ANY
    try:
        tokens = [token for token in read_tokens(where, "") if token.kind is not Kind.SPACE]
        return _Reader(tokens, schema).whole().true
    except (Invalid, _UnreadableError, RecursionError):
        return ANY


class _UnreadableError(Exception):
    """It is not known where an operand ends."""


class _OtherError(Exception):
    """An operand is not a column that is compared with literals."""


class _Reader:
    def __init__(self, tokens: Sequence[Token], schema: TableSchema) -> None:
        self._tokens = tokens
        self._schema = schema
        self._at = 0

    def whole(self) -> Truth:
        found = self._any_of()
        if self._at < len(self._tokens):
            raise _UnreadableError
        return found

    def _word(self, at: int) -> str:
        return self._tokens[at].word if at < len(self._tokens) else ""

    def _ends(self, at: int) -> bool:
        return at >= len(self._tokens) or self._word(at) in _ENDS - {""}

    def _takes(self, word: str) -> bool:
        found = self._word(self._at) == word
        self._at += found
        return found

    def _any_of(self) -> Truth:
        parts = [self._all_of()]
        while self._takes("or"):
            parts.append(self._all_of())
        return disjunction(parts)

    def _all_of(self) -> Truth:
        parts = [self._operand()]
        while self._takes("and"):
            parts.append(self._operand())
        return conjunction(parts)

    def _operand(self) -> Truth:
        if self._takes("not"):
            return self._operand().negated()
        start = self._at
        try:
            found = self._group() if self._word(start) == "(" else self._predicate()
            if self._ends(self._at):
                return found
        except _OtherError:
            pass
        self._at = start
        self._skip()
        return UNKNOWN

    def _group(self) -> Truth:
        start = self._at
        try:
            self._at += 1
            found = self._any_of()
        except _UnreadableError:
            found, self._at = UNKNOWN, start
            self._skip_group()
            return found
        if not self._takes(")"):
            raise _UnreadableError
        return found

    def _skip(self) -> None:
        """Move past an operand that says nothing about the key."""
        start = self._at
        while not self._ends(self._at):
            if self._word(self._at) in _NOT_CONNECTED:
                raise _UnreadableError
            if self._word(self._at) == "(":
                self._skip_group()
            else:
                self._at += 1
        if self._at == start:
            raise _UnreadableError

    def _skip_group(self) -> None:
        depth = 0
        while self._at < len(self._tokens):
            depth += {"(": 1, ")": -1}.get(self._word(self._at), 0)
            self._at += 1
            if depth == 0:
                return
        raise _UnreadableError

    def _predicate(self) -> Truth:
        """Read the comparison of a column with literals."""
        if self._literal_end(self._at) > self._at:
            return self._mirrored()
        column = self._column()
        if self._ends(self._at):
            return column.among([1]) if column.kind is not None and pt.is_boolean(column.kind) else UNKNOWN
        if self._takes("is"):
            return self._null(column)
        compared = self._comparison()
        if compared is not None:
            return column.compared(compared, self._literal(column.kind))
        negated = self._takes("not")
        found = self._between(column) if self._takes("between") else self._in(column)
        return found.negated() if negated else found

    def _comparison(self) -> str | None:
        word = self._word(self._at)
        found = _SAME.get(word, word)
        if found not in (*_COMPARED, "!="):
            return None
        self._at += 1
        return found

    def _mirrored(self) -> Truth:
        """Read a literal that is compared with a column."""
        start = self._at
        self._at = self._literal_end(start)
        compared = self._comparison()
        if compared is None:
            raise _OtherError
        column = self._column()
        end, self._at = self._at, start
        value = self._literal(column.kind)
        self._at = end
        return column.compared(_MIRRORED.get(compared, compared), value)

    def _null(self, column: _Column) -> Truth:
        negated = self._takes("not")
        if not self._takes("null"):
            raise _OtherError
        if column.kind is None:
            return UNKNOWN
        return Truth(ANY, NOTHING) if negated else Truth(NOTHING, ANY)

    def _between(self, column: _Column) -> Truth:
        low = column.compared(">=", self._literal(column.kind))
        if not self._takes("and"):
            raise _OtherError
        return conjunction([low, column.compared("<=", self._literal(column.kind))])

    def _in(self, column: _Column) -> Truth:
        if not (self._takes("in") and self._takes("(")):
            raise _OtherError
        values = [self._literal(column.kind)]
        while self._takes(","):
            values.append(self._literal(column.kind))
        if not self._takes(")"):
            raise _OtherError
        known = [value for value in values if value is not None]
        return column.among(known) if len(known) == len(values) else UNKNOWN

    def _column(self) -> _Column:
        """Read the name of a column. Nothing is known about the values of a column outside the key."""
        if self._at >= len(self._tokens):
            raise _OtherError
        token = self._tokens[self._at]
        if token.kind is not Kind.NAME and (token.kind is not Kind.WORD or token.word in _RESERVED):
            raise _OtherError
        name = token.text.strip("`")
        self._at += 1
        while self._word(self._at) == ".":
            name, self._at = "", self._at + 2
        if self._word(self._at) in ("(", "["):
            raise _OtherError
        is_key = name in self._schema.primary_key and self._is_unique(name)
        return _Column(name, self._schema.columns.field(name).type if is_key else None)

    def _is_unique(self, name: str) -> bool:
        return sum(other.lower() == name.lower() for other in self._schema.names) == 1

    def _literal_end(self, at: int) -> int:
        """Return the index after the literal that begins here; the same index if none does."""
        if at >= len(self._tokens):
            return at
        start = at
        if self._word(at) in ("-", "+") or self._word(at) in ("x", "date", "timestamp"):
            at += 1
        if at >= len(self._tokens):
            return start
        kind = self._tokens[at].kind
        if self._word(start) in ("-", "+"):
            return at + 1 if kind is Kind.NUMBER else start
        if at > start:
            return at + 1 if kind is Kind.TEXT else start
        is_bool = self._word(at) in ("true", "false")
        return at + 1 if is_bool or kind in (Kind.TEXT, Kind.NUMBER) else start

    def _literal(self, kind: pa.DataType | None) -> Ordered | None:
        """Read a literal; return None if it is not known which value of this type it is."""
        end = self._literal_end(self._at)
        parts = self._tokens[self._at : end]
        self._at = end
        if not parts:
            raise _OtherError
        return None if kind is None else _value([part.text for part in parts], kind)


class _Column:
    """A column of a condition; without a type if nothing is known about its values."""

    def __init__(self, name: str, kind: pa.DataType | None) -> None:
        self._name = name
        self.kind = kind

    def compared(self, how: str, value: Ordered | None) -> Truth:
        if value is None:
            return UNKNOWN
        return self.among([value]).negated() if how == "!=" else self._within(_COMPARED[how](value))

    def among(self, values: Sequence[Ordered]) -> Truth:
        return self._within(Ranges.points(values))

    def _within(self, ranges: Ranges) -> Truth:
        if self.kind is None:
            return UNKNOWN
        every = Ranges.all_of(self.kind)
        return Truth(*(({self._name: one},) if one else NOTHING for one in (every & ranges, every - ranges)))


def _value(parts: Sequence[str], kind: pa.DataType) -> Ordered | None:
    """Return the value of a literal in a column of this type, if Lance surely reads it so."""
    typed, text = parts[0].lower(), parts[-1]
    quoted = text[1:-1].replace("''", "'") if text.startswith("'") else None
    if pt.is_boolean(kind):
        return {"true": 1, "false": 0}.get(typed) if len(parts) == 1 else None
    if pt.is_integer(kind):
        if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
            return None
        value, bounds = int("".join(parts)), limits(kind)
        return value if bounds is not None and bounds[0] <= value <= bounds[1] else None
    if quoted is None:
        return None
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        try:
            return bytes.fromhex(quoted) if typed == "x" and " " not in quoted else None
        except ValueError:
            return None
    if pt.is_string(kind) or pt.is_large_string(kind):
        return quoted.encode() if len(parts) == 1 else None
    if len(parts) > 1:
        return None
    try:
        return ordered(json_column([quoted], pa.field("value", kind)))[0]
    except (Invalid, ValueError, ArithmeticError):
        return None
