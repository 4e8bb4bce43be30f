"""Encode and decode messages of the write queue: rows of one region in stored form, as text. Pure functions.

{"format", "table": uri, "region": id, "values": [[field id, hex or null]], "producer", "sequence", "rows": base64 of a
zstd Arrow IPC stream}; or instead of "rows" an "object": the key of such a stream in the inbox. Optional: "request",
the id of the call of `ingest` that sent the rows. Releases that do not know it ignore it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import RegionId, RegionValues, TableId
from lancelsm.errors import Invalid, Unavailable
from lancelsm.objects.keys import check_key

FORMAT = 1
BYTES_MAX = 1 << 20  # the limit for a message, and for all messages of one call together
SPARE = 16 << 10  # reserved for the id of the request, and for what a dead letter adds to the same rows
_REQUEST_LENGTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The content of one message.

    Exactly one of `rows` (a stream of `packed`) and `object` (its key in the inbox) is set. `request` is only for logs.
    """

    table: str
    region: RegionId
    values: RegionValues
    producer: str
    sequence: int
    rows: bytes | None = None
    object: str | None = None
    request: str = ""


def encode(message: Message) -> str:
    document: dict[str, Any] = {
        "format": FORMAT,
        "table": message.table,
        "region": message.region,
        "values": [[name, None if value is None else value.hex()] for name, value in message.values],
        "producer": message.producer,
        "sequence": message.sequence,
    }
    if message.rows is not None:
        document["rows"] = base64.b64encode(message.rows).decode()
    else:
        document["object"] = message.object
    if message.request:
        document["request"] = message.request
    return json.dumps(document, separators=(",", ":"))


def decode(text: str) -> Message:
    """Decode a message.

    Raises:
        Invalid: the text is not a message; no release can read it.
        Unavailable: a newer release wrote it; the message waits for that release.
    """
    document = read_document(text, what="message", newest=FORMAT)
    try:
        packed_rows, key = document.get("rows"), document.get("object")
        if (packed_rows is None) == (key is None):
            raise ValueError("needs either rows or object")
        message = Message(
            table=_text(document["table"]),
            region=RegionId(_text(document["region"])),
            values=tuple((_text(name), None if value is None else bytes.fromhex(value))
                         for name, value in document["values"]),
            producer=_text(document["producer"]),
            sequence=int(document["sequence"]),
            rows=None if packed_rows is None else base64.b64decode(packed_rows, validate=True),
            object=None if key is None else check_key(_text(key)),
            request=_request(document.get("request")),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"the message can't be read: {error!r:.200}") from error
    return message


def read_document(text: str, *, what: str, newest: int) -> dict[str, Any]:
    """Decode a JSON object with a format that this release knows. Raises the same errors as `decode`."""
    try:
        document = parse_json(text)
        version = document["format"]
        if not isinstance(version, int) or isinstance(version, bool):
            raise TypeError("format is not a number")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"the {what} can't be read: {type(error).__name__}") from error
    if version > newest:
        raise Unavailable(
            f"the {what} has format {version}, this release reads up to {newest}",
            remedy="Deploy the release that sent it, or a newer one",
        )
    found: dict[str, Any] = document
    return found


def packed(rows: pa.Table) -> bytes:
    """Encode rows as a zstd-compressed Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(memoryview(sink.getvalue()))


def unpacked(stream: bytes) -> pa.Table:
    """Decode an Arrow IPC stream, also one that `packed` did not write. Raises `Invalid` if it is not such a stream."""
    aligned = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)
    try:
        with pa.ipc.open_stream(pa.py_buffer(stream), options=aligned) as reader:
            table: pa.Table = reader.read_all()
            table.validate()
            table.schema.names  # noqa: B018 - raises if a name is not valid text
            if table.num_rows and not table.num_columns:
                raise ValueError("rows without columns")
            return table
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise Invalid(f"the rows are not an Arrow IPC stream: {reason:.200}") from error


def split(rows: pa.Table, *, frame: Message) -> Iterator[tuple[pa.Table, bytes]]:
    """Split rows, in order, into parts that each fit one message. The same rows always give the same parts.

    Args:
        frame: the other fields of the messages.

    Yields:
        The rows of a part, and the same rows `packed`. A part does not fit only if it is a single row that is too big.
    """
    stream = packed(rows)
    if rows.num_rows > 1 and not fits(frame, stream):
        half = rows.num_rows // 2
        yield from split(rows.slice(0, half), frame=frame)
        yield from split(rows.slice(half), frame=frame)
    else:
        yield rows, stream


def fits(frame: Message, stream: bytes) -> bool:
    """Return whether a message with these rows is small enough for the queue and for the dead-letter queue."""
    around = len(encode(Message(table=frame.table, region=frame.region, values=frame.values, producer=frame.producer,
                                sequence=frame.sequence, rows=b"")))  # fmt: skip
    return around + 4 * -(-len(stream) // 3) <= BYTES_MAX - SPARE


def group_id(table: TableId, region: RegionId) -> str:
    """Return the message group: messages of one region stay in order."""
    return f"{table}#{region}"


def dedup_id(*, producer: str, sequence: int, region: RegionId, rows: range) -> str:
    """Return an id that is the same for every attempt to send the same rows, and different for other rows.

    `rows` are the indexes of the rows in the region's part of a request.
    """
    return digest((producer, str(sequence), region, str(rows.start), str(rows.stop)))


def digest(parts: Iterable[str]) -> str:
    """Return 64 hexadecimal digits that identify a sequence of texts."""
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()


def _request(value: object) -> str:
    """Return the id of a request; no message is refused because of it, since only logs have it."""
    return value if isinstance(value, str) and len(value) <= _REQUEST_LENGTH else ""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of text")
    return value
