"""Convert filters of pyarrow to conditions in Lance's dialect.

What is not known, or may mean something else in Lance's dialect, is not converted: the caller then filters the rows
with the expression itself. Two differences matter. Pyarrow compares floats by IEEE 754, and Lance orders them, with NaN
as the greatest. A null is in no list for pyarrow, and in SQL the answer is null, which `NOT` keeps. The filters of
DataFusion have the meaning of SQL, although it hands them over as expressions of pyarrow. (Duckdb and polars order
floats too, but keep such filters to themselves.)
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lancelsm.read.sources.arrow_expressions import CallNode, FieldNode, LiteralNode, Node, taken_apart
from lancelsm.record.ordered import limits

_COMPARISONS = {
    "equal": "=",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_DEEPEST = 12  # Lance's parser takes about 20
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - the zone is added as text


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The part of a filter that the scan applies.

    Args:
        where: a condition in Lance's dialect; None: the scan reads all rows.
        whole: the condition lets the same rows pass as the filter. Otherwise the filter must still be applied.
        columns: those that the filter uses.
    """

    where: str | None
    whole: bool
    columns: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Condition:
    """`sql` is true for every row for which the filter is true. `exact`: both are always the same.

    `floats`: it compares floats, as Lance orders them.
    """

    sql: str | None
    exact: bool
    floats: bool = False


_UNKNOWN = _Condition(None, exact=False)


def pushed(filter: Any, schema: pa.Schema, *, as_sql: bool = False) -> Pushed:  # noqa: A002 - as in pyarrow
    """Convert a filter of pyarrow over these columns.

    Args:
        as_sql: the filter has the meaning of SQL.
    """
    if filter is None:
        return Pushed(where=None, whole=True)
    tree = taken_apart(filter)
    if tree is None:
        return Pushed(where=None, whole=False, columns=frozenset(schema.names))
    columns = frozenset(_names(tree))
    found = _Converter(schema, as_sql=as_sql).condition(tree)
    if found.sql is not None and is_deep(found.sql):
        found = _UNKNOWN
    if found.exact and (as_sql or not found.floats):
        return Pushed(where=found.sql, whole=True, columns=columns)
    return Pushed(where=None if found.floats else found.sql, whole=False, columns=columns)


def _names(node: Node) -> Iterator[str]:
    if isinstance(node, FieldNode):
        yield node.name
    elif isinstance(node, CallNode):
        for one in node.arguments:
            yield from _names(one)


@dataclass(frozen=True, slots=True)
class _Converter:
    schema: pa.Schema
    as_sql: bool

    def condition(self, node: Node) -> _Condition:
        match node:
            case FieldNode() if (kind := self._type(node)) is not None and pa.types.is_boolean(kind):
                return _Condition(_quoted(node.name), exact=True)
            case CallNode("and_kleene"):
                return self._all([self.condition(one) for one in _operands(node)])
            case CallNode("or_kleene"):
                return self._one_of([self.condition(one) for one in _operands(node)])
            case CallNode("invert", (one,)):
                inner = self.condition(one)
                return _Condition(f"NOT ({inner.sql})", exact=True, floats=inner.floats) if inner.exact else _UNKNOWN
            case CallNode("is_null", (FieldNode() as column,), options) if self._type(column) is not None:
                nan_counts = "nan_is_null" in options and options["nan_is_null"].as_py()
                return _UNKNOWN if nan_counts else _Condition(f"{_quoted(column.name)} IS NULL", exact=True)
            case CallNode("is_valid", (FieldNode() as column,)) if self._type(column) is not None:
                return _Condition(f"{_quoted(column.name)} IS NOT NULL", exact=True)
            case CallNode("is_in", (FieldNode() as column,), options):
                return self._in_list(column, options, exact=self.as_sql)
            case CallNode(
                "if_else", (CallNode("is_valid", (tested,)), CallNode("is_in", (column,), options), other)
            ) if isinstance(column, FieldNode) and tested == column and _is_null(other):
                return self._in_list(column, options, exact=True)
            case CallNode(function, (left, right)) if function in _COMPARISONS:
                return self._comparison(_COMPARISONS[function], left, right)
        return _UNKNOWN

    def _type(self, column: FieldNode) -> pa.DataType | None:
        """Return the type of a column; None if no condition can name it."""
        known = not column.nested and column.name in self.schema.names and "`" not in column.name
        return self.schema.field(column.name).type if known else None

    def _all(self, parts: Sequence[_Condition]) -> _Condition:
        known = [f"({one.sql})" for one in parts if one.sql is not None]
        exact, floats = all(one.exact for one in parts), any(one.floats for one in parts)
        return _Condition(" AND ".join(known) or None, exact, floats)

    def _one_of(self, parts: Sequence[_Condition]) -> _Condition:
        if any(one.sql is None for one in parts):
            return _UNKNOWN
        exact, floats = all(one.exact for one in parts), any(one.floats for one in parts)
        return _Condition(" OR ".join(f"({one.sql})" for one in parts), exact, floats)

    def _comparison(self, operator: str, left: Node, right: Node) -> _Condition:
        if not isinstance(left, FieldNode):
            left, right, operator = right, left, _SWAPPED.get(operator, operator)
        if not isinstance(left, FieldNode) or (kind := self._type(left)) is None:
            return _UNKNOWN
        value = None
        if isinstance(right, LiteralNode):
            value = _literal(right.value, kind)
        elif isinstance(right, FieldNode) and self._type(right) == kind and _is_known(kind):
            value = _quoted(right.name)
        if value is None:
            return _UNKNOWN
        return _Condition(f"{_quoted(left.name)} {operator} {value}", exact=True, floats=pa.types.is_floating(kind))

    def _in_list(self, column: FieldNode, options: dict[str, Any], *, exact: bool) -> _Condition:
        kind, given = self._type(column), options.get("value_set")
        if kind is None or given is None or not len(given):
            return _UNKNOWN
        values = [_literal(one, kind) for one in given]
        if None in values:
            return _UNKNOWN
        sql = f"{_quoted(column.name)} IN ({', '.join(one for one in values if one)})"
        return _Condition(sql, exact=exact, floats=pa.types.is_floating(kind))


