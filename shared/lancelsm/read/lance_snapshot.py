"""List the generations of a view for Lance's own readers of logs."""

from __future__ import annotations

from collections.abc import Mapping

from lancelsm.common.error_text import did_you_mean
from lancelsm.common.layout import NO_GENERATION, Generation, RegionId
from lancelsm.dataset.indexes import base_indexes
from lancelsm.dataset.lance_readers import LanceSnapshot, ListedGenerations, lance_snapshot
from lancelsm.dataset.merged_generations import read_markers
from lancelsm.errors import Invalid
from lancelsm.objects import ObjectStore
from lancelsm.read.view import RegionView, View


def take_lance_snapshot(view: View, *, index: str | None, objects: ObjectStore) -> LanceSnapshot:
    """Return the base of a view and the generations that the base lacks; with an index, those that it does not cover.

    Args:
        index: the name of an index of the base.
        objects: the object store of the table.

    Raises:
        Invalid: the base has no such index.
        Corrupt, Unavailable: the base can't be read.
    """
    covered = None if index is None else _covered(view, index, objects)
    return lance_snapshot(view.base, [_listed(region, covered) for region in view.regions])


def _covered(view: View, index: str, objects: ObjectStore) -> Mapping[RegionId, Generation]:
    known = [one.name for one in base_indexes(view.base)]
    if index not in known:
        remedy = did_you_mean(index, known, what="Its indexes are") if known else "It has no index at all"
        raise Invalid(f"the table has no index {index!r}", remedy=remedy, table=view.base.uri, field="index")
    markers = read_markers(objects=objects, version=view.base.version)
    return {} if markers is None else markers.caught_up.get(index, {})


def _listed(region: RegionView, covered: Mapping[RegionId, Generation] | None) -> ListedGenerations:
    above = region.counter
    if covered is not None:
        above = min(above, covered.get(region.region, NO_GENERATION))
    return ListedGenerations(
        region=region.region,
        spec_id=region.manifest.spec_id,
        next_generation=region.manifest.current_generation,
        generations=[(one.generation, one.path) for one in region.manifest.generations if one.generation > above],
    )
