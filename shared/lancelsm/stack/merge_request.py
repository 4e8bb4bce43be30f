"""A merge that is planned in one place, done in another and recorded in a third: the two objects that they share.

`plan.json` says what was pending, where it is to be merged, and under which name a job is started; `result.json` is
the document of the merge. Both are written once: whoever repeats a step reads what the first one wrote. Neither decides
anything about the table: a merge plans for itself, from heads and base.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lancelsm.common.clock import Budget, SystemClock, SystemIds
from lancelsm.common.layout import Generation, RegionId
from lancelsm.compaction.maintenance import Engine, choose_engine, pending_merge
from lancelsm.compaction.merge import Merged
from lancelsm.errors import Corrupt, Invalid, Unavailable
from lancelsm.objects import put_once
from lancelsm.objects.open import open_store
from lancelsm.region.handle import TableHandle
from lancelsm.stack import documents

FORMAT = 1
_EXECUTION = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,79}")
_TOKEN_DIGITS = 32
_WRITE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The generations after+1 .. through of one region."""

    region: RegionId
    after: Generation
    through: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """What one execution is asked to merge, and where.

    `token` names the work: the same for every repetition within one execution, another for the next execution. A job
    is started under it and the number of the attempt.
    """

    table: str  # URI
    engine: Literal["none", "inprocess", "spark"]
    regions: tuple[Span, ...]
    token: str

    def to_json(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, body: bytes) -> MergeRequest:
        """Inverse of `to_json`; raises `Invalid` for another format, `Corrupt` for what is no request."""
        try:
            fields: dict[str, Any] = json.loads(body)
            if (known := fields.pop("format")) != FORMAT:
                raise Invalid(f"the plan has format {known!r}, this release reads {FORMAT}", remedy="Plan again")
            spans = tuple(Span(**span) for span in fields.pop("regions"))
            return cls(regions=spans, **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(f"the plan of a merge is unreadable: {error!r}", remedy="Start the merge again") from error


def plan_request(handle: TableHandle, *, execution: str, engine: Engine = "auto") -> MergeRequest:
    """What is pending now, and where it is to be merged: `none` if nothing is, else by the engine that is asked for.

    Args:
        execution: names this run of the work, in letters, digits, `-`, `_` and `.`.

    Raises:
        Invalid: there is no such engine.
        Corrupt, Unavailable: heads or base could not be read.
    """
    table = handle.context.uri
    pending = pending_merge(handle)
    spans = tuple(
        Span(region=region, after=after, through=through) for region, (after, through) in sorted(pending.spans.items())
    )
    chosen = choose_engine(engine, handle.settings, lambda: pending)
    return MergeRequest(
        table=table,
        engine=chosen if spans else "none",
        regions=spans,
        token=_token(table, spans, execution),
    )


def folder(work: str, execution: str) -> str:
    """The URI below which the objects of one execution are.

    Raises:
        Invalid: its name does not fit a key.
    """
    if not _EXECUTION.fullmatch(execution):
        raise Invalid(
            f"{execution!r:.100} is no name of an execution",
            remedy="Give letters, digits, - and _, 80 at most",
            field="execution",
        )
    return f"{work.rstrip('/')}/merge/{execution}"


def keep_request(request: MergeRequest, uri: str, storage_options: Mapping[str, str] | None = None) -> MergeRequest:
    """Write a plan to its URI, or give back the one that stands there."""
    kept = MergeRequest.from_json(_kept(uri, request.to_json(), storage_options))
    if kept.table != request.table:
        raise Invalid(
            f"the plan there is for another table, {kept.table}",
            remedy="Give each execution a name of its own",
            table=request.table,
            object=uri,
        )
    return kept


def read_request(uri: str, storage_options: Mapping[str, str] | None = None) -> MergeRequest:
    """Raises `Invalid` if nothing is there."""
    return MergeRequest.from_json(_read(uri, "plan", storage_options))


def keep_result(merged: Merged, uri: str, storage_options: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Write what a merge did to its URI, as a document, or give back the one that stands there.

    A job that is started again after it had merged finds nothing to do: the first account is the true one.
    """
    body = json.dumps({"format": FORMAT, **documents.merged(merged)}).encode()
    return _result(_kept(uri, body, storage_options))


def read_result(uri: str, storage_options: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The document of the merge; raises `Invalid` if nothing is there."""
    return _result(_read(uri, "result", storage_options))


def _token(table: str, spans: tuple[Span, ...], execution: str) -> str:
    parts = json.dumps([table, [asdict(span) for span in spans], execution])
    return hashlib.sha256(parts.encode()).hexdigest()[:_TOKEN_DIGITS]


def _result(body: bytes) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(body)
        known = document.pop("format")
    except (ValueError, KeyError, AttributeError) as error:
        raise Corrupt(f"the result of a merge is unreadable: {error!r}", remedy="Start the merge again") from error
    if known != FORMAT:
        raise Invalid(f"the result has format {known!r}, this release reads {FORMAT}", remedy="Start the merge again")
    return document


def _read(uri: str, what: str, storage_options: Mapping[str, str] | None) -> bytes:
    place, _, name = uri.rpartition("/")
    found = open_store(place, storage_options).get(name)
    if found is None:
        raise Invalid(f"there is no {what} of a merge", remedy="Start the merge again", object=uri)
    return found.body


def _kept(uri: str, body: bytes, storage_options: Mapping[str, str] | None) -> bytes:
    """What stands at the URI once this was written there if nothing was."""
    place, _, name = uri.rpartition("/")
    store = open_store(place, storage_options)
    budget = Budget(clock=SystemClock(), ids=SystemIds(), seconds=_WRITE_SECONDS)
    found = put_once(store, name, body, attempts=budget.attempts())
    if found is None:
        raise Unavailable("the store did not answer", remedy="Retry", object=uri)
    return found
