"""Optimize a base after many merges: rewrite small fragments and hidden rows, and extend indexes to all rows.

Optimizing keeps the schema metadata, and with it the counters. It conflicts with merges: run it under the lease that
merges take. It deletes nothing and cleans up no version: replaced fragments stay readable in their version.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lancelsm.dataset.base_table import BaseTable, StorageOptions, open_base
from lancelsm.dataset.index_extension import extend_indexes
from lancelsm.dataset.optimize import TARGET_ROWS, bytes_to_rewrite, compact, state_result
from lancelsm.dataset.statement import StatedFile
from lancelsm.objects import ObjectStore
from lancelsm.objects.open import open_store

_SMALL_SHARE = 4  # a fragment is small below 1/4 of the target size of compaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimized:
    """What one optimization did.

    Args:
        fragments_removed: how many fragments a compaction replaced; 0 if it wasn't due.
        fragments_added: how many fragments replaced them.
        indexes_extended: whether an index lacked rows or merged generations and was updated.
        base_version: the newest version at the end.
        left: whether more fragments are to be rewritten: call it again.
        rows_expired: number of rows that had expired and were hidden.
    """

    fragments_removed: int
    fragments_added: int
    indexes_extended: bool
    base_version: int
    left: bool = False
    rows_expired: int = 0


def optimize_base(
    *,
    uri: str,
    objects: ObjectStore | None = None,
    small_fragments: int = 64,
    deleted_share: float = 0.10,
    has_new_indexes: bool = False,
    stalled_indexes: Collection[str] = (),
    storage_options: StorageOptions = None,
) -> Optimized:
    """Update the base's indexes, and compact a batch of fragments of the base if that is due.

    Args:
        objects: the object store of the table; by default the one at `uri`.
        small_fragments: compaction is due with at least this many small fragments,
        deleted_share: or with at least this share of hidden rows.
        has_new_indexes: whether the caller built indexes whose files are not stated yet.
        stalled_indexes: indexes that Lance refused to extend before.

    Raises:
        Contended: the base changed during the call. Commits that were made stay; retry.
        Corrupt: a file to rewrite is damaged, or a new file has other rows; that file was not committed.
        Unavailable: the store did not answer.

    There are several commits; the last one states the new files. A crash leaves the base after any of them, always
    consistent; then the next merge states the files as they are found.
    """
    objects = objects or open_store(uri, storage_options)
    base = open_base(uri=uri, storage_options=storage_options)
    extended, removed, added = extend_indexes(base, stalled=stalled_indexes).changed, 0, 0
    files: tuple[StatedFile, ...] = ()
    left = False
    if compaction_is_due(base, small_fragments, deleted_share):
        # Lance joins only fragments that the same indexes cover. After that these indexes must catch up again.
        done = compact(open_base(uri=uri, storage_options=storage_options), objects=objects)
        removed, added, files, left = done.fragments_removed, done.fragments_added, done.files, done.left
        compacted = open_base(uri=uri, storage_options=storage_options)
        left = left and compaction_is_due(compacted, small_fragments, deleted_share)
        if not left:
            extended |= extend_indexes(compacted, stalled=stalled_indexes).changed
    newest = open_base(uri=uri, storage_options=storage_options)
    if newest.version != base.version or has_new_indexes:
        state_result(newest, objects=objects, files=files)
        newest = open_base(uri=uri, storage_options=storage_options)
    return Optimized(
        fragments_removed=removed,
        fragments_added=added,
        indexes_extended=extended,
        base_version=newest.version,
        left=left,
    )


def bytes_due(*, uri: str, small_fragments: int, deleted_share: float, storage_options: StorageOptions = None) -> int:
    """Return the bytes that a compaction rewrites; 0 if none is due. The arguments are those of `optimize_base`.

    Raises:
        Unavailable: the store did not answer.
    """
    base = open_base(uri=uri, storage_options=storage_options)
    return bytes_to_rewrite(base) if compaction_is_due(base, small_fragments, deleted_share) else 0


def compaction_is_due(base: BaseTable, small_fragments: int, deleted_share: float) -> bool:
    """Return whether the base has at least that many small fragments or that share of hidden rows."""
    small = sum(fragment.rows < TARGET_ROWS // _SMALL_SHARE for fragment in base.fragments)
    hidden = sum(fragment.deleted_rows for fragment in base.fragments)
    return small >= small_fragments or (hidden > 0 and hidden >= deleted_share * (base.rows + hidden))
