"""The objects that the steps of one execution share. A step writes one object, and its state passes on the URI.

So the size of a state does not depend on the number of regions: a state machine allows 256 KiB. An object is written
once: a step that is repeated returns what the first attempt wrote. No safety depends on these objects: each step
checks what it is given against the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from lancelsm.common.clock import Budget, SystemClock, SystemIds
from lancelsm.common.json_text import parse_json
from lancelsm.errors import Corrupt, Invalid, Unavailable
from lancelsm.objects import put_once
from lancelsm.objects.open import open_store

FORMAT = 1
_EXECUTION = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,79}")
_WRITE_SECONDS = 30.0

Document = dict[str, Any]


def steps_root(work: str) -> str:
    """Return the URI below which the objects of all executions are."""
    return f"{work.rstrip('/')}/steps"


def execution_prefix(work: str, execution: str) -> str:
    """Return the URI below which the objects of one execution are.

    Raises:
        Invalid: the name can't be part of a key.
    """
    if not _EXECUTION.fullmatch(execution):
        raise Invalid(
            f"{execution!r:.100} is not a valid execution name",
            remedy="Use letters, digits, - and _, at most 80",
            field="execution",
        )
    return f"{steps_root(work)}/{execution}"


def step_object(work: str, uri: str, *, field: str) -> str:
    """Return the URI of an object that a step of this deployment wrote, as an event names it.

    Args:
        field: the field of the event.

    Raises:
        Invalid: the URI is not below the objects of the steps.
    """
    prefix = f"{steps_root(work)}/"
    if not uri.startswith(prefix) or any(part in ("", ".", "..") for part in uri.removeprefix(prefix).split("/")):
        raise Invalid(
            f"{uri!r:.200} is not the URI of an object that a step of this deployment wrote",
            remedy=f"Give what the step before returned, a URI below {prefix}",
            field=field,
        )
    return uri


def once(uri: str, table: str, step: Callable[[], Document]) -> Document:
    """Run a step unless its object exists. Return the document in the object.

    Raises:
        Invalid: the object is of another table.
        Corrupt: the object is unreadable.
        Unavailable: the store did not answer.
        The errors of the step; then nothing is written.
    """
    if (found := find(uri)) is not None:
        return _decoded(found, uri, table)
    return _decoded(keep(uri, json.dumps({"format": FORMAT, "table": table, **step()}).encode()), uri, table)


def read(uri: str, table: str) -> Document:
    """Return the document that a step wrote.

    Raises:
        Invalid: there is no object, or it is of another table.
        Corrupt: the object is unreadable.
        Unavailable: the store did not answer.
    """
    if (found := find(uri)) is None:
        raise Invalid("the object of the step before was not found", remedy="Start with the first step", object=uri)
    return _decoded(found, uri, table)


def find(uri: str, storage_options: Mapping[str, str] | None = None) -> bytes | None:
    """Return the content of an object; None if there is no object."""
    prefix, _, name = uri.rpartition("/")
    found = open_store(prefix, storage_options).get(name)
    return None if found is None else found.body


def keep(uri: str, body: bytes, storage_options: Mapping[str, str] | None = None) -> bytes:
    """Write an object if there is none, and return the content that is there."""
    prefix, _, name = uri.rpartition("/")
    store = open_store(prefix, storage_options)
    budget = Budget(clock=SystemClock(), ids=SystemIds(), seconds=_WRITE_SECONDS)
    found = put_once(store, name, body, attempts=budget.attempts())
    if found is None:
        raise Unavailable("the store did not answer", object=uri)
    return found


def _decoded(body: bytes, uri: str, table: str) -> Document:
    try:
        document: Document = parse_json(body)
        known, owner = document.pop("format"), document.pop("table")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Corrupt(
            f"the object of a step is unreadable: {error!r}", remedy="Start the execution again", object=uri
        ) from error
    if known != FORMAT:
        what = f"the object of a step has format {known!r}, this release reads {FORMAT}"
        raise Invalid(what, remedy="Start the execution again", object=uri)
    if owner != table:
        raise Invalid(
            f"the object of the step is for another table, {owner}",
            remedy="Give each execution its own name",
            table=table,
            object=uri,
        )
    return document
