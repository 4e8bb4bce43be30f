"""Run the steps of a collection in a deployment: each step keeps its rounds in an object, for the next step."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, Literal

from lancelsm.errors import Invalid
from lancelsm.gc import collect
from lancelsm.region.handle import TableHandle
from lancelsm.stack import steps

MOST_SECONDS = 7 * 86_400  # the objects of an execution expire after 14 days
Step = Literal["mark", "verify", "commit"]
Document = dict[str, Any]


def mark(
    handle: TableHandle, *, prefix: str, attempt: int, interval_seconds: int | None
) -> tuple[Document, collect.Collected | None]:
    """Mark. The document also has the interval until the sweep, by default that of the table.

    Args:
        prefix: the URI below which the objects of the execution are.
        attempt: how many times the execution has marked, this time included.

    Returns:
        The answer of the step, and what the step did; None instead if an earlier attempt did it.

    Raises: the same errors as `gc.collect.mark`, and `Invalid` for an interval that is too long.
    """
    seconds = ceil(handle.settings.collect_interval_seconds) if interval_seconds is None else interval_seconds
    if not 0 <= seconds <= MOST_SECONDS:
        field = "collect_interval_seconds" if interval_seconds is None else "interval_seconds"
        raise Invalid(
            f"the time between commit and sweep is {seconds} seconds",
            remedy=f"Give 0 to {MOST_SECONDS} in a deployment: lancelsm config set, or the input of the collection",
            table=handle.context.uri,
            field=field,
        )
    uri = f"{prefix}/mark-{attempt}.json"
    document, done = _step(handle, uri, lambda: collect.mark(handle))
    return {**document, "interval_seconds": seconds}, done


def verify(handle: TableHandle, before: str) -> tuple[Document, collect.Collected | None]:
    """Verify what `mark` found. `before` is the URI that `mark` returned.

    Raises: the same errors as `gc.collect.verify`.
    """
    rounds = _rounds(handle, before)
    return _step(handle, _following(before, "verify"), lambda: collect.verify(handle, rounds))


def commit(handle: TableHandle, before: str) -> tuple[Document, collect.Collected | None]:
    """Commit what `verify` has passed. `before` is the URI that `verify` returned.

    Raises: the same errors as `gc.collect.commit`.
    """
    rounds = _rounds(handle, before)
    return _step(handle, _following(before, "commit"), lambda: collect.commit(handle, rounds))


def sweep(handle: TableHandle, before: str) -> Document:
    """Sweep what `commit` has committed. A sweep may be repeated, so it keeps no object.

    Raises: the same errors as `gc.collect.sweep`.
    """
    return _short(collect.step_document(collect.sweep(handle, _rounds(handle, before))), before)


def _step(
    handle: TableHandle, uri: str, run: Callable[[], collect.Collected]
) -> tuple[Document, collect.Collected | None]:
    ran: list[collect.Collected] = []

    def document() -> Document:
        ran.append(run())
        return collect.step_document(ran[0])

    return _short(steps.once(uri, handle.context.uri, document), uri), (ran[0] if ran else None)


def _rounds(handle: TableHandle, uri: str) -> list[str]:
    found = steps.read(uri, handle.context.uri).get("round")
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise Invalid("the object has no rounds", remedy="Give what the step before returned", object=uri)
    return found


def _following(uri: str, step: Step) -> str:
    """Return the URI of the next step, with the same number of the attempt."""
    prefix, _, name = uri.rpartition("/")
    return f"{prefix}/{step}-{name.rpartition('-')[2]}"


def _short(document: Document, uri: str) -> Document:
    """Return a document with the URI of its rounds, and their number."""
    return {**document, "round": uri, "rounds": len(document["round"])}
