"""Decide which regions a read needs: those that may have a key for which its condition is true.

The region follows from the key alone. So every row that meets a condition, and every newer or older row of its key, is
in the base or in such a region, and a read that leaves out the other regions returns the same rows. Regions of an
earlier region spec are sealed and merged before a table gets another one (`admin.adopt`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Protocol, TypeVar

from lancelsm.common.layout import RegionId, RegionValues
from lancelsm.read.pruning.key_boxes import Boxes
from lancelsm.read.pruning.key_conditions import key_boxes
from lancelsm.read.view import View
from lancelsm.read.view_cache import ListRegions, Select
from lancelsm.record.ordered import from_ordered
from lancelsm.record.schema import TableSchema
from lancelsm.region.catalog import Directory, TableContext, regions
from lancelsm.region.config import Config
from lancelsm.routing.possible import possible_values
from lancelsm.routing.spec import RegionSpec
from lancelsm.routing.value import arrow_type, as_ordered, encoded

_MOST_NAMED = 32  # up to this number, regions are read without a list of all regions


class _Placed(Protocol):
    @property
    def id(self) -> RegionId: ...
    @property
    def spec_id(self) -> int: ...
    @property
    def values(self) -> RegionValues: ...


P = TypeVar("P", bound=_Placed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRegion:
    """A region that a read leaves out, and why."""

    region: RegionId
    why: str


class RegionFilter:
    """The regions of a spec that may have keys in some boxes."""

    def __init__(self, boxes: Boxes, spec: RegionSpec, schema: TableSchema) -> None:
        self._spec_id = spec.spec_id
        self._names = [field.field_id for field in spec.fields]
        self._kinds = [arrow_type(field.result_type) for field in spec.fields]
        self._boxes = [[possible_values(field, box, schema) for field in spec.fields] for box in boxes]

    def needs(self, spec_id: int, values: Iterable[tuple[str, bytes | None]]) -> bool:
        """Return whether a region with these values may have such a key. A region of another spec may have any key."""
        found = list(values)
        if spec_id != self._spec_id or [name for name, _ in found] != self._names:
            return True
        keys = [
            None if value is None else as_ordered(value, kind)
            for (_, value), kind in zip(found, self._kinds, strict=True)
        ]
        return any(
            all(may is None or key is None or key in may for may, key in zip(box, keys, strict=True))
            for box in self._boxes
        )

    def named(self) -> list[RegionValues] | None:
        """Return the values of all regions that may have such a key, if these are few. Some may not exist."""
        found: dict[RegionValues, None] = {}
        for box in self._boxes:
            fields = [None if may is None else may.values(_MOST_NAMED) for may in box]
            known = [values for values in fields if values is not None]
            if len(known) < len(fields) or prod(map(len, known)) > _MOST_NAMED:
                return None
            columns = [encoded(from_ordered(values, kind)) for values, kind in zip(known, self._kinds, strict=True)]
            found |= {tuple(zip(self._names, one, strict=True)): None for one in product(*columns)}
        return list(found) if len(found) <= _MOST_NAMED else None

    def split(self, found: Sequence[P]) -> tuple[list[P], list[SkippedRegion]]:
        """Return the regions that may have such a key, and the others."""
        kept, skipped = [], []
        for region in found:
            if self.needs(region.spec_id, region.values):
                kept.append(region)
            else:
                skipped.append(SkippedRegion(region=region.id, why="no key of the region meets the condition"))
        return kept, skipped


def pruned_view(view: View, where: str | None, config: Config) -> tuple[View, list[SkippedRegion]]:
    """Return a view without the regions that a read with this condition does not need, and what was left out."""
    if where is None or config.regions is None:
        return view, []
    keep = RegionFilter(key_boxes(where, view.base.schema), config.regions, view.base.schema)
    kept, skipped = keep.split([_InView(one.region, one.manifest.spec_id, one.manifest.values) for one in view.regions])
    names = {one.id for one in kept}
    return replace(view, regions=tuple(one for one in view.regions if one.region in names)), skipped


def regions_for(
    where: str | None, spec: RegionSpec | None, *, context: TableContext, schema: TableSchema
) -> tuple[ListRegions, Select | None]:
    """Return how to list the regions of a spec that a read with this condition needs, as `ViewCache.take` takes it.

    If the condition names few regions, no list of all regions is read. Such a region may not exist.
    """
    if where is None or spec is None:
        return lambda: regions(context), list
    keep = RegionFilter(key_boxes(where, schema), spec, schema)
    named = keep.named()
    if named is None:
        return lambda: regions(context), lambda listed: keep.split(listed)[0]
    directory = Directory(context, spec_id=spec.spec_id)
    return lambda: [directory.named(values) for values in named], None


@dataclass(frozen=True, slots=True)
class _InView:
    id: RegionId
    spec_id: int
    values: RegionValues
