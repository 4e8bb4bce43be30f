"""Encode rows for a function: as JSON objects, or as one Arrow stream.

Dicts are sent as JSON, which the function reads with the table's types. Arrow data (pyarrow, polars, pandas) is sent as
a zstd-compressed stream; only this needs pyarrow. Values that JSON lacks are text, in the form of `record.json_lines`.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, Literal

from lancelsm.common.arrow_input import read_whole
from lancelsm.errors import Invalid

Op = Literal["upsert", "delete"]
LARGE_BYTES: Final = 512 << 10  # a larger row may not fit a message of the queue, even when compressed
_FIELD = {"upsert": "upserts", "delete": "deletes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRows:
    """Rows for one operation, in the order given.

    Attributes:
        parts: the JSON text of each row, or Arrow tables with one schema.
        bytes: the size of the UTF-8 text, or of the columns in memory.
    """

    op: Op
    parts: Sequence[Any]
    rows: int
    bytes: int

    @property
    def is_arrow(self) -> bool:
        return not isinstance(self.parts[0], str)

    @property
    def is_large(self) -> bool:
        return self.rows == 1 and self.bytes > LARGE_BYTES

    def can_join(self, other: EncodedRows) -> bool:
        """Return whether one request can hold both."""
        if (self.op, self.is_arrow) != (other.op, other.is_arrow) or self.is_large or other.is_large:
            return False
        return not self.is_arrow or bool(self.parts[0].schema.equals(other.parts[0].schema))

    def join(self, other: EncodedRows) -> EncodedRows:
        return EncodedRows(
            op=self.op,
            parts=[*self.parts, *other.parts],
            rows=self.rows + other.rows,
            bytes=self.bytes + other.bytes,
        )


def encode_rows(data: Any, *, op: Op, limit: int) -> Iterator[EncodedRows]:
    """Encode rows in pieces of at most `limit` bytes. A larger row becomes a piece of its own.

    Args:
        data: Arrow data or dicts; for a delete, only the key columns.

    Raises:
        Invalid: `data` is not rows, or a value can't be encoded as JSON; names row and column. Raised before the first
            piece.
    """
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return _slices(_table(data), op=op, limit=limit)
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):
        raise Invalid(f"rows can't be read from {type(data).__name__}", remedy="Give one dict per row, or Arrow data")
    texts = [_text(row, number) for number, row in enumerate(data)]
    return _runs(texts, op=op, limit=limit)


def event(table: str, *pieces: EncodedRows, **more: object) -> bytes:
    """Encode the event that carries rows to `ingest` or `writer_flush`."""
    head = json.dumps({"table": table, **more}, ensure_ascii=False)[:-1]
    fields = []
    for rows in pieces:
        if rows.is_arrow:
            fields.append(f'"op": "{rows.op}", "arrow": "{base64.b64encode(stream(rows)).decode()}"')
        else:
            fields.append(f'"{_FIELD[rows.op]}": [{", ".join(rows.parts)}]')
    return f"{', '.join([head, *fields])}}}".encode()


def stream(rows: EncodedRows) -> bytes:
    """Encode Arrow rows as one compressed IPC stream."""
    import pyarrow as pa  # noqa: PLC0415 - an app without pyarrow sends dicts

    table = pa.concat_tables(rows.parts)
    with suppress(pa.ArrowInvalid):  # one dictionary of a narrow index may not have room for the values of all parts
        table = table.combine_chunks()  # many small batches would hardly compress
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _table(data: Any) -> Any:
    try:
        import pyarrow as pa  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise Invalid("pyarrow is not installed", remedy="Install it, or give rows as dicts") from error
    try:
        table = read_whole(data)
        # Arrow can't write an empty chunk that was imported with an offset.
        return pa.Table.from_batches([batch for batch in table.to_batches() if batch.num_rows], table.schema)
    # The producer of the stream chooses the exception, e.g. NotImplementedError for a type that it can't export.
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError) as error:
        reason = ". ".join(map(str, error.args))
        raise Invalid(
            f"{type(data).__name__} can't be read as Arrow: {reason}",
            remedy="Give Arrow data, columns, or rows as dicts",
        ) from error


def _slices(table: Any, *, op: Op, limit: int) -> Iterator[EncodedRows]:
    if not table.num_rows:
        return
    if table.nbytes <= limit or table.num_rows == 1:
        yield EncodedRows(op=op, parts=[table], rows=table.num_rows, bytes=table.nbytes)
        return
    step = min(max(1, table.num_rows * limit // table.nbytes), table.num_rows - 1)
    for start in range(0, table.num_rows, step):
        yield from _slices(table.slice(start, step), op=op, limit=limit)


def _runs(texts: list[tuple[str, int]], *, op: Op, limit: int) -> Iterator[EncodedRows]:
    run: list[str] = []
    size = 0
    for text, length in texts:
        if run and size + length > limit:
            yield EncodedRows(op=op, parts=run, rows=len(run), bytes=size)
            run, size = [], 0
        run.append(text)
        size += length
    if run:
        yield EncodedRows(op=op, parts=run, rows=len(run), bytes=size)


def _text(row: object, number: int) -> tuple[str, int]:
    """Return a row's JSON and its length in bytes."""
    if not isinstance(row, Mapping):
        raise Invalid(
            f"row {number} is a {type(row).__name__}, not a dict", remedy="Give every row as a dict", row=number
        )
    name: object = None
    given = {}
    try:
        for name, value in row.items():
            given[str(name)] = to_json_value(value)
        text = json.dumps(given, ensure_ascii=False)
        return text, len(text.encode()) + 2  # 2: the separator to the next row
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(
            f"column {name!r} of row {number} can't be encoded as JSON: {error}",
            remedy="Give values that JSON has, or Arrow data",
            row=number,
            field=name,
        ) from error


def to_json_value(value: Any) -> Any:
    """Convert a value to one that JSON has. Raises `TypeError` if this is not possible."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Enum):
        return to_json_value(value.value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"the key {wrong[0]!r} is not text")
        return {key: to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(inner) for inner in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if type(value).__name__ in ("NAType", "NaTType"):  # pandas has no value; NaT is a datetime by its class
        return None
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID | PurePath):
        return str(value)
    if type(value).__name__ == "datetime64":
        text = str(value)  # ISO 8601, to the last digit
        return None if text == "NaT" else text.rstrip("0").rstrip(".") if "." in text else text
    # A scalar of numpy. But a `timedelta64` may be a number in any unit.
    if callable(getattr(value, "item", None)) and not getattr(value, "shape", ()) and value.dtype.kind not in "mM":
        return to_json_value(value.item())
    raise TypeError(f"{type(value).__name__} is not supported; give text, a number, or Arrow data")


def to_list(vector: Any) -> Any:
    """Return the numbers of an array of numpy, pyarrow, torch or polars, or of a list of arrays, as lists."""
    if isinstance(vector, list | tuple):
        return [to_list(one) for one in vector]
    for name in ("to_pylist", "tolist", "to_list"):
        if callable(convert := getattr(vector, name, None)):
            return convert()
    return vector
