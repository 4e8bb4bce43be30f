"""The deletion file of a fragment that has lost every row: a Roaring bitmap of runs, a few bytes long.

Spec: the Roaring format, "cookie with runs"; Lance stores such a bitmap as `_deletions/{fragment}-{version}-{id}.bin`.
"""

from __future__ import annotations

import struct

_RUN_COOKIE = 12347
_CHUNK = 1 << 16
_OFFSETS_FROM = 4  # fewer containers carry no offsets


def every_row(rows: int) -> bytes:
    """The bitmap of 0 .. rows - 1, one run in each container of 65,536."""
    if not 0 < rows <= 1 << 32:
        raise ValueError(f"a fragment has 1 to 2^32 rows, not {rows}")
    sizes = [min(_CHUNK, rows - start) for start in range(0, rows, _CHUNK)]
    count = len(sizes)
    head = struct.pack("<HH", _RUN_COOKIE, count - 1)
    head += ((1 << count) - 1).to_bytes((count + 7) // 8, "little")  # every container holds runs
    head += b"".join(struct.pack("<HH", number, size - 1) for number, size in enumerate(sizes))
    runs = [struct.pack("<HHH", 1, 0, size - 1) for size in sizes]  # one run: from 0, its length less one
    if count >= _OFFSETS_FROM:
        first = len(head) + 4 * count
        head += b"".join(struct.pack("<I", first + number * len(run)) for number, run in enumerate(runs))
    return head + b"".join(runs)
