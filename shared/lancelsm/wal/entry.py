"""Encode and decode one WAL entry: an Arrow IPC stream as Lance 14 writes it, with our metadata in its first message.

The first message of the stream is the schema. The rest, the payload, does not depend on the position of the entry. So a
draft is encoded once, and only the schema message is built again for each position that is tried (lance-memwal, "WAL
Entry"). The payload lies in a buffer with free bytes before it, and the first schema message is written there: the rows
are copied once on their way to the object.

Our metadata is in the metadata of the last field, `_tombstone`. So is the version of the table's columns, which belongs
to the rows themselves (`record.schema_history`). A fence has no fields, so its metadata is in the schema
metadata. Lance does not replay rows under schema metadata that it doesn't know, but it ignores unknown field metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa

from lancelsm.common.layout import Epoch, Nonce, Position
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema_history import SCHEMA_VERSION, version_of
from lancelsm.region.head import Summary
from lancelsm.wal.repetition import is_repetitive

_EPOCH = b"writer_epoch"
_FENCE = b"fence_sentinel"
_GENERATION = b"generation"
_OWN_PREFIX = b"lancelsm."
_NONCE = b"lancelsm.nonce"
_ENTRY_SETSUM = b"lancelsm.entry_setsum"
_ROW_SETSUM = b"lancelsm.row_setsum"
_QUEUE = b"lancelsm.queue"
_SEQUENCE = b"lancelsm.sequence"
_TIME = b"lancelsm.time"
_ROWS = b"lancelsm.rows"
_PLAIN_BYTES = b"lancelsm.plain_bytes"

_NARROW = (  # types whose buffers hold bytes, offsets, and numbers of at most 8 bytes
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_temporal,
    pa.types.is_null,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)

_PLAIN = pa.ipc.IpcWriteOptions()  # without them, pyarrow reads the environment for each stream
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_HEADROOM = 4096  # for what our metadata adds to the schema message
_LEAST_RATIO = 4  # of plain to compressed bytes: to read less is not worth its CPU
_OWN_SUM = b"(the sum of the entry goes here)"  # as long as a sum; the sum is that of the entry with this text


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Rows to append. Everything but the schema message is encoded.

    `unused` has the bytes before the payload in its buffer, until an attempt takes them for its schema message. Later
    attempts copy the payload: a store may still hold the body of an earlier one.
    """

    schema: pa.Schema
    payload: bytes | memoryview
    rows: int
    row_setsum: Setsum
    unused: list[memoryview] = field(default_factory=list)
    applied_sequences: Mapping[str, str] = field(default_factory=dict)  # at most one producer and its sequence
    at: float | None = None
    fence: bool = False
    ordered: bool = False  # the rows were compared with the sequences of those that they replace
    plain_bytes: int | None = None  # of the stream without compression; None: it is not compressed


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A draft that is encoded for one position, one epoch and one nonce."""

    nonce: Nonce
    body: bytes | memoryview
    summary: Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An object of the log, decoded. `nonce` is None if Lance's own writer wrote it.

    `at` is the time in Unix seconds, by the clock of the writer, at which the writer got the rows. It is informational:
    no order follows from it.
    """

    key: str
    summary: Summary
    nonce: Nonce | None
    fence: bool
    sound: bool  # the setsum that the entry declares is the setsum of its bytes, without that setsum
    row_setsum: Setsum | None
    at: float | None
    body: bytes
    compressed: bool = False
    lance_generation: int | None = None  # the generation that Lance's own writer flushes the entry into

    def table(self) -> pa.Table:
        """Return the rows as written. Copies only what is not aligned for its type, and for Lance's library.

        Raises `ValueError` if the entry is compressed and damaged: a wrong size could take any memory.
        """
        if self.compressed and not self.sound:
            raise ValueError("its bytes don't have the sum that it declares")
        table = self._read(pa.ipc.Alignment.DataTypeSpecific)
        if any(_is_wide(kind) for kind in table.schema.types):
            table = self._read(pa.ipc.Alignment.At64Byte)
        return pa.Table.from_arrays(table.columns, schema=_without_own_metadata(table.schema))

    def _read(self, alignment: pa.ipc.Alignment) -> pa.Table:
        options = pa.ipc.IpcReadOptions(ensure_alignment=alignment)
        with pa.ipc.open_stream(pa.py_buffer(self.body), options=options) as reader:
            return reader.read_all()


