"""Choose which generations of a region become one, from their sizes. No I/O.

This is size-tiered compaction. Each byte that is written again ends up in a generation at least twice as large, so a
row is rewritten O(log N) times in N flushes. Nothing is compacted while a region has no more than `most` generations:
then merges keep up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

_SPACE = 2  # all become one when the newer ones have this many times the bytes of the oldest one
_GROWTH = 2  # a generation becomes part of one that is at least this many times larger


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
