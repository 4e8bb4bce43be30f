"""Filter rows by an expression of pyarrow that has the meaning of SQL, as DataFusion hands it over.

Pyarrow itself compares floats by IEEE 754, and says that a null is in no list. For DataFusion the answer for a null is
null, and NaN equals itself and is the greatest float.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.read.sources.arrow_expressions import CallNode, FieldNode, LiteralNode, Node, taken_apart

_COMPARISONS: Final = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_CONNECTIVES: Final = ("and_kleene", "or_kleene", "invert", "if_else")


class _UnknownError(Exception):
    """DataFusion makes no such expression."""


def filtered_as_sql(rows: pa.Table, expression: Any) -> pa.Table:
    """Return the rows for which an expression of DataFusion is true."""
    tree = taken_apart(expression)
    try:
        found = None if tree is None else _value(tree, rows)
    except _UnknownError:
        found = None
    if found is None:
        return rows.filter(expression)
    if isinstance(found, pa.Scalar):
        return rows if found.as_py() else rows.slice(0, 0)
    return rows.filter(found)


def _value(node: Node, rows: pa.Table) -> Any:
    """Return the value of an expression: an array with a value per row, or a scalar."""
    match node:
        case LiteralNode(value):
            return value
        case FieldNode(name, nested=False):
            return rows.column(name).combine_chunks()
        case CallNode(function, (left, right)) if function in _COMPARISONS:
            return _compared(function, _value(left, rows), _value(right, rows))
        case CallNode("is_in", (one,), options):
            return _in_list(_value(one, rows), options["value_set"])
        case CallNode("is_null", (one,), options):
            nan_counts = "nan_is_null" in options and options["nan_is_null"].as_py()
            return pc.is_null(_value(one, rows), nan_is_null=nan_counts)
        case CallNode("is_valid", (one,)):
            return pc.is_valid(_value(one, rows))
        case CallNode(function, arguments) if function in _CONNECTIVES:
            return pc.call_function(function, [_value(one, rows) for one in arguments])
    raise _UnknownError


def _compared(function: str, left: Any, right: Any) -> Any:
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        left, right = _ordered(left), _ordered(right)
    return pc.call_function(function, [left, right])


def _in_list(value: Any, values: Any) -> Any:
    known = (values.values if isinstance(values, pa.Scalar) else values).drop_null()
    unknown = pa.scalar(None, pa.bool_())
    otherwise = unknown if len(known) < len(values) else pa.scalar(False)
    found = pc.if_else(pc.is_in(value, value_set=known), True, otherwise)
    return pc.if_else(pc.is_valid(value), found, unknown)


def _ordered(values: Any) -> Any:
    """Return integers in the order of floats: equal for both zeros, and the greatest for NaN."""
    if isinstance(values, pa.Scalar):
        return _ordered(pa.array([values.as_py()], values.type))[0]
    bits = pc.add(values.cast(pa.float64()), 0.0).view(pa.int64())  # -0.0 + 0.0 is 0.0
    return pc.if_else(pc.less(bits, 0), pc.bit_wise_xor(bits, (1 << 63) - 1), bits)
