"""Rewrite what many merges leave behind: small fragments, hidden rows, and rows that no index covers.

Schema metadata, and so the counters, stay. It conflicts with merges: run it under the lease that merges take.
Versions are not cleaned up and nothing is deleted here; what a rewrite replaces stays readable in its version.
"""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.dataset.base_table import BaseTable, StorageOptions, open_base
from lancelsm.dataset.optimize import TARGET_ROWS, compact, extend_indexes

_SMALL_SHARE = 4  # a fragment is small below this part of the size that compaction aims at


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimized:
    """What was done.

    Args:
        fragments_removed, fragments_added: by compaction; 0 if it wasn't due.
        indexes_extended: whether an index had rows or merged generations to catch up with.
        base_version: the newest version then.
    """

    fragments_removed: int
    fragments_added: int
    indexes_extended: bool
    base_version: int


def optimize_base(
    *,
    uri: str,
    small_fragments: int = 64,
    deleted_share: float = 0.10,
    storage_options: StorageOptions = None,
) -> Optimized:
    """Let the base's indexes catch up, and compact it if that is due.

    Args:
        small_fragments: compaction is due from this many fragments that are far below the usual size,
        deleted_share: or from this share of hidden rows.

    Raises:
        Contended: the base changed meanwhile. What was committed before stays; run it again.
        Unavailable: the store did not answer.

    A crash leaves the base before, between or after its commits; each is whole.
    """
    base = open_base(uri=uri, storage_options=storage_options)
    extended, removed, added = extend_indexes(base), 0, 0
    if compaction_is_due(base, small_fragments, deleted_share):
        # Lance compacts fragments together only if the same indexes cover them; it withdraws their catch-up then.
        removed, added = compact(open_base(uri=uri, storage_options=storage_options))
        extended |= extend_indexes(open_base(uri=uri, storage_options=storage_options))
    newest = open_base(uri=uri, storage_options=storage_options)
    return Optimized(
        fragments_removed=removed,
        fragments_added=added,
        indexes_extended=extended,
        base_version=newest.version,
    )


def compaction_is_due(base: BaseTable, small_fragments: int, deleted_share: float) -> bool:
    """Whether the base has that many small fragments or that share of hidden rows."""
    small = sum(fragment.rows < TARGET_ROWS // _SMALL_SHARE for fragment in base.fragments)
    hidden = sum(fragment.deleted_rows for fragment in base.fragments)
    return small >= small_fragments or (hidden > 0 and hidden >= deleted_share * (base.rows + hidden))
