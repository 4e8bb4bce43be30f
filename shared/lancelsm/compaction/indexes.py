"""Create, drop and maintain the indexes of a table.

An index is built on the base, then for every generation; only then the details of the MemWAL index promise it to
Lance's readers. The order of a creation:

1. the promise no longer says that every index of the base is in the generations;
2. the index is built on the base;
3. the wanted list with a higher number is committed to the base, then every head requires this number. From now on no
   flush can commit that read an older list;
4. every listed generation without the index gets it;
5. the promise names the index, if the list is still the same.

A region that is created later needs no number: a flush reads the list after it has seen the region, and the region did
not exist when the heads were listed. A drop goes the other way: the list marks the index, then the promise leaves it
out, then the base drops it, then the list.

`maintain_indexes` takes each of these steps from what it finds, so it finishes what a crash interrupted, and repairs a
table whose indexes another tool created. The lease only saves work. Model: tests/model/index_promise.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from lancelsm.common.clock import SLOW_ATTEMPTS
from lancelsm.common.error_text import did_you_mean
from lancelsm.common.layout import generation_path
from lancelsm.dataset import indexes as stored
from lancelsm.dataset.base_table import BaseTable
from lancelsm.dataset.generation_indexes import index_generation
from lancelsm.dataset.index_extension import extend_indexes, is_training_due, retrain_index
from lancelsm.dataset.indexes import IndexState, Promise, WantedIndex, WantedList
from lancelsm.dataset.optimize import state_result
from lancelsm.errors import Contended, Invalid, error_context
from lancelsm.objects.filesum import sum_indexes
from lancelsm.read.index_status import (
    SEARCHED_BY_LANCE,
    IndexStatus,
    is_indexed,
    promise_problem,
    read_index_statuses,
)
from lancelsm.region import manifest as manifests
from lancelsm.region.catalog import Region, SealedRegion, regions, with_heads
from lancelsm.region.compare_and_swap import commit, newest
from lancelsm.region.handle import TableHandle
from lancelsm.region.lease import INDEXES_LEASE, lease
from lancelsm.region.manifest import GenerationIndexes, Manifest
from lancelsm.wal.claim import create_region


def create_index(
    handle: TableHandle,
    column: str,
    *,
    kind: str,
    name: str | None = None,
    replace_existing: bool = False,
    options: Mapping[str, Any] | None = None,
) -> IndexStatus:
    """Create an index on the base and on every generation; see `Table.create_index`."""
    options = options or {}
    with error_context(table=handle.context.uri), lease(handle.context, INDEXES_LEASE):
        schema, uri = handle.read_base().schema, handle.context.uri
        stored.check_index(schema, column=column, kind=kind, name=name, options=options, table=uri)
        _promise(handle, lambda found: replace(found, every=False))
        if replace_existing:
            _leave(handle, name or stored.default_name(column), IndexState.LEAVING)
            _finish_leaving(handle)
        try:
            made = stored.build_index(
                handle.read_base(),
                column=column,
                kind=kind,
                name=name,
                replace_existing=replace_existing,
                options=options,
            )
        except Invalid:  # an option that does not fit the rows; the index that was to be replaced is still there
            maintain_indexes(handle)
            raise
        state_files(handle)  # at once: until then, others report the index as another tool's
        maintain_indexes(handle)
        state_files(handle)  # of the last version, so that nobody needs to compare files
        for found in index_statuses(handle):
            if found.name == made:
                return found
    raise Contended("the index was dropped meanwhile", remedy="Create it again", table=handle.context.uri, field=made)


def drop_index(handle: TableHandle, name: str) -> None:
    """Drop an index of the base, and build it no longer; see `Table.drop_index`."""
    with error_context(table=handle.context.uri), lease(handle.context, INDEXES_LEASE):
        base = handle.read_base()
        known = {one.name for one in stored.base_indexes(base)} | {one.name for one in stored.wanted_list(base).indexes}
        if name not in known:
            raise Invalid(
                f"the table has no index {name!r}",
                remedy=did_you_mean(name, sorted(known), what="Its indexes are") if known else "It has no index at all",
                field="name",
            )
        if not _leave(handle, name, IndexState.DROPPING):
            stored.drop_base_index(handle.read_base(), name)
        maintain_indexes(handle)


def maintain_indexes(handle: TableHandle) -> bool:
    """Bring list, heads, generations and promise to the indexes that the base has. Return whether anything changed.

    The caller holds the lease `INDEXES_LEASE`.

    Raises:
        Contended: other processes kept changing the base. What was done stays; run it again.
        Corrupt, Unavailable: the base, a head or a generation could not be read.
    """
    changed = _finish_leaving(handle)
    for _ in handle.context.budget().attempts(least=SLOW_ATTEMPTS):
        base = handle.read_base()
        wanted = stored.wanted_list(base)
        desired = _desired(base, wanted)
        if gone := [one for one in wanted.indexes if not any(one.same_files(other) for other in desired)]:
            changed = True
            for one in gone:
                _leave(handle, one.name, IndexState.LEAVING)
            _finish_leaving(handle)
            continue
        number = max([wanted.number, *_required_numbers(handle)]) if desired or wanted.number else 0
        if new := [one for one in desired if one not in wanted.indexes]:
            changed = True
            listed = replace(wanted, number=number + 1, indexes=tuple(sorted([*wanted.indexes, *new], key=_name)))
            vectors = {one.name: one.rows for one in stored.base_indexes(base) if one.metric is not None}
            trained = {one.name: vectors[one.name] for one in new if one.name in vectors}
            stored.write_wanted(base, _with_training(listed, trained))
            continue
        if number > wanted.number:
            stored.write_wanted(base, replace(wanted, number=number + 1))
            continue
        if wanted.indexes:
            _require(handle, wanted.number)
            complete, built = _index_generations(handle, wanted)
            changed |= built
            if not complete:
                return changed
        if (done := _keep_promise(handle, wanted)) is not None:
            return changed or done
    raise _contended()


def unfinished(handle: TableHandle) -> bool:
    """Return whether the creation or the drop of an index was interrupted, so that `maintain_indexes` has to finish it.

    Raises: `Corrupt` or `Unavailable`, like `maintain_indexes`.
    """
    base = handle.read_base()
    wanted = stored.wanted_list(base)
    if not wanted.indexes and not stored.base_indexes(base):
        return False
    if any(one.state is not IndexState.WANTED for one in wanted.indexes):
        return True
    if {one.name for one in wanted.indexes} != {one.name for one in _desired(base, wanted)}:
        return True
    manifests_read = [manifest for _, manifest in _manifests(handle)]
    return promise_problem(base, manifests_read, objects=handle.context.objects) != ""


def index_key(handle: TableHandle) -> bool:
    """Build an index on a key of one column once the base is large; return whether it was built.

    It makes reads by key fast. Generations have a key index of their own, so it is not promised to Lance's readers, and
    no collection waits for it.
    """
    base = handle.read_base()
    key = base.schema.primary_key
    if len(key) != 1 or base.rows < handle.settings.key_index_rows:
        return False
    if any(one.columns == key and one.kind == "BTREE" for one in stored.base_indexes(base)):
        return False
    _promise(handle, lambda found: replace(found, every=False))
    return stored.build_key_index(handle.read_base())


def extend(handle: TableHandle) -> bool:
    """Let the indexes of the base cover all its rows. Return whether the base changed; retries after a conflict.

    An index that Lance refuses to extend is recorded as stalled and promised no longer: a collection does not wait for
    it. It is tried again at each call. The caller holds the lease `INDEXES_LEASE`.
    """
    for _ in handle.context.budget().attempts(least=SLOW_ATTEMPTS):
        with suppress(Contended):
            base = handle.read_base()
            done = extend_indexes(base, stalled=stored.wanted_list(base).stalled)
            recorded = _record(handle, partial(replace, stalled=done.stalled))
            if done.stalled:
                _promise(handle, _without(done.stalled))
            if recorded:
                maintain_indexes(handle)
                return True
            return done.changed
    raise _contended()


def retrain(handle: TableHandle) -> bool:
    """Train the indexes for vectors again that are due for it. Return whether one was trained.

    The number of rows is recorded first. So a training that was ended because it took too long is not tried again
    until the rows have doubled once more.
    Does nothing if another process maintains the indexes.

    Raises: `Corrupt` or `Unavailable`, like `maintain_indexes`.
    """
    due = _due_for_training(handle)
    if not due:
        return False
    trained = False
    with suppress(Contended), lease(handle.context, INDEXES_LEASE):
        for name in due:
            _record(handle, partial(_with_training, rows={name: handle.read_base().rows}))
            trained |= retrain_index(handle.read_base(), name)
        if trained:
            state_files(handle)
    return trained


def _due_for_training(handle: TableHandle) -> list[str]:
    """Return the names of the indexes to train. If no training of an index is recorded, record the rows of now."""
    base = handle.read_base()
    wanted = stored.wanted_list(base)
    listed = {one.name for one in wanted.indexes if one.state is IndexState.WANTED} - wanted.stalled
    vectors = [one for one in stored.base_indexes(base) if one.metric is not None and one.name in listed]
    if unknown := {one.name: base.rows for one in vectors if one.name not in wanted.trained}:
        _record(handle, partial(_with_training, rows=unknown))
    return [
        one.name
        for one in vectors
        if one.name in wanted.trained and is_training_due(rows=base.rows, trained_rows=wanted.trained[one.name])
    ]


def _with_training(wanted: WantedList, rows: Mapping[str, int]) -> WantedList:
    return replace(wanted, trained={**wanted.trained, **rows})


def _record(handle: TableHandle, change: Callable[[WantedList], WantedList]) -> bool:
    """Commit another wanted list, with the same number. Return False if it is the same."""
    for _ in handle.context.budget().attempts():
        base = handle.read_base()
        wanted = stored.wanted_list(base)
        if change(wanted) == wanted:
            return False
        if stored.write_wanted(base, change(wanted)):
            return True
    raise _contended()


def state_files(handle: TableHandle) -> None:
    """State the files of new indexes: else they count as another tool's. After a conflict, the next merge does it."""
    with suppress(Contended):
        state_result(handle.read_base(), objects=handle.context.objects, files=())


