"""Write to and read from a deployment, from an app that has boto3 and no more.

    with Client(stage="prod") as client:
        client.upsert("orders", [{"id": 1, "state": "paid"}])  # by the queue: buffered, in order, sent once
        client.delete("orders", [{"id": 2}])
    client.write("orders", [{"id": 3, "state": "new"}])  # at once: durable and readable when it returns

Spec: docs/design.md, "AWS". Arrow data needs pyarrow, dicts do not.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, cast

from lancelsm.client.batching import ATTEMPT_SECONDS, RETRY_SECONDS, Lane, Request
from lancelsm.client.encoding import LARGE_BYTES, EncodedRows, Op, event, packed, plain, stream
from lancelsm.client.invoke import Answered, Document, Failed, Functions, NoResponse, NotStarted, Response, Service
from lancelsm.client.large_payloads import Fetch, fetched, put, work_of
from lancelsm.common import aws
from lancelsm.common.clock import Budget, Clock, Ids, SystemClock, SystemIds
from lancelsm.common.committed import Committed, CommittedEntry
from lancelsm.errors import Ambiguous, Invalid, Unavailable

INVOKE_BYTES: Final = 6_000_000  # of one event; Lambda takes 6 MiB
_LONGEST_SECONDS: Final = 900
_FUNCTIONS: Final = ("ingest", "writer_flush", "query")


class Client:
    """One process's access to a deployment. Thread-safe; keep one for its life, made after a fork.

    `upsert` and `delete` buffer rows of each table and send them by the queue, up to 1 MiB a request. Of each table one
    request is in flight at a time, so that rows of a key are applied in the order given; requests of different tables
    are independent. A failed attempt is repeated under the same producer and sequence, by which the queue drops what it
    has, and for no longer than the queue remembers it.

    An error of theirs tells of one request. Its `where` has `first_row` and `rows`: the number, from 0, of its first
    row among all given for the table, and how many. They are not tried again; rows after them stay in the buffer. What
    happens in the background is raised by the next call for the table, which takes no rows then.

        Invalid, Fenced, Corrupt: the function refused them; nothing was written, the remedy says what to do.
        Unavailable: they were not sent.
        Ambiguous: they may be on the queue, once.

    Args:
        stage: of the deployment.
        functions: names or ARNs instead of the stage's, by `ingest`, `writer_flush` and `query`.
        work: `s3://BUCKET/work` for what exceeds an invocation; by default from the outputs of the stage's stack.
        region: of AWS; by default as boto3 finds it.
        interval_seconds: after which buffered rows are sent in the background; None: only full requests and `flush`.
            In a function of AWS use None, as nothing runs between invocations.
        retry_seconds: for all attempts of one request, up to 240: the queue's five minutes less one attempt.

    A crash of the app loses what is buffered and leaves of the request in flight all, some regions' rows, or nothing.
    """

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
        fetch: Fetch = fetched,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        if not 0 < retry_seconds <= RETRY_SECONDS:
            raise Invalid(f"retry_seconds is {retry_seconds}", remedy=f"Give up to {RETRY_SECONDS}")
        names = {name: f"lancelsm-{stage}-{name}" for name in _FUNCTIONS} | dict(functions or {})
        self._service = service or partial(aws.client, region=region)
        self._functions = Functions(names, service=self._service)
        self._stage = stage
        self._work = work
        self._interval = interval_seconds
        self._retry_seconds = retry_seconds
        self._fetch = fetch
        self._clock = clock or SystemClock()
        self._ids = ids or SystemIds()
        self._producer: tuple[int, str] | None = None
        self._lanes: dict[str, Lane] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._sender: threading.Thread | None = None

    def upsert(self, table: str, rows: Any) -> None:
        """Take whole rows, to be sent by the queue. Returns when they are buffered or sent; raises as the class says.

        Args:
            table: its name in the deployment, or its URI.
            rows: dicts, or Arrow data; columns as the table's.

        Raises:
            Invalid: also if a value has no form in JSON; then no row was taken.
        """
        self._take(table, rows, "upsert")

    def delete(self, table: str, keys: Any) -> None:
        """As `upsert`, of keys: dicts or Arrow data with the key columns alone."""
        self._take(table, keys, "delete")

    def flush(self) -> None:
        """Send everything; returns when the queue has it. Raises as the class says, for the first table that fails."""
        with self._lock:
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.send()

    def close(self) -> None:
        """Send everything and take no more. After an error it may be called again, to send what is left."""
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

    def write(self, table: str, rows: Any = (), *, deletes: Any = ()) -> Committed:
        """Write without the queue; returns once the rows are durable and visible to every read that starts then.

        Args:
            rows, deletes: as for `upsert` and `delete`; both at once as dicts only, where deletes win over rows of the
                same keys. All of a region or none.

        Raises:
            Invalid, Fenced, Contended, Unavailable, Corrupt: as the library's `upsert`. Nothing of that region was
                written.
            Ambiguous: there was no answer. It is not repeated, since nothing but the queue knows rows again.

        No order is promised between this and rows that are still on the queue.
        """
        ops: tuple[tuple[Op, Any], ...] = (("upsert", rows), ("delete", deletes))
        pieces = [piece for op, data in ops for piece in packed(data, op=op, limit=1 << 62)]
        if not pieces:
            return Committed(rows=0, entries=())
        if len(pieces) > 1 and any(piece.is_arrow for piece in pieces):
            raise Invalid(
                "upserts and deletes at once can't be Arrow", remedy="Give dicts, or call it twice", table=table
            )
        document = self._once("writer_flush", self._event(table, pieces), table)
        entries = [CommittedEntry(**entry) for entry in document["entries"]]
        return Committed(rows=document["rows"], entries=tuple(entries))

    def query(
        self,
        table: str,
        *,
        keys: Iterable[Any] | None = None,
        columns: Iterable[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        at: str | None = None,
    ) -> list[dict[str, Any]]:
        """Read rows, consistently: what was acknowledged before this call is in the answer.

        Args:
            keys: of the rows to get, as the library's `get`; without it all rows that fulfil `where`, in SQL.
            at: the name of a snapshot, to read the table as that keeps it.

        Raises:
            Invalid: a column, key or condition is wrong, or there is no such snapshot.
            Unavailable: there was no answer.
        """
        asked = {
            "keys": None if keys is None else list(keys),
            "columns": None if columns is None else list(columns),
            "where": where,
            "limit": limit,
            "at": at,
        }
        document = self._read(table, asked)
        if "url" in document:
            return self._fetch(document["url"])
        return cast("list[dict[str, Any]]", document["rows"])

    def count(self, table: str, *, where: str | None = None, at: str | None = None) -> int:
        """How many rows fulfil a condition, now or as the snapshot `at` keeps them. Raises as `query`."""
        return int(self._read(table, {"where": where, "count": True, "at": at})["count"])

    def _take(self, table: str, data: Any, op: Op) -> None:
        if self._closed.is_set():
            raise Invalid("the client is closed", remedy="Make another one", table=table)
        pieces = packed(data, op=op, limit=LARGE_BYTES)  # the lane joins them
        self._lane(table).add(pieces)

    def _lane(self, table: str) -> Lane:
        with self._lock:
            if table not in self._lanes:
                self._lanes[table] = Lane(
                    table,
                    partial(self._ingest, table),
                    producer=self._identity,
                    retry_seconds=self._retry_seconds,
                    clock=self._clock,
                    ids=self._ids,
                )
            if self._sender is None and self._interval is not None:
                self._sender = threading.Thread(target=self._send_aged, args=(self._interval,), daemon=True)
                self._sender.start()
            return self._lanes[table]

    def _identity(self) -> str:
        """This process's name as a producer.

        It is made when something is sent, not before: two that a fork or a snapshot made of one would send different
        rows under one name, and the queue would drop the second ones.
        """
        if self._producer is None or self._producer[0] != os.getpid():
            self._producer = os.getpid(), self._ids.nonce()
        return self._producer[1]

    def _send_aged(self, interval: float) -> None:
        """The background's loop."""
        while not self._closed.wait(interval):
            with self._lock:
                lanes = list(self._lanes.values())
            for lane in lanes:
                lane.send_aged(interval)

    def _ingest(self, table: str, request: Request) -> Response:
        more = {"producer": request.producer, "sequence": request.sequence}
        try:
            payload = self._event(table, [request.rows], name=f"{request.producer}-{request.sequence}", **more)
        except Unavailable as error:
            return NotStarted(cause=str(error))
        return self._functions.invoke("ingest", payload, read_seconds=ATTEMPT_SECONDS)

    def _event(self, table: str, pieces: list[EncodedRows], *, name: str = "", **more: object) -> bytes:
        """An event with the rows in it, or with the object that has them."""
        payload = event(table, *pieces, **more)
        by_queue = "sequence" in more
        if len(payload) <= INVOKE_BYTES and not (by_queue and pieces[0].is_arrow and pieces[0].is_large):
            return payload
        if not pieces[0].is_arrow:
            remedy = "Give fewer rows, or give them as Arrow data, which travels by the bucket"
            raise Invalid(f"the rows have {len(payload):,} bytes as JSON", remedy=remedy, table=table)
        key = f"{name or self._ids.nonce()}.arrow"
        self._work = self._work or work_of(self._stage, service=self._service)
        put(self._work, f"inbox/{key}", stream(pieces[0]), service=self._service)
        return json.dumps({"table": table, **more, "op": pieces[0].op, "object": key}).encode()

    def _once(self, function: str, payload: bytes, table: str) -> Document:
        """Invoke what may not run twice: repeated only while it certainly did not run."""
        cause = ""
        for _ in self._attempts():
            outcome = self._functions.invoke(function, payload, read_seconds=_LONGEST_SECONDS)
            if isinstance(outcome, Answered):
                return outcome.document
            if isinstance(outcome, Failed):
                raise outcome.error
            cause = outcome.cause
            if isinstance(outcome, NoResponse):
                raise Ambiguous(f"the rows may have been written, once: {cause}", table=table)
        raise Unavailable(f"nothing was written: {cause}", table=table)

    def _read(self, table: str, asked: Mapping[str, object]) -> Document:
        given = {name: value for name, value in asked.items() if value is not None}
        try:
            payload = json.dumps({"table": table, **plain(given)}, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise Invalid(f"a key has no form in JSON: {error}", table=table) from error
        return self._functions.answer(
            "query", payload, attempts=self._attempts(), read_seconds=_LONGEST_SECONDS, table=table
        )

    def _attempts(self) -> Iterable[int]:
        return Budget(clock=self._clock, ids=self._ids, seconds=self._retry_seconds).attempts()
