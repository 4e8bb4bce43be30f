"""Back up the tables of a deployment on a schedule: each in an invocation of its own, and only if it has changed.

The backups of a table are below one directory, each with the time in its name. Nothing here deletes a backup. The
record of the table (`scheduled_tables`) has the location of the last backup, `backup_at`, and the state that it has,
`backup`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lancelsm.admin.backup import back_up_live
from lancelsm.common.layout import BACKUP, TableId
from lancelsm.region.handle import Ports, open_configured, open_table
from lancelsm.registry import Registry
from lancelsm.stack.scheduled_tables import decode_message, location, no_table, read_last, state_of, write_last

KIND = "backup"
CHANGED = "changed"  # which tables a scheduled backup is of


def decode_wanted(body: object) -> TableId:
    """Decode a message of `scheduled_tables.start_round`. Raises `Invalid` if the text is something else."""
    table, wanted = decode_message(body, kind=KIND)
    if wanted != CHANGED:
        raise no_table(KIND)
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedUp:
    """What became of a message. `rows` is None if the backup `at` has the table as it is.

    `noted`: the record says so; else the next run makes a backup again.
    """

    uri: str
    at: str
    rows: int | None
    noted: bool = True


def back_up_changed(
    registry: Registry, table: TableId, *, root: str, to: str, seconds: float, ports: Ports
) -> BackedUp | None:
    """Back up a table unless its last backup has the same state of it, and is still there.

    Args:
        root: the URI below which the tables of the deployment are.
        to: the URI below which its backups are.
        seconds: the time for it.

    Returns:
        None if the table was dropped.

    Raises:
        Corrupt: an object or record of the table is missing or damaged.
        Invalid: the table is not at its location, or its backup needs more time.
        Unavailable, Contended: call it again.
    """
    began = ports.clock.monotonic()
    uri = location(registry, table)
    if uri is None:
        return None
    last = read_last(registry, table)
    state = state_of(open_configured(uri, ports=ports), table)
    if (at := _kept(last or {}, state, to, ports)) is not None:
        return BackedUp(uri=uri, at=at, rows=None)
    time = datetime.fromtimestamp(ports.clock.now(), UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    at = f"{to}/{uri.removeprefix(root).strip('/')}/{time}"
    left = seconds - (ports.clock.monotonic() - began)
    copied = back_up_live(open_table(uri, ports=ports), at, seconds=left, ports=ports)
    noted = write_last(registry, table, last, {"backup": state, "backup_at": at})
    return BackedUp(uri=uri, at=at, rows=copied.rows, noted=noted)


def _kept(last: Mapping[str, Any], state: str, to: str, ports: Ports) -> str | None:
    """Return the location of the last backup if it has this state and exists below `to`."""
    at = last.get("backup_at")
    if last.get("backup") != state or not isinstance(at, str) or not at.startswith(f"{to}/"):
        return None
    return at if ports.store(at, None).get(BACKUP) is not None else None
