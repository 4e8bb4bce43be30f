"""Find the tables that a scheduled scrub or backup is about, and whether they have changed since the last one.

Each table is served in an invocation of its own. A record for each table says what the last runs have read. It is
advisory: without it the table counts as changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import TableId, scheduled_key, table_key
from lancelsm.errors import Corrupt, Invalid, LsmError
from lancelsm.objects.location import is_absolute
from lancelsm.region.catalog import regions, with_heads
from lancelsm.region.handle import TableHandle
from lancelsm.registry import Fields, Record, Registry, SwapApplied

OpenTable = Callable[[str], TableHandle]


def decode_message(body: object, *, kind: str) -> tuple[TableId, Any]:
    """Decode a message `{"table": id, kind: value}`. Return both. Raises `Invalid` if the text is something else."""
    try:
        document = parse_json(body)
        table, value = document["table"], document[kind]
        if not isinstance(table, str):
            raise TypeError("the id is no text")
    except (ValueError, KeyError, TypeError) as error:
        raise no_table(kind) from error
    return TableId(table), value


def no_table(kind: str) -> Invalid:
    """Build the error for a message that is not one of this kind of round."""
    return Invalid(f"the message names no table for a {kind}", remedy="Delete it from the queue")


def start_round(registry: Registry, kind: str, value: str, *, root: str, send: Callable[[list[str]], None]) -> int:
    """Send a message for each table of the deployment. Return their number.

    A table of the registry that is not below `root` belongs to another deployment.

    Raises:
        Unavailable: the registry or the queue did not answer. Some messages may be sent.
    """
    root = f"{root.rstrip('/')}/"
    tables = [
        key.sort
        for key, record in registry.list(table_key(TableId("")).partition)
        if (uri := str(record.get("uri"))).startswith(root) or not is_absolute(uri)  # damaged: to be reported
    ]
    send([json.dumps({kind: value, "table": table}) for table in tables])
    return len(tables)


def location(registry: Registry, table: TableId) -> str | None:
    """Return the URI of a table; None if it was dropped.

    Raises:
        Corrupt: the record of the table is damaged.
        Unavailable: the registry did not answer.
    """
    record = registry.read(table_key(table))
    if record is None:
        return None
    uri: Any = record.get("uri")
    if not isinstance(uri, str) or not is_absolute(uri):
        what = f"the registry names a location that is neither an absolute path nor a URL: {uri!r}"
        raise Corrupt(what, remedy="Correct this field of the record of the table", table=table, field="uri")
    return uri


def read_last(registry: Registry, table: TableId) -> Record | None:
    """Return the record of the last runs; None if there is none. A damaged one is empty."""
    with suppress(Corrupt):
        return registry.read(scheduled_key(table))
    return {}


def write_last(registry: Registry, table: TableId, last: Mapping[str, Any] | None, change: Fields) -> bool:
    """Change the record of the last runs. Return whether it was changed; if not, the next run reads the table again."""
    with suppress(LsmError):
        outcome = registry.swap(scheduled_key(table), expect=None if last is None else {}, change=change)
        return isinstance(outcome, SwapApplied)
    return False


def state_of(handle: TableHandle, table: TableId) -> str:
    """Return a digest of the heads and the version of the base: it is another one after each change.

    Raises:
        Corrupt: damage hides them.
        Invalid: another table is at this location.
        Unavailable: a store or the registry did not answer.
    """
    if handle.config.table != table:
        raise Invalid(
            f"another table, {handle.config.table}, is at the location of {table}",
            remedy=f"Remove the records of the old table from the registry: those with {table} in their keys",
            table=handle.context.uri,
        )
    heads = with_heads(handle.context, regions(handle.context))
    version = handle.inspect_base().version
    parts = [[one.id, head.epoch, head.first_position, head.next_position, head.manifest_key] for one, head in heads]
    return hashlib.sha256(json.dumps([version, sorted(parts)]).encode()).hexdigest()
