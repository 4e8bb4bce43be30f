"""What one merge will do: decided from heads and counters, before any I/O."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from lancelsm.common.layout import Generation, RegionId
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt

Item = TypeVar("Item")

_ROWS_PER_PAGE = 4096  # of Lance's BTREE
_PAGE_BYTES = 65_536
_SCAN_IS_CHEAPER = 0.3  # than scattered requests, by byte


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What a generation was flushed with; `files` is None if an earlier release flushed it."""

    rows: Setsum
    files: Setsum | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPending:
    """A region as its head shows it.

    Args:
        newest: current_generation - 1 of the head; 0 if nothing was flushed.
        generations: (number, key of its directory below the table) of all that the manifest lists.
        sums: of each; those that Lance itself wrote have none.
    """

    region: RegionId
    newest: Generation
    generations: tuple[tuple[Generation, str], ...]
    sums: Mapping[Generation, Sums] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPlan:
    """The generations after+1 .. through of one region, in that order."""

    region: RegionId
    after: Generation
    generations: tuple[tuple[Generation, str], ...]
    sums: Mapping[Generation, Sums] = field(default_factory=dict)

    @property
    def through(self) -> Generation:
        return self.generations[-1][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """Valid while every planned region's counter is what it was: `after`."""

    regions: tuple[RegionPlan, ...]

    def holds(self, counters: Mapping[RegionId, Generation]) -> bool:
        """Whether nobody has moved a planned region."""
        return all(counters.get(region.region, 0) == region.after for region in self.regions)

    def reached(self, counters: Mapping[RegionId, Generation]) -> bool:
        """Whether these counters are exactly what this merge commits for its regions."""
        return all(counters.get(region.region, 0) == region.through for region in self.regions)

    def counters(self, present: Mapping[RegionId, Generation]) -> dict[RegionId, Generation]:
        """All counters after the commit, those of other regions as they are. None decreases.

        Raises:
            ValueError: the plan does not hold for `present`.
        """
        if not self.holds(present):
            raise ValueError("a counter moved since the plan was made")
        return {**present, **{region.region: region.through for region in self.regions}}


@dataclass(frozen=True, slots=True)
class StaleHeads:
    """A counter is above the newest generation that was read: the heads are older than the base. Read them again."""

    region: RegionId


def plan_merge(
    pending: Iterable[RegionPending], counters: Mapping[RegionId, Generation], *, table: str
) -> MergePlan | StaleHeads | None:
    """All pending generations of all regions, or None if there are none.

    Args:
        pending: the regions, read before the base.
        counters: of the base.
        table: its URI, for errors.

    Raises:
        Corrupt: counter + 1 .. newest are not all listed. The heads being older than the base, no merge and no
            collection explains it: the base was replaced, or restored to a version whose next generations are gone.
    """
    planned = []
    for region in sorted(pending, key=lambda found: found.region):
        counter = counters.get(region.region, Generation(0))
        if counter > region.newest:
            return StaleHeads(region.region)
        listed = dict(region.generations)
        wanted = [Generation(number) for number in range(counter + 1, region.newest + 1)]
        if missing := [number for number in wanted if number not in listed]:
            raise Corrupt(
                f"generations {counter + 1} to {region.newest} are to be merged, but {missing} are not in the manifest",
                remedy="Restore the base to a version whose next generation is kept, or put the manifest back from a "
                "copy of the bucket",
                table=table,
                region=region.region,
            )
        if wanted:
            generations = tuple((number, listed[number]) for number in wanted)
            plan = RegionPlan(region=region.region, after=counter, generations=generations, sums=region.sums)
            planned.append(plan)
    return MergePlan(regions=tuple(planned)) if planned else None


def index_pays(*, keys: int, rows: int, key_bytes: float) -> bool:
    """Whether an index on the key reads less than a scan of the key column.

    Keys from everywhere touch most pages soon, and a page costs a request of about 64 KB; a scan reads in sequence.

    Args:
        keys: of the delta.
        rows: of the base that the index covers.
        key_bytes: mean size of a key.
    """
    pages = rows / _ROWS_PER_PAGE
    if not pages:
        return False
    touched = pages * (1 - math.exp(-keys / pages))
    return touched * _PAGE_BYTES < _SCAN_IS_CHEAPER * rows * key_bytes


def balanced(items: Sequence[Item], weights: Sequence[int], groups: int) -> list[tuple[Item, ...]]:
    """Cut items into at most `groups` runs of about equal weight, none empty."""
    total, sums = max(sum(weights), 1), itertools.accumulate(weights)
    numbered = [
        (min((reached - weight // 2) * groups // total, groups - 1), item)
        for item, weight, reached in zip(items, weights, sums, strict=True)
    ]
    return [tuple(item for _, item in run) for _, run in itertools.groupby(numbered, key=lambda pair: pair[0])]
