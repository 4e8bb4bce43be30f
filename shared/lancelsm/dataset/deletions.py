"""Encode the deletion file of a fragment without live rows; decode and check deletion files that Lance wrote.

Lance stores many deleted rows as a Roaring bitmap, `_deletions/{fragment}-{version}-{id}.bin`, and few as `.arrow`, a
column of offsets in Arrow's file format. Spec: the Roaring format, "cookie with runs".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_RUN_COOKIE = 12347
_PLAIN_COOKIE = 12346  # no container has runs
_ARRAY_MAX = 4096  # a container with more offsets is a bitmap
_BITMAP_BYTES = 8192
_CHUNK = 1 << 16
_OFFSETS_FROM = 4  # a bitmap with fewer containers has no offsets
_TRAILER = 10  # size at the end of an Arrow file: footer length, magic
_PADDING = 128
_ABSURD = 1 << 63


def every_row(rows: int) -> bytes:
    """Encode the bitmap of 0 to rows - 1, with one run in each container of 65,536."""
    if not 0 < rows <= 1 << 32:
        raise ValueError(f"a fragment has 1 to 2^32 rows, not {rows}")
    sizes = [min(_CHUNK, rows - start) for start in range(0, rows, _CHUNK)]
    count = len(sizes)
    head = struct.pack("<HH", _RUN_COOKIE, count - 1)
    head += ((1 << count) - 1).to_bytes((count + 7) // 8, "little")  # every container holds runs
    head += b"".join(struct.pack("<HH", number, size - 1) for number, size in enumerate(sizes))
    runs = [struct.pack("<HHH", 1, 0, size - 1) for size in sizes]  # one run: starts at 0, length - 1
    if count >= _OFFSETS_FROM:
        first = len(head) + 4 * count
        head += b"".join(struct.pack("<I", first + number * len(run)) for number, run in enumerate(runs))
    return head + b"".join(runs)


def hidden_rows(body: bytes, *, arrow: bool) -> npt.NDArray[np.uint32]:
    """Decode a deletion file, independently of Lance. Return the offsets of the hidden rows in ascending order.

    Args:
        arrow: whether the file has Arrow's format; else it is a Roaring bitmap.

    Raises:
        ValueError: it is not a deletion file.
    """
    try:
        if arrow:
            offsets: npt.NDArray[np.uint32] = pa.ipc.open_file(pa.py_buffer(body)).read_all().column(0).to_numpy()
            return np.sort(offsets)
        return np.concatenate([np.empty(0, np.uint32), *_containers(body)])
    except (OSError, ValueError, IndexError, struct.error, pa.ArrowException) as error:
        raise ValueError(f"not a deletion file: {error}") from error


def _containers(body: bytes) -> Iterator[npt.NDArray[np.uint32]]:
    """Yield the offsets in each container of a Roaring bitmap."""
    cookie, above = struct.unpack_from("<HH", body)
    with_runs = cookie == _RUN_COOKIE
    if not with_runs and (cookie, above) != (_PLAIN_COOKIE, 0):
        raise ValueError(f"a Roaring bitmap does not begin with {cookie}")
    count = above + 1 if with_runs else struct.unpack_from("<I", body, 4)[0]
    flags = int.from_bytes(body[4 : 4 + (count + 7) // 8], "little") if with_runs else 0
    at = 4 + (count + 7) // 8 if with_runs else 8
    heads = np.frombuffer(body, "<u2", 2 * count, at).reshape(count, 2)
    at += 4 * count + (4 * count if not with_runs or count >= _OFFSETS_FROM else 0)
    for number, (key, last) in enumerate(heads.tolist()):
        if flags >> number & 1:
            (runs,) = struct.unpack_from("<H", body, at)
            spans = np.frombuffer(body, "<u2", 2 * runs, at + 2).reshape(runs, 2).tolist()
            low = np.concatenate([np.arange(start, start + length + 1) for start, length in spans])
            at += 2 + 4 * runs
        elif last < _ARRAY_MAX:
            low = np.frombuffer(body, "<u2", last + 1, at)
            at += 2 * (last + 1)
        else:
            bits = np.frombuffer(body, np.uint8, _BITMAP_BYTES, at)
            low = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
            at += _BITMAP_BYTES
        if len(low) != last + 1:
            raise ValueError(f"a container of a Roaring bitmap has {len(low)} offsets, not {last + 1}")
        yield low.astype(np.uint32) + np.uint32(key * _CHUNK)
    if at != len(body):
        raise ValueError(f"a Roaring bitmap has {len(body)} bytes, not {at}")


def arrow_problem(body: bytes, *, rows: int, hidden: int) -> str:
    """Check a deletion file in Arrow's file format. Return the problem, or an empty string.

    Args:
        rows: number of rows in the fragment, hidden rows included.
        hidden: number of hidden rows that the version of the base records.
    """
    try:
        found = pa.ipc.open_file(pa.py_buffer(body)).read_all()
        found.validate(full=True)
        if any(size > 8 * found.num_rows + _PADDING for size in _sizes(body)):
            return "it declares more memory than its rows need"
    except (OSError, ValueError, struct.error, pa.ArrowException) as error:
        return f"it can't be read: {error}"
    if [field.type for field in found.schema] != [pa.uint32()]:
        return f"it holds {[str(field.type) for field in found.schema]}, not the offsets of rows"
    offsets = pc.unique(found.column(0))
    if offsets.null_count or len(offsets) != hidden:
        return f"it hides {len(offsets) - offsets.null_count} rows, but the version records {hidden}"
    last = pc.max(offsets).as_py()
    return f"it hides row {last}, but there are only {rows} rows" if last is not None and last >= rows else ""


def _sizes(body: bytes) -> Iterator[int]:
    """Yield the sizes of memory that an Arrow file declares: of each batch, and of each compressed buffer in it.

    pyarrow does not check every size: it skips those in the footer, and the null bitmap if there are no nulls. Field
    numbers are those of Arrow's flatbuffers `Footer`, `Message` and `RecordBatch`.
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
    return int(size) if size >= -1 else _ABSURD  # -1: not compressed


def _structs(data: bytes, table: int, number: int, form: str) -> Iterator[tuple[int, ...]]:
    """Decode a vector of structs in a field of a flatbuffer table."""
    if field := _field(data, table, number):
        vector = _follow(data, field)
        (count,) = struct.unpack_from("<I", data, vector)
        for one in range(count):
            yield struct.unpack_from(form, data, vector + 4 + one * struct.calcsize(form))


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field of a flatbuffer table; 0 if the table lacks it."""
    (back,) = struct.unpack_from("<i", data, table)
    (size,) = struct.unpack_from("<H", data, table - back)
    slot = 4 + 2 * number
    at = int(struct.unpack_from("<H", data, table - back + slot)[0]) if slot < size else 0
    return table + at if at else 0


def _follow(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])
