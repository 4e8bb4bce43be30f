"""Compact a base and update its indexes by Lance's own operations."""

from __future__ import annotations

from lancelsm.dataset.base_table import BaseTable, open_dataset
from lancelsm.dataset.native import native_errors

TARGET_ROWS = 1_048_576
_HIDDEN_SHARE = 0.1  # a fragment with a larger share of hidden rows is rewritten, even if it is large


def compact(base: BaseTable) -> tuple[int, int]:
    """Rewrite small fragments as larger ones without hidden rows. Return (fragments removed, fragments added).

    Raises:
        Contended: the base changed since this version.
        Unavailable: the store did not answer.
    """
    with native_errors("the base can't be compacted", table=base.uri):
        dataset = open_dataset(uri=base.uri, version=base.version, storage_options=base.storage_options)
        done = dataset.optimize.compact_files(
            target_rows_per_fragment=TARGET_ROWS,
            materialize_deletions=True,
            materialize_deletions_threshold=_HIDDEN_SHARE,
        )
    return done.fragments_removed, done.fragments_added


def extend_indexes(base: BaseTable) -> bool:
    """Make every index cover all rows, and so catch up with the markers. Return whether the base changed.

    Raises:
        Contended: the base changed since this version.
        Unavailable: the store did not answer.
    """
    with native_errors("the base's indexes can't be extended", table=base.uri):
        dataset = open_dataset(uri=base.uri, version=base.version, storage_options=base.storage_options)
        dataset.optimize.optimize_indices()
        return bool(dataset.version != base.version)
