"""The public calls on a whole table: `lancelsm.backup`, `restore`, `clone`, `copy`, `drop` and `scrub`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lancelsm.admin.backup import back_up_view, restore_backup
from lancelsm.admin.clone import Copied, clone_snapshot
from lancelsm.admin.copy_table import copy_table
from lancelsm.admin.drop import drop_table
from lancelsm.common.argument_checks import checked
from lancelsm.history.at import At
from lancelsm.region.handle import Ports, TableHandle, open_table
from lancelsm.region.on_ports import on_ports
from lancelsm.scrubbing.report import Report
from lancelsm.scrubbing.table import scrub_location
from lancelsm.table import Table
from lancelsm.table import open as open_at

_TTL = "1h"  # of the snapshot that a backup reads; it is refreshed meanwhile


@on_ports
@checked
def backup(
    ports: Ports,
    /,
    table: Table | str | Path,
    to: str | Path,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> Copied:
    """Copy every live row of a table to another location. The backup does not depend on the table afterwards.

    The rows are those of one moment: the call holds a snapshot while it reads. It reads the copy back and compares it.

    Args:
        table: the table, or its location. If it is open at a snapshot or a version, the rows of that state are copied.
        to: a path or URL without a table or a backup.
        storage_options: options of both object stores, as Lance takes them; by default those of an open table.

    Returns:
        The location of the backup, the number of its rows, and the location of the table.

    Raises:
        Invalid: there is no table; a table or a backup exists at `to`; or the snapshot was dropped or expired before it
            was read.
        Corrupt: an object of the table is missing or damaged, or the copied rows read back differently.
        Contended, Unavailable: there is no backup. Back up again.

    A crash at any line leaves no backup. Files that it leaves at `to` are ignored by the next backup to this location.
    """
    if not isinstance(table, Table):
        table = open_at.on(ports)(table, storage_options=storage_options)
    options = _options(table, storage_options)
    if table.at_snapshot is None:
        name = f"backup-{ports.ids.nonce()[:8]}"
        with table.holding_snapshot(name, _TTL) as held:
            return backup.on(ports)(held, to, storage_options=options)
    return back_up_view(table._handle, table._pinned, table.scan(), to, storage_options=options, ports=ports)


@on_ports
@checked
def restore(
    ports: Ports,
    /,
    source: str | Path,
    uri: str | Path,
    *,
    registry: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Copied:
    """Create a new table from a backup. Its id, registry records and regions are new.

    It has the columns, key, region spec, settings and time to live of the table that was backed up. `Table.restore`
    gives an existing table the rows of an earlier state.

    Args:
        source: the location of the backup.
        uri: the location of the new table.
        registry: the registry of the new table: `sqlite` (default for paths), `object` (default for URLs) or
            `dynamodb:NAME`.
        storage_options: options of both object stores, as Lance takes them.

    Returns:
        The location of the new table, the number of its rows, and the location of the backup.

    Raises:
        Invalid: no finished backup at `source`, or something else exists at `uri`.
        Corrupt: the backup is unreadable, or its rows differ from those that were backed up.
        Contended, Unavailable: restore again.

    A crash at any line leaves no table at `uri`. The same call continues where it stopped.
    """
    return restore_backup(source, uri, registry=registry, storage_options=storage_options, ports=ports)


@on_ports
@checked
def clone(
    ports: Ports,
    /,
    table: Table | str | Path,
    snapshot: str,
    to: str | Path,
    *,
    registry: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Copied:
    """Create a new table from a snapshot without copying the files of its base.

    Args:
        table: the table, or its location.
        snapshot: the name of a snapshot. While the clone exists, the snapshot keeps the files that they share.
        to: a path or URL where nothing is.
        registry: the registry of the clone: `sqlite` (default for paths), `object` (default for URLs) or
            `dynamodb:NAME`.
        storage_options: options of the object store, as Lance takes them, for both tables: the clone reads files of
            the source; by default those of an open table.

    Returns:
        The location of the clone, the number of its rows, and the location of the source.

    Raises:
        Invalid: there is no table; snapshot not found, or it was dropped or expired before the clone was complete; or
            something else exists at `to`.
        Corrupt: an object that the snapshot needs is missing, or the clone does not have the rows of the snapshot.
        Contended, Ambiguous, Unavailable: clone again.

    A crash at any line leaves no table at `to`. The same call continues where it stopped.
    """
    return clone_snapshot(_handle(table, storage_options, ports), snapshot, to, registry=registry, ports=ports)


@on_ports
@checked
def copy(
    ports: Ports,
    /,
    table: Table | str | Path,
    to: str | Path,
    *,
    primary_key: str | Sequence[str] | None = None,
    regions: str | None = None,
    sequence_by: str | Sequence[str] | None = None,
    at: At | None = None,
    registry: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Copied:
    """Copy the live rows of a table to a new table. This is the way to another primary key.

    Rows are streamed: memory holds some batches, and at most four million keys while duplicates are looked for. Rows
    that are written to the source after the copy has begun are not part of it. Settings and the time to live
    are copied, indexes are not.

    Args:
        table: the table, or its location. If it is open at a snapshot or a version, the rows of that state are copied.
        to: a path or URL where nothing is.
        primary_key: the key columns of the new table; by default those of the source.
        regions: the region spec of the new table, such as `bucket(id, 4)`; by default that of the source if the key is
            the same, else one region.
        sequence_by: the columns that order change events of the new table; by default those of the source.
        at: copy the rows of a snapshot (its name), of a version of the base (its number), or of a time such as
            `2026-11-01T00:00:00Z`; by default the rows as of now.
        registry: the registry of the new table: `sqlite` (default for paths), `object` (default for URLs) or
            `dynamodb:NAME`.
        storage_options: options of both object stores, as Lance takes them; by default those of an open table.

    Returns:
        The location of the new table, the number of its rows, and the location of the source.

    Raises:
        Invalid: there is no table; an argument is not valid; rows have the same new key, or null in it (the
            error has examples); or something else exists at `to`. Nothing was written.
        Corrupt: an object of the source is missing or damaged, or the copied rows read back differently.
        Contended, Unavailable: copy again.

    A crash at any line leaves no table at `to`. The same call continues if the rows of the source are still the same,
    else it is `Invalid`, with the remedy to drop what is there.
    """
    options, state = storage_options, at
    if isinstance(table, Table):
        options = _options(table, storage_options)
        if table.at_snapshot is not None:
            if at is not None:
                table._check_writable()
            state = table.at_version or table.at_snapshot
    return copy_table(
        _handle(table, storage_options, ports),
        to,
        primary_key=primary_key,
        regions=regions,
        sequence_by=sequence_by,
        at=state,
        registry=registry,
        storage_options=options,
        ports=ports,
    )


@on_ports
@checked
def drop(ports: Ports, /, table: Table | str | Path, *, storage_options: Mapping[str, str] | None = None) -> int:
    """Delete a table with its rows, snapshots and cursors, or what a crash left of a table that was being created.

    Stop the writers of the table first: rows written later are lost, and their objects may remain permanently.

    Args:
        table: the table, or its location. A table that does not open any more is dropped by its location.
        storage_options: options of the object store, as Lance takes them; by default those of an open table.

    Returns:
        The number of deleted objects.

    Raises:
        Invalid: there is no table at this location, or it is open at a snapshot or a version; a clone shares the
            table's files; or the table is a clone and its source can't be reached.
        Corrupt: the marker file of the drop is damaged; or the table is a clone and the record of its source is damaged
            or gone.
        Contended: a merge is running, nothing was deleted; or another process has dropped the table.
        Unavailable: drop again; the drop continues.

    A crash at any line leaves a table that can be opened as before, or one that can't be opened and that the same call
    drops.
    """
    if isinstance(table, Table):
        table._check_writable()
        return drop_table(table.uri, storage_options=_options(table, storage_options), ports=ports)
    return drop_table(table, storage_options=storage_options, ports=ports)


@on_ports
@checked
def scrub(
    ports: Ports,
    /,
    table: Table | str | Path,
    *,
    region: str | None = None,
    at: str | None = None,
    limit: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Report:
    """Read everything that a table consists of and name every damaged object. Nothing is repaired.

    Every object is compared with the records and checksums that name it. A table that does not open any more is
    scrubbed by its location.

    Args:
        table: the table, or its location. If it is open at a snapshot or a version, only what that state needs is read.
        region: check only this region, given by its id or the start of it; the rows of the base are not checked.
        at: the name of a snapshot: read only what it needs.
        limit: read at most this many objects, besides registry records and the manifests that they name.
        storage_options: options of the object store, as Lance takes them; by default those of an open table.

    Returns:
        `ok`, the problems with the path of each object, how many objects were checked, and whether that is all of them.

    Raises:
        Invalid: table, region or snapshot not found, a limit below 1, or the table was dropped.
        Unavailable: a store or the registry did not answer.
    """
    options = storage_options
    if isinstance(table, Table):
        options, at, table = _options(table, storage_options), at or table.at_snapshot, table.uri
    return scrub_location(table, region=region, at=at, limit=limit, storage_options=options, ports=ports)


def _options(table: Table, storage_options: Mapping[str, str] | None) -> Mapping[str, str] | None:
    return table._handle.storage_options if storage_options is None else storage_options


def _handle(table: Table | str | Path, storage_options: Mapping[str, str] | None, ports: Ports) -> TableHandle:
    if not isinstance(table, Table):
        return open_table(table, storage_options=storage_options, ports=ports)
    return replace(table._handle, storage_options=_options(table, storage_options))
