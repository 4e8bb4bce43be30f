"""Delete a whole table: its records, then its objects. A crash leaves less of it; the same call goes on.

Names of objects come back in a table that is made there anew. So objects go only while the note stands that this table
is being dropped, and it goes last: nothing is made there before.
"""

from __future__ import annotations

from collections.abc import Sequence

from lancelsm.common.layout import (
    CONFIG,
    DROPPING,
    MEM_WAL,
    PRIVATE,
    Key,
    RegionId,
    cursors,
    head_key,
    lease_key,
    region_key,
    snapshots,
    table_key,
)
from lancelsm.errors import Contended, Corrupt
from lancelsm.gc.sweep import BATCH, delete_all
from lancelsm.region.catalog import TableContext
from lancelsm.region.markers import read_marker

_OF_LANCE = ("_versions", "_transactions", "_indices", "_deletions", "_refs", "data", "tree")


def delete_config(context: TableContext) -> None:
    """Delete the configuration: from now on nobody can open the table. Raises as `delete_objects`."""
    _delete(context, [CONFIG])


def cancel_drop(context: TableContext) -> None:
    """Take back the note of a table that is not to be dropped after all. Raises as `delete_objects`."""
    _delete(context, [DROPPING])


def delete_records(context: TableContext) -> int:
    """Delete every record of a table, and the catalog by which heads are found after them; returns how many.

    Raises:
        Contended: others kept changing one.
        Unavailable: the registry did not answer.
    """
    registry, table = context.registry, context.table
    catalog = [key for key, _ in registry.list(region_key(table, RegionId("")).partition)]
    heads = [head_key(table, RegionId(key.sort)) for key in catalog]
    pinned = [key for partition in (snapshots(table), cursors(table)) for key, _ in registry.list(partition)]
    leases = [key for key, _ in registry.list(lease_key(table, "").partition)]
    ordered: tuple[Sequence[Key], ...] = ([*pinned, *heads], catalog, [*leases, table_key(table)])
    return sum(sum(context.each(lambda key: _delete_record(context, key), keys)) for keys in ordered)


def delete_objects(context: TableContext) -> int:
    """Delete every object of a table, last what says that it is being dropped; returns how many.

    Nothing else that lies below the table's place is touched.

    Raises:
        Contended: another process has finished the drop; what is there now stays.
        Corrupt: the note can't be read.
        Unavailable: the store did not answer; some are gone.
    """
    found = 0
    for place in (*_OF_LANCE, MEM_WAL, PRIVATE):
        keys = [line.key for line in context.objects.list(f"{place}/") if line.key != DROPPING]
        found += len(keys)
        _delete(context, keys)
    _delete(context, [DROPPING])
    return found


def _delete(context: TableContext, keys: Sequence[str]) -> None:
    """Delete objects a few at a time, as long as the note says that this table is being dropped."""
    for start in range(0, len(keys), BATCH):
        marker = read_marker(context.objects, DROPPING)
        if marker is None or marker["table"] != context.table:
            raise Contended(
                "another process has finished the drop",
                remedy="See what is there: if a table is, it was made since",
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
    raise Contended("others kept changing a record", remedy="Stop them, then drop the table again", table=context.uri)
