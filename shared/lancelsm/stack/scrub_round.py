"""Scrub the tables of a deployment on a schedule: each in an invocation of its own, and only if it has changed.

A record says what the last scrubs of a table have read: a digest of its heads and of the version of its base. The
record is advisory. Without it, or if something is wrong with the table, the table is scrubbed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import TableId, scrubbed_key, table_key
from lancelsm.errors import Corrupt, Invalid, LsmError
from lancelsm.objects.location import is_absolute
from lancelsm.region.catalog import regions, with_heads
from lancelsm.region.handle import TableHandle
from lancelsm.registry import Record, Registry
from lancelsm.scrub.report import Report
from lancelsm.scrub.table import scrub_location

Scope = Literal["sample", "everything"]
SAMPLE_OBJECTS = 1000
_COVERED_BY: Mapping[Scope, tuple[Scope, ...]] = {"sample": get_args(Scope), "everything": ("everything",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The content of a message: a table to scrub."""

    table: TableId
    scope: Scope


def encode(wanted: Wanted) -> str:
    return json.dumps({"scrub": wanted.scope, "table": wanted.table})


def decode(body: object) -> Wanted:
    """Decode `encode`. Raises `Invalid` if the text is something else."""
    try:
        document = parse_json(body)
        table, scope = document["table"], document["scrub"]
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid("the message names no table to scrub", remedy="Delete it from the queue") from error
    if not isinstance(table, str) or scope not in get_args(Scope):
        raise Invalid("the message names no table to scrub", remedy="Delete it from the queue")
    return Wanted(table=TableId(table), scope=scope)


def start_round(registry: Registry, scope: Scope, *, send: Callable[[list[str]], None]) -> int:
    """Send a message for each table of the registry. Return their number.

    Raises:
        Unavailable: the registry or the queue did not answer. Some messages may be sent.
    """
    tables = [TableId(key.sort) for key, _ in registry.list(table_key(TableId("")).partition)]
    send([encode(Wanted(table=table, scope=scope)) for table in tables])
    return len(tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrubbed:
    """What became of a message. `report` is None if the table has not changed since its last scrub."""

    uri: str
    report: Report | None


def scrub_changed(
    registry: Registry,
    wanted: Wanted,
    *,
    open_table: Callable[[str], TableHandle],
    has_time: Callable[[], bool],
    scrub: Callable[..., Report] = scrub_location,
) -> Scrubbed | None:
    """Scrub a table unless the last scrub of this scope, or of everything, has read the same state of it.

    Args:
        open_table: opens a table by its URI, without Lance.
        has_time: whether there is time for one more object.

    Returns:
        None if the table was dropped.

    Raises:
        Corrupt: the record of the table is damaged.
        Invalid: the table is not at its location, or another table is there.
        Unavailable: a store or the registry did not answer.
    """
    record = registry.read(table_key(wanted.table))
    if record is None:
        return None
    uri = _uri(record, wanted.table)
    last = _last(registry, wanted.table)
    state = _state(uri, wanted.table, open_table)
    if state is not None and any((last or {}).get(scope) == state for scope in _COVERED_BY[wanted.scope]):
        return Scrubbed(uri=uri, report=None)
    limit = SAMPLE_OBJECTS if wanted.scope == "sample" else None
    report = scrub(uri, limit=limit, has_time=has_time)
    if state is not None and report.ok and (report.complete or wanted.scope == "sample"):
        with suppress(LsmError):  # the next run scrubs the table again
            registry.swap(scrubbed_key(wanted.table), expect=None if last is None else {}, change={wanted.scope: state})
    return Scrubbed(uri=uri, report=report)


def _uri(record: Record, table: TableId) -> str:
    uri: Any = record.get("uri")
    if not isinstance(uri, str) or not is_absolute(uri):
        what = f"the registry names a location that is neither an absolute path nor a URL: {uri!r}"
        raise Corrupt(what, remedy="Correct this field of the record of the table", table=table, field="uri")
    return uri


def _last(registry: Registry, table: TableId) -> Record | None:
    with suppress(Corrupt):
        return registry.read(scrubbed_key(table))
    return {}


def _state(uri: str, table: TableId, open_table: Callable[[str], TableHandle]) -> str | None:
    """Return a digest of the heads and the version of the base; None if damage hides them."""
    try:
        handle = open_table(uri)
    except (Corrupt, Invalid):
        return None
    if handle.config.table != table:
        raise Invalid(
            f"another table, {handle.config.table}, is at the location of {table}",
            remedy="Remove the records of the old table from the registry",
            table=uri,
        )
    try:
        heads = with_heads(handle.context, regions(handle.context))
        version = handle.inspect_base().version
    except Corrupt:
        return None
    parts = [[one.id, head.epoch, head.first_position, head.next_position, head.manifest_key] for one, head in heads]
    return hashlib.sha256(json.dumps([version, sorted(parts)]).encode()).hexdigest()
