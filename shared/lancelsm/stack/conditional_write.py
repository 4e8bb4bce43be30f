"""Run an event of the function `apply`: an upsert with options, an update, a delete, or change events."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal, Protocol

from lancelsm.errors import Invalid, error_context
from lancelsm.read.transact.change_formats import JsonEvents
from lancelsm.record.files import json_rows
from lancelsm.stack.delivery.message import unpacked
from lancelsm.stack.delivery.request import stream_of
from lancelsm.stack.delivery.table_cache import Inbox
from lancelsm.stack.documents import committed_or_skipped
from lancelsm.stack.function import Document
from lancelsm.table import Table

_OPTIONS = ("if_absent", "if_newer", "if_unchanged", "partial")
_FORMS = ("upserts", "arrow", "object")
_CHANGES = (
    "events",
    "format",
    "sequence_by",
    "apply_as_deletes",
    "column_list",
    "except_column_list",
    "ignore_null_updates",
    "source",
    "offset",
    "on_bad_row",
)
_FIELDS = {"upsert": (*_FORMS, *_OPTIONS), "update": ("set", "where"), "delete": ("where",), "changes": _CHANGES}


class WriteInput(Protocol):
    """The event. Which fields it may have depends on `op`."""

    @property
    def op(self) -> str: ...
    @property
    def upserts(self) -> list[dict[str, Any]] | None: ...
    @property
    def arrow(self) -> str | None: ...  # base64
    @property
    def object(self) -> str | None: ...
    @property
    def if_absent(self) -> bool: ...
    @property
    def if_newer(self) -> str | None: ...
    @property
    def if_unchanged(self) -> str | None: ...
    @property
    def partial(self) -> bool: ...
    @property
    def set(self) -> dict[str, str] | None: ...
    @property
    def where(self) -> str | None: ...
    @property
    def events(self) -> list[Any] | None: ...
    @property
    def format(self) -> Literal["debezium", "flattened", "rows"] | None: ...
    @property
    def sequence_by(self) -> list[str] | dict[str, str] | None: ...
    @property
    def apply_as_deletes(self) -> str | None: ...
    @property
    def column_list(self) -> list[str] | None: ...
    @property
    def except_column_list(self) -> list[str] | None: ...
    @property
    def ignore_null_updates(self) -> bool: ...
    @property
    def source(self) -> str | None: ...
    @property
    def offset(self) -> int | list[int] | None: ...
    @property
    def on_bad_row(self) -> Literal["fail", "skip"] | None: ...


def conditional_write(given: WriteInput, *, table: Table, inbox: Inbox) -> Document:
    """Write, and return {"rows", "entries", "skipped"}; for change events what `Applied` has, and "offset".

    Raises:
        Invalid: the event has a field of another operation, or lacks one.

    Raises also the errors of `Table.upsert`, `Table.update` and `Table.delete`.
    """
    with error_context(table=table.uri):
        _check_fields(given)
        if given.op == "update":
            return committed_or_skipped(table.update(where=given.where or "", set=given.set or {}))
        if given.op == "delete":
            return committed_or_skipped(table.delete(where=given.where))
        if given.op == "changes":
            return _apply(given, table)
        if given.upserts is not None:
            rows = json_rows(given.upserts, schema=table.schema)
        else:
            rows = unpacked(stream_of(given, inbox=inbox))
        done = table.upsert(
            rows,
            if_absent=given.if_absent,
            if_newer=given.if_newer,
            if_unchanged=given.if_unchanged,
            partial=given.partial,
        )
        return committed_or_skipped(done)


def _apply(given: WriteInput, table: Table) -> Document:
    if given.sequence_by and not table.config.sequence_by:
        raise Invalid(
            "the table has no sequence_by yet, and this function can't record it in the configuration",
            remedy=f"Record it once with the library: lancelsm.open({table.uri!r}).apply_changes([], "
            f"sequence_by={list(given.sequence_by)})",
            field="sequence_by",
        )
    done = table.apply_changes(
        JsonEvents(given.events or ()),
        format=given.format or "rows",
        sequence_by=given.sequence_by,
        apply_as_deletes=given.apply_as_deletes,
        column_list=given.column_list,
        except_column_list=given.except_column_list,
        ignore_null_updates=given.ignore_null_updates,
        source=given.source,
        offset=given.offset,
        on_bad_row=given.on_bad_row or "fail",
    )
    return {**asdict(done), "offset": None if given.source is None else table.source_offset(given.source)}


def _check_fields(given: WriteInput) -> None:
    present = [name for names in _FIELDS.values() for name in names if getattr(given, name) not in (None, False)]
    allowed = _FIELDS[given.op]
    if foreign := [name for name in present if name not in allowed]:
        raise Invalid(
            f"an event with the op {given.op} takes no {foreign[0]}",
            remedy=f"Give {', '.join(allowed)}, or another op",
            field=foreign[0],
        )
    if given.op == "upsert" and sum(name in present for name in _FORMS) != 1:
        raise Invalid("the event needs rows in exactly one form", remedy="Give upserts, arrow or object")
    if given.op == "changes":
        if given.events is None:
            raise Invalid("the op changes needs events", remedy="Give events", field="events")
        return
    if given.op != "upsert" and (missing := [name for name in allowed if name not in present]):
        raise Invalid(f"the op {given.op} needs {missing[0]}", remedy=f"Give {', '.join(allowed)}", field=missing[0])
