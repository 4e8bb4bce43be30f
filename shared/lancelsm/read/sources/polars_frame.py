"""A table as a lazy frame of polars.

Polars applies its own filter to every batch, so a condition of the scan only has to let pass every row that the filter
lets pass. Filters on floats are not pushed: polars orders negative NaN otherwise than Lance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lancelsm.common.extras import needing
from lancelsm.read.peers import nulls_of, polars_of
from lancelsm.read.sources.arrow_dataset import Scannable, plain_schema
from lancelsm.read.sources.arrow_filters import in_range, is_deep, text_literal

if TYPE_CHECKING:  # packages that few processes use
    from polars import LazyFrame

_COMPARISONS = {"Eq": "=", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_INTEGERS = re.compile(r"U?Int(8|16|32|64)")


def polars_frame(table: Scannable) -> LazyFrame:
    """Return a table as a lazy frame of polars. Each `collect` scans the table as it is at that moment.

    Raises:
        Invalid: polars is not installed, or lacks the type of a column.
    """
    with needing("polars"):
        import polars
        from polars.io.plugins import register_io_source

    schema = plain_schema(table)

    def read(
        with_columns: list[str] | None, predicate: Any, n_rows: int | None, _batch_size: int | None
    ) -> Iterator[Any]:
        needed = set(schema.names if with_columns is None else with_columns)
        if predicate is not None:
            needed |= set(predicate.meta.root_names())
        columns = [name for name in schema.names if name in needed] or schema.names[:1]
        # Polars counts rows before it filters, so with a number of rows nothing may be left out.
        where = None if predicate is None or n_rows is not None else polars_condition(predicate, schema)
        for batch in table.scan(columns=columns, where=where, limit=n_rows).to_batches():
            frame: Any = polars.from_arrow(batch)
            if predicate is not None:
                frame = frame.filter(predicate)
            yield frame if with_columns is None else frame.select(with_columns)

    return register_io_source(read, schema=polars_of(nulls_of(schema)).schema)


def polars_condition(predicate: Any, schema: pa.Schema) -> str | None:
    """Return a condition that is true for every row for which an expression is true; None if no such one is known."""
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except Exception:  # noqa: BLE001 - a version of polars that shows its expressions otherwise
        return None
    found = _condition(tree, schema)
    return None if found is None or is_deep(found) else found


def _condition(node: Any, schema: pa.Schema) -> str | None:
    match node:
        case {"BinaryExpr": {"op": "And" | "LogicalAnd" as operator}}:
            known = [f"({one})" for one in (_condition(part, schema) for part in _operands(node, operator)) if one]
            return " AND ".join(known) or None
        case {"BinaryExpr": {"op": "Or" | "LogicalOr" as operator}}:
            parts = [_condition(part, schema) for part in _operands(node, operator)]
            return " OR ".join(f"({one})" for one in parts) if all(parts) else None
        case {"BinaryExpr": {"left": {"Column": str(name)}, "op": str(operator), "right": {"Literal": literal}}}:
            return _comparison(name, _COMPARISONS.get(operator), literal, schema)
        case {
            "Function": {
                "input": [{"Column": str(name)}, {"Literal": low}, {"Literal": high}],
                "function": {"Boolean": {"IsBetween": {"closed": "Both"}}},
            }
        }:
            ends = [_comparison(name, ">=", low, schema), _comparison(name, "<=", high, schema)]
            return " AND ".join(one for one in ends if one) or None
        case {"Function": {"input": [{"Column": str(name)}], "function": {"Boolean": "IsNull" | "IsNotNull" as test}}}:
            return _test(name, "IS NULL" if test == "IsNull" else "IS NOT NULL", schema)
    return None


def _operands(node: Any, operator: str) -> list[Any]:
    """Return the operands of nested expressions with one operator, in order."""
    found, left = [], [node]
    while left:
        one = left.pop()
        match one:
            case {"BinaryExpr": {"left": first, "op": same, "right": second}} if same == operator:
                left += [second, first]
            case _:
                found.append(one)
    return found


def _test(name: str, test: str, schema: pa.Schema) -> str | None:
    return f"`{name}` {test}" if name in schema.names and "`" not in name else None


def _comparison(name: str, operator: str | None, literal: Any, schema: pa.Schema) -> str | None:
    if operator is None or name not in schema.names or not isinstance(literal, dict):
        return None
    kind = schema.field(name).type
    match literal.get("Scalar"):
        case {**one} if len(one) == 1:
            form, value = next((str(form), value) for form, value in one.items())
        case _:
            return None
    if pa.types.is_integer(kind) and _INTEGERS.fullmatch(form) and isinstance(value, int) and in_range(value, kind):
        return _test(name, f"{operator} {value}", schema)
    if (pa.types.is_string(kind) or pa.types.is_large_string(kind)) and form == "String" and isinstance(value, str):
        quoted = text_literal(value)
        return _test(name, f"{operator} {quoted}", schema) if quoted else None
    return None
