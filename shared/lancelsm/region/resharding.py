"""The record of the last reshard of a table, and how a writer of sealed regions finds the new ones.

A reshard writes the record before it lists the regions to seal. A creator of a region reads it between the catalog
record and the head of the region. So no region of an old spec opens behind a reshard. Model: tests/model/reshard.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import reshard_key
from lancelsm.errors import Contended, Corrupt, LsmError, Unavailable
from lancelsm.region import config as configs
from lancelsm.region.catalog import Directory, Region, SealedRegion, TableContext, check_not_dropped
from lancelsm.region.handle import WriteTarget
from lancelsm.registry import Record, SwapUnknown, number, text
from lancelsm.routing import spec as region_specs
from lancelsm.routing.spec import RegionSpec

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharding:
    """A reshard that was begun.

    Args:
        spec: the new region spec.
        done: every region of the earlier specs is sealed and merged, and the table has the new spec.
    """

    spec: RegionSpec
    done: bool
    version: int


def read_resharding(context: TableContext) -> Resharding | None:
    """Read the record of the last reshard; None if the table was never resharded.

    Raises:
        Corrupt: the record is unreadable.
        Unavailable: the registry did not answer.
    """
    record = context.registry.read(reshard_key(context.table))
    return None if record is None else _decoded(context, record)


def begin_resharding(context: TableContext, spec: RegionSpec) -> Resharding:
    """Write the record of a reshard to this spec, unless one was begun that is not done or has a higher number.

    Returns:
        The reshard that the record has now.

    Raises:
        Contended: other processes kept changing the record.
        Corrupt, Unavailable: see `read_resharding`.
    """
    for _ in context.budget().attempts():
        found = read_resharding(context)
        if found is not None and (not found.done or found.spec.number >= spec.number):
            return found
        version = 1 if found is None else found.version + 1
        change = _record(Resharding(spec=spec, done=False, version=version))
        expect = None if found is None else {"version": found.version}
        context.registry.swap(reshard_key(context.table), expect=expect, change=change)
    raise Contended("other processes kept resharding the table", table=context.uri)


def finish_resharding(context: TableContext, found: Resharding) -> None:
    """Record that a reshard is done. Raise `Unavailable` if the registry did not answer."""
    change = _record(replace(found, done=True, version=found.version + 1))
    for _ in context.budget().attempts():
        outcome = context.registry.swap(reshard_key(context.table), expect={"version": found.version}, change=change)
        if not isinstance(outcome, SwapUnknown):
            return
    raise Unavailable("the end of the reshard could not be recorded", remedy="Run it again", table=context.uri)


def record_resharded(context: TableContext, spec: RegionSpec) -> None:
    """Write the record of the reshard to the spec that a table has, if the registry lost it."""
    if spec.number > 1 and read_resharding(context) is None:
        finish_resharding(context, begin_resharding(context, spec))


def check_not_resharded(region: Region) -> None:
    """Raise `SealedRegion` if a reshard to a later spec than that of the region was begun.

    The creator of a region calls it after the catalog record is written and before the head is.
    """
    found = read_resharding(region.context)
    if found is not None and found.spec.number > region.number:  # guard: region of an old spec is not created
        raise SealedRegion(
            "the region belongs to an earlier region spec of the table", remedy="Open the table again", **region.where
        )


def newer_target(target: WriteTarget, sealed: SealedRegion, *, finish: Callable[[], None] | None = None) -> WriteTarget:
    """Return the target of writers under the region spec that a reshard gave the table. Wait for the reshard.

    Args:
        sealed: the error of the writer that met a sealed region.
        finish: finishes the reshard if the process that began it has crashed; raises an error if it can't.

    Raises:
        SealedRegion: the table was not resharded: `sealed`.
        Contended: the reshard was not done before the retry budget was spent. Nothing was written.
        Invalid: the table was dropped.
        Corrupt, Unavailable: configuration or record could not be read.
    """
    context = target.context
    for _ in context.budget().attempts():
        config = configs.read(context.objects, uri=context.uri)
        if config is None or config.table != context.table:
            check_not_dropped(context)
        elif config.regions is not None and config.regions.number > target.regions.number:
            context = replace(context, ordered=bool(config.sequence_by))
            return replace(
                target,
                context=context,
                regions=config.regions,
                directory=Directory(context, spec_id=config.regions.spec_id),
                earlier_regions=config.earlier_regions,
            )
        found = read_resharding(context)
        if found is None or found.spec.number <= target.regions.number:
            raise sealed
        if finish is not None:
            try:
                finish()
            except LsmError:  # it is running, or this process can't finish it
                continue
    raise Contended(
        "the table is being resharded",
        remedy=f"Retry. If no process reshards it any more, finish it: lancelsm reshard {context.uri}",
        table=context.uri,
    )


def _record(found: Resharding) -> Record:
    spec = json.dumps(region_specs.to_json(found.spec), separators=(",", ":"))
    return {"format": _FORMAT, "regions": spec, "done": int(found.done), "version": found.version}


def _decoded(context: TableContext, record: Record) -> Resharding:
    try:
        spec = region_specs.from_json(parse_json(text(record, "regions")))
        return Resharding(spec=spec, done=bool(number(record, "done")), version=number(record, "version"))
    except ValueError as error:
        raise Corrupt(
            f"the record of the last reshard is unreadable: {error!r}",
            remedy=f"Remove it from the registry, then reshard the table: lancelsm reshard {context.uri} SPEC",
            table=context.uri,
        ) from error
