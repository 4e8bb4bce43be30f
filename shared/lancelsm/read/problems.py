"""Find what other tools did to a table: shards, entries, columns, rows and indexes that it does not know.

`open`, `status`, `doctor`, flush and merge report it. It costs one listing of `_mem_wal/`, and a few reads if something
is found. Nothing is repaired here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from lancelsm.common.layout import Position, RegionId, region_id, region_key, wal_entry
from lancelsm.dataset.base_table import BaseTable
from lancelsm.dataset.foreign_rows import counted_rows, repeated_keys
from lancelsm.errors import Corrupt, LsmError, LsmWarning
from lancelsm.read.foreign_commits import foreign_files
from lancelsm.region import config as configs
from lancelsm.region.catalog import Region, regions, with_heads
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.drift import drift
from lancelsm.region.handle import TableHandle
from lancelsm.region.head import Head
from lancelsm.region.resharding import read_resharding
from lancelsm.region.shards import ShardListing, foreign_shards, list_shards, written_past
from lancelsm.wal.entry import decode

_ROWS_READ = 1_000_000  # keys of larger bases are read only on request


class ProblemKind(StrEnum):
    SHARD = "foreign_shard"  # a shard that the registry does not know
    WRITER = "foreign_writer"  # an entry or a manifest of another writer in a region
    BASE = "base"  # columns, key or id of the base differ from the configuration, or its MemWAL index is gone
    INDEX = "mem_wal_index"  # the MemWAL index routes rows otherwise than the region spec
    PROMISE = "index_promise"  # Lance's readers miss rows, or refuse: generations lack an index of the base
    KEYS = "duplicate_keys"  # another tool added rows to the base, and keys are there twice
    COMMIT = "foreign_commit"  # another tool committed to the base, and lancelsm has not summed its files yet


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProblem:
    """What another tool did to a table, and what to do about it.

    Args:
        kind: one word for programs.
        message: what was found, in one sentence.
        remedy: what to do.
        region: the id of the region or shard, if it is in one.
    """

    kind: ProblemKind
    message: str
    remedy: str
    region: RegionId | None = None

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}"


def find_problems(
    handle: TableHandle,
    *,
    base: BaseTable | None = None,
    heads: Sequence[tuple[Region, Head]] | None = None,
    every_key: bool = False,
    commits: bool = True,
) -> list[TableProblem]:
    """Find what other tools did to a table.

    Args:
        base: its newest version, if the caller has just read it.
        heads: all regions that have a head, if the caller has just read them.
        every_key: read the keys of the base even if it is large.
        commits: look for files of another tool in the base.

    Raises:
        Corrupt: a head, the catalog or the manifest of the base is damaged.
        Unavailable: a store or the registry did not answer.
    """
    context = handle.context
    listed = list_shards(context)
    heads = with_heads(context, regions(context)) if heads is None else heads
    catalog = [region for region, _ in heads]
    base = base or handle.inspect_base()
    found = list(_shards(handle, listed, catalog))
    found += [one for region, head in heads if (one := _writer(region, head, listed.get(region.id))) is not None]
    if (wrong := drift(base, handle.config)) is not None:
        return [*found, TableProblem(kind=ProblemKind.BASE, message=wrong.message, remedy=wrong.remedy)]
    if stopped := next((head.stopped for _, head in heads if head.stopped), ""):
        resume = f"The base is in order again: lancelsm merge {context.uri}"
        found.append(TableProblem(kind=ProblemKind.BASE, message=f"the table takes no rows: {stopped}", remedy=resume))
    found += [*_index(handle, base, catalog), *_keys(handle, base, every=every_key)]
    return [*found, *_commit(handle, base)] if commits else found


def promise_problems(handle: TableHandle) -> list[TableProblem]:
    """Find out whether Lance's readers find the rows of generations by the indexes of the base.

    Raises: the same errors as `find_problems`.
    """
    from lancelsm.read.index_status import promise_problem  # noqa: PLC0415 - loads Lance

    context = handle.context
    manifests = [newest(region, head)[1] for region, head in with_heads(context, regions(context))]
    message = promise_problem(handle.read_base(), manifests, objects=context.objects)
    remedy = f"Build what is missing: lancelsm optimize {context.uri}"
    return [TableProblem(kind=ProblemKind.PROMISE, message=message, remedy=remedy)] if message else []


def warn_of_problems(
    handle: TableHandle,
    *,
    base: BaseTable | None = None,
    heads: Sequence[tuple[Region, Head]] | None = None,
    merging: bool = False,
    commits: bool = False,
    stacklevel: int,
) -> None:
    """Warn about what other tools did to the table. What can't be read is left to the step that needs it.

    Args:
        base, heads, commits: see `find_problems`.
        merging: don't warn about a changed base: a merge raises an error, and resumes a stopped table.
    """
    with suppress(LsmError):
        found = find_problems(handle, base=base, heads=heads, commits=commits)
        found = [one for one in found if not (merging and one.kind is ProblemKind.BASE)]
        warn(handle, found, stacklevel=stacklevel + 1)


def warn(handle: TableHandle, problems: Sequence[TableProblem], *, stacklevel: int) -> None:
    """Emit one `LsmWarning` that names all problems."""
    if problems:
        text = "; ".join(str(problem) for problem in problems)
        warnings.warn(LsmWarning(f"{handle.context.uri}: {text}"), stacklevel=stacklevel + 1)


def _adopt_remedy(handle: TableHandle) -> str:
    return f"Stop that writer, then: lancelsm region adopt {handle.context.uri}"


def _shards(
    handle: TableHandle, listed: dict[RegionId, ShardListing], catalog: Sequence[Region]
) -> Iterator[TableProblem]:
    context = handle.context
    for shard in foreign_shards(context, listed, {region.id for region in catalog}):
        if context.registry.read(region_key(context.table, shard.region.id)) is not None:
            continue  # it was created meanwhile
        yield TableProblem(
            kind=ProblemKind.SHARD,
            message=f"another tool writes to shard {shard.region.id}, which is not a region of the table, so no read "
            "returns its rows",
            remedy=_adopt_remedy(handle),
            region=shard.region.id,
        )


def _writer(region: Region, head: Head, listed: ShardListing | None) -> TableProblem | None:
    """Find a manifest or an entry that another writer added to a region after the head."""
    if listed is None:
        return None
    found = ""
    if newer := written_past(head.manifest_version, listed.versions):
        found = f"manifest {newer[-1]}"
    elif (position := _foreign_entry(region, head, listed)) is not None:
        found = f"entry {position}"
    if (
        not found
        or (now := region.head()).manifest_version > head.manifest_version
        or (now.next_position > head.next_position)
    ):
        return None  # nothing, or our own writers continue and will find it
    return TableProblem(
        kind=ProblemKind.WRITER,
        message=f"{found} of region {region.id} is not in the registry: another writer added it, or the registry is an "
        "older copy. The region takes no rows",
        remedy=f"Stop that writer, then: lancelsm region adopt {region.context.uri}",
        region=region.id,
    )


def _foreign_entry(region: Region, head: Head, listed: ShardListing) -> Position | None:
    """Return the first position above the head with an entry of Lance's writer, or of a higher epoch."""
    for position in listed.positions:
        if position < head.next_position:
            continue
        key = wal_entry(region.id, position)
        body = region.context.objects.get(key)
        try:
            entry = None if body is None else decode(body.body, position=position, key=key)
        except Corrupt:
            continue  # a crash left it: a claim replaces it
        if entry is not None and (entry.nonce is None or entry.summary.epoch > head.epoch):
            return position
    return None


