"""Reshard a table: give it another region spec while writers go on.

Flush and merge until little is left, write the record of the reshard, seal all old regions, flush and merge the rest,
commit the new spec to the base, write the configuration, open the new regions, mark the old ones as retired. Each step
can be repeated, so any process that meets the record finishes it. Model: tests/model/reshard.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from lancelsm.common.clock import SLOW_ATTEMPTS
from lancelsm.common.layout import RegionValues, region_key
from lancelsm.compaction.maintenance import flush_table, merge_table
from lancelsm.dataset.adoption import write_facts
from lancelsm.dataset.base_table import REGIONS, BaseTable
from lancelsm.dataset.deleted_keys import deletes_of_other_regions
from lancelsm.dataset.sharding_specs import replace_specs
from lancelsm.errors import Contended, Invalid, Unavailable, error_context
from lancelsm.region import config as configs
from lancelsm.region.catalog import Region, SealedRegion, TableContext, regions
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.handle import TableHandle
from lancelsm.region.head import RegionState
from lancelsm.region.lease import BASE_LEASE, RESHARD_LEASE, lease
from lancelsm.region.resharding import Resharding, begin_resharding, finish_resharding, read_resharding
from lancelsm.registry import SwapUnknown
from lancelsm.routing import spec as region_specs
from lancelsm.routing.route import all_values, check_supported
from lancelsm.routing.spec import RegionSpec, parse_regions
from lancelsm.wal.claim import create_region, seal

_ROUNDS = 4  # of flushes and merges before the regions are sealed

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharded:
    """The result of a reshard.

    Args:
        regions: the region spec of the table now.
        sealed: the number of old regions that this call found or made sealed.
        opened: the number of new regions that exist. Others are created when their values are first written.
    """

    regions: str
    sealed: int
    opened: int


def reshard(handle: TableHandle, text: str | None) -> tuple[TableHandle, Resharded]:
    """Give a table another region spec. See `Table.reshard`.

    Args:
        text: the new region spec; None: only finish a reshard that was interrupted.

    Returns:
        The handle with the new spec, and what was done.

    Raises: the same errors as `Table.reshard`.
    """
    context = handle.context
    with error_context(table=context.uri):
        handle = newest_handle(handle)
        spec = handle.config.regions
        if spec is None:
            raise Invalid(
                "the table was adopted from Lance without a region spec",
                remedy=f'Set one: lancelsm region adopt {context.uri} --regions "bucket(column, 4)"',
                field="regions",
            )
        done = Resharded(regions=spec.describe(), sealed=0, opened=0)
        found = read_resharding(context)
        if found is not None and not found.done:
            handle, done = _finish(handle, found)
        if text is None:
            if found is None or found.done:
                raise Invalid("no reshard was interrupted", remedy="Give the new region spec", field="regions")
            return handle, done
        assert handle.config.regions is not None, "a resharded table has a spec"
        wanted = parse_regions(text, schema=handle.config.schema, number=handle.config.regions.number + 1)
        check_supported(wanted, handle.config.schema.stored)
        if wanted.describe() == handle.config.regions.describe():
            return handle, done
        _drain(handle)
        begun = begin_resharding(context, wanted)
        handle, done = _finish(handle, begun)
        if begun.spec != wanted:
            raise Contended(f"another process resharded the table to {begun.spec}", remedy="Look, then retry")
        return handle, done


def finish_reshard(handle: TableHandle) -> None:
    """Finish a reshard that was interrupted; do nothing if there is none.

    Raises: the same errors as `Table.reshard`; `Contended` at once if a process is resharding the table.
    """
    found = read_resharding(handle.context)
    if found is not None and not found.done:
        with lease(handle.context, RESHARD_LEASE):
            _complete(newest_handle(handle), found)


def newest_handle(handle: TableHandle) -> TableHandle:
    """Return the handle with the newest region spec that configuration or base have."""
    context = handle.context
    config = configs.read(context.objects, uri=context.uri)
    if config is not None and config.table == handle.config.table and config.regions is not None:
        handle = replace(handle, config=config)
    return handle.following(handle.inspect_base())


def _drain(handle: TableHandle) -> None:
    """Flush and merge while writers go on, until a last round has little to do."""
    for _ in range(_ROUNDS):
        flushed = flush_table(handle)
        _patiently(handle.context, lambda: merge_table(handle))
        if sum(one.rows for one in flushed) <= handle.settings.flush_rows:
            return


def _finish(handle: TableHandle, found: Resharding) -> tuple[TableHandle, Resharded]:
    def complete() -> tuple[TableHandle, Resharded]:
        with lease(handle.context, RESHARD_LEASE):
            return _complete(handle, found)

    return _patiently(handle.context, complete)


def _complete(handle: TableHandle, found: Resharding) -> tuple[TableHandle, Resharded]:
    """Do what is left of a reshard. Idempotent, also if several processes do it at once."""
    context, spec = handle.context, found.spec
    old = [region for region in regions(context) if region.number < spec.number and region.retired is None]
    base = handle.read_base()
    if not _has_spec(base, handle, spec):
        context.each(lambda region: _seal(region, owner=handle.config.owner), old)  # guard: reshard seals every region
        _merge_rest(handle, old)
        base = _commit_spec(handle, spec)
    install_spec(handle, base, spec)
    config = configs.change_regions(context.objects, spec, uri=context.uri, budget=context.budget())
    context = replace(context, ordered=bool(config.sequence_by))
    handle = replace(handle, config=config, context=context)
    new = all_values(spec) or []
    context.each(lambda values: _open(handle, spec, values), new)
    context.each(lambda region: _retire(region, base), old)
    finish_resharding(context, found)
    return handle, Resharded(regions=spec.describe(), sealed=len(old), opened=len(new))


def _open(handle: TableHandle, spec: RegionSpec, values: RegionValues) -> None:
    """Create a new region. It may be sealed already if this process stalled until a later reshard."""
    with suppress(SealedRegion):
        create_region(handle.context, spec_id=spec.spec_id, values=values, owner=handle.config.owner, resharding=True)


def _seal(region: Region, *, owner: str) -> None:
    """Seal a region. One without a head may get it from a writer at any moment, so it is created first."""
    with suppress(SealedRegion):
        create_region(  # guard: region without a head is created before it is sealed
            region.context, spec_id=region.spec_id, values=region.values, owner=owner, resharding=True
        )
    seal(region)


def _merge_rest(handle: TableHandle, old: list[Region]) -> None:
    """Flush and merge the sealed regions until the base has all their rows."""
    for _ in handle.context.budget().attempts(least=SLOW_ATTEMPTS):
        flush_table(handle)
        _patiently(handle.context, lambda: merge_table(handle))
        merged = handle.context.each(partial(_is_merged, base=handle.read_base()), old)
        if all(merged):  # guard: sealed regions are merged
            return
    raise Contended("the sealed regions could not be merged", remedy="Finish the reshard: run it again")


def _is_merged(region: Region, base: BaseTable) -> bool:
    """Return whether the base has all rows of a sealed region."""
    head = region.find_head()
    if head is None or head.status is not RegionState.SEALED:
        return False
    head, manifest = newest(region, head)
    return head.wal_rows == manifest.wal_rows and base.counters.get(region.id, 0) >= manifest.newest


def _has_spec(base: BaseTable, handle: TableHandle, spec: RegionSpec) -> bool:
    """Return whether the base has this spec or a later one: then every region of an earlier one is merged."""
    now = handle.following(base).config.regions
    return now is not None and now.number >= spec.number


def _commit_spec(handle: TableHandle, spec: RegionSpec) -> BaseTable:
    """Commit the spec to the base: from then on it decides."""

    def commit() -> BaseTable:
        with lease(handle.context, BASE_LEASE):
            base = handle.read_base()
            if not _has_spec(base, handle, spec):
                deletes = deletes_of_other_regions(base, handle.context.objects)  # guard: reshard keeps merged deletes
                write_facts(base, {REGIONS: configs.regions_text(spec), **deletes})
            return handle.read_base()

    return _patiently(handle.context, commit)


def install_spec(handle: TableHandle, base: BaseTable, spec: RegionSpec) -> None:
    """Let Lance's readers and writers know the spec, if Lance can store it."""
    wanted = [region_specs.to_json(spec)] if spec.spec_id else []
    for _ in handle.context.budget().attempts(least=SLOW_ATTEMPTS):
        details = base.mem_wal_index()
        now = handle.following(base).config.regions
        if details is None or now is None or now.number > spec.number or _same(details["sharding_specs"], wanted):
            return
        replace_specs(base, wanted, regions=len(all_values(spec) or []), objects=handle.context.objects)
        base = handle.read_base()
    raise Contended("other processes kept changing the base", remedy="Finish the reshard: run it again")


def _same(found: object, wanted: list[dict[str, object]]) -> bool:
    return [one["spec_id"] for one in found] == [one["spec_id"] for one in wanted]  # type: ignore[attr-defined]


def _retire(region: Region, base: BaseTable) -> None:
    """Mark a sealed region whose rows are all in the base: readers no longer read its head."""
    if region.retired is not None or not _is_merged(region, base):
        return
    context = region.context
    retired = base.counters.get(region.id, 0)
    for _ in context.budget().attempts():
        outcome = context.registry.swap(region_key(context.table, region.id), expect={}, change={"retired": retired})
        if not isinstance(outcome, SwapUnknown):
            return
    raise Unavailable("the region could not be marked as retired", remedy="Run it again", **region.where)


def _patiently(context: TableContext, step: Callable[[], T]) -> T:
    """Run a step. If another process holds a lease or commits first, wait and run it again, within the budget."""
    last: Contended | None = None
    for _ in context.budget().attempts():
        try:
            return step()
        except Contended as error:
            last = error
    assert last is not None
    raise last