def index_statuses(handle: TableHandle) -> list[IndexStatus]:
    """List the indexes of a table: heads and manifests first, then the base."""
    manifests_read = [manifest for _, manifest in _manifests(handle)]
    return read_index_statuses(handle.read_base(), manifests_read, objects=handle.context.objects)


def raise_number(handle: TableHandle, least: int) -> None:
    """Raise the number of the wanted list above `least` if it is below. A base that was restored has an old number."""
    for _ in handle.context.budget().attempts():
        base = handle.read_base()
        wanted = stored.wanted_list(base)
        if wanted.number >= least or stored.write_wanted(base, replace(wanted, number=least + 1)):
            return
    raise _contended()


def _name(index: WantedIndex) -> str:
    return index.name


def _desired(base: BaseTable, wanted: WantedList) -> list[WantedIndex]:
    """Return what generations need for the indexes of the base."""
    dropping = {one.name for one in wanted.indexes if one.state is IndexState.DROPPING}
    found = [index.in_generations for index in stored.base_indexes(base) if index.name not in dropping]
    return [one for one in found if one is not None]


def _required_numbers(handle: TableHandle) -> list[int]:
    return [manifest.index_number for _, manifest in _manifests(handle)]


def _manifests(handle: TableHandle) -> list[tuple[Region, Manifest]]:
    context = handle.context
    found = with_heads(context, regions(context))
    named = context.each(lambda pair: newest(*pair)[1], found)
    return [(region, manifest) for (region, _), manifest in zip(found, named, strict=True)]


