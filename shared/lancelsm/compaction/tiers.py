"""Choose which generations of a region become one, from their sizes. No I/O.

This is size-tiered compaction. Each byte that is written again ends up in a generation at least twice as large, so a
row is rewritten O(log N) times in N flushes. Nothing is compacted while a region has no more than `most` generations:
then merges keep up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lancelsm.common.layout import Generation
    from lancelsm.region.manifest import FlushedGeneration, Manifest

FUNCTION_BYTES = 2 << 30  # that a function compacts at once, by its time, and by its memory for their keys
_ROW_BYTES = 256  # what a row counts at least: a compaction has all keys in memory
_SPACE = 2  # all become one when the newer ones have this many times the bytes of the oldest one
_GROWTH = 2  # a generation becomes part of one that is at least this many times larger


def due_parts(
    manifest: Manifest, counter: Generation, *, most: int, bytes_max: int | None = None
) -> tuple[FlushedGeneration, ...]:
    """Return the generations of a region to compact next; empty if there is nothing to do.

    All are neighbours above the counter, so no index of the base covers them. Generations that Lance's writer flushed
    are left out: they have no sums.

    Args:
        bytes_max: how many bytes they have together at most, where a row counts at least 256; None: any number.
    """
    live = [g for g in manifest.generations if g.generation > counter]
    foreign = max((at + 1 for at, g in enumerate(live) if g.folded is None), default=0)
    ours = live[foreign:]
    run = choose_run([size(g) for g in ours], most=most - foreign, size_max=bytes_max)
    return () if run is None else tuple(ours[run.start : run.stop])


def size(generation: FlushedGeneration) -> int:
    """Return the bytes that a generation counts for, where a row counts at least 256."""
    return max(generation.bytes or 0, _ROW_BYTES * (generation.rows or 0))


def choose_run(sizes: Sequence[int], *, most: int, size_max: int | None = None) -> range | None:
    """Choose neighbouring generations to compact; None if there are at most `most`, or if no two are small enough.

    If the newer ones have twice the bytes of the oldest one, choose all: replaced rows may then take most of the space.
    Otherwise, of the runs in which no generation has more than half of the bytes, choose the run that reads the fewest
    bytes for each generation that it removes. There is no such run if every generation is larger than all newer ones
    together; then choose the cheapest of all runs.

    Args:
        sizes: bytes of the generations, oldest first.
        size_max: the bytes of the whole run at most; by default any number.

    Returns:
        The indexes of the run, at least two.
    """
    if len(sizes) <= max(1, most):
        return None
    counted = [max(1, size) for size in sizes]
    total = [0, *accumulate(counted)]
    largest = total[-1] if size_max is None else size_max
    if total[-1] <= largest and total[-1] - counted[0] >= _SPACE * counted[0]:
        return range(len(sizes))
    bytes_of = {
        range(first, end): total[end] - total[first]
        for first in range(len(sizes))
        for end in range(first + 2, len(sizes) + 1)
        if total[end] - total[first] <= largest
    }
    growing = [run for run in bytes_of if bytes_of[run] >= _GROWTH * max(counted[run.start : run.stop])]
    return min(growing or bytes_of, key=lambda run: (bytes_of[run] / (len(run) - 1), -len(run)), default=None)
