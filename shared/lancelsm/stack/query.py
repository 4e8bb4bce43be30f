"""Return rows as one JSON answer, or by reference: as an object behind a link, of JSON lines or an Arrow file.

Rows are processed as they arrive: memory holds at most one answer, and the object is written in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from itertools import chain
from typing import Any

import pyarrow as pa

from lancelsm.common import aws
from lancelsm.errors import Invalid, error_context
from lancelsm.read.result import Rows
from lancelsm.record.files import json_keys
from lancelsm.record.json_lines import json_lines, json_objects
from lancelsm.table import Table

ANSWER_BYTES = 5 << 20  # Lambda limits an answer to 6 MB
JSON_LINES, ARROW_FILE = "application/x-ndjson", "application/vnd.apache.arrow.file"
_LINK_SECONDS = 3600
_PART_BYTES = 8 << 20

Document = dict[str, Any]
Keep = Callable[[Iterator[bytes]], str]


def answer(batches: Iterable[pa.RecordBatch | pa.Table], *, keep: Keep, bytes_max: int = ANSWER_BYTES) -> Document:
    """Return {"rows": [...]} if it is small enough, else {"url", "rows": the number of rows, "bytes"}.

    Args:
        keep: stores JSON lines and returns a link to them.
    """
    source = iter(batches)
    taken: list[pa.RecordBatch | pa.Table] = []
    size = 0
    for batch in source:
        taken.append(batch)
        size += sum(len(line.encode()) + 2 for line in json_lines(batch))  # ", " between two rows
        if size > bytes_max:
            break
    else:
        return {"rows": [row for batch in taken for row in json_objects(batch)]}
    counted = _Counted(chain(taken, source))
    url = keep(iter(counted))
    return {"url": url, "rows": counted.rows, "bytes": counted.bytes}


def arrow_answer(rows: pa.Table | Rows, *, keep: Keep) -> Document:
    """Return {"url", "rows": the number of rows, "bytes", "format": "arrow"}, a link to an Arrow IPC file.

    Args:
        keep: stores the file and returns a link to it.
    """
    counted = _CountedFile(rows)
    url = keep(iter(counted))
    return {"url": url, "rows": counted.rows, "bytes": counted.bytes, "format": "arrow"}


class _CountedFile:
    """Yields rows as the parts of an Arrow IPC file and counts them."""

    def __init__(self, rows: pa.Table | Rows) -> None:
        self.rows = self.bytes = 0
        self._rows = rows

    def __iter__(self) -> Iterator[bytes]:
        schema = self._rows.schema
        batches: Iterable[pa.RecordBatch] = self._rows.to_batches()
        if any("dictionary<" in str(field.type) for field in schema):
            # A file has one dictionary for each column, so it must be known before the first rows are written.
            batches = [pa.Table.from_batches(batches, schema)]
        sink = BytesIO()
        options = pa.ipc.IpcWriteOptions(unify_dictionaries=True)
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema, options=options) as writer:
            for batch in batches:
                writer.write(batch)
                self.rows += batch.num_rows
                yield self._taken(sink)
        yield self._taken(sink)

    def _taken(self, sink: BytesIO) -> bytes:
        part = sink.getvalue()
        sink.seek(0)
        sink.truncate()
        self.bytes += len(part)
        return part


class _Counted:
    """Yields rows as JSON lines and counts them."""

    def __init__(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> None:
        self.rows = self.bytes = 0
        self._batches = batches

    def __iter__(self) -> Iterator[bytes]:
        for batch in self._batches:
            for line in json_lines(batch):
                encoded = f"{line}\n".encode()
                self.rows += 1
                self.bytes += len(encoded)
                yield encoded


def count_rows(
    table: Table, *, columns: Sequence[str] | None = None, where: str | None = None, limit: int | None = None
) -> int:
    """Count live rows. Arguments and errors are those of `Table.scan`."""
    if columns is None and limit is None:
        return table.count(where=where)
    rows = table.scan(columns=columns or table.config.schema.primary_key, where=where, limit=limit)
    return sum(batch.num_rows for batch in rows)


def key_rows(values: Sequence[Any], *, table: Table) -> pa.Table:
    """Convert keys from JSON to rows: objects of the key columns, or plain values if the key is one column.

    Raises:
        Invalid: a key has another form, or a value does not fit its column.
    """
    with error_context(table=table.uri):
        return json_keys(values, schema=table.config.schema.key)


def keep_in_bucket(parts: Iterator[bytes], *, uri: str, content_type: str = JSON_LINES) -> str:
    """Write an S3 object in parts. Return a link that needs no credentials and expires after an hour.

    Raises:
        Invalid: the role lacks the grant, or the URI is not an S3 URI.
        Unavailable: S3 did not answer. The bucket's lifecycle rule removes parts of incomplete uploads.
    """
    scheme, _, path = uri.partition("://")
    bucket, _, key = path.partition("/")
    if scheme != "s3" or not key:
        raise Invalid("large results can only be stored in S3", remedy="Deploy the stack with a bucket", url=uri)
    from botocore.config import Config  # noqa: PLC0415 - optional dependency
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    # Signature version 4: links with older signatures don't work for objects encrypted with a KMS key.
    client = aws.session().client("s3", config=aws.no_retry_config().merge(Config(signature_version="s3v4")))
    how = aws.one_thread_transfer(_PART_BYTES)
    try:
        client.upload_fileobj(_File(parts), bucket, key, Config=how, ExtraArgs={"ContentType": content_type})
        link: str = client.generate_presigned_url(
            "get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=_LINK_SECONDS
        )
    except (BotoCoreError, ClientError) as error:
        raise aws.translated(error, doing="the result can't be stored", url=uri) from error
    return link


class _File:
    """A readable file over an iterator of bytes, for uploads in parts."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._rest = bytearray()

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            part = next(self._parts, None)
            if part is None:
                size = len(self._rest) if size < 0 else size
                break
            self._rest += part
        taken = bytes(self._rest[:size])
        del self._rest[:size]
        return taken