def _require(handle: TableHandle, number: int) -> None:
    """Let every head refuse flushes of an older list. The list is committed before the regions are listed."""
    context = handle.context

    require_list = partial(manifests.requiring_indexes, number=number)

    def require(region: Region) -> None:
        if region.find_head() is None:  # guard: region without a head is created before its flushes are refused
            with suppress(SealedRegion):  # a reshard left it
                create_region(context, spec_id=region.spec_id, values=region.values, owner=handle.config.owner)
        if region.find_head() is not None:
            commit(region, require_list)  # guard: heads require the list

    context.each(require, regions(context))


def _index_generations(handle: TableHandle, wanted: WantedList) -> tuple[bool, bool]:
    """Index every listed generation that lacks an index. Return whether all have them, and whether any was indexed."""
    complete, built = True, False
    for region, manifest in _manifests(handle):
        for generation in manifest.generations:
            if is_indexed(generation, wanted):
                continue
            indexes = build_generation(handle, generation_path(region.id, generation.path), wanted)
            if indexes is None:
                complete = False
                continue
            built = True
            commit(region, _recording(generation.path, indexes))  # superseded: the generation was collected
    return complete, built


def _recording(path: str, indexes: GenerationIndexes) -> Callable[[Manifest], Manifest | manifests.Superseded]:
    return lambda manifest: manifests.with_indexes(manifest, path=path, indexes=indexes)


