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

_SPACE = 2  # all become one when the newer ones have this many times the bytes of the oldest one
_GROWTH = 2  # a generation becomes part of one that is at least this many times larger


def due_parts(manifest: Manifest, counter: Generation, *, most: int) -> tuple[FlushedGeneration, ...]:
    """Return the generations of a region to compact next; empty if there is nothing to do.

    All are neighbours above the counter, so no index of the base covers them. Generations that Lance's writer flushed
    are left out: they have no sums.
    """
    live = [g for g in manifest.generations if g.generation > counter]
    foreign = max((at + 1 for at, g in enumerate(live) if g.folded is None), default=0)
    ours = live[foreign:]
    run = choose_run([g.bytes or 0 for g in ours], most=most - foreign)
    return () if run is None else tuple(ours[run.start : run.stop])


def choose_run(sizes: Sequence[int], *, most: int) -> range | None:
    """Choose neighbouring generations to compact; None if there are at most `most`.

    If the newer ones have twice the bytes of the oldest one, choose all: replaced rows may then take most of the space.
    Otherwise, of the runs in which no generation has more than half of the bytes, choose the run that reads the fewest
    bytes for each generation that it removes. There is no such run if every generation is larger than all newer ones
    together; then choose the cheapest of all runs.

    Args:
        sizes: bytes of the generations, oldest first.

    Returns:
        The indexes of the run, at least two.
    """
    if len(sizes) <= max(1, most):
        return None
    counted = [max(1, size) for size in sizes]
    total = [0, *accumulate(counted)]
    if total[-1] - counted[0] >= _SPACE * counted[0]:
        return range(len(sizes))
    size = {
        range(first, end): total[end] - total[first]
        for first in range(len(sizes))
        for end in range(first + 2, len(sizes) + 1)
    }
    growing = [run for run in size if size[run] >= _GROWTH * max(counted[run.start : run.stop])]
    return min(growing or size, key=lambda run: (size[run] / (len(run) - 1), -len(run)))
