"""Decode the rows that callers of `ingest` and `writer_flush` send, by invocation or over a function URL."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import pyarrow as pa

from lancelsm.common.json_text import parse_json
from lancelsm.errors import Invalid, LsmError, error_context
from lancelsm.objects.keys import check_key
from lancelsm.read.transact.change_event import RowChange, select
from lancelsm.read.transact.change_formats import PARSE, Format
from lancelsm.read.transact.stored_changes import stored
from lancelsm.record.files import json_rows
from lancelsm.record.key import newest
from lancelsm.record.normalize import deletes, upserts
from lancelsm.region.catalog import Directory
from lancelsm.region.handle import TableHandle
from lancelsm.stack.delivery.message import unpacked
from lancelsm.stack.delivery.table_cache import Inbox
from lancelsm.stack.documents import committed
from lancelsm.stack.function import Document, FunctionCall
from lancelsm.wal.region_writer import RegionWriters

Op = Literal["upsert", "delete"]
STATUS = {"Invalid": 400, "Contended": 409, "Fenced": 409, "Unavailable": 503}


class StreamInput(Protocol):
    """An Arrow stream, or the key of one in the inbox."""

    @property
    def arrow(self) -> str | None: ...  # base64
    @property
    def object(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsInput:
    """Rows in one of three forms: JSON rows to upsert and delete, an Arrow stream, or a stream's key in the inbox."""

    table: str
    upserts: list[dict[str, Any]] | None = None
    deletes: list[dict[str, Any]] | None = None
    arrow: str | None = None  # base64
    object: str | None = None
    op: Op = "upsert"  # of `arrow` and `object`


def stored_rows(given: RowsInput, *, handle: TableHandle, inbox: Inbox) -> pa.Table:
    """Convert rows to stored form, each key once.

    Of several rows with one key, a delete wins over upserts of the same request, and a later row over an earlier one.

    Raises:
        Invalid: not exactly one form, or a row does not fit; names column and row.
        Unavailable: the inbox did not answer.
    """
    schema = handle.config.schema
    forms = [given.upserts is not None or given.deletes is not None, given.arrow is not None, given.object is not None]
    with error_context(table=handle.context.uri):
        if sum(forms) != 1:
            raise Invalid(
                "the event needs rows in exactly one form", remedy="Give upserts and deletes, arrow, or object"
            )
        if given.arrow is not None or given.object is not None:
            data = unpacked(stream_of(given, inbox=inbox))
            return upserts(data, schema=schema) if given.op == "upsert" else deletes(data, schema=schema)
        live = upserts(json_rows(given.upserts or [], schema=schema.columns), schema=schema)
        dead = deletes(json_rows(given.deletes or [], schema=schema.key), schema=schema)
        return newest(pa.concat_tables([live, dead]), schema.primary_key)


def event_rows(events: Sequence[Any], *, format: Format, handle: TableHandle) -> pa.Table:  # noqa: A002
    """Convert change events to upserts and deletes in stored form, each key once: its last event wins.

    Raises:
        Invalid: an event does not fit, or depends on the rows that are there; names it as `row`.
    """
    schema = handle.config.schema
    with error_context(table=handle.context.uri):
        if names := handle.config.sequence_by:
            raise _needs_rows(f"the events of the table are ordered by {', '.join(names)}")
        selection = select(schema, sequence={}, column_list=None, except_column_list=None, ignore_null_updates=False)
        changes: list[RowChange] = []
        for number, event in enumerate(events):
            with error_context(row=number):
                found = PARSE[format](number, event, selection)
                if any(change.unchanged for change in found):
                    raise _needs_rows("the event leaves out a value, which is that of the stored row")
                changes += found
        rows, _ = stored(changes, selection, is_json=True, bad=_raise)
        return newest(rows, schema.primary_key)


def _needs_rows(why: str) -> Invalid:
    return Invalid(why, remedy="Call the function apply with op changes: it reads the rows", field="events")


def _raise(event: int, error: Invalid) -> None:
    with error_context(row=event):
        raise error


def stream_of(given: StreamInput, *, inbox: Inbox) -> bytes:
    """Return the Arrow stream of an event that has one, or the key of one.

    Raises:
        Invalid: the text is not base64, or the object is not in the inbox.
        Unavailable: the inbox did not answer.
    """
    return _base64(given.arrow) if given.arrow is not None else _object(inbox, given.object or "")


def write(rows: pa.Table, *, handle: TableHandle, seconds: float) -> Document:
    """Append rows in stored form, one entry per region, regions in parallel.

    Raises: the same errors as `Table.upsert`.
    """
    target = handle.target()
    context = replace(target.context, budget_seconds=min(seconds, target.context.budget_seconds))
    directory = Directory(context, spec_id=target.regions.spec_id)
    writers = RegionWriters(replace(target, context=context, directory=directory), owner=target.owner)
    return committed(writers.append_all(rows))


def over_http(event: Any, call: FunctionCall, work: Callable[[Document, FunctionCall], Document]) -> Document:
    """Handle a call by invocation or function URL.

    In the latter, the body is the event and errors are HTTP statuses.
    """
    if not isinstance(event, dict) or "requestContext" not in event:
        return work(event, call)
    try:
        return _answer(200, work(_body(event), call))
    except LsmError as error:
        call.telemetry.failed(error)
        return _answer(STATUS.get(error.kind, 500), error.document())


def _answer(status: int, document: Mapping[str, Any]) -> Document:
    headers = {"content-type": "application/json"}
    return {"statusCode": status, "headers": headers, "body": json.dumps(document, default=str)}


def _body(event: Document) -> Document:
    text = event.get("body") or ""
    try:
        document = parse_json(_base64(text) if event.get("isBase64Encoded") else text)
    except (ValueError, RecursionError) as error:
        raise Invalid("the body is not JSON", remedy="Give one JSON object") from error
    if not isinstance(document, dict):
        raise Invalid("the body is not a JSON object", remedy="Give one JSON object")
    return document


def _object(inbox: Inbox, key: str) -> bytes:
    found = inbox.get(check_key(key))
    if found is None:
        raise Invalid("the object is not in the inbox", remedy=f"Put it below {inbox.uri}/", object=key)
    return found


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError) as error:
        raise Invalid("the text is not base64", remedy="Encode the bytes as base64") from error
