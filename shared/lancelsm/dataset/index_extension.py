"""Let the indexes of a base cover all its rows, in few segments, and train indexes for vectors again.

Lance puts new rows into a new segment of a vector index, and a search reads every segment. So the newest segments are
merged until each one is at least twice as large as the next: their number grows with the logarithm of the rows, and a
row is rewritten as rarely. Lance merges the segments of other indexes itself.

A vector index assigns new rows to the partitions, and encodes them by the codebook, that it was trained with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import lance

from lancelsm.dataset.base_table import BaseTable, open_dataset
from lancelsm.dataset.damaged import naming_damage
from lancelsm.dataset.native import USER, native_errors, text_of
from lancelsm.errors import Invalid

_DOING = "the base's indexes can't be extended"
_LANCE_PREFIX = "__"  # of indexes that Lance keeps for itself
_GROWTH = 2  # a segment is at least this many times as large as the next one; also the growth between two trainings
_LEAST_ROWS = 256  # that Lance needs to train a codebook


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """What `extend_indexes` did. `stalled` names the indexes that Lance refuses to extend to all rows."""

    changed: bool
    stalled: frozenset[str]


def extend_indexes(base: BaseTable, *, stalled: Collection[str] = ()) -> Extended:
    """Make every index cover all rows, and so catch up with the markers; merge small segments.

    If Lance refuses the rows of one index, for instance because a vector overflows, the others are extended all the
    same.

    Args:
        stalled: indexes that Lance refused before. Each is tried by itself, so that the others need no second try.

    Raises:
        Contended: the base changed since this version.
        Corrupt: a file of an index or of the rows is damaged.
        Unavailable: the store did not answer.
    """
    dataset = open_dataset(uri=base.uri, version=base.version, storage_options=base.storage_options)
    names = {name for name, _ in _segments(base, dataset)}
    refused: set[str] = set()
    together = sorted(names - set(stalled))
    if not _extend(base, dataset, together):
        refused.update(name for name in together if not _extend(base, dataset, [name]))
    refused.update(name for name in sorted(names & set(stalled)) if not _extend(base, dataset, [name], known=True))
    for name, segments in _segments(base, dataset):
        if name not in refused and (newest := segments_to_merge(segments)):
            with _errors(base):
                dataset.optimize.optimize_indices(index_names=[name], num_indices_to_merge=newest)
    return Extended(changed=bool(dataset.version != base.version), stalled=frozenset(refused))


def retrain_index(base: BaseTable, name: str) -> bool:
    """Train a vector index again on all rows, in one segment; Lance chooses the number of partitions.

    Returns:
        False if Lance refuses the rows. The index is then as it was.

    Raises: the same errors as `extend_indexes`.
    """
    dataset = open_dataset(uri=base.uri, version=base.version, storage_options=base.storage_options)
    try:
        with _errors(base):
            dataset.optimize.optimize_indices(index_names=[name], retrain=True)
    except Invalid as error:
        if not _refuses_rows(error):
            raise
        return False
    return True


def is_training_due(*, rows: int, trained_rows: int) -> bool:
    """Return whether an index for vectors is to be trained again: the base has at least twice the rows of then.

    Replaced rows alone are no reason: after ten rounds that each replaced a tenth of the rows by others of a shifted
    distribution, recall had not fallen.
    """
    return rows >= max(_GROWTH * trained_rows, _LEAST_ROWS)


def segments_to_merge(rows: Sequence[int]) -> int:
    """Return how many of the newest segments to merge into one; 0 if each is at least twice as large as the next.

    Args:
        rows: the rows of each segment, the oldest first.
    """
    merged, total, newer = 0, 0, 0
    for number, size in enumerate(reversed(rows), start=1):
        total += size
        if number > 1 and size < _GROWTH * max(newer, 1):
            merged, newer = number, total
        else:
            newer = size
    return merged


def segment_rows(base: BaseTable, segments: Iterable[Collection[int]]) -> tuple[int, ...]:
    """Return the rows of each segment of an index, by the fragments that it covers."""
    rows = {fragment.id: fragment.rows for fragment in base.fragments}
    return tuple(sum(rows.get(number, 0) for number in covered) for covered in segments)


def _segments(base: BaseTable, dataset: lance.LanceDataset) -> list[tuple[str, tuple[int, ...]]]:
    """Return the name of each index over rows, and the rows of its segments; one with several is for vectors."""
    with _errors(base):
        return sorted(
            (one.name, segment_rows(base, [segment.fragment_ids for segment in one.segments]))
            for one in dataset.describe_indices()
            if not one.name.startswith(_LANCE_PREFIX)
        )


def _extend(base: BaseTable, dataset: lance.LanceDataset, names: Sequence[str], *, known: bool = False) -> bool:
    """Extend these indexes, in one commit. Return False, without a commit, if Lance refuses the rows.

    Lance calls some damage wrong input. So files are compared with their sums after a refusal, unless it is `known`.
    """
    if not names:
        return True
    try:
        with native_errors(_DOING, table=base.uri) if known else _errors(base):
            dataset.optimize.optimize_indices(index_names=list(names))
    except Invalid as error:
        if not _refuses_rows(error):
            raise
        return False
    return True


def _refuses_rows(error: Invalid) -> bool:
    return error.__cause__ is not None and USER.match(text_of(error.__cause__)) is not None


@contextmanager
def _errors(base: BaseTable) -> Iterator[None]:
    with (
        naming_damage(uri=base.uri, opened=lambda: base.dataset, options=base.storage_options, without_input=True),
        native_errors(_DOING, table=base.uri),
    ):
        yield
