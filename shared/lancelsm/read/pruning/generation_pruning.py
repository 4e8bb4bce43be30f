"""Decide which generations a read needs, by the keys that its condition allows.

Only the key decides. A condition on another column must not leave out a generation, since its row may hide an older row
that meets the condition. Bounds and filter of a generation cover all its rows, tombstones included. So a generation
without a key that the condition allows has no row to return and hides none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.layout import Generation, RegionId
from lancelsm.read.pruning.key_boxes import Boxes
from lancelsm.record.key_bounds import bounded, within
from lancelsm.record.ordered import from_ordered
from lancelsm.record.ranges import Ranges
from lancelsm.record.schema import TableSchema
from lancelsm.region.manifest import FlushedGeneration, GenerationKeys

_MOST_KEYS = 4096  # up to this number, keys are looked up in filters

BOUNDS = "its key bounds exclude all keys of the read"
FILTER = "its key filter excludes all keys of the read"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedGeneration:
    """A generation that a read leaves out, and why."""

    region: RegionId
    generation: Generation
    why: str


def by_bounds(
    region: RegionId, generations: Iterable[FlushedGeneration], boxes: Boxes, schema: TableSchema
) -> tuple[list[FlushedGeneration], list[SkippedGeneration]]:
    """Return the generations that may have a key in the boxes, and the others."""
    kept, skipped = [], []
    for one in generations:
        if one.keys is None or _meets(one.keys, boxes, schema):
            kept.append(one)
        else:
            skipped.append(SkippedGeneration(region=region, generation=one.generation, why=BOUNDS))
    return kept, skipped


def _meets(keys: GenerationKeys, boxes: Boxes, schema: TableSchema) -> bool:
    allowed = {field.name: bounded(bounds, field.type) for field, bounds in zip(schema.key, keys.bounds, strict=True)}
    return any(all(allowed[name] & values for name, values in box.items()) for box in boxes)


def keys_within(keys: pa.Table, generation: GenerationKeys | None) -> pa.Table:
    """Return the keys that the bounds of a generation allow.

    Args:
        keys: the key columns in key order.
    """
    if generation is None:
        return keys
    flags = (within(column, bounds) for column, bounds in zip(keys.columns, generation.bounds, strict=True))
    return keys.filter(reduce(pc.and_, flags))


def keys_of(boxes: Boxes, schema: TableSchema) -> pa.Table | None:
    """Return the keys in the boxes, if these are few; a key may be in it twice."""
    found: list[Sequence[object]] = []
    for box in boxes:
        columns = [box.get(field.name, Ranges.all_of(field.type)).values(_MOST_KEYS) for field in schema.key]
        known = [values for values in columns if values is not None]
        if len(known) < len(columns) or len(found) + prod(map(len, known)) > _MOST_KEYS:
            return None
        found += product(*known)
    columns_of_keys = [[key[at] for key in found] for at in range(len(schema.key))]
    arrays = [
        from_ordered(values, field.type)  # type: ignore[arg-type]
        for values, field in zip(columns_of_keys, schema.key, strict=True)
    ]
    return pa.table(arrays, schema=schema.key)
