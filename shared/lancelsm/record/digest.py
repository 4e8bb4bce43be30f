"""Digest rows in order, column by column, to compare two streams of rows without holding one of them.

The digest does not depend on how the rows are split into batches. It distinguishes values by their bits, such as 0.0
and -0.0, which Arrow itself takes for equal. The bytes of values are hashed as they lie in memory, which costs a few
percent of decoding them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_128


class RowDigest:
    """The digest of the rows that were added. Two digests of the same schema are equal only if their rows are."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = {field.name: _Column(field.type) for field in schema}

    @classmethod
    def of(cls, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> RowDigest:
        """Return the digest of these rows."""
        digest = cls(schema)
        for _ in digest.passing(batches):
            pass
        return digest

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches unchanged, each after its rows were added."""
        for batch in batches:
            for name, column in self._columns.items():
                column.add(batch.column(name))
            yield batch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowDigest) and self._digests() == other._digests()

    __hash__ = None  # type: ignore[assignment]  # rows may still be added

    def _digests(self) -> dict[str, list[bytes]]:
        return {name: list(column.digests()) for name, column in self._columns.items()}


class _Column:
    """Hashes three sequences of the values of a column: whether each is present, the lengths, and the bytes."""

    def __init__(self, kind: pa.DataType) -> None:
        self._present, self._lengths, self._bytes = xxh3_128(), xxh3_128(), xxh3_128()
        self._parts = [_Column(part) for part in _parts(kind)]

    def add(self, values: pa.Array) -> None:
        if values.null_count:
            self._present.update(_bytes_of(values.is_valid().cast(pa.uint8())))
            values = values.drop_null()
        else:
            self._present.update(b"\1" * len(values))
        kind = values.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            self._lengths.update(_bytes_of(pc.list_value_length(values)))
        if pa.types.is_map(kind):
            self._lengths.update(_bytes_of(pc.subtract(values.offsets[1:], values.offsets[:-1])))
        if self._parts:
            for part, inner in zip(self._parts, _inner(values), strict=True):
                part.add(inner)
        elif pa.types.is_boolean(kind):
            self._bytes.update(_bytes_of(values.cast(pa.uint8())))
        elif not pa.types.is_null(kind) and _is_variable(kind):
            self._lengths.update(_bytes_of(pc.binary_length(values)))
            self._bytes.update(_text_of(values))
        elif not pa.types.is_null(kind):
            self._bytes.update(_bytes_of(values))

    def digests(self) -> Iterator[bytes]:
        yield from (one.digest() for one in (self._present, self._lengths, self._bytes))
        for part in self._parts:
            yield from part.digests()


def _parts(kind: pa.DataType) -> list[pa.DataType]:
    if isinstance(kind, pa.BaseExtensionType):
        return [kind.storage_type]
    if pa.types.is_dictionary(kind):
        return [kind.value_type]
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(number).type for number in range(kind.num_fields)]


def _inner(values: pa.Array) -> list[pa.Array]:
    """Return the values of the parts of these values, none of which is null."""
    if isinstance(values.type, pa.BaseExtensionType):
        return [values.storage]
    if pa.types.is_dictionary(values.type):
        return [values.dictionary_decode()]
    if pa.types.is_map(values.type):
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return [values.keys.slice(first, last - first), values.items.slice(first, last - first)]
    return values.flatten() if pa.types.is_struct(values.type) else [values.flatten()]


def _is_variable(kind: pa.DataType) -> bool:
    return kind in {pa.string(), pa.binary(), pa.large_string(), pa.large_binary()}


def _bytes_of(values: pa.Array) -> memoryview:
    """Return the bytes of values of a fixed width."""
    width = values.type.bit_width // 8
    start = values.offset * width
    return _piece(values.buffers()[1], start, start + len(values) * width)


def _text_of(values: pa.Array) -> memoryview:
    _, offsets, data = values.buffers()
    if not len(values) or data is None:
        return memoryview(b"")
    wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    kind, width = (pa.int64(), 8) if wide else (pa.int32(), 4)
    bounds = pa.Array.from_buffers(kind, len(values) + 1, [None, offsets.slice(values.offset * width)])
    return _piece(data, bounds[0].as_py(), bounds[-1].as_py())


def _piece(buffer: pa.Buffer | None, start: int, end: int) -> memoryview:
    return memoryview(b"") if buffer is None else memoryview(buffer)[start:end]
