"""Write a region snapshot into the MemWAL index of the base, for eventual reads."""

from __future__ import annotations

from lancelsm.dataset.region_snapshots import write_region_snapshot
from lancelsm.read.region_snapshot import RegionAt, snapshot_rows
from lancelsm.read.view import mismatch
from lancelsm.region.catalog import regions, with_heads
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.handle import TableHandle

_TRIES = 3


def snapshot_regions(handle: TableHandle) -> bool:
    """Write a snapshot of all regions if there are several.

    Returns:
        False if other commits kept coming first, or the base has no MemWAL index.

    Raises:
        Corrupt: a head or manifest is damaged.
        Unavailable: a store or the registry did not answer.
    """
    context, spec = handle.context, handle.config.regions
    if spec is None:
        return False
    for _ in range(_TRIES):
        taken = context.clock.now()  # guard: age of a region snapshot counts from before its heads
        found = with_heads(context, [one for one in regions(context) if one.retired is None])
        if len(found) < 2:
            return False
        named = context.each(lambda pair: newest(*pair), found)
        states = [
            RegionAt(region=region, head=head, manifest=manifest)
            for (region, _), (head, manifest) in zip(found, named, strict=True)
        ]
        base = handle.read_base()
        if base.mem_wal_index() is None:  # another tool dropped it: the next merge reports that
            return False
        if any(mismatch(one.manifest, base) for one in states):
            continue
        spec = handle.following(base).config.regions or spec  # the handle may be older than a reshard
        if write_region_snapshot(base, snapshot_rows(states, base, spec), taken=taken, objects=context.objects):
            return True
    return False
