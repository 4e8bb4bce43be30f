"""The two objects that the steps of a merge execution share: `plan.json` and `result.json`.

`plan.json` records what was pending, which engine merges it, and the token under which a job is started. `result.json`
is the document of the merge. Both are written once: a repeated step reads what the first attempt wrote. Neither affects
correctness: a merge plans for itself from heads and base.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import Generation, RegionId, is_id
from lancelsm.compaction.engine import choose_engine, pending_merge
from lancelsm.compaction.merge import Merged
from lancelsm.compaction.runner import Engine
from lancelsm.errors import Corrupt, Invalid, LsmError
from lancelsm.objects.location import is_absolute
from lancelsm.region.handle import TableHandle
from lancelsm.stack import documents, steps

FORMAT = 1
ERROR = "error.json"  # beside the result of a job that failed
_TOKEN_DIGITS = 32
_TOKEN = re.compile(rf"[0-9a-f]{{{_TOKEN_DIGITS}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The generations after + 1 to through of one region."""

    region: RegionId
    after: Generation
    through: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """What one execution has to merge, and with which engine.

    `token` names the work: it is the same for every repetition within one execution and differs between executions. A
    job is started under the token and the number of the attempt.
    """

    table: str  # URI
    engine: Literal["none", "inprocess", "spark"]
    regions: tuple[Span, ...]
    token: str

    def to_json(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, body: bytes) -> MergeRequest:
        """Decode `to_json`. Raises `Invalid` for another format, `Corrupt` if the text is not a plan."""
        try:
            fields: dict[str, Any] = parse_json(body)
            if (known := fields.pop("format")) != FORMAT:
                raise Invalid(f"the plan has format {known!r}, this release reads {FORMAT}", remedy="Plan again")
            spans = tuple(Span(**span) for span in fields.pop("regions"))
            plan = cls(regions=spans, **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(f"the plan of a merge is unreadable: {error!r}", remedy="Start the merge again") from error
        wrong = {
            "table": not is_absolute(str(plan.table)),
            "regions": not all(is_id(span.region) for span in spans),
            "token": not _TOKEN.fullmatch(str(plan.token)),
        }
        for field, is_wrong in wrong.items():
            if is_wrong:
                what = f"the plan of a merge has a wrong {field}: {getattr(plan, field)!r:.200}"
                raise Corrupt(what, remedy="Start the merge again", field=field)
        return plan


def plan_request(handle: TableHandle, *, execution: str, engine: Engine = "auto") -> MergeRequest:
    """Plan what is pending now and where it is merged: engine `none` if nothing is pending, else by `engine`.

    Args:
        execution: the name of the execution: letters, digits, `-`, `_` and `.`.

    Raises:
        Invalid: unknown engine.
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


def keep_request(request: MergeRequest, uri: str, storage_options: Mapping[str, str] | None = None) -> MergeRequest:
    """Write a plan to its URI if there is none, and return the plan that is there."""
    kept = MergeRequest.from_json(steps.keep(uri, request.to_json(), storage_options))
    if kept.table != request.table:
        raise Invalid(
            f"the plan there is for another table, {kept.table}",
            remedy="Give each execution its own name",
            table=request.table,
            object=uri,
        )
    return kept


def read_request(uri: str, storage_options: Mapping[str, str] | None = None) -> MergeRequest:
    """Read a plan. Raises `Invalid` if there is none."""
    return MergeRequest.from_json(_read(uri, "plan", storage_options))


def keep_result(merged: Merged, uri: str, storage_options: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Write the document of a merge to its URI if there is none, and return the document that is there.

    A job that is started again after it has merged finds nothing to do, so the first document is the right one.
    """
    body = json.dumps({"format": FORMAT, **documents.merged(merged)}).encode()
    return _result(steps.keep(uri, body, storage_options))


def read_result(uri: str, storage_options: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Read the document of a merge. Raises `Invalid` if there is none."""
    return _result(_read(uri, "result", storage_options))


def read_error(result: str, storage_options: Mapping[str, str] | None = None) -> LsmError | None:
    """Read the error that a job wrote beside its result. None if the job wrote none: it was killed, or never ran."""
    body = steps.find(f"{result.rpartition('/')[0]}/{ERROR}", storage_options)
    if body is None:
        return None
    try:
        fields = parse_json(body)["error"]
        kinds = {one.kind: one for one in LsmError.__subclasses__()}
        error = kinds[fields.pop("kind")](str(fields.pop("message")), remedy=str(fields.pop("remedy")))
        error.where = dict(fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return error


def _token(table: str, spans: tuple[Span, ...], execution: str) -> str:
    parts = json.dumps([table, [asdict(span) for span in spans], execution])
    return hashlib.sha256(parts.encode()).hexdigest()[:_TOKEN_DIGITS]


def _result(body: bytes) -> dict[str, Any]:
    try:
        document: dict[str, Any] = parse_json(body)
        known = document.pop("format")
    except (ValueError, KeyError, AttributeError) as error:
        raise Corrupt(f"the result of a merge is unreadable: {error!r}", remedy="Start the merge again") from error
    if known != FORMAT:
        raise Invalid(f"the result has format {known!r}, this release reads {FORMAT}", remedy="Start the merge again")
    return document


def _read(uri: str, what: str, storage_options: Mapping[str, str] | None) -> bytes:
    found = steps.find(uri, storage_options)
    if found is None:
        raise Invalid(f"the {what} of the merge was not found", remedy="Start the merge again", object=uri)
    return found
