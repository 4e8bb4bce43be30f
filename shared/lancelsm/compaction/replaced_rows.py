"""The tasks of a merge that find the base rows which a delta replaces, and hide them by deletion files.

They run on any machine and may run twice. They write files under fresh names, and nothing refers to these files before
the commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.compaction.tasks import Delta, Flags, winning_keys
from lancelsm.dataset import base_rows
from lancelsm.dataset.base_rows import ROW_ADDRESS, Base
from lancelsm.dataset.key_lookup import ABSENT, Keys
from lancelsm.dataset.read_back import DeletionFiles, check_deletions
from lancelsm.record.batches import gathered

INDEX_RUN_KEYS = 10_000
_ROWS_AT_ONCE = 1 << 16  # looked up at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Base rows of one fragment that the delta replaces, `dead` of them by a tombstone. Offsets are packed uint32."""

    fragment: int
    offsets: bytes
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """A fragment with its new deletion file. `metadata` is None, and no file was written, if no row would be left.

    `files` has the lines of its old and new deletion file in the statement.
    """

    fragment: int
    rows: int
    dead: int
    metadata: str | None
    files: DeletionFiles


def hide_by_scan(delta: Delta, fragments: tuple[int, ...]) -> tuple[Hidden, ...]:
    """Hide the rows of these fragments whose key is in the delta, by a scan of the key columns."""
    winners, dead = winning_keys(delta)
    base, schema = delta.merge_base.base, delta.merge_base.schema
    keys = Keys(winners, dead.astype(np.int8))  # 1: dead. More of such small numbers fit into a cache
    scanned = base_rows.scan(base, schema.primary_key, fragments)
    addresses, flags = [], []
    for table in gathered(scanned, rows=_ROWS_AT_ONCE):
        found = keys.find(table.select(schema.primary_key))
        hits = np.flatnonzero(found != ABSENT)
        addresses.append(table[ROW_ADDRESS].to_numpy()[hits])
        flags.append(found[hits] == 1)
    return hide_rows(base, _grouped(addresses, flags))


def find_by_index(delta: Delta, share: tuple[int, int], fragments: tuple[int, ...]) -> tuple[Found, ...]:
    """Find the rows of indexed fragments that one share of the delta replaces.

    Args:
        share: (number of the share from 0, number of shares). A share is a contiguous range of the sorted keys.
    """
    winners, dead = winning_keys(delta)
    (keys,) = winners.columns
    number, count = share
    addresses, flags = [], []
    for flag in (False, True):
        chosen = keys.filter(pa.array(dead == flag)).combine_chunks()
        ordered = chosen.take(pc.sort_indices(chosen))
        first, last = len(ordered) * number // count, len(ordered) * (number + 1) // count
        runs = [ordered.slice(at, min(INDEX_RUN_KEYS, last - at)) for at in range(first, last, INDEX_RUN_KEYS)]
        (column,) = delta.merge_base.schema.primary_key
        for found in base_rows.look_up(delta.merge_base.base, column, runs, fragments):
            addresses.append(found)
            flags.append(np.full(len(found), flag))
    return _grouped(addresses, flags)


def hide_rows(base: Base, finds: tuple[Found, ...]) -> tuple[Hidden, ...]:
    """Write one new deletion file for each fragment, and read it back."""
    offsets = {found.fragment: np.frombuffer(found.offsets, np.uint32) for found in finds}
    changed = base_rows.hide_rows(base, offsets)
    read = check_deletions(base, offsets, changed)  # guard: merge reads its deletion files back
    return tuple(
        Hidden(
            fragment=found.fragment,
            rows=len(offsets[found.fragment]),
            dead=found.dead,
            metadata=changed[found.fragment],
            files=read[found.fragment],
        )
        for found in finds
    )


def merged_finds(finds: Iterable[Found]) -> list[Found]:
    """Combine the finds of several shares into one per fragment."""
    by_fragment: dict[int, list[Found]] = {}
    for found in finds:
        by_fragment.setdefault(found.fragment, []).append(found)
    return [
        Found(
            fragment=fragment,
            offsets=b"".join(found.offsets for found in same),
            dead=sum(found.dead for found in same),
        )
        for fragment, same in sorted(by_fragment.items())
    ]


def _grouped(addresses: list[npt.NDArray[np.uint64]], flags: list[Flags]) -> tuple[Found, ...]:
    if not addresses:
        return ()
    every, dead = np.concatenate(addresses), np.concatenate(flags)
    deleted = {fragment: len(rows) for fragment, rows in base_rows.by_fragment(every[dead]).items()}
    return tuple(
        Found(fragment=fragment, offsets=rows.tobytes(), dead=deleted.get(fragment, 0))
        for fragment, rows in base_rows.by_fragment(every).items()
    )
