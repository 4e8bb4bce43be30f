"""Plan a merge from heads and counters, without I/O."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from lancelsm.common.layout import Generation, RegionId
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt
from lancelsm.region.manifest import missing_numbers

Item = TypeVar("Item")

_ROWS_PER_PAGE = 4096  # of Lance's BTREE
_PAGE_BYTES = 65_536
_SCAN_COST = 0.3  # per byte, relative to random reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Setsums that a flush recorded for a generation; `files` is None if an earlier release flushed it."""

    rows: Setsum
    files: Setsum | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPending:
    """A region as its head and manifest describe it.

    Args:
        newest: current_generation - 1 of the head; 0 if nothing was flushed.
        generations: (number, key of the directory relative to the table) of each generation in the manifest.
        spans: the numbers that a generation replaces, if a compaction made it; else it has its own number alone.
        sums: setsums by generation; generations that Lance itself wrote have none.
    """

    region: RegionId
    newest: Generation
    generations: tuple[tuple[Generation, str], ...]
    sums: Mapping[Generation, Sums] = field(default_factory=dict)
    spans: Mapping[Generation, range] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPlan:
    """The generations `after` + 1 to `through` of one region, in this order.

    The first one may be a compacted generation that begins below. It hides the rows that the base has of these keys.
    """

    region: RegionId
    after: Generation
    generations: tuple[tuple[Generation, str], ...]
    sums: Mapping[Generation, Sums] = field(default_factory=dict)

    @property
    def through(self) -> Generation:
        return self.generations[-1][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """The generations to merge. The plan is valid while the counter of every planned region is still `after`."""

    regions: tuple[RegionPlan, ...]

    def holds(self, counters: Mapping[RegionId, Generation]) -> bool:
        """Return whether the counters of all planned regions are unchanged."""
        return all(counters.get(region.region, 0) == region.after for region in self.regions)

    def reached(self, counters: Mapping[RegionId, Generation]) -> bool:
        """Return whether these counters are exactly those that this merge commits for its regions."""
        return all(counters.get(region.region, 0) == region.through for region in self.regions)

    def counters(self, present: Mapping[RegionId, Generation]) -> dict[RegionId, Generation]:
        """Return all counters after the commit. Other regions keep theirs; no counter decreases.

        Raises:
            ValueError: the plan does not hold for `present`.
        """
        if not self.holds(present):  # guard: plan holds for the counters
            raise ValueError("a counter moved since the plan was made")
        return {**present, **{region.region: region.through for region in self.regions}}


@dataclass(frozen=True, slots=True)
class StaleHeads:
    """A counter is above the newest generation of a head: the heads are older than the base. Read them again."""

    region: RegionId


def plan_merge(
    pending: Iterable[RegionPending], counters: Mapping[RegionId, Generation], *, table: str
) -> MergePlan | StaleHeads | None:
    """Plan to merge all pending generations of all regions; None if no generation is pending.

    Args:
        pending: the regions; their heads must be read before the base.
        counters: of the base.
        table: URI, for error messages.

    Raises:
        Corrupt: a generation from counter + 1 to newest is not listed. The heads are older than the base, so neither a
            merge nor a collection explains it: the base was replaced, or was restored to a version whose next
            generations are gone.
    """
    planned = []
    for region in sorted(pending, key=lambda found: found.region):
        counter = counters.get(region.region, Generation(0))
        if counter > region.newest:  # guard: heads older than the base are read again
            return StaleHeads(region.region)
        listed = dict(region.generations)
        spans = [region.spans.get(number, range(number, number + 1)) for number in listed]
        if missing := missing_numbers(spans, above=counter, newest=region.newest):  # guard: no generation is missing
            raise Corrupt(
                f"generations {counter + 1} to {region.newest} must be merged, the manifest does not list {missing}",
                remedy="Restore the base to a version whose next generation still exists, or restore the manifest from "
                "a copy of the bucket",
                table=table,
                region=region.region,
            )
        if wanted := [number for number in sorted(listed) if counter < number <= region.newest]:
            generations = tuple((number, listed[number]) for number in wanted)  # guard: no generation is left out
            plan = RegionPlan(region=region.region, after=counter, generations=generations, sums=region.sums)
            planned.append(plan)
    return MergePlan(regions=tuple(planned)) if planned else None


def index_pays(*, keys: int, rows: int, key_bytes: float) -> bool:
    """Return whether lookups in a key index are cheaper than a scan of the key column.

    Random keys soon touch most pages of the index, and each page is one request of about 64 KB. A scan is sequential.

    Args:
        keys: number of keys in the delta.
        rows: number of base rows that the index covers.
        key_bytes: mean size of a key.
    """
    pages = rows / _ROWS_PER_PAGE
    if not pages:
        return False
    touched = pages * (1 - math.exp(-keys / pages))
    return touched * _PAGE_BYTES < _SCAN_COST * rows * key_bytes


def balanced(items: Sequence[Item], weights: Sequence[int], groups: int) -> list[tuple[Item, ...]]:
    """Cut items into at most `groups` contiguous, non-empty groups of about equal weight."""
    total, sums = max(sum(weights), 1), itertools.accumulate(weights)
    numbered = [
        (min((reached - weight // 2) * groups // total, groups - 1), item)
        for item, weight, reached in zip(items, weights, sums, strict=True)
    ]
    return [tuple(item for _, item in run) for _, run in itertools.groupby(numbered, key=lambda pair: pair[0])]
