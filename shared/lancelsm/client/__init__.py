"""The client of a deployment: write and read from an app that has only boto3 installed.

    with Client(stage="prod") as client:
        client.upsert("orders", [{"id": 1, "state": "paid"}])  # through the queue: buffered, in order, applied once
        client.delete("orders", [{"id": 2}])
    client.write("orders", [{"id": 3, "state": "new"}])  # directly: durable and readable when the call returns

Spec: docs/concepts/aws.md, "Delivery". Arrow data needs pyarrow; dicts do not.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from lancelsm.client.batching import ATTEMPT_SECONDS, RETRY_SECONDS, Request, TableBuffer
from lancelsm.client.encoding import LARGE_BYTES, EncodedRows, Op, encode_rows, event, stream
from lancelsm.client.invoke import (
    Answered,
    Document,
    Failed,
    Functions,
    NoResponse,
    NotStarted,
    Response,
    Service,
    function_name,
)
from lancelsm.client.large_payloads import Fetch, fetch, put, work_location
from lancelsm.client.reads import LONGEST_SECONDS, ClientReads, ReadRows
from lancelsm.common import aws
from lancelsm.common.argument_checks import checked
from lancelsm.common.clock import Clock, Ids, SystemClock, SystemIds
from lancelsm.common.row_types import ArrowLike
from lancelsm.common.write_result import Committed, CommittedEntry
from lancelsm.errors import Ambiguous, Invalid, Unavailable

__all__ = ["Client", "ReadRows"]

INVOKE_BYTES: Final = 6_000_000  # the largest event; Lambda takes 6 MiB
_FUNCTIONS: Final = ("ingest", "writer_flush", "apply", "query")


class Client(ClientReads):
    """One process's access to a deployment. Thread-safe. Create one client per process, after a fork, and keep it.

    `upsert` and `delete` buffer rows per table and send them through the queue, up to 1 MiB per request. Per table one
    request is in flight at a time, so rows of a key are applied in the order given. Requests of different tables are
    independent. A failed attempt is repeated with the same producer and sequence number, so the queue drops duplicates.
    No attempt starts after the queue may have forgotten the request.

    An error of `upsert`, `delete`, `flush` or `close` is about one request. Its `where` has `first_row`, the index
    (from 0) of the request's first row among all rows given for the table, and `rows`, the number of rows. These rows
    are not sent again; later rows stay in the buffer. If a request in the background fails, the next call for the table
    raises its error and takes no rows.

        Invalid, Fenced, Corrupt: the function refused the rows; nothing was written, and the remedy says what to do.
        Unavailable: the rows were not sent.
        Ambiguous: the rows may be on the queue, once.

    Args:
        stage: the stage of the deployment.
        functions: names or ARNs of `ingest`, `writer_flush`, `apply` and `query`, instead of those of the stage.
        work: `s3://BUCKET/work`, for rows that exceed an invocation; by default from the outputs of the stage's stack.
        region: the AWS region; by default boto3's.
        interval_seconds: buffered rows are sent in the background after this time. None: rows are sent only when a
            request is full, and by `flush`. Use None in an AWS function, since nothing runs between invocations.
        retry_seconds: the time for all attempts of one request; at most 240, the queue's five minutes less one attempt.

    A crash of the app loses buffered rows. Of the request in flight, all rows, the rows of some regions, or none are
    applied.
    """

    @checked
    def __init__(
        self,
        *,
        stage: str = "dev",
        functions: Mapping[str, str] | None = None,
        work: str | None = None,
        region: str | None = None,
        interval_seconds: float | None = 1.0,
        retry_seconds: float = RETRY_SECONDS,
        service: Service | None = None,
        fetch: Fetch = fetch,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        if not 0 < retry_seconds <= RETRY_SECONDS:
            raise Invalid(f"retry_seconds is {retry_seconds}", remedy=f"Give up to {RETRY_SECONDS}")
        names = {name: function_name(stage, name) for name in _FUNCTIONS} | dict(functions or {})
        self._service = service or partial(aws.client, region=region)
        super().__init__(
            functions=Functions(names, service=self._service),
            fetch=fetch,
            retry_seconds=retry_seconds,
            clock=clock or SystemClock(),
            ids=ids or SystemIds(),
        )
        self._stage = stage
        self._work = work
        self._interval = interval_seconds
        self._producer: tuple[int, str] | None = None
        self._buffers: dict[str, TableBuffer] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._sender: threading.Thread | None = None

    @checked
    def upsert(self, table: str, rows: ArrowLike) -> None:
        """Buffer whole rows, to be sent through the queue. Return when they are buffered or sent.

        Args:
            table: its name in the deployment, or its URI.
            rows: dicts or Arrow data, with the columns of the table.

        Raises:
            Invalid: a value can't be encoded as JSON, and no row was taken; or the client is closed.
            Invalid, Fenced, Corrupt, Unavailable, Ambiguous: an earlier request of the table failed. Its rows stay in
                the buffer, and the error says what to do.
        """
        self._take(table, rows, "upsert")

    @checked
    def delete(self, table: str, keys: ArrowLike) -> None:
        """Buffer deletes, to be sent through the queue in order with upserts. Return when they are buffered or sent.

        Args:
            table: its name in the deployment, or its URI.
            keys: dicts or Arrow data with only the key columns.

        Raises:
            Invalid: a value can't be encoded as JSON, and no key was taken; or the client is closed.
            Invalid, Fenced, Corrupt, Unavailable, Ambiguous: an earlier request of the table failed. Its rows stay in
                the buffer, and the error says what to do.
        """
        self._take(table, keys, "delete")

    def flush(self) -> None:
        """Send all buffered rows and return when the queue has them. Raises the error of the first table that fails."""
        with self._lock:
            buffers = list(self._buffers.values())
        for buffer in buffers:
            buffer.send()

    def close(self) -> None:
        """Send all buffered rows and take no more. After an error, call it again to send the rest."""
        self._closed.set()
        if self._sender is not None:
            self._sender.join()
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @checked
    def write(self, table: str, rows: ArrowLike = (), *, deletes: ArrowLike = ()) -> Committed:
        """Write without the queue. Return when the rows are durable and visible to every read that starts afterwards.

        No order is guaranteed between these rows and rows that are still on the queue. In each region, all rows are
        written or none.

        Args:
            rows: the rows to upsert, in the forms that `upsert` takes.
            deletes: the keys to delete, in the forms that `delete` takes. If there are rows too, both must be dicts. A
                delete wins over a row with its key.

        Raises:
            Invalid: a row does not fit; or a region is sealed.
            Fenced: another owner holds a region.
            Contended, Unavailable: retry.
            Corrupt: a region is damaged. After these errors nothing was written to the region.
            Ambiguous: no reply; the rows may be written. The call is not repeated, since only the queue recognises
                duplicates.
        """
        ops: tuple[tuple[Op, Any], ...] = (("upsert", rows), ("delete", deletes))
        pieces = [piece for op, data in ops for piece in encode_rows(data, op=op, limit=1 << 62)]
        if not pieces:
            return Committed(rows=0, entries=())
        if len(pieces) > 1 and any(piece.is_arrow for piece in pieces):
            raise Invalid(
                "upserts and deletes in one call can't be Arrow data",
                remedy="Give dicts, or call it twice",
                table=table,
            )
        return _committed(self._once("writer_flush", self._event(table, pieces), table))

    @checked
    def apply(
        self,
        table: str,
        rows: ArrowLike,
        *,
        if_absent: bool = False,
        if_newer: str | None = None,
        if_unchanged: str | None = None,
        partial: bool = False,
    ) -> Committed:
        """Write rows under conditions, or some columns of rows, without the queue. Return when they are visible.

        Args:
            rows: as for `upsert`.
            if_absent: write only rows whose keys have no row.
            if_newer: a column; write only rows with a greater value in it than the row that is there.
            if_unchanged: the token of `get`; write only if no row of these keys was written since.
            partial: columns that the rows leave out keep their values.

        Returns:
            The entries, and how many rows their condition `skipped`.

        Raises:
            Contended: other writers were faster; retry. With `if_unchanged` also: a row has changed; read again.
            Invalid: a row or an option does not fit, or a region is sealed.
            Fenced: another owner holds a region.
            Unavailable: nothing was written to a region. Retry.
            Corrupt: a region is damaged.
            Ambiguous: no reply; the rows may be written. The call is not repeated.
        """
        pieces = list(encode_rows(rows, op="upsert", limit=1 << 62))
        if not pieces:
            return Committed(rows=0, entries=())
        options = {"if_absent": if_absent, "if_newer": if_newer, "if_unchanged": if_unchanged, "partial": partial}
        given: dict[str, Any] = {name: value for name, value in options.items() if value not in (None, False)}
        return _committed(self._once("apply", self._event(table, pieces, **given), table))

    @checked
    def update(self, table: str, *, where: str, set: Mapping[str, str]) -> Committed:  # noqa: A002 - as in SQL
        """Set columns of every row that matches a condition. Return when the rows are durable and visible.

        Args:
            where: an SQL condition; `true` matches every row.
            set: an SQL expression by column, such as `{"n": "n + 1"}`. It sees the old values of the row.

        Raises:
            Invalid: a row or an argument does not fit; or a region is sealed.
            Fenced: another owner holds a region.
            Contended, Unavailable: nothing was written to a region. Retry.
            Corrupt: a region is damaged.
            Ambiguous: no reply; the rows may be written.
        """
        payload = json.dumps({"table": table, "op": "update", "where": where, "set": set}, ensure_ascii=False)
        return _committed(self._once("apply", payload.encode(), table))

    @checked
    def delete_where(self, table: str, where: str) -> Committed:
        """Delete every row that matches an SQL condition, without the queue. Return when no new read shows them.

        Raises:
            Invalid: a row or an argument does not fit; or a region is sealed.
            Fenced: another owner holds a region.
            Contended, Unavailable: nothing was written to a region. Retry.
            Corrupt: a region is damaged.
            Ambiguous: no reply; the rows may be written.
        """
        payload = json.dumps({"table": table, "op": "delete", "where": where}, ensure_ascii=False)
        return _committed(self._once("apply", payload.encode(), table))

    def _take(self, table: str, data: Any, op: Op) -> None:
        if self._closed.is_set():
            raise Invalid("the client is closed", remedy="Create another one", table=table)
        pieces = encode_rows(data, op=op, limit=LARGE_BYTES)  # the buffer joins pieces to requests
        self._buffer_of(table).add(pieces)

    def _buffer_of(self, table: str) -> TableBuffer:
        with self._lock:
            if table not in self._buffers:
                self._buffers[table] = TableBuffer(
                    table,
                    partial(self._ingest, table),
                    producer=self._identity,
                    retry_seconds=self._retry_seconds,
                    clock=self._clock,
                    ids=self._ids,
                )
            if self._sender is None and self._interval is not None:
                self._sender = threading.Thread(target=self._send_in_background, args=(self._interval,), daemon=True)
                self._sender.start()
            return self._buffers[table]

    def _identity(self) -> str:
        """Return this process's name as a producer.

        The name is created at the first send, not earlier: two copies of a process, made by a fork or a machine
        snapshot, would otherwise send different rows under one name, and the queue would drop some.
        """
        if self._producer is None or self._producer[0] != os.getpid():
            self._producer = os.getpid(), self._ids.nonce()
        return self._producer[1]

    def _send_in_background(self, interval: float) -> None:
        """Send rows that have waited for `interval`, until the client is closed."""
        while not self._closed.wait(interval):
            with self._lock:
                buffers = list(self._buffers.values())
            for buffer in buffers:
                buffer.send_aged(interval)

    def _ingest(self, table: str, request: Request) -> Response:
        more = {"producer": request.producer, "sequence": request.sequence}
        try:
            payload = self._event(table, [request.rows], name=f"{request.producer}-{request.sequence}", **more)
        except Unavailable as error:
            return NotStarted(cause=str(error))
        return self._functions.invoke("ingest", payload, read_seconds=ATTEMPT_SECONDS)

    def _event(self, table: str, pieces: list[EncodedRows], *, name: str = "", **more: object) -> bytes:
        """Encode an event with the rows, or with the key of an object that has the rows."""
        payload = event(table, *pieces, **more)
        by_queue = "sequence" in more
        if len(payload) <= INVOKE_BYTES and not (by_queue and pieces[0].is_arrow and pieces[0].is_large):
            return payload
        if not pieces[0].is_arrow:
            remedy = "Give fewer rows, or give Arrow data, which is sent through the bucket"
            raise Invalid(f"the rows have {len(payload):,} bytes as JSON", remedy=remedy, table=table)
        key = f"{name or self._ids.nonce()}.arrow"
        self._work = self._work or work_location(self._stage, service=self._service)
        put(self._work, f"inbox/{key}", stream(pieces[0]), service=self._service)
        return json.dumps({"table": table, **more, "op": pieces[0].op, "object": key}).encode()

    def _once(self, function: str, payload: bytes, table: str) -> Document:
        """Invoke a function that must not run twice: repeat only if the last attempt certainly did not run."""
        cause = ""
        for _ in self._attempts():
            outcome = self._functions.invoke(function, payload, read_seconds=LONGEST_SECONDS)
            if isinstance(outcome, Answered):
                return outcome.document
            if isinstance(outcome, Failed):
                raise outcome.error
            cause = outcome.cause
            if isinstance(outcome, NoResponse):
                raise Ambiguous(f"the rows may have been written, once: {cause}", table=table)
        raise Unavailable(f"nothing was written: {cause}", table=table)


def _committed(document: Document) -> Committed:
    entries = tuple(CommittedEntry(**entry) for entry in document["entries"])
    return Committed(rows=document["rows"], entries=entries, skipped=document.get("skipped", 0))