@lru_cache(maxsize=1024)
def _is_wide(kind: pa.DataType) -> bool:
    """Return whether Lance's library wants more than 8 bytes of alignment: it panics on unaligned wide decimals."""
    if isinstance(kind, pa.BaseExtensionType):
        return _is_wide(kind.storage_type)
    if isinstance(kind, pa.DictionaryType):
        return _is_wide(kind.value_type)
    if kind.num_fields:
        return any(_is_wide(kind.field(number).type) for number in range(kind.num_fields))
    return not any(is_kind(kind) for is_kind in _NARROW)


def draft(
    rows: pa.Table,
    *,
    applied_sequences: Mapping[str, str] | None = None,
    at: float | None = None,
    sum_of_rows: Setsum | None = None,
    ordered: bool = False,
) -> Draft:
    """Encode rows in stored form (see `record.normalize`) for an entry. Chunks are kept as they are.

    Args:
        applied_sequences: the producer that the rows came from, and their highest sequence in it.
        at: the current time in Unix seconds; needed for a producer, and a change stream can start at a time.
        sum_of_rows: `row_setsum(rows)`, if the caller knows it: the sum takes longer than all the rest.
        ordered: the rows were compared with the sequences of those that they replace.
    """
    plain = rows.replace_schema_metadata(None)
    size = pa.MockOutputStream()
    _write(plain, size)
    compressed = _compressed(plain, most=size.size() // _LEAST_RATIO) if is_repetitive(plain) else None
    length = size.size() if compressed is None else len(compressed)
    buffer = memoryview(pa.allocate_buffer(_HEADROOM + length)).cast("B")
    stream = buffer[_HEADROOM:]
    if compressed is None:
        _write(plain, pa.FixedSizeBufferWriter(pa.py_buffer(stream)))
    else:
        stream[:] = compressed
    begin = _HEADROOM + _schema_message_size(stream)
    return Draft(
        schema=plain.schema,
        payload=buffer[begin:].toreadonly(),
        unused=[buffer],
        rows=rows.num_rows,
        row_setsum=row_setsum(rows) if sum_of_rows is None else sum_of_rows,
        applied_sequences=dict(applied_sequences or {}),
        at=at,
        ordered=ordered,
        plain_bytes=None if compressed is None else size.size(),
    )


def fence() -> Draft:
    """Return the draft of a fence, which a claim appends: no fields, no rows.

    Its form never changes. A claim replaces objects that it can't decode, so each release must decode the fences of
    every other release (tests/model/claim.py).
    """
    return Draft(schema=pa.schema([]), payload=_END_OF_STREAM, rows=0, row_setsum=Setsum(), fence=True)


def encode(draft: Draft, *, position: Position, epoch: Epoch, nonce: Nonce) -> Encoded:
    """Encode a draft for a position.

    The entry has no generation number, like the entries of Lance before version 14. A flush of ours may end at any
    entry, and writers may hold a head from before a flush. But Lance skips entries whose generation number is below the
    next one of the manifest, and refuses a log in which the number decreases.

    Args:
        nonce: must be new for each position and epoch at which the draft is tried.
    """
    lance_metadata = {_EPOCH: str(epoch)}
    own_metadata = {
        _NONCE: nonce,
        _ENTRY_SETSUM: _OWN_SUM.decode(),
        _ROW_SETSUM: draft.row_setsum.hex(),
    }
    if draft.fence:
        lance_metadata[_FENCE] = "true"
    if draft.at is not None:
        own_metadata[_TIME] = f"{draft.at:.3f}"
    if draft.plain_bytes is not None:
        own_metadata |= {_ROWS: str(draft.rows), _PLAIN_BYTES: str(draft.plain_bytes)}
    for queue, sequence in draft.applied_sequences.items():
        own_metadata |= {_QUEUE: queue, _SEQUENCE: sequence}
    message = _with_metadata(draft.schema, lance_metadata=lance_metadata, own_metadata=own_metadata).serialize()
    entry_setsum = _entry_setsum(position, epoch, memoryview(message), draft.payload)
    body = _behind(message.to_pybytes().replace(_OWN_SUM, entry_setsum.hex().encode()), draft)
    summary = Summary(
        position=position,
        epoch=epoch,
        rows=draft.rows,
        bytes=len(body) if draft.plain_bytes is None else draft.plain_bytes,
        entry_setsum=entry_setsum,
        applied_sequences=draft.applied_sequences,
        at=None if draft.at is None else float(own_metadata[_TIME]),
        schema_version=version_of(draft.schema),
    )
    return Encoded(nonce=nonce, body=body, summary=summary)


def decode(body: bytes, *, position: Position, key: str) -> Entry:
    """Decode an entry that lancelsm or Lance's own writer wrote.

    This does not prove that the entry was committed: only the sums of the head and a head that is read later do.

    Raises:
        Corrupt: the bytes are not a WAL entry.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            metadata = _metadata(reader.schema)
            schema_version, compressed = version_of(reader.schema), _PLAIN_BYTES in metadata
            rows = int(metadata[_ROWS]) if compressed else sum(batch.num_rows for batch in reader)
        epoch = Epoch(int(metadata[_EPOCH]))
        at = float(metadata[_TIME]) if _TIME in metadata else None
        declared = metadata.get(_ENTRY_SETSUM)
        begin = _schema_message_size(memoryview(body))
        message, payload = bytes(memoryview(body)[:begin]), memoryview(body)[begin:]
        if declared is not None and len(declared) == len(_OWN_SUM):
            message = message.replace(declared, _OWN_SUM)
        entry_setsum = _entry_setsum(position, epoch, message, payload)
        summed = metadata.get(_ROW_SETSUM)
        return Entry(
            key=key,
            summary=Summary(
                position=position,
                epoch=epoch,
                rows=rows,
                bytes=int(metadata[_PLAIN_BYTES]) if compressed else len(body),
                entry_setsum=entry_setsum,
                applied_sequences={metadata[_QUEUE].decode(): metadata[_SEQUENCE].decode()}
                if _QUEUE in metadata
                else {},
                at=at,
                schema_version=schema_version,
            ),
            nonce=Nonce(metadata[_NONCE].decode()) if _NONCE in metadata else None,
            fence=metadata.get(_FENCE) == b"true",
            sound=declared is not None and declared.decode() == entry_setsum.hex(),
            row_setsum=Setsum.from_hex(summed.decode()) if summed else None,
            at=at,
            body=body,
            compressed=compressed,
            lance_generation=int(metadata[_GENERATION]) if _GENERATION in metadata else None,
        )
    except (pa.ArrowException, KeyError, ValueError, OverflowError, OSError, struct.error, Corrupt) as error:
        raise Corrupt(f"not a WAL entry: {error}", position=position, object=key) from error


def _write(rows: pa.Table, sink: pa.NativeFile, options: pa.ipc.IpcWriteOptions = _PLAIN) -> None:
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)


def _compressed(rows: pa.Table, *, most: int) -> memoryview | None:
    """Return the compressed stream; None if it has more than this number of bytes."""
    sink = pa.BufferOutputStream()
    _write(rows, sink, _COMPRESSED)
    stream = sink.getvalue()
    return memoryview(stream).cast("B") if stream.size <= most else None


def _behind(message: bytes, draft: Draft) -> bytes | memoryview:
    """Return the schema message and the payload of a draft: in the buffer of the payload if it is free, else copied."""
    if draft.unused:
        buffer = draft.unused.pop()
        end = len(buffer) - len(draft.payload)
        begin = end - len(message)
        if begin >= 0:
            buffer[begin:end] = message
            return buffer[begin:].toreadonly()
    return b"".join((message, draft.payload))


def _with_metadata(
    schema: pa.Schema, *, lance_metadata: Mapping[bytes, str], own_metadata: Mapping[bytes, str]
) -> pa.Schema:
    if not schema.names:
        return schema.with_metadata({**lance_metadata, **own_metadata})
    last = len(schema) - 1
    field = schema.field(last)
    return schema.set(last, field.with_metadata({**(field.metadata or {}), **own_metadata})).with_metadata(
        lance_metadata
    )


def _metadata(schema: pa.Schema) -> Mapping[bytes, bytes]:
    """Return the metadata of Lance and of lancelsm together."""
    last = schema.field(len(schema) - 1).metadata if schema.names else None
    return {**(schema.metadata or {}), **(last or {})}


def _without_own_metadata(schema: pa.Schema) -> pa.Schema:
    """Remove the metadata of the entry: return the schema of the draft."""
    if not schema.names:
        return schema.remove_metadata()
    last = len(schema) - 1
    field = schema.field(last)
    kept = {
        name: value
        for name, value in (field.metadata or {}).items()
        if name == SCHEMA_VERSION or not name.startswith(_OWN_PREFIX)
    }
    return schema.set(last, field.with_metadata(kept)).remove_metadata()


def _entry_setsum(position: Position, epoch: Epoch, *body: bytes | memoryview) -> Setsum:
    return Setsum.of_item(position.to_bytes(8, "big"), epoch.to_bytes(8, "big"), *body)


def _schema_message_size(stream: memoryview) -> int:
    """Return the length of the first message of an IPC stream: a marker, a length, and a flatbuffer without a body."""
    marker, size = struct.unpack_from("<Ii", stream)
    if marker != 0xFFFFFFFF or size <= 0:
        raise ValueError("no schema message")
    return 8 + int(size)
