"""Convert filters of pyarrow to conditions in Lance's dialect.

An expression of pyarrow shows its parts only as text, so the text is parsed. What the parser doesn't know, or what may
mean something else in Lance's dialect, is not converted: the caller then filters the rows with the expression itself.

Pyarrow compares floats by IEEE 754; Lance and DataFusion order them, with NaN as the greatest. So a comparison of
floats is converted only for DataFusion. (Duckdb and polars order them too, but keep such filters to themselves.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>"(?:[^"\\\x00-\x1f])*")
      | (?P<time>\d{4}-\d\d-\d\d(?:\ \d\d:\d\d:\d\d(?:\.\d{1,9})?Z?)?)
      | (?P<number>-?(?:inf|nan|\d+(?:\.\d+)?(?:e[+-]?\d+)?))(?![\w.])
      | (?P<name>[^\W\d]\w*)
      | (?P<sign>==|!=|<=|>=|[<>(){}\[\],=:])
    )""",
    re.VERBOSE,
)
_COMPARISONS = {"==": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_INTEGER = re.compile(r"-?\d{1,18}")
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
# A column of such a name looks like another part of an expression.
_RESERVED = {"and", "or", "true", "false", "null", "inf", "nan", "invert", "is_in", "is_null", "is_valid", "if_else"}
_SPECIAL_FLOATS = {"inf": "'Infinity'", "-inf": "'-Infinity'", "nan": "'NaN'", "-nan": "'NaN'"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The part of a filter that the scan applies.

    Args:
        where: a condition in Lance's dialect; None: the scan reads all rows.
        whole: no other row passes the condition than the filter lets pass. Otherwise the filter must still be applied.
    """

    where: str | None
    whole: bool


@dataclass(frozen=True, slots=True)
class _Condition:
    """`sql` is true for every row for which the filter is true; if it is `exact`, for no other row.

    `floats`: it compares floats, as Lance orders them.
    """

    sql: str | None
    exact: bool
    floats: bool = False


_UNKNOWN = _Condition(None, exact=False)


def pushed(filter: Any, schema: pa.Schema, *, ordered_floats: bool = False) -> Pushed:  # noqa: A002 - as in pyarrow
    """Convert a filter of pyarrow over these columns.

    Args:
        ordered_floats: the filter compares floats as Lance does.
    """
    if filter is None:
        return Pushed(where=None, whole=True)
    if not all(_PLAIN_NAME.fullmatch(name) and name not in _RESERVED for name in schema.names):
        return Pushed(where=None, whole=False)
    found = _Parser(str(filter), schema).parsed()
    if found.exact and (ordered_floats or not found.floats):
        return Pushed(where=found.sql, whole=True)
    return Pushed(where=None if found.floats else found.sql, whole=False)


def columns_in(filter: Any, schema: pa.Schema) -> list[str]:  # noqa: A002
    """Return the columns that a filter may use."""
    text = str(filter)
    return [name for name in schema.names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]


class _Failed(Exception):
    """The text has something that is not known."""


class _Parser:
    """Parse the text of an expression by recursive descent; what is in parentheses is one value."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._schema = schema
        self._tokens: list[tuple[str, str]] = []
        self._at = 0
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                self._tokens = []
                return
            self._tokens.append((match.lastgroup, match.group(match.lastgroup)))
            position = match.end()

    def parsed(self) -> _Condition:
        try:
            found = self._condition()
        except (_Failed, RecursionError):
            return _UNKNOWN
        return found if self._at == len(self._tokens) else _UNKNOWN

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise _Failed
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, *values: str) -> None:
        for value in values:
            if self._next()[1] != value:
                raise _Failed

    def _condition(self) -> _Condition:
        kind, value = self._next()
        if value == "(":
            return self._in_parentheses()
        if kind != "name":
            raise _Failed
        known: dict[str, Callable[[], _Condition]] = {
            "invert": self._inverted,
            "is_null": lambda: self._null_test("IS NULL", ",", "{", "nan_is_null", "=", "false", "}"),
            "is_valid": lambda: self._null_test("IS NOT NULL"),
            "is_in": self._membership,
            "if_else": self._nullable_membership,
        }
        if value in known and self._peek() == "(":
            return known[value]()
        return self._flag(value)

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _in_parentheses(self) -> _Condition:
        """Parse `(a == 1)`, `((...) and (...))`."""
        if self._at + 1 < len(self._tokens) and self._tokens[self._at + 1][1] in _COMPARISONS:
            found = self._comparison()
            self._take(")")
            return found
        left = self._condition()
        _, operator = self._next()
        right = self._condition()
        self._take(")")
        if operator == "and":
            known = [f"({one.sql})" for one in (left, right) if one.sql is not None]
            exact = left.exact and right.exact
            return _Condition(" AND ".join(known) or None, exact, left.floats or right.floats)
        if operator == "or":
            if left.sql is None or right.sql is None:
                return _UNKNOWN
            exact = left.exact and right.exact
            return _Condition(f"({left.sql}) OR ({right.sql})", exact, left.floats or right.floats)
        raise _Failed

    def _comparison(self) -> _Condition:
        left, (_, operator), right = self._next(), self._next(), self._next()
        if left[0] != "name":
            left, right = right, left
            operator = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(operator, operator)
        if left[0] != "name" or left[1] not in self._schema.names:
            raise _Failed
        kind = self._schema.field(left[1]).type
        literal = _literal(right, kind)
        if literal is None:
            if right[0] == "name" and not (right[1] in self._schema.names and _is_known(kind)):
                raise _Failed
            if right[0] != "name" or self._schema.field(right[1]).type != kind:
                return _UNKNOWN
            literal = f"`{right[1]}`"
        floats = pa.types.is_floating(kind)
        return _Condition(f"`{left[1]}` {_COMPARISONS[operator]} {literal}", exact=True, floats=floats)

    def _flag(self, name: str) -> _Condition:
        if name not in self._schema.names or not pa.types.is_boolean(self._schema.field(name).type):
            raise _Failed
        return _Condition(f"`{name}`", exact=True)

    def _inverted(self) -> _Condition:
        self._take("(")
        inner = self._condition()
        self._take(")")
        return _Condition(f"NOT ({inner.sql})", exact=True, floats=inner.floats) if inner.exact else _UNKNOWN

    def _null_test(self, test: str, *more: str) -> _Condition:
        self._take("(")
        _, name = self._next()
        self._take(*more, ")")
        if name not in self._schema.names:
            raise _Failed
        return _Condition(f"`{name}` {test}", exact=True)

    def _membership(self) -> _Condition:
        """Parse `is_in(a, {value_set=int64:[1, 2], null_matching_behavior=MATCH})`.

        A null is in no list, where a comparison in SQL is null. Both keep no row, but `NOT` would tell them apart.
        """
        name, values = self._set_of("(")
        return _Condition(f"`{name}` IN ({values})", exact=False)

    def _set_of(self, *before: str) -> tuple[str, str]:
        self._take(*before)
        _, name = self._next()
        self._take(",", "{", "value_set", "=")
        self._next()
        self._take(":", "[")
        if name not in self._schema.names:
            raise _Failed
        kind, values = self._schema.field(name).type, []
        while True:
            literal = _literal(self._next(), kind)
            if literal is None or pa.types.is_floating(kind):
                raise _Failed
            values.append(literal)
            _, sign = self._next()
            if sign == "]":
                break
            if sign != ",":
                raise _Failed
        self._take(",", "null_matching_behavior", "=", "MATCH", "}", ")")
        return name, ", ".join(values)

    def _nullable_membership(self) -> _Condition:
        """Parse `if_else(is_valid(a), is_in(a, ...), null[bool])`, which is what `IN` is in SQL."""
        self._take("(", "is_valid", "(")
        _, tested = self._next()
        self._take(")", ",", "is_in")
        name, values = self._set_of("(")
        self._take(",", "null", "[", "bool", "]", ")")
        if name != tested:
            raise _Failed
        return _Condition(f"`{name}` IN ({values})", exact=True)


def _is_known(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
    )


def _literal(token: tuple[str, str], kind: pa.DataType) -> str | None:
    """Return a literal of SQL for a column of this type; None if the text may be another value."""
    form, text = token
    if pa.types.is_integer(kind):
        return text if form == "number" and _INTEGER.fullmatch(text) else None
    if pa.types.is_floating(kind):
        return _float(text, kind) if form == "number" else None
    if pa.types.is_boolean(kind):
        return text if text in ("true", "false") else None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "'" + text[1:-1].replace("'", "''") + "'" if form == "text" else None
    if form != "time":
        return None
    if pa.types.is_date32(kind):
        return f"'{text}'" if len(text) == len("2026-01-31") else None
    if pa.types.is_timestamp(kind) and len(text) > len("2026-01-31") and text.endswith("Z") == (kind.tz is not None):
        return f"'{text.replace(' ', 'T')}'"
    return None


def _float(text: str, kind: pa.DataType) -> str | None:
    value = float(text)
    if (value == 0 and text.startswith("-")) or pa.types.is_float16(kind):
        return None
    if pa.types.is_float32(kind) and value != float(np.float32(value)) and not math.isnan(value):
        return None  # compared with a double
    return _SPECIAL_FLOATS.get(text, text)