def _index(handle: TableHandle, base: BaseTable, catalog: Sequence[Region]) -> Iterator[TableProblem]:
    if has_foreign_index(handle, base, catalog):
        yield TableProblem(
            kind=ProblemKind.INDEX,
            message=f"another tool replaced the MemWAL index: it does not route rows by {handle.config.regions}",
            remedy=f"Install it again: lancelsm region adopt {handle.context.uri}",
        )


def has_foreign_index(handle: TableHandle, base: BaseTable, catalog: Sequence[Region]) -> bool:
    """Return whether the base has no MemWAL index, or one that routes rows otherwise than the region spec."""
    context, spec, details = handle.context, handle.config.regions, base.mem_wal_index()
    if details is None:
        return True
    if base.facts is not None:
        spec = configs.later_regions(base.facts.regions, handle.config) or spec
    if spec is None:
        return False
    if spec.spec_id == 0 and any(
        region_id(table=context.table, spec_id=region.spec_id, values=region.values) != region.id for region in catalog
    ):
        return False  # an adopted table has the index of its previous writer
    found = [
        (field["transform"], list(field["source_ids"]), dict(field["parameters"]))
        for one in details["sharding_specs"]
        for field in one["fields"]
    ]
    wanted = [(str(field.transform), list(field.source_ids), field.parameters) for field in spec.fields]
    if found == (wanted if spec.spec_id else []):
        return False
    resharding = read_resharding(context)  # it changes the base before the index
    if resharding is None or not resharding.done:
        return resharding is None
    newest_base = handle.inspect_base()  # it may have been done after the base was read
    return newest_base.version == base.version or has_foreign_index(handle, newest_base, catalog)


def _keys(handle: TableHandle, base: BaseTable, *, every: bool) -> Iterator[TableProblem]:
    added = base.rows - counted_rows(base)
    if added <= 0 and not every:
        return
    again = "Write these keys again with upsert or delete, then merge: that removes all their older rows"
    if base.rows > _ROWS_READ and not every:
        message = f"another tool added {added} rows to the base: their keys may be there twice"
        yield TableProblem(kind=ProblemKind.KEYS, message=message, remedy=f"See lancelsm doctor {handle.context.uri}")
        return
    try:
        repeated = repeated_keys(base)
    except Corrupt as error:
        yield TableProblem(kind=ProblemKind.KEYS, message=error.message, remedy=error.remedy)
        return
    if repeated.keys:
        examples = "; ".join(repeated.examples)
        keys = "1 key is" if repeated.keys == 1 else f"{repeated.keys:,} keys are"
        message = f"another tool added rows to the base: {keys} there twice, among them {examples}"
        yield TableProblem(kind=ProblemKind.KEYS, message=message, remedy=again)


def _commit(handle: TableHandle, base: BaseTable) -> Iterator[TableProblem]:
    found = foreign_files(handle, base)
    changes = [
        f"{done} {len(paths)} {'file' if len(paths) == 1 else 'files'}, such as {paths[0]}"
        for done, paths in (("added", found.added), ("removed", found.removed))
        if paths
    ]
    if changes:
        yield TableProblem(
            kind=ProblemKind.COMMIT,
            message=f"another tool committed to the base, or a maintenance of lancelsm was interrupted: it "
            f"{' and '.join(changes)}",
            remedy="Check that this was meant. The next merge of rows or collection sums the files: lancelsm gc "
            f"{handle.context.uri} --yes",
        )
