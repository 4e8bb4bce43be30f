"""Recognise the forms of rows and keys that callers give: one row or columns, one key or many."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

import pyarrow as pa

from lancelsm.errors import Invalid
from lancelsm.record.admission import MOST_LEVELS

SAME_COLUMNS: Final = "Give each row the same columns; write rows with other columns separately"

_MOST_ROWS = 1 << 31
_COMPARISON = re.compile(
    r"[\s(]*`?(\w+)`?\s*(?:[=<>]|!=|(?:not\s+)?in\s*\(|(?:not\s+)?like\s*'|is\s+(?:not\s+)?null\b)", re.IGNORECASE
)


def is_row(data: Mapping[Any, Any], columns: pa.Schema | None) -> bool:
    """Return whether a mapping is one row, not columns.

    It is a row if no value is a sequence, or if every sequence belongs to a nested column.

    Args:
        columns: of the table; None if they are inferred: then a mapping with a sequence and another value is a row.

    Raises:
        Invalid: it could be both.
    """
    sequences = [name for name, value in data.items() if is_sequence(value)]
    if not sequences:
        return bool(data)
    mixed = len(sequences) < len(data)
    if columns is None:
        return mixed
    known = [columns.field(name).type for name in sequences if name in columns.names]
    if len(known) < len(sequences) or not all(map(pa.types.is_nested, known)):
        return False
    if not mixed:
        raise Invalid(
            f"the dict with {', '.join(map(str, sequences))} could be one row or columns",
            remedy="Give a list of dicts, one per row",
            field=str(sequences[0]),
        )
    return True


def record_row(value: Any) -> Mapping[str, Any] | None:
    """Return an object with named fields as a row: a dataclass, a named tuple, or a model of pydantic; else None."""
    if isinstance(value, type):
        return None
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    to_dict = getattr(value, "model_dump", None) or getattr(value, "_asdict", None)
    return to_dict() if callable(to_dict) else None


def reads_as_condition(key: str, columns: Sequence[str]) -> bool:
    """Return whether text compares a column, as a condition does: other libraries take one where we take keys."""
    found = _COMPARISON.match(key)
    return found is not None and found[1] in columns


def key_rows(keys: Any, names: Sequence[str]) -> Any:
    """Convert keys without column names to columns; return other forms unchanged."""
    if hasattr(keys, "to_frame") or (
        isinstance(keys, pa.Array | pa.ChunkedArray) and not pa.types.is_struct(keys.type)
    ):
        return _one_column(keys, names)
    if hasattr(keys, "__arrow_c_stream__") or hasattr(keys, "__arrow_c_array__") or isinstance(keys, Mapping):
        return keys
    if not is_sequence(keys):
        return _one_column([keys], names)
    if isinstance(keys, tuple) and keys and len(names) > 1 and not any(map(_is_key, keys)):
        keys = [keys]
    values = listed(keys)
    if not values or isinstance(values[0], Mapping):
        return values
    if len(names) == 1:
        return {names[0]: values}
    for row, value in enumerate(values):
        if not isinstance(value, tuple | list) or len(value) != len(names):
            raise Invalid(
                f"key {row} is not one value for each of the columns {', '.join(names)}",
                remedy="Give keys as dicts, or as tuples with the values in this order",
                row=row,
            )
    return {name: [value[at] for value in values] for at, name in enumerate(names)}


def _is_key(value: Any) -> bool:
    return isinstance(value, Mapping | tuple | list)


def is_sequence(value: Any) -> bool:
    """Return whether a value has values: a list, tuple, array, set or iterator. Text, bytes and mappings do not."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping | Enum | type):
        return False
    shape = getattr(value, "shape", None)
    return isinstance(value, Iterable) and shape != ()  # a numpy scalar has an empty shape


def listed(values: Iterable[Any]) -> list[Any]:
    """Return the values as a list; raise `Invalid` if they are more than a call can have, or can't be read."""
    if isinstance(values, Sequence) and len(values) > _MOST_ROWS:
        raise Invalid(f"{len(values)} rows are too many for one call", remedy="Give them in parts")
    try:
        return list(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(
            f"rows can't be read from {type(values).__name__}: {error}",
            remedy="Give a list of dicts, Arrow data, or columns",
        ) from error


def check_nesting(values: Any, field: str) -> None:
    """Raise `Invalid` if Python values are nested more deeply than a table can have: Arrow's inference would crash."""
    level = [values] if _has_objects(values) else []
    for _ in range(MOST_LEVELS + 2):
        inner = (one for outer in level for one in (outer.values() if isinstance(outer, Mapping) else outer))
        level = list({id(one): one for one in inner if _has_objects(one)}.values())
        if not level:
            return
    raise Invalid(
        f"column {field!r} is nested in more than {MOST_LEVELS} levels",
        remedy="Store the value as text, or in several columns",
        field=field,
    )


def _has_objects(value: Any) -> bool:
    """Return whether a value has Python values: a list, tuple or mapping, an array of numpy or a series of pandas."""
    return isinstance(value, list | tuple | Mapping) or getattr(getattr(value, "dtype", None), "kind", "") == "O"


def _one_column(values: Any, names: Sequence[str]) -> Any:
    if len(names) > 1:
        raise Invalid(
            f"a key has the columns {', '.join(names)}",
            remedy="Give keys as dicts, or as tuples with the values in order",
        )
    return {names[0]: values}
