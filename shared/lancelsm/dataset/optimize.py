"""Compact a base by Lance's own operation, and state the files of the result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import lance
from lance.fragment import FragmentMetadata
from lance.optimize import Compaction, CompactionTask, RewriteResult

from lancelsm.dataset.base_rows import Base, NewFragment, Preempted, commit
from lancelsm.dataset.base_table import BaseTable, open_dataset
from lancelsm.dataset.damaged import naming_damage
from lancelsm.dataset.native import native_errors
from lancelsm.dataset.read_back import check_rows, sum_new
from lancelsm.dataset.scan_options import scan_options
from lancelsm.dataset.statement import StatedFile, Stating, check_stated, named_files
from lancelsm.errors import Contended, Corrupt
from lancelsm.objects import ObjectStore
from lancelsm.record.batches import has_struct

TARGET_ROWS = 1_048_576
BATCH_FRAGMENTS = 256  # rewritten by one commit, unless a single task has more
BATCH_BYTES = 1 << 30
_HIDDEN_SHARE = 0.1  # a fragment with a larger share of hidden rows is rewritten, even if it is large


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What one compaction did.

    Args:
        files: the lines of its new files in the statement.
        left: whether there are more fragments to rewrite.
    """

    fragments_removed: int
    fragments_added: int
    files: tuple[StatedFile, ...]
    left: bool


def compact(base: BaseTable, *, objects: ObjectStore) -> Compacted:
    """Rewrite small fragments as larger ones without hidden rows: a batch of them, by one commit.

    Old files are compared with their sums first. New files are read back and compared with the old rows, before the
    commit.

    Args:
        objects: the object store of the table.

    Raises:
        Contended: the base changed since this version.
        Corrupt: an old file is damaged, or a new file has other rows than the old ones. Nothing was committed.
        Unavailable: the store did not answer.
    """
    with _errors("the base can't be compacted", base):
        dataset = open_dataset(uri=base.uri, version=base.version, storage_options=base.storage_options)
        tasks = _plan(dataset)
        batch = _batch(tasks)
        done = [_rewrite(base, dataset, task, objects) for task in batch]
        if not done:
            return Compacted(fragments_removed=0, fragments_added=0, files=(), left=False)
        metrics = Compaction.commit(dataset, [result for result, _ in done])
    return Compacted(
        fragments_removed=metrics.fragments_removed,
        fragments_added=metrics.fragments_added,
        files=tuple(line for _, written in done for fragment in written for line in fragment.files),
        left=len(batch) < len(tasks),
    )


def bytes_to_rewrite(base: BaseTable) -> int:
    """Return the bytes of the data files that compactions would rewrite now.

    Raises:
        Unavailable: the store did not answer.
    """
    with _errors("the compaction can't be planned", base):
        dataset = open_dataset(uri=base.uri, version=base.version, storage_options=base.storage_options)
        return sum(map(_bytes, _plan(dataset)))


def _plan(dataset: lance.LanceDataset) -> list[CompactionTask]:
    plan = Compaction.plan(
        dataset,
        options={
            "target_rows_per_fragment": TARGET_ROWS,
            "materialize_deletions": True,
            "materialize_deletions_threshold": _HIDDEN_SHARE,
        },
    )
    return list(plan.tasks)


def _batch(tasks: list[CompactionTask]) -> list[CompactionTask]:
    """Return the first tasks, up to the limits of a batch; at least one, if there is one."""
    batch: list[CompactionTask] = []
    fragments = size = 0
    for task in tasks:
        fragments, size = fragments + len(task.fragments), size + _bytes(task)
        if batch and (fragments > BATCH_FRAGMENTS or size > BATCH_BYTES):
            break
        batch.append(task)
    return batch


def _bytes(task: CompactionTask) -> int:
    return sum(file.file_size_bytes or 0 for fragment in task.fragments for file in fragment.files)


def _rewrite(
    base: BaseTable, dataset: lance.LanceDataset, task: CompactionTask, objects: ObjectStore
) -> tuple[RewriteResult, tuple[NewFragment, ...]]:
    """Run one task of a compaction, without a commit."""
    old: list[FragmentMetadata] = task.fragments
    fragments = [found for one in old if (found := dataset.get_fragment(one.id)) is not None]
    if len(fragments) != len(old):
        raise Corrupt("the base has lost fragments that are to be compacted", table=base.uri, version=base.version)
    check_stated(base, objects, named_files(dataset, old, indexes=False))
    result = (_in_one_file(task) if any(has_struct(field.type) for field in dataset.schema) else task).execute(dataset)
    new = [NewFragment(rows=one.physical_rows, metadata=json.dumps(one.to_json())) for one in result.new_fragments]
    written = sum_new(Base.of(base), new)
    options = scan_options(dataset, dataset.schema.names)
    rows = dataset.scanner(fragments=fragments, scan_in_order=True, **options).to_batches()
    check_rows(Base.of(base), base.schema.columns, written, rows)  # guard: optimize reads its rows back
    return result, written


def _in_one_file(task: CompactionTask) -> CompactionTask:
    """Return the same task, which writes one file, however many rows it has.

    Where Lance begins another file, it slices a batch, and it can't write a slice of a struct with nulls around bools.
    """
    given, kind = cast("Any", task), cast("Any", CompactionTask)  # the stubs lack both methods
    document = json.loads(given.json())
    rows = sum(fragment.physical_rows for fragment in task.fragments)
    document["options"]["target_rows_per_fragment"] = max(rows, TARGET_ROWS)
    return cast("CompactionTask", kind.from_json(json.dumps(document)))


@contextmanager
def _errors(doing: str, base: BaseTable) -> Iterator[None]:
    with (
        naming_damage(uri=base.uri, opened=lambda: base.dataset, options=base.storage_options, without_input=True),
        native_errors(doing, table=base.uri),
    ):
        yield


def state_result(base: BaseTable, *, objects: ObjectStore, files: tuple[StatedFile, ...]) -> None:
    """Commit a version that changes only the statement of files.

    Args:
        files: lines of the files that a compaction wrote.

    Raises:
        Contended: the base changed since this version. The next merge states the files as they are found.
        Unavailable: the store did not answer.
    """
    stating = Stating(objects=objects, new=files)
    outcome = commit(Base.of(base), changed={}, new=(), metadata=base.metadata, properties={}, stating=stating)
    if isinstance(outcome, Preempted):
        raise Contended("another process committed to the base first", remedy="Optimize again", table=base.uri)
