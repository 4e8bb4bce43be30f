"""Delete a whole table: its records, then its objects. After a crash the same call continues.

A new table at the same location has objects of the same names. So objects are deleted only while the marker file of the
drop exists. It is deleted last, and no table can be created there before.
"""

from __future__ import annotations

from collections.abc import Sequence

from lancelsm.common.layout import (
    CONFIG,
    DROPPING,
    OWN_DIRECTORIES,
    Key,
    RegionId,
    cursors,
    head_key,
    lease_key,
    region_key,
    reshard_key,
    scheduled_key,
    snapshots,
    sources,
    table_key,
)
from lancelsm.errors import Contended, Corrupt
from lancelsm.gc.sweep import BATCH, delete_all
from lancelsm.region.catalog import TableContext
from lancelsm.region.markers import read_marker


def delete_config(context: TableContext) -> None:
    """Delete the configuration, so that the table can't be opened any more. Raises as `delete_objects` does."""
    _delete(context, [CONFIG])


def cancel_drop(context: TableContext) -> None:
    """Delete the marker file of a drop that is cancelled. Raises as `delete_objects` does."""
    _delete(context, [DROPPING])


def delete_records(context: TableContext) -> int:
    """Delete all records of a table; returns their number. The catalog comes after the heads, which are found by it.

    Raises:
        Contended: other processes kept changing a record.
        Unavailable: the registry did not answer.
    """
    registry, table = context.registry, context.table
    catalog = [key for key, _ in registry.list(region_key(table, RegionId("")).partition)]
    heads = [head_key(table, RegionId(key.sort)) for key in catalog]
    pinned = [key for partition in (snapshots(table), cursors(table)) for key, _ in registry.list(partition)]
    partitions = (lease_key(table, "").partition, sources(table))
    others = [key for partition in partitions for key, _ in registry.list(partition)]
    others += [table_key(table), scheduled_key(table), reshard_key(table)]
    ordered: tuple[Sequence[Key], ...] = ([*pinned, *heads], catalog, others)
    return sum(sum(context.each(lambda key: _delete_record(context, key), keys)) for keys in ordered)


def delete_objects(context: TableContext) -> int:
    """Delete all objects of a table, the marker file of the drop last; returns their number.

    Other files in the table's directory stay.

    Raises:
        Contended: another process has finished the drop. Objects that exist now stay.
        Corrupt: the marker file can't be read.
        Unavailable: the store did not answer; some objects may be deleted.
    """
    found = 0
    for directory in OWN_DIRECTORIES:
        keys = [line.key for line in context.objects.list(f"{directory}/") if line.key != DROPPING]
        found += len(keys)
        _delete(context, keys)
    _delete(context, [DROPPING])
    return found


def _delete(context: TableContext, keys: Sequence[str]) -> None:
    """Delete objects in batches; before each, check that the marker file still says that this table is dropped."""
    for start in range(0, len(keys), BATCH):
        marker = read_marker(context.objects, DROPPING)
        if (  # guard: drop goes on only while its marker exists
            marker is None or marker["table"] != context.table  # guard: drop goes on only while the marker is its own
        ):
            raise Contended(
                "another process has finished the drop",
                remedy="Look at the location: a table there was created since",
                table=context.uri,
            )
        delete_all(context, keys[start : start + BATCH])


def _delete_record(context: TableContext, key: Key) -> bool:
    for _ in context.budget().attempts():
        try:
            if context.registry.read(key) is None:
                return True
            context.registry.delete(key, expect={})
        except Corrupt:
            context.registry.discard(key)
    raise Contended(
        "other processes kept changing a record", remedy="Stop them, then drop the table again", table=context.uri
    )