def _operands(node: CallNode) -> list[Node]:
    """Return the operands of nested calls of one function, in order."""
    found: list[Node] = []
    left: list[Node] = [node]
    while left:
        one = left.pop()
        if isinstance(one, CallNode) and one.function == node.function:
            left += reversed(one.arguments)
        else:
            found.append(one)
    return found


def is_deep(condition: str) -> bool:
    """Return whether parentheses are nested so deeply that Lance's parser may refuse the condition."""
    depth = most = 0
    for mark in re.findall(r"'(?:[^']|'')*'|`[^`]*`|[()]", condition):
        depth += {"(": 1, ")": -1}.get(mark, 0)
        most = max(most, depth)
    return most > _DEEPEST


def _quoted(name: str) -> str:
    return f"`{name}`"


def _is_null(node: Node) -> bool:
    return isinstance(node, LiteralNode) and not node.value.is_valid


def _is_known(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_boolean(kind)
        or _is_text(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _literal(scalar: pa.Scalar, kind: pa.DataType) -> str | None:
    """Return a literal of SQL for a column of this type; None if the column can't have the value."""
    of = scalar.type
    if not scalar.is_valid or not _is_known(kind):
        return None
    if pa.types.is_integer(kind):
        return str(scalar.as_py()) if pa.types.is_integer(of) and in_range(scalar.as_py(), kind) else None
    if pa.types.is_floating(kind):
        return _float(scalar.as_py(), kind) if pa.types.is_floating(of) or pa.types.is_integer(of) else None
    if pa.types.is_boolean(kind):
        return str(scalar.as_py()).lower() if pa.types.is_boolean(of) else None
    if _is_text(kind):
        return text_literal(scalar.as_py()) if _is_text(of) or pa.types.is_string_view(of) else None
    if pa.types.is_date32(kind):
        return f"'{_EPOCH.date() + datetime.timedelta(days=scalar.value)}'" if _is_day(scalar) else None
    return _timestamp(scalar, kind) if pa.types.is_timestamp(of) and (of.tz is None) == (kind.tz is None) else None


def in_range(value: int, kind: pa.DataType) -> bool:
    """Return whether a column of this integer type can have the value. Lance refuses to compare it with another."""
    bounds = limits(kind)
    return bounds is not None and bounds[0] <= value <= bounds[1]


def text_literal(text: str) -> str | None:
    """Return a literal of SQL for text; None if SQL can't have it."""
    return "'" + text.replace("'", "''") + "'" if "\0" not in text else None


def _float(value: float, kind: pa.DataType) -> str | None:
    with np.errstate(over="ignore"):
        if pa.types.is_float32(kind) and value != float(np.float32(value)) and not math.isnan(value):
            return None  # compared as a double
    if math.isnan(value):
        return "'NaN'"
    if math.isinf(value):
        return "'Infinity'" if value > 0 else "'-Infinity'"
    return repr(float(value))


_FIRST_DAY, _LAST_DAY = ((day - _EPOCH.date()).days for day in (datetime.date.min, datetime.date.max))


def _is_day(scalar: pa.Scalar) -> bool:
    return bool(pa.types.is_date32(scalar.type)) and _FIRST_DAY <= int(scalar.value) <= _LAST_DAY


def _timestamp(scalar: pa.Scalar, kind: pa.DataType) -> str | None:
    per_second = _PER_SECOND[kind.unit]
    value, rest = divmod(scalar.value * per_second, _PER_SECOND[scalar.type.unit])
    seconds, fraction = divmod(value, per_second)
    if rest or not -_LAST_DAY * 86_400 < seconds < _LAST_DAY * 86_400:
        return None
    try:
        text = (_EPOCH + datetime.timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        return None
    digits = len(str(per_second)) - 1
    return f"'{text}{f'.{fraction:0{digits}}' if digits else ''}{'Z' if kind.tz else ''}'"
