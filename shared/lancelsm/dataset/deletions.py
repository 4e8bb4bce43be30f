"""Deletion files: the one of a fragment that has lost every row, written; and those that Lance wrote, looked at.

Spec: the Roaring format, "cookie with runs"; Lance stores such a bitmap as `_deletions/{fragment}-{version}-{id}.bin`.
Few rows it stores as `.arrow`, a column of offsets in Arrow's file format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

_RUN_COOKIE = 12347
_CHUNK = 1 << 16
_OFFSETS_FROM = 4  # fewer containers carry no offsets
_TRAILER = 10  # of an Arrow file: length of the footer, magic
_PADDING = 128
_ABSURD = 1 << 63


def every_row(rows: int) -> bytes:
    """The bitmap of 0 .. rows - 1, one run in each container of 65,536."""
    if not 0 < rows <= 1 << 32:
        raise ValueError(f"a fragment has 1 to 2^32 rows, not {rows}")
    sizes = [min(_CHUNK, rows - start) for start in range(0, rows, _CHUNK)]
    count = len(sizes)
    head = struct.pack("<HH", _RUN_COOKIE, count - 1)
    head += ((1 << count) - 1).to_bytes((count + 7) // 8, "little")  # every container holds runs
    head += b"".join(struct.pack("<HH", number, size - 1) for number, size in enumerate(sizes))
    runs = [struct.pack("<HHH", 1, 0, size - 1) for size in sizes]  # one run: from 0, its length less one
    if count >= _OFFSETS_FROM:
        first = len(head) + 4 * count
        head += b"".join(struct.pack("<I", first + number * len(run)) for number, run in enumerate(runs))
    return head + b"".join(runs)


def arrow_problem(body: bytes, *, rows: int, hidden: int) -> str:
    """What is wrong with a deletion file in Arrow's file format; empty if nothing is.

    Args:
        rows: of the fragment, hidden ones counted.
        hidden: how many the version says that the file hides.
    """
    try:
        found = pa.ipc.open_file(pa.py_buffer(body)).read_all()
        found.validate(full=True)
        if any(size > 8 * found.num_rows + _PADDING for size in _sizes(body)):
            return "it asks for more memory than its rows need"
    except (OSError, ValueError, struct.error, pa.ArrowException) as error:
        return f"it can't be read: {error}"
    if [field.type for field in found.schema] != [pa.uint32()]:
        return f"it holds {[str(field.type) for field in found.schema]}, not the offsets of rows"
    offsets = pc.unique(found.column(0))
    if offsets.null_count or len(offsets) != hidden:
        return f"it hides {len(offsets) - offsets.null_count} rows, the version says {hidden}"
    last = pc.max(offsets).as_py()
    return f"it hides row {last}, there are {rows}" if last is not None and last >= rows else ""


def _sizes(body: bytes) -> Iterator[int]:
    """How much memory an Arrow file asks for: bytes of each batch, and of each compressed buffer in it.

    pyarrow passes over what it does not need: the sizes in the footer, and the bitmap of nulls where there are none.
    The places are those of Arrow's flatbuffers, `Footer`, `Message` and `RecordBatch`.
    """
    (length,) = struct.unpack_from("<i", body, len(body) - _TRAILER)
    footer = body[len(body) - _TRAILER - length : len(body) - _TRAILER]
    for start, head, size in _structs(footer, _follow(footer, 0), 3, "<qi4xq"):
        if min(start, head, size) < 0 or start + head + size > len(body):
            yield _ABSURD
            return
        message = body[start + 8 : start + head]
        batch = _follow(message, _field(message, _follow(message, 0), 2))
        if _field(message, batch, 3):
            for at, stored in _structs(message, batch, 2, "<qq"):
                if stored:
                    yield _unpacked(body, start + head + at)


def _unpacked(body: bytes, at: int) -> int:
    (size,) = struct.unpack_from("<q", body, at)
    return int(size) if size >= -1 else _ABSURD  # -1: it is stored as it is


def _structs(data: bytes, table: int, number: int, form: str) -> Iterator[tuple[int, ...]]:
    """The structs of a flatbuffer's vector in a field of a table."""
    if field := _field(data, table, number):
        vector = _follow(data, field)
        (count,) = struct.unpack_from("<I", data, vector)
        for one in range(count):
            yield struct.unpack_from(form, data, vector + 4 + one * struct.calcsize(form))


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table is; 0 if the table lacks it."""
    (back,) = struct.unpack_from("<i", data, table)
    (size,) = struct.unpack_from("<H", data, table - back)
    place = 4 + 2 * number
    at = int(struct.unpack_from("<H", data, table - back + place)[0]) if place < size else 0
    return table + at if at else 0


def _follow(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])
