"""List and read the levels of a view above the base: the generations of each region, and the rows of its log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.layout import Generation, RegionId
from lancelsm.common.read_trace import Trace
from lancelsm.common.setsum import Setsum
from lancelsm.common.task_pool import in_threads
from lancelsm.dataset.conditions import Condition
from lancelsm.dataset.generation import possible_keys, read_generation
from lancelsm.objects.location import local_path
from lancelsm.read.pruning.generation_pruning import BOUNDS, FILTER, SkippedGeneration, by_bounds, keys_of, keys_within
from lancelsm.read.pruning.key_boxes import Boxes
from lancelsm.read.tail import Tail
from lancelsm.read.view import RegionView, View, level_name
from lancelsm.record.schema import TableSchema
from lancelsm.region.manifest import FlushedGeneration, GenerationKeys

HELD_BYTES = 64 << 20  # generations up to this size, together, are read once instead of keys first


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level above the base: a generation, or the tail of a log.

    Args:
        number: newer levels of a region have higher numbers.
        name: for people.
        path: of the generation, relative to the table; None for a tail.
        bloom_setsum: of the bloom filter of the generation; None if it is not known.
        keys: bounds and filter of the keys of the generation; None if it has none.
        row_bytes: the mean size of a row of the generation; 0 if it is not known.
        size: the bytes of the entries of the generation; above `HELD_BYTES` if they are not known.
    """

    region: RegionId
    number: int
    name: str
    path: str | None = None
    bloom_setsum: Setsum | None = None
    keys: GenerationKeys | None = None
    row_bytes: int = 0
    size: int = 0
    tail: Tail | None = None


def needed_levels(
    view: View, boxes: Boxes, *, uri: str, kept: BoundedCache, parallel: int, trace: Trace
) -> tuple[list[Level], list[SkippedGeneration]]:
    """Return the levels above the base that may have a key in the boxes, and the generations that have none."""
    schema = view.base.schema
    levels: list[Level] = []
    skipped: list[SkippedGeneration] = []
    keys = keys_of(boxes, schema)
    for region in view.regions:
        likely, excluded = by_bounds(region.region, region.generations, boxes, schema)
        skipped += excluded
        levels += levels_of(region, likely)
    if keys is None:
        return levels, skipped
    filtered = possible_keys_by_path(view, levels, keys, uri=uri, kept=kept, parallel=parallel, trace=trace)
    skipped += [
        SkippedGeneration(region=one.region, generation=Generation(one.number), why=why)
        for one in levels
        if (why := filtered[one.path][1])
    ]
    return [one for one in levels if not filtered[one.path][1]], skipped


def possible_keys_by_path(
    view: View, levels: Sequence[Level], keys: pa.Table, *, uri: str, kept: BoundedCache, parallel: int, trace: Trace
) -> dict[str | None, tuple[pa.Table, str]]:
    """Return for each level, by its path, the keys that it may have; if it has none of them, also why this is known.

    Only generations have a path; the value of None is that of the tails, which may have all keys.
    """

    def likely(level: Level) -> tuple[pa.Table, str]:
        return _likely(view, level, keys, uri=uri, kept=kept, trace=trace)

    if local_path(uri) is not None:
        parallel = 1  # a filter on a disk takes less time than a thread
    threads = min(parallel, sum(level.keys is not None for level in levels))
    return dict(zip((level.path for level in levels), in_threads(likely, levels, most=threads), strict=True))


def _likely(
    view: View, level: Level, keys: pa.Table, *, uri: str, kept: BoundedCache, trace: Trace
) -> tuple[pa.Table, str]:
    """Return the keys that a level may have; if it has none of them, also why this is known."""
    if level.keys is None:
        return keys, ""
    inside = keys_within(keys, level.keys)
    if inside.num_rows == 0:
        return inside, BOUNDS
    likely = possible_keys(
        uri=f"{uri}/{level.path}",
        schema=view.base.schema,
        keys=inside,
        filter_blocks=level.keys.filter_blocks,
        storage_options=view.base.storage_options,
        kept=kept,
        trace=trace,
    )
    return likely, "" if likely.num_rows else FILTER


def levels_of(region: RegionView, generations: Iterable[FlushedGeneration]) -> list[Level]:
    """Return levels of a region above the base, oldest first: these generations, and the tail if it has rows."""
    levels = [
        Level(
            region=region.region,
            number=g.generation,
            name=level_name(region.region, g.generation),
            path=region.path(g),
            bloom_setsum=g.folded.bloom_setsum if g.folded else None,
            keys=g.keys,
            row_bytes=(g.bytes or 0) // (g.rows or 1),
            size=HELD_BYTES + 1 if g.bytes is None else g.bytes,
        )
        for g in generations
    ]
    if region.tail.num_rows:
        name, number = level_name(region.region, None), region.manifest.current_generation
        levels.append(Level(region=region.region, number=number, name=name, tail=region.tail))
    return levels


def read_level(
    view: View, level: Level, *, uri: str, columns: Sequence[str], where: Condition | None = None, trace: Trace
) -> Iterator[pa.RecordBatch]:
    """Read a generation in stored form: these columns, the key, `_tombstone`. May leave out rows that fail `where`."""
    schema = view.base.schema
    return read_generation(
        uri=f"{uri}/{level.path}",
        schema=schema,
        columns=with_key(schema, columns),
        where=where,
        row_bytes=level.row_bytes,
        storage_options=view.base.storage_options,
        trace=trace,
    )


def with_key(schema: TableSchema, columns: Sequence[str]) -> list[str]:
    """Return these columns and the key columns, in the order of the schema."""
    wanted = {*columns, *schema.primary_key}
    return [name for name in schema.names if name in wanted]
