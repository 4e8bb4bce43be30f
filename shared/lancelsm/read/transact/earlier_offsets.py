"""Find out what the regions that keys had before reshards have applied of a producer."""

from __future__ import annotations

import pyarrow as pa

from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.layout import RegionId, region_id
from lancelsm.region.catalog import Region, TableContext
from lancelsm.region.handle import WriteTarget
from lancelsm.region.head import Head, RegionState
from lancelsm.routing.route import route

_ROW = "."  # no column of a table has this name
_HEAD_BYTES = 1 << 10


def applied_earlier(rows: pa.Table, target: WriteTarget, producer: str, *, kept: BoundedCache) -> list[int]:
    """Return for each row the highest sequence of a producer that an earlier region of its key has; 0 if none has one.

    Args:
        rows: with the key columns.
        kept: keeps the heads of sealed regions, which never change in what they have applied.

    Raises:
        Corrupt, Unavailable: a head could not be read.
    """
    found = [0] * rows.num_rows
    numbered = rows.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    for spec in target.earlier_regions:
        for part in route(numbered, spec):
            identity = region_id(table=target.context.table, spec_id=spec.spec_id, values=part.values)
            head = _sealed_head(target.context, identity, kept)
            applied = 0 if head is None else head.applied(producer)
            for row in part.rows.column(_ROW).to_pylist() if applied else ():
                found[row] = max(found[row], applied)
    return found


def _sealed_head(context: TableContext, identity: RegionId, kept: BoundedCache) -> Head | None:
    key = ("sealed head", identity)
    head: Head | None = kept.get(key)
    if head is None:
        head = Region(context=context, id=identity, spec_id=0, values=()).find_head()
        if head is not None and head.status is RegionState.SEALED:
            kept.put(key, head, size=_HEAD_BYTES)
    return head
