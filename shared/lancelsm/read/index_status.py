"""Read which rows the indexes of a table cover, and whether its promise to Lance's readers holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lancelsm.common.layout import NO_GENERATION
from lancelsm.dataset.base_table import BaseTable
from lancelsm.dataset.indexes import WantedList, base_indexes, read_promise, wanted_list
from lancelsm.objects import ObjectStore
from lancelsm.region.manifest import FlushedGeneration, Manifest

SEARCHED_BY_LANCE = ("IVF_", "INVERTED", "BTREE")  # kinds of indexes that Lance's own writer builds for generations


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatus:
    """An index of a table.

    Args:
        columns: the columns that it is on.
        kind: as Lance names it, such as `IVF_PQ`.
        metric: the distance of a vector index, such as `l2`; else None.
        rows: rows of the base that it covers.
        rows_without: rows of the base and of pending generations that a search reads without it.
        generations: listed generations that have it.
        generations_without: listed generations that lack it. Always 0 for a kind that generations don't need.
        maintained: whether the table promises to Lance's readers that every listed generation has it.
        segments: the number of its parts on the base; a search reads each of them.
        trained_rows: for vectors: the rows of the base when it was trained, or when that was last tried. None: not
            recorded yet. `optimize` trains it again at twice this number.
        stalled: whether Lance refuses to extend it to all rows of the base. Searches read the rest without it, Lance's
            readers may not rely on it, and collections do not wait for it.
    """

    name: str
    columns: tuple[str, ...]
    kind: str
    metric: str | None
    rows: int
    rows_without: int
    generations: int
    generations_without: int
    maintained: bool
    segments: int = 1
    trained_rows: int | None = None
    stalled: bool = False


def read_index_statuses(base: BaseTable, manifests: Iterable[Manifest], *, objects: ObjectStore) -> list[IndexStatus]:
    """Return the status of each index of the base, by name.

    Args:
        manifests: of all regions, read before the base.

    Raises:
        Corrupt, Unavailable: the indexes of the base could not be read.
    """
    indexes = base_indexes(base)
    if not indexes:
        return []
    manifests = list(manifests)
    listed = [
        (one, one.generation <= base.counters.get(manifest.region, NO_GENERATION))
        for manifest in manifests
        for one in manifest.generations
    ]
    wanted = wanted_list(base)
    known = {one.name for one in wanted.indexes}
    promise = read_promise(objects=objects, version=base.version)
    statuses = []
    for index in indexes:
        needed = listed if index.in_generations is not None else []
        without = [(one, merged) for one, merged in needed if index.name not in known or not is_indexed(one, wanted)]
        statuses.append(
            IndexStatus(
                name=index.name,
                columns=index.columns,
                kind=index.kind,
                metric=index.metric,
                rows=index.rows,
                rows_without=max(base.rows - index.rows, 0)
                + sum(one.rows or 0 for one, merged in without if not merged),
                generations=len(needed) - len(without),
                generations_without=len(without),
                maintained=promise is not None and index.name in promise.names,
                segments=len(index.segments),
                trained_rows=wanted.trained.get(index.name),
                stalled=index.name in wanted.stalled,
            )
        )
    return statuses


def is_indexed(generation: FlushedGeneration, wanted: WantedList) -> bool:
    """Return whether a generation has every index of the list."""
    return not wanted.indexes or (generation.indexes is not None and generation.indexes.number >= wanted.number)


def promise_problem(base: BaseTable, manifests: Iterable[Manifest], *, objects: ObjectStore) -> str:
    """Return why the promise to Lance's readers does not hold; empty if it holds. Raises: see `read_index_statuses`."""
    promise = read_promise(objects=objects, version=base.version)
    needed = {one.name for one in base_indexes(base) if one.in_generations is not None}
    if promise is None or not needed:
        return ""
    wanted = wanted_list(base)
    if stalled := sorted(wanted.stalled & {one.name for one in base_indexes(base)}):
        return (
            f"Lance refuses to extend the indexes {', '.join(stalled)} to all rows of the base, perhaps for a vector "
            "that is too large. Searches read these rows without an index. Correct the rows, or drop the indexes"
        )
    if silent := sorted(needed - set(promise.names)):
        return f"the MemWAL index does not name the indexes {', '.join(silent)}, so LanceDB refuses to search with them"
    if unlisted := sorted(needed - set(wanted.promised)):
        return f"flushes do not build the indexes {', '.join(unlisted)}, but the MemWAL index promises them"
    lacking = sum(not is_indexed(one, wanted) for manifest in manifests for one in manifest.generations)
    return f"{lacking} generations lack an index that the MemWAL index promises" if lacking else ""
