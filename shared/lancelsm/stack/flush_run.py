"""Flush regions within the time of one invocation, each under a lease that keeps other invocations away."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from lancelsm.common.layout import RegionId
from lancelsm.compaction.maintenance import Flushed, FlushOne, flush_regions
from lancelsm.compaction.pace import Pace
from lancelsm.errors import Contended
from lancelsm.region.catalog import Region, regions, resolve_region, select_regions
from lancelsm.region.handle import TableHandle
from lancelsm.region.lease import flush_lease, lease


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRun:
    """What one invocation flushed.

    Args:
        stopped: the regions for whose whole log the time was not enough.
        overtaken: the regions that another invocation flushes now; nothing was written for them.
    """

    flushed: tuple[Flushed, ...]
    stopped: tuple[RegionId, ...]
    overtaken: tuple[RegionId, ...]

    @property
    def left(self) -> bool:
        """Whether logs may still have rows that were acknowledged before the call."""
        return bool(self.stopped or self.overtaken)


def flush_in_time(handle: TableHandle, *, region: str | None, leased: Sequence[str] | None, seconds: float) -> FlushRun:
    """Flush regions until the time is over. What was flushed until then is committed.

    The leases only save double work: a flush without them is as safe.

    Args:
        region: only this region, given by its id or the start of it.
        leased: only these regions, each under its lease, which must be free. Not together with `region`.
        seconds: the time until the call must return.

    Raises: the same errors as `compaction.maintenance.flush_table`.
    """
    context = handle.context

    def wanted() -> Sequence[Region]:
        if region is not None:
            return select_regions(context, region)
        found = regions(context)
        return found if leased is None else [resolve_region(found, name, table=context.uri) for name in leased]

    stopped: list[RegionId] = []
    overtaken: list[RegionId] = []

    def run(one: Region, flush_one: FlushOne) -> list[Flushed]:
        pace = Pace(clock=context.clock, seconds=ends - context.clock.monotonic())
        with ExitStack() as held:
            if leased is not None:
                try:
                    held.enter_context(lease(context, flush_lease(one.id)))
                except Contended:
                    overtaken.append(one.id)
                    return []
            made = flush_one(pace=pace)
        if pace.stopped:
            stopped.append(one.id)
        return made

    ends = context.clock.monotonic() + seconds
    flushed = flush_regions(handle, wanted, run=run, all_of_them=region is None and leased is None)
    return FlushRun(flushed=tuple(flushed), stopped=tuple(sorted(stopped)), overtaken=tuple(sorted(overtaken)))