def build_generation(handle: TableHandle, key: str, wanted: WantedList) -> GenerationIndexes | None:
    """Build the wanted indexes of the generation at a key; None if Lance can't build one of them.

    Searches read the rows of such a generation without an index. Its rows are never refused for that.
    """
    if not wanted.indexes:
        return None
    done = index_generation(
        uri=f"{handle.context.uri}/{key}", wanted=wanted.indexes, storage_options=handle.storage_options
    )
    if done.failed:
        return None
    summed = sum_indexes(handle.context.objects, key, version=done.version)
    return GenerationIndexes(number=wanted.number, version=done.version, setsum=summed.setsum)


def _leave(handle: TableHandle, name: str, state: IndexState) -> bool:
    """Mark an index in the list, so that no promise names it any more. Return False if the list lacks it."""
    for _ in handle.context.budget().attempts():
        base = handle.read_base()
        wanted = stored.wanted_list(base)
        found = next((one for one in wanted.indexes if one.name == name), None)
        if found is None:
            return False
        if found.state in {state, IndexState.DROPPING}:
            return True
        marked = tuple(replace(one, state=state) if one.name == name else one for one in wanted.indexes)
        if stored.write_wanted(base, replace(wanted, indexes=marked)):
            return True
    raise _contended()


def _finish_leaving(handle: TableHandle) -> bool:
    """Remove marked indexes: from the promise, then from the base if they are dropped, then from the list."""
    for _ in handle.context.budget().attempts():
        base = handle.read_base()
        wanted = stored.wanted_list(base)
        marked = {one.name: one.state for one in wanted.indexes if one.state is not IndexState.WANTED}
        if not marked:
            return False
        _promise(handle, _without(frozenset(marked)))
        for name, state in marked.items():
            if state is IndexState.DROPPING:
                stored.drop_base_index(handle.read_base(), name)
        base = handle.read_base()
        now = stored.wanted_list(base)
        if stored.write_wanted(base, now.of(one for one in now.indexes if marked.get(one.name) is not one.state)):
            return True
    raise _contended()


def _without(names: frozenset[str]) -> Callable[[Promise], Promise]:
    return lambda found: replace(found, names=tuple(one for one in found.names if one not in names), every=False)


def _promise(handle: TableHandle, change: Callable[[Promise], Promise]) -> None:
    """Commit another promise, unless it is the same."""
    for _ in handle.context.budget().attempts():
        base = handle.read_base()
        found = stored.read_promise(objects=handle.context.objects, version=base.version)
        if found is None or change(found) == found:
            return
        if stored.write_promise(base, change(found), objects=handle.context.objects):
            return
    raise _contended()


def _keep_promise(handle: TableHandle, wanted: WantedList) -> bool | None:
    """Promise the indexes of a list that every generation has. None if the list or the base changed meanwhile."""
    base = handle.read_base()
    if stored.wanted_list(base) != wanted:  # guard: promise is of the list that was built
        return None
    found = stored.read_promise(objects=handle.context.objects, version=base.version)
    names = wanted.promised
    searched = {index.name for index in stored.base_indexes(base) if index.kind.startswith(SEARCHED_BY_LANCE)}
    promise = Promise(names=names, every=searched <= set(names) and not wanted.stalled)
    if found is None or found == promise:
        return False
    return True if stored.write_promise(base, promise, objects=handle.context.objects) else None


def _contended() -> Contended:
    return Contended("other processes kept changing the base", remedy="Run it again: it continues where it stopped")
