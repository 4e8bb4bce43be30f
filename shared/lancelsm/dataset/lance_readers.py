"""Give Lance's own readers of logs what they need: the base, and the generations that it lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import lance
from lance.mem_wal import ShardSnapshot

from lancelsm.common.layout import Generation, RegionId
from lancelsm.dataset.base_table import BaseTable, open_dataset


class LanceSnapshot(NamedTuple):
    """The flushed rows of a table at one moment, for `lance.mem_wal`: `LsmScanner.from_snapshots(*snapshot)`.

    `dataset` is the base, `shards` has the generations of each region to read beside it.
    """

    dataset: lance.LanceDataset
    shards: list[ShardSnapshot]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGenerations:
    """Generations of a region, oldest first, each with its directory below the region."""

    region: RegionId
    spec_id: int
    next_generation: Generation
    generations: Sequence[tuple[Generation, str]]


def lance_snapshot(base: BaseTable, regions: Iterable[ListedGenerations]) -> LanceSnapshot:
    """Open the base again at its version, and list the generations in the form of Lance.

    Raises: the same errors as `base_table.open_base`.
    """
    dataset = open_dataset(uri=base.uri, version=base.version, storage_options=base.storage_options)
    return LanceSnapshot(dataset=dataset, shards=[_shard(region) for region in regions])


def _shard(region: ListedGenerations) -> ShardSnapshot:
    shard = ShardSnapshot(region.region).with_spec_id(region.spec_id).with_current_generation(region.next_generation)
    for number, path in region.generations:
        shard = shard.with_sstable(number, path)
    return shard
