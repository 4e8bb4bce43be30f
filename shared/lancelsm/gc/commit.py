"""Commit: the region's manifest drops what a round deletes and names its list; the head gets the floor of the log.

From then on nobody can begin to need what the list has: a pin that was made before fails, or is seen by the sweep.
"""

from __future__ import annotations

from lancelsm.common.layout import Position
from lancelsm.errors import Corrupt
from lancelsm.gc.lists import GarbageKind, RoundList, find_list
from lancelsm.region import manifest as manifests
from lancelsm.region.catalog import Region
from lancelsm.region.compare_and_swap import CommittedManifest, commit
from lancelsm.region.manifest import Dead, Manifest


def commit_round(region: Region, key: str) -> CommittedManifest | Dead:
    """Commit the round whose list is at a key, which was verified.

    Returns:
        Once the head names a manifest after the round; `Dead` if another round came first.

    Raises:
        Corrupt: the list is gone, unreadable or another region's.
        Contended, Unavailable, Ambiguous: as `region.compare_and_swap.commit`; run it again: a committed round is
            recognised by its key.
    """
    listed = find_list(region.context, key, newest=lambda: region.head().collector_round)
    if listed is None:
        return Dead(why="a later round is committed")
    if listed.round.region != region.id:
        raise Corrupt("the list of another region's round", **region.where, object=key)

    def transition(manifest: Manifest) -> Manifest | Dead:
        return after_round(manifest, listed, at=region.context.clock.now())

    return commit(region, transition)


def after_round(manifest: Manifest, listed: RoundList, *, at: float) -> Manifest | Dead:
    """The manifest after a round that is committed at this time, in Unix seconds: pure."""
    directories = {
        item.path.rpartition("/")[2] for item in listed.round.items if item.kind is GarbageKind.GENERATION
    }  # orphans are among them, which no manifest names
    return manifests.collected(
        manifest,
        round_number=listed.round.number,
        key=listed.key,
        list_setsum=listed.setsum,
        first_position=Position(listed.round.floor),
        paths=frozenset(g.path for g in manifest.generations if g.path in directories),
        at=at,
    )
