"""Delete a whole table: its records, then its objects. A crash leaves less of it; the same call goes on."""

from __future__ import annotations

from lancelsm.errors import Contended
from lancelsm.gc.sweep import delete_all
from lancelsm.layout import (
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
from lancelsm.region import Storage

_OF_LANCE = ("_versions", "_transactions", "_indices", "_deletions", "_refs", "data", "tree")


def close_table(storage: Storage) -> None:
    """Delete the configuration: from now on nobody can open the table."""
    storage.objects.delete([CONFIG])


def delete_records(storage: Storage) -> int:
    """Delete every record of a table, its own last; returns how many.

    Raises:
        Contended: others kept changing one.
        Unavailable: the registry did not answer.
    """
    registry, table = storage.registry, storage.table
    catalog = [key for key, _ in registry.list(region_key(table, RegionId("")).partition)]
    heads = [head_key(table, RegionId(key.sort)) for key in catalog]
    pinned = [key for partition in (snapshots(table), cursors(table)) for key, _ in registry.list(partition)]
    leases = [key for key, _ in registry.list(lease_key(table, "").partition)]
    doomed = [*pinned, *heads, *catalog, *leases, table_key(table)]
    return sum(storage.each(lambda key: _delete_record(storage, key), doomed))


def delete_objects(storage: Storage) -> int:
    """Delete every object of a table, last what says that it is being dropped; returns how many.

    Nothing else that lies below the table's place is touched.

    Raises:
        Unavailable: the store did not answer; some are gone.
    """
    objects, found = storage.objects, 0
    for place in (*_OF_LANCE, MEM_WAL, PRIVATE):
        prefix = f"{place}/"
        keys = [line.key for line in objects.list(prefix) if line.key != DROPPING]
        found += len(keys)
        delete_all(storage, keys)
    objects.delete([DROPPING])
    return found


def _delete_record(storage: Storage, key: Key) -> bool:
    for _ in storage.budget().attempts():
        record = storage.registry.read(key)
        if record is None:
            return True
        storage.registry.delete(key, expect={})
    raise Contended("others kept changing a record", remedy="Stop them, then drop the table again", table=storage.uri)
