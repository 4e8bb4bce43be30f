"""The edge of every function: settings when it starts, a checked event in, one document out, errors by kind.

A function fails with the kind of `lancelsm.errors` as the error's type, so that a state machine or an app can tell what
to do, and with the error document of the command line as its message, in JSON. What the runtime is told of an error
goes into the log too, so it has no value of a row: it names column and row.
"""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin

from lancelsm.common.settings import resolve
from lancelsm.errors import Invalid, LsmError
from lancelsm.stack.telemetry import Telemetry, load

T = TypeVar("T")
Document = dict[str, Any]

_MARGIN_SECONDS = 5.0  # left for the answer, and for telling the queue what to deliver again
_SHORTEST_SECONDS = 1.0


class Context(Protocol):
    """What a function uses of the runtime's context."""

    aws_request_id: str
    function_name: str

    def get_remaining_time_in_millis(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """One invocation."""

    id: str  # the same when the service repeats an asynchronous invocation
    seconds: float  # for the work: what is left, less a margin for the answer
    telemetry: Telemetry


class Internal(Exception):
    """A bug, as the runtime is told of it: its type and the trace, but not its text, which may have values of rows."""


def settings(*names: str) -> Mapping[str, str]:
    """Settings of the deployment, from the environment; read where a module is loaded, so that a wrong one fails there.

    Raises:
        Invalid: one is missing or empty; names all that are. Or a setting of pace in the environment is wrong. Its text
            is the document.
    """
    try:
        missing = [name for name in names if not os.environ.get(name)]
        if missing:
            raise Invalid(f"the function lacks the settings {', '.join(missing)}", remedy="Deploy the stack again")
        resolve(table={})
    except Invalid as error:
        raise _runtime_error(error) from error
    return {name: os.environ[name] for name in names}


def function(work: Callable[[Document, FunctionCall], Document]) -> Callable[[Document, Context], Document]:
    """Make a handler of a function from an event to a document.

    The handler raises errors of `lancelsm.errors`, with the document of `LsmError.document` in JSON as the message, and
    `Internal` with such a document for anything else.
    """

    load()

    def handler(event: Document, context: Context) -> Document:
        left = context.get_remaining_time_in_millis() / 1000 - _MARGIN_SECONDS
        telemetry = Telemetry(function=context.function_name)
        call = FunctionCall(id=context.aws_request_id, seconds=max(_SHORTEST_SECONDS, left), telemetry=telemetry)
        with telemetry.invocation(call.id):
            try:
                return work(event, call)
            except LsmError as error:
                telemetry.failed(error)
                raise _runtime_error(error) from error
            except Exception as error:  # noqa: BLE001 - the edge: whatever went wrong has one form
                raise _bug(error).with_traceback(error.__traceback__) from None

    handler.__doc__ = work.__doc__
    return handler


def _runtime_error(error: LsmError) -> LsmError:
    """An error of the same kind, its text the document: a caller knows six by name, and none of their subclasses."""
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


def parsed(into: type[T], event: Mapping[str, Any]) -> T:
    """An event as the frozen dataclass that documents it.

    Raises:
        Invalid: a field is missing, unknown or of another type; names it.
    """
    kinds = typing.get_type_hints(into)
    needed = {field.name for field in fields(into) if field.default is MISSING and field.default_factory is MISSING}  # type: ignore[arg-type]
    if not isinstance(event, Mapping):
        raise Invalid("the event is no object", remedy=f"Send an object with the fields {', '.join(kinds)}")
    for name in event:
        if name not in kinds:
            raise Invalid(f"the event has no field {name!r}", remedy=f"Fields are {', '.join(kinds)}", field=name)
    for name in sorted(needed - event.keys()):
        raise Invalid(f"the event lacks the field {name!r}", field=name)
    for name, value in event.items():
        if not _fits(value, kinds[name]):
            raise Invalid(
                f"{name} is {value!r:.80}",
                remedy=f"Give {_described(kinds[name])}",
                redacted=f"{name} is not what it has to be",
                field=name,
            )
    return into(**event)


def _fits(value: object, kind: Any) -> bool:
    """Whether a JSON value is of a type: str, int, bool, list, dict, a Literal or a union of those."""
    if get_origin(kind) in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(kind))
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    plain = get_origin(kind) or kind
    if plain is Any:
        return True
    if isinstance(value, bool):
        return plain is bool
    return value is None if plain in (None, types.NoneType) else isinstance(value, plain)


def _described(kind: Any) -> str:
    names = {str: "text", int: "a whole number", bool: "true or false", list: "an array", dict: "an object"}
    if get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_described(one) for one in get_args(kind) if one is not types.NoneType)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return names.get(get_origin(kind) or kind, str(kind))


def place(table: str, *, root: str) -> str:
    """The URI of a table of this deployment.

    Args:
        table: its name below the root, or its whole URI.
        root: the URI below which all tables of the deployment are.

    Raises:
        Invalid: it is not below the root.
    """
    root = root.rstrip("/")
    whole = "://" in table or table.startswith("/")
    uri = (table if whole else f"{root}/{table}").rstrip("/")
    below = uri.removeprefix(f"{root}/")
    if below == uri or not below or any(part in ("", ".", "..") for part in below.split("/")):
        raise Invalid(
            "the table is not one of this deployment", remedy=f"Give a name or a URI below {root}/", table=table
        )
    return uri
