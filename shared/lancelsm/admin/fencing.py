"""Fence a writer of Lance by Lance's own protocol: a manifest with the next epoch, then a sentinel in its log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lancelsm.admin.rebuild import newest_published
from lancelsm.common.layout import Epoch, Position, Version, published_manifest, wal_entry
from lancelsm.errors import Contended, Corrupt
from lancelsm.objects import PreconditionFailed, Written
from lancelsm.region import manifest_codec
from lancelsm.region.catalog import Region
from lancelsm.region.compare_and_swap import Staged
from lancelsm.region.manifest import Manifest
from lancelsm.region.shards import ForeignShard
from lancelsm.wal.entry import decode, encode, fence
from lancelsm.wal.recovery import recover_log


def fence_lance(region: Region, claimed: Callable[[Staged], Manifest]) -> Staged:
    """Fence the writer of Lance that holds a region or a shard. Return the manifest, which is ours.

    Args:
        claimed: gets Lance's newest manifest. It returns ours, without the next version and epoch.

    Raises:
        Contended: writers kept claiming the region.
        Corrupt: the region has no manifest, or its log is damaged.
    """
    for _ in region.context.budget().attempts():
        found = newest_published(region)
        if found is None:
            raise Corrupt("the region has no manifest", **region.where)
        if manifest_codec.written_by_lance(found.body):
            manifest = replace(
                claimed(found),
                version=Version(found.manifest.version + 1),
                epoch=Epoch(found.manifest.epoch + 1),  # guard: writer of Lance is fenced
            )
            key, body = published_manifest(region.id, manifest.version), manifest_codec.encode(manifest)
            if not isinstance(region.context.objects.create(key, body), Written):
                continue  # the next attempt finds ours, or that of a faster writer
            found = Staged(key=key, manifest=manifest, body=body)
        append_sentinel(region, found.manifest)
        return found
    raise Contended("writers of Lance kept claiming the region", remedy="Stop these writers", **region.where)


def fence_writer(shard: ForeignShard) -> ForeignShard:
    """Fence the writer of a shard of another tool. Return the shard with our manifest; its log has ended."""
    first = Position(shard.after + 1)
    fenced = fence_lance(shard.region, lambda found: replace(found.manifest, foreign=True, first_position=first))
    return replace(shard, newest=fenced, after=Position(fenced.manifest.first_position - 1))


def append_sentinel(region: Region, manifest: Manifest) -> None:
    """Append a fence with the manifest's epoch after everything in the log. Do nothing if there already is one."""
    objects = region.context.objects
    for _ in region.context.budget().attempts():
        log = recover_log(region, manifest)
        newest = log.entries[-1].epoch if log.entries else Epoch(0)
        if newest == manifest.epoch:
            return
        if newest > manifest.epoch:
            break
        position = Position(log.end + 1)
        sentinel = encode(
            fence(),
            position=position,
            epoch=manifest.epoch,
            nonce=region.context.ids.nonce(),
        )
        key = wal_entry(region.id, position)
        if (
            isinstance(objects.create(key, sentinel.body), PreconditionFailed)
            and (found := objects.get(key)) is not None
        ):
            decode(found.body, position=position, key=key)  # raises if unreadable: retries could never pass the object
    raise Contended("writers of Lance kept appending to the region", remedy="Stop these writers", **region.where)
