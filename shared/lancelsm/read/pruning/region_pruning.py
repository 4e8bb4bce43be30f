"""Decide which regions a read needs: those that may have a key for which its condition is true.

The region follows from the key alone. So every row that meets a condition, and every newer or older row of its key, is
in the base or in such a region, and a read that leaves out the other regions returns the same rows. Regions of an
earlier region spec are sealed and merged before a table gets another one (`admin.reshard`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from lancelsm.common.layout import RegionId, RegionValues
from lancelsm.read.pruning.key_boxes import Boxes
from lancelsm.read.pruning.key_conditions import key_boxes
from lancelsm.read.view import View
from lancelsm.read.view_cache import ListRegions, Select
from lancelsm.record.ordered import from_ordered
from lancelsm.record.schema import TableSchema
from lancelsm.region.catalog import Directory, TableContext, regions
from lancelsm.routing.possible import possible_values
from lancelsm.routing.spec import RegionSpec
from lancelsm.routing.value import arrow_type, as_ordered, encoded

_MOST_NAMED = 32  # up to this number, regions are read without a list of all regions


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


def pruned_view(view: View, where: str | None, spec: RegionSpec | None) -> View:
    """Return a view without the regions of this spec that a read with this condition does not need."""
    if where is None or spec is None:
        return view
    keep = RegionFilter(key_boxes(where, view.base.schema), spec, view.base.schema)
    needed = (one for one in view.regions if keep.needs(one.manifest.spec_id, one.manifest.values))
    return replace(view, regions=tuple(needed))


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
        return lambda: regions(context), lambda listed: [one for one in listed if keep.needs(one.spec_id, one.values)]
    directory = Directory(context, spec_id=spec.spec_id)
    return lambda: [directory.named(values) for values in named], None
