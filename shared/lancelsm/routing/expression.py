"""Compute region values from a SQL expression with DataFusion (extra `expression`).

lance-memwal, "Region Expression", requires deterministic and stateless expressions: a key whose region value changed
would move to another region, and its old row would stay behind. So there is a list of allowed functions. Their results
are exact and the same on every machine and in every session. Functions that depend on time, randomness, the session, or
the rounding of a library are not allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from lancelsm.errors import Invalid
from lancelsm.routing.value import type_name

_ALLOWED_NODES = """
    Between BinaryExpr Case Cast Column InList IsFalse IsNotFalse IsNotNull IsNotTrue IsNotUnknown IsNull IsTrue
    IsUnknown Like Literal Negative Not ScalarFunction
"""
_ALLOWED_FUNCTIONS = """
    abs arrow_cast ascii bit_length btrim ceil char_length character_length chr coalesce concat concat_ws contains
    date_bin date_part date_trunc decode digest encode ends_with find_in_set floor gcd greatest ifnull instr lcm
    least left length levenshtein lower lpad ltrim make_date md5 nullif nvl nvl2 octet_length overlay repeat replace
    reverse right round rpad rtrim sha224 sha256 sha384 sha512 signum split_part starts_with strpos substr
    substr_index to_hex translate trunc upper
"""
_NODES = frozenset(_ALLOWED_NODES.split())
_FUNCTIONS = frozenset(_ALLOWED_FUNCTIONS.split())
_REGEX = frozenset(("~", "~*", "!~", "!~*"))


def analyze(sql: str, key: pa.Schema) -> tuple[tuple[str, ...], pa.DataType]:
    """Check an expression over the key columns; find its source columns and its result type.

    Args:
        sql: a DataFusion SQL expression. It refers to columns by case-sensitive name, or as col0, col1, ... in key
            order.
        key: the key columns, in key order.

    Returns:
        The source columns in key order, chosen so that col0, col1, ... have the same meaning among them, and the type
        of the region value.

    Raises:
        Invalid: the expression can't be parsed, reads no key column or a column that is not a key column, calls a
            function that is not allowed, or has a type that region values can't have; or DataFusion is not installed.
    """
    frame = _frame(pa.Table.from_batches([], _named(key)))
    parsed = _parsed(frame, sql)
    names = {str(node.to_variant().name()) for node in _nodes(parsed, sql) if node.variant_name() == "Column"}
    if not names:
        raise Invalid(f"region expression {sql!r} reads no key column", remedy="Use at least one key column")
    numbered = [int(name[3:]) for name in names if name not in key.names]
    first = max(numbered, default=-1) + 1
    sources = tuple(name for index, name in enumerate(key.names) if index < first or name in names)
    try:
        kind = _without_view(frame.select(parsed.alias("value")).schema().field(0).type)
        type_name(kind)
    except Invalid as error:
        raise Invalid(f"region expression {sql!r}: {error.message}", remedy="Cast it to an allowed type") from error
    except Exception as error:
        raise Invalid(
            f"region expression {sql!r} is not valid: {error}",
            remedy="Write an SQL expression over key columns, such as expr(a % 4)",
        ) from error
    return sources, kind


def evaluate(sql: str, columns: Sequence[tuple[str, pa.Array]], kind: pa.DataType) -> pa.Array:
    """Evaluate an expression over its source columns. Return one value of type `kind` per row, in row order.

    Raises:
        Invalid: the expression fails on a value (division by zero, overflow), or DataFusion is not installed.
    """
    source = pa.schema([pa.field(name, column.type) for name, column in columns])
    arrays = [column for _, column in columns]
    named = _named(source)
    frame = _frame(pa.table([*arrays, *(arrays[int(name[3:])] for name in named.names[len(source) :])], schema=named))
    try:
        values = frame.select(_parsed(frame, sql).alias("value")).to_arrow_table().column(0).cast(kind)
    except Invalid:
        raise
    except Exception as error:
        raise Invalid(
            f"region expression {sql!r} fails on a row: {error}",
            remedy="Correct the key of the row",
            redacted=f"region expression {sql!r} fails on a row",
        ) from error
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], kind)


def _named(source: pa.Schema) -> pa.Schema:
    """Return the source columns, then the same columns as col0, col1, ... unless a source has that name."""
    numbered = [pa.field(f"col{index}", field.type, field.nullable) for index, field in enumerate(source)]
    return pa.schema([*source, *(field for field in numbered if field.name not in source.names)])


def _frame(rows: pa.Table) -> Any:
    try:
        import datafusion
    except ImportError as error:
        raise Invalid("region expressions need DataFusion", remedy="pip install 'lancelsm[expression]'") from error
    # Names are case-sensitive, as everywhere in lancelsm. One partition keeps the order of rows.
    settings = datafusion.SessionConfig().set("datafusion.sql_parser.enable_ident_normalization", "false")
    return datafusion.SessionContext(settings.with_target_partitions(1)).from_arrow(rows)


def _parsed(frame: Any, sql: str) -> Any:
    try:
        return frame.parse_sql_expr(sql)
    except Exception as error:
        raise Invalid(
            f"region expression {sql!r} is not valid: {error}", remedy="Use only key columns; names are case-sensitive"
        ) from error


def _nodes(node: Any, sql: str) -> Iterator[Any]:
    """Yield the nodes of an expression; check each one first."""
    node_kind = node.variant_name()
    called = node.rex_call_operator() if node_kind in {"ScalarFunction", "BinaryExpr"} else ""
    if node_kind not in _NODES or called in _REGEX or (node_kind == "ScalarFunction" and called not in _FUNCTIONS):
        raise Invalid(
            f"region expression {sql!r} uses {called or node_kind}, which may not give every writer the same value",
            remedy=f"Use operators, CASE, CAST and {', '.join(sorted(_FUNCTIONS))}",
        )
    yield node
    if node_kind not in {"Column", "Literal"}:
        for operand in node.rex_call_operands():
            yield from _nodes(operand, sql)


def _without_view(kind: pa.DataType) -> pa.DataType:
    """Return the stored type for a view type of DataFusion."""
    if pt.is_string_view(kind):
        return pa.utf8()
    return pa.binary() if pt.is_binary_view(kind) else kind
