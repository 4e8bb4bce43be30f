"""The common code of all functions: check settings at start, check the event, return a document, raise errors by kind.

A function fails with the kind of `lancelsm.errors` as its error type, so that a state machine or an app knows what to
do. Its message is the error document of the command line, in JSON. The runtime writes error messages to the log, so
they name column and row but never contain values of rows.
"""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin

from lancelsm.common.error_text import did_you_mean, shown
from lancelsm.common.panics import panics_as_errors
from lancelsm.common.settings import resolve
from lancelsm.errors import Invalid, LsmError
from lancelsm.stack.telemetry import Telemetry, load
from lancelsm.stack.tracing import traced

T = TypeVar("T")
Document = dict[str, Any]
Answer = TypeVar("Answer")

_MARGIN_SECONDS = 5.0  # reserved for the answer and for postponing messages of the queue
_SHORTEST_SECONDS = 1.0


class Context(Protocol):
    """The part of the runtime's context that functions use."""

    aws_request_id: str
    function_name: str

    def get_remaining_time_in_millis(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """One invocation."""

    id: str  # the same when Lambda repeats an asynchronous invocation
    seconds: float  # the time for the work: the remaining time less a margin for the answer
    telemetry: Telemetry


class Internal(Exception):
    """A bug, as reported to the runtime: type and trace, but no text, since the text may contain values of rows."""


def settings(*names: str) -> Mapping[str, str]:
    """Read settings of the deployment from the environment. Call it at module level, so that wrong settings fail there.

    Raises:
        Invalid: settings are missing or empty; names all of them. Or a `LANCELSM_` setting in the environment is not
            valid. The text of the error is its document.
    """
    try:
        missing = [name for name in names if not os.environ.get(name)]
        if missing:
            raise Invalid(f"the function lacks the settings {', '.join(missing)}", remedy="Deploy the stack again")
        resolve(table={})
    except Invalid as error:
        raise _runtime_error(error) from error
    return {name: os.environ[name] for name in names}


def setting(name: str, *, without: str) -> str:
    """Read a setting that not every deployment has.

    Args:
        without: what to do if this one does not have it.

    Raises:
        Invalid: the setting is missing or empty.
    """
    if not (value := os.environ.get(name)):
        raise Invalid(f"this deployment lacks the setting {name}", remedy=without, field=name)
    return value


def function(work: Callable[[Document, FunctionCall], Answer]) -> Callable[[Document, Context], Answer]:
    """Make a handler from a function of an event that returns a document, or a page as text.

    The handler raises errors of `lancelsm.errors` with `LsmError.document` in JSON as the message, and `Internal` with
    such a document for any other exception.
    """

    load()

    def handler(event: Document, context: Context) -> Answer:
        left = context.get_remaining_time_in_millis() / 1000 - _MARGIN_SECONDS
        telemetry = Telemetry(function=context.function_name)
        call = FunctionCall(id=context.aws_request_id, seconds=max(_SHORTEST_SECONDS, left), telemetry=telemetry)
        with telemetry.invocation(call.id):
            try:
                with panics_as_errors():
                    document = work(event, call)
                known: Document = document if isinstance(document, dict) else {}
                if known.get("statusCode", 200) == 200:  # a function URL answers errors too
                    telemetry.log("done", **facts(event, known))
                return document
            except LsmError as error:
                telemetry.failed(error)
                raise _runtime_error(error) from error
            except Exception as error:  # noqa: BLE001 - all errors leave the function in one form
                raise _bug(error).with_traceback(error.__traceback__) from None

    handler.__doc__ = work.__doc__
    return traced(handler)


def facts(event: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, object]:
    """Return what the log says of a call that succeeded: the table, and the numbers and lengths of its document.

    Texts are left out: an answer may have values of rows, or a link that needs no credentials.
    """
    named = {name: event[name] for name in ("table", "step") if isinstance(event.get(name), str)}
    counted = {
        name: len(value) if isinstance(value, list) else value
        for name, value in document.items()
        if isinstance(value, bool | int | list)
    }
    return {**named, **({"counts": counted} if counted else {})}


def _runtime_error(error: LsmError) -> LsmError:
    """Return an error with the document as its text.

    Callers match the six kinds by name, so a subclass becomes its kind.
    """
    kind = next(kind for kind in type(error).__mro__ if kind.__name__ == error.kind)
    reported: LsmError = kind(json.dumps(error.document(redacted=True), default=str))
    reported.remedy = ""
    return reported


def _bug(error: Exception) -> Internal:
    facts = {
        "kind": "Internal",
        "message": type(error).__name__,
        "remedy": "This is a bug: report it with the trace in the log",
    }
    return Internal(json.dumps({"error": facts}))


def parse_event(into: type[T], event: Mapping[str, Any]) -> T:
    """Decode an event into the frozen dataclass that documents it.

    Raises:
        Invalid: a field is missing, unknown or has the wrong type; names it.
    """
    kinds = typing.get_type_hints(into)
    needed = {field.name for field in fields(into) if field.default is MISSING and field.default_factory is MISSING}  # type: ignore[arg-type]
    if not isinstance(event, Mapping):
        raise Invalid("the event is not an object", remedy=f"Send an object with the fields {', '.join(kinds)}")
    for name in event:
        if name not in kinds:
            remedy = did_you_mean(name, list(kinds), what="Fields are")
            raise Invalid(f"unknown field {shown(name)} in the event", remedy=remedy, field=name)
    for name in sorted(needed - event.keys()):
        raise Invalid(f"the event lacks the field {name!r}", field=name)
    for name, value in event.items():
        if not _fits(value, kinds[name]):
            raise Invalid(
                f"{name} is {shown(value)}",
                remedy=f"Give {_described(kinds[name])}",
                redacted=f"{name} has a wrong type or value",
                field=name,
            )
    return into(**event)


def queued_body(event: object) -> str | None:
    """Return the body of the message if the event is one of SQS with one record; None if it is no event of SQS.

    Raises:
        Invalid: it has not exactly one record with a body.
    """
    if not isinstance(event, Mapping) or "Records" not in event:
        return None
    match event["Records"]:
        case [{"body": str(body)}]:
            return body
    raise Invalid("the event has not one record with a body", remedy="Send the record of one message", field="Records")


def _fits(value: object, kind: Any) -> bool:
    """Return whether a JSON value has a type: str, int, bool, a list of a type, dict, a Literal or a union of these."""
    if get_origin(kind) in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(kind))
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    plain = get_origin(kind) or kind
    if plain is Any:
        return True
    if isinstance(value, bool):
        return plain is bool
    if isinstance(value, list):
        return plain is list and all(_fits(item, one) for item in value for one in get_args(kind))
    return value is None if plain in (None, types.NoneType) else isinstance(value, plain)


def _described(kind: Any) -> str:
    names = {str: "text", int: "a whole number", bool: "true or false", dict: "an object", Any: "any values"}
    if get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_described(one) for one in get_args(kind) if one is not types.NoneType)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is list:
        return f"an array; each item is {_described(*get_args(kind))}"
    return names.get(get_origin(kind) or kind, str(kind))


def table_uri(table: str, *, root: str) -> str:
    """Return the URI of a table of this deployment.

    Args:
        table: its name below the root, or its full URI.
        root: the URI below which all tables of the deployment are.

    Raises:
        Invalid: the table is not below the root.
    """
    root = root.rstrip("/")
    whole = "://" in table or table.startswith("/")
    uri = (table if whole else f"{root}/{table}").rstrip("/")
    below = uri.removeprefix(f"{root}/")
    if below == uri or not below or any(part in ("", ".", "..") for part in below.split("/")):
        raise Invalid("the table is not in this deployment", remedy=f"Give a name or a URI below {root}/", table=table)
    return uri
