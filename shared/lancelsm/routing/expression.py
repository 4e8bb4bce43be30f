"""Region values from a SQL expression, evaluated by DataFusion (extra `expression`).

lance-memwal, "Region Expression", asks for expressions that are deterministic and stateless: a key whose value changed
would move to another region and leave its old row behind. So only functions whose result is exact and the same on every
machine and in every session are admitted, by name; nothing that asks for time, chance, the session, or a library's
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from lancelsm.errors import Invalid
from lancelsm.routing.value import type_name

_ADMITTED_SHAPES = """
    Between BinaryExpr Case Cast Column InList IsFalse IsNotFalse IsNotNull IsNotTrue IsNotUnknown IsNull IsTrue
    IsUnknown Like Literal Negative Not ScalarFunction
"""
_ADMITTED_FUNCTIONS = """
    abs arrow_cast ascii bit_length btrim ceil char_length character_length chr coalesce concat concat_ws contains
    date_bin date_part date_trunc decode digest encode ends_with find_in_set floor gcd greatest ifnull instr lcm
    least left length levenshtein lower lpad ltrim make_date md5 nullif nvl nvl2 octet_length overlay repeat replace
    reverse right round rpad rtrim sha224 sha256 sha384 sha512 signum split_part starts_with strpos substr
    substr_index to_hex translate trunc upper
"""
_SHAPES = frozenset(_ADMITTED_SHAPES.split())
_FUNCTIONS = frozenset(_ADMITTED_FUNCTIONS.split())
_REGEX = frozenset(("~", "~*", "!~", "!~*"))


def analysed(sql: str, key: pa.Schema) -> tuple[tuple[str, ...], pa.DataType]:
    """Check an expression over the key columns and find what it reads and gives.

    Args:
        sql: a DataFusion SQL expression. Columns go by their names, case kept, or as col0, col1, ... in key order.
        key: the key columns, in key order.

    Returns:
        The source columns in key order, such that col0, col1, ... keep their meaning when numbered among them, and
        the type of the region value.

    Raises:
        Invalid: it can't be parsed, reads no key column or another column, calls what is not admitted, or gives a type
            that region values can't have; or DataFusion is not installed.
    """
    frame = _frame(pa.Table.from_batches([], _named(key)))
    parsed = _parsed(frame, sql)
    names = {str(node.to_variant().name()) for node in _nodes(parsed, sql) if node.variant_name() == "Column"}
    if not names:
        raise Invalid(f"region expression {sql!r} reads no key column", remedy="Name at least one")
    numbered = [int(name[3:]) for name in names if name not in key.names]
    first = max(numbered, default=-1) + 1
    sources = tuple(name for place, name in enumerate(key.names) if place < first or name in names)
    try:
        kind = _plain(frame.select(parsed.alias("value")).schema().field(0).type)
        type_name(kind)
    except Invalid as error:
        raise Invalid(f"region expression {sql!r}: {error.message}", remedy="Cast it to an allowed type") from error
    except Exception as error:
        raise Invalid(f"region expression {sql!r} is not valid: {error}") from error
    return sources, kind


def evaluated(sql: str, columns: Sequence[tuple[str, pa.Array]], kind: pa.DataType) -> pa.Array:
    """One value of type `kind` per row, in row order, over the source columns in their order.

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
            remedy="Correct the row's key",
            redacted=f"region expression {sql!r} fails on a row",
        ) from error
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], kind)


def _named(source: pa.Schema) -> pa.Schema:
    """The source columns, then the same again as col0, col1, ... unless a source has such a name of its own."""
    numbered = [pa.field(f"col{place}", field.type, field.nullable) for place, field in enumerate(source)]
    return pa.schema([*source, *(field for field in numbered if field.name not in source.names)])


def _frame(rows: pa.Table) -> Any:
    try:
        import datafusion
    except ImportError as error:
        raise Invalid("region expressions need DataFusion", remedy="pip install 'lancelsm[expression]'") from error
    # Names keep their case, as everywhere in lancelsm; one partition keeps the order of rows.
    settings = datafusion.SessionConfig().set("datafusion.sql_parser.enable_ident_normalization", "false")
    return datafusion.SessionContext(settings.with_target_partitions(1)).from_arrow(rows)


def _parsed(frame: Any, sql: str) -> Any:
    try:
        return frame.parse_sql_expr(sql)
    except Exception as error:
        raise Invalid(
            f"region expression {sql!r} is not valid: {error}", remedy="Only key columns can be named, case counts"
        ) from error


def _nodes(node: Any, sql: str) -> Iterator[Any]:
    """The nodes of an expression, each checked before it is yielded."""
    shape = node.variant_name()
    called = node.rex_call_operator() if shape in {"ScalarFunction", "BinaryExpr"} else ""
    if shape not in _SHAPES or called in _REGEX or (shape == "ScalarFunction" and called not in _FUNCTIONS):
        raise Invalid(
            f"region expression {sql!r} uses {called or shape}, which is not known to give every writer the same value",
            remedy=f"Use operators, CASE, CAST and {', '.join(sorted(_FUNCTIONS))}",
        )
    yield node
    if shape not in {"Column", "Literal"}:
        for operand in node.rex_call_operands():
            yield from _nodes(operand, sql)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The stored type of what DataFusion gives as a view."""
    if pt.is_string_view(kind):
        return pa.utf8()
    return pa.binary() if pt.is_binary_view(kind) else kind
