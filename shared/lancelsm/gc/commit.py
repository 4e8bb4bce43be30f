"""Commit a round: the new manifest drops the generations and names the list, and the head gets the floor of the log.

After the commit no new pin can need an object of the list unseen: its creation fails, or the sweep sees the pin.
"""

from __future__ import annotations

from lancelsm.common.layout import Position
from lancelsm.errors import Corrupt
from lancelsm.gc.lists import GarbageKind, RoundList, find_list
from lancelsm.region import manifest as manifests
from lancelsm.region.catalog import Region
from lancelsm.region.compare_and_swap import CommittedManifest, commit
from lancelsm.region.manifest import Manifest, Superseded


def commit_round(region: Region, key: str) -> CommittedManifest | Superseded:
    """Commit the verified round whose list has this key.

    Returns:
        The manifest, once the head names it; `Superseded` if another round or a compaction came first.

    Raises:
        Corrupt: the list is missing, unreadable or of another region.
        Contended, Unavailable, Ambiguous: see `region.compare_and_swap.commit`. Retry: a committed round is recognised
            by its key.
    """
    listed = find_list(region.context, key, newest=lambda: region.head().collector_round)
    if listed is None:
        return Superseded(why="a later round is committed")
    if listed.round.region != region.id:  # guard: round is committed in its region
        raise Corrupt("the list is that of another region", **region.where, object=key)

    def transition(manifest: Manifest) -> Manifest | Superseded:
        return after_round(manifest, listed, at=region.context.clock.now())

    return commit(region, transition)


def after_round(manifest: Manifest, listed: RoundList, *, at: float) -> Manifest | Superseded:
    """Return the manifest after a round that is committed at this time, in Unix seconds. No I/O."""
    directories = {
        item.path.rpartition("/")[2] for item in listed.round.items if item.kind is GarbageKind.GENERATION
    }  # includes orphans, which no manifest names
    return manifests.collected(
        manifest,
        round_number=listed.round.number,
        key=listed.key,
        list_setsum=listed.setsum,
        first_position=Position(listed.round.floor),
        paths=frozenset(g.path for g in manifest.generations if g.path in directories),
        compactions=listed.round.compactions,
        at=at,
    )
