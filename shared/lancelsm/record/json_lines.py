"""Convert rows to JSON, the inverse of `values.json_column`: the JSON is read back as the same rows.

Values that JSON lacks are text: dates, times and timestamps in ISO 8601 (timestamps with a time zone in UTC), decimals,
binary in base64, and "NaN", "Infinity", "-Infinity". Structs are objects and lists are arrays. A map is an object if
its keys are text and differ, else an array of pairs. A duration is a number in its unit. All is read back as it was,
except for the payload of a NaN.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.record.casts import kind_of, storage_type
from lancelsm.record.iso import texts

_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def json_lines(rows: pa.RecordBatch | pa.Table) -> Iterator[str]:
    """Yield one JSON object per row, without line ends."""
    return map(_encode, json_objects(rows))


def json_objects(rows: pa.RecordBatch | pa.Table) -> Iterator[dict[str, Any]]:
    """Yield one dict per row, with values that JSON can represent."""
    names = rows.schema.names
    columns = [json_values(column) for column in rows.columns]
    if not columns:
        return iter([{} for _ in range(rows.num_rows)])
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def json_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Convert the values of a column to JSON values; None is null."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in json_values(chunk)]
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return json_values(column.storage)
    if pa.types.is_dictionary(kind):
        return json_values(column.dictionary_decode())
    if pa.types.is_struct(kind):
        return _structs(column)
    if pa.types.is_map(kind):
        return _maps(column)
    if hasattr(kind, "value_field"):
        return _lists(column)
    return _flat(column)


def _flat(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return list(texts(column).to_pylist())
    if pa.types.is_time(kind) or pa.types.is_decimal(kind):
        return list(column.cast(pa.string()).to_pylist())
    if pa.types.is_duration(kind):
        return list(column.cast(pa.int64()).to_pylist())
    if pa.types.is_floating(kind):
        numbers = (column.cast(pa.float32()) if pa.types.is_float16(kind) else column).to_pylist()
        if pc.all(pc.is_finite(column)).as_py() is False:
            return [number if number is None else _NOT_FINITE.get(str(number), number) for number in numbers]
        return list(numbers)
    values = column.to_pylist()
    return (
        [base64.b64encode(v).decode() if isinstance(v, bytes) else v for v in values]
        if kind_of(kind) == "binary"
        else values
    )


def _structs(column: pa.StructArray) -> list[Any]:
    names = [child.name for child in column.type]
    children = [json_values(child) for child in column.flatten()]
    rows = zip(*children, strict=True) if children else ((),) * len(column)
    valid = column.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if present else None for present, row in zip(valid, rows, strict=True)]


def _maps(column: pa.MapArray) -> list[Any]:
    column = column.take(pa.arange(0, len(column)))  # copy: a slice still contains the items of all rows
    pairs = zip(json_values(column.keys), json_values(column.items), strict=True)
    key = storage_type(column.type.key_type)
    build = _object if pa.types.is_string(key) or pa.types.is_large_string(key) else list
    ranges = zip(column.is_valid().to_pylist(), pairwise(column.offsets.to_pylist()), strict=True)
    return [build(list(islice(pairs, end - start))) if present else None for present, (start, end) in ranges]


def _object(pairs: list[tuple[Any, Any]]) -> Any:
    found = dict(pairs)
    return found if len(found) == len(pairs) else pairs


def _lists(column: pa.Array) -> list[Any]:
    items = iter(json_values(column.flatten()))
    sizes = pc.list_value_length(column).to_pylist()
    return [None if size is None else list(islice(items, size)) for size in sizes]
