"""The embedded loop: flush what is due, merge what is due, optimize, until there is nothing to do or for ever.

It keeps no state of its own that matters: what is due follows from heads, manifests and the base, and any other
loop goes on where a killed one stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lancelsm.common.layout import RegionId
from lancelsm.common.settings import Settings
from lancelsm.compaction.maintenance import Engine, flush_region, merge_table, optimize_table
from lancelsm.errors import Ambiguous, Contended, Unavailable
from lancelsm.read.status import RegionStatus, read_status
from lancelsm.region.catalog import regions
from lancelsm.region.handle import TableHandle

_TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a loop did."""

    generations: int = 0  # flushed
    merged_generations: int = 0
    merges: int = 0
    compactions: int = 0


class _Ages:
    """For how long each thing has been as it is, as far as this loop has seen."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, RegionId], tuple[int, float]] = {}

    def seconds(self, what: str, region: RegionId, state: int, now: float) -> float:
        known, since = self._seen.get((what, region), (state, now))
        if known != state:
            since = now
        self._seen[what, region] = (state, since)
        return now - since


def run(handle: TableHandle, *, until_idle: bool = True, engine: Engine = "auto") -> Ran:
    """Keep a table folded.

    Args:
        until_idle: do everything that can be done, whether it is due or not, and return; else do what is due by the
            table's settings, for ever.
        engine: as for `compaction.maintenance.merge_table`.

    Raises:
        Corrupt: a region or the base is damaged: the loop stops, others see the same.
        Ambiguous, Contended, Unavailable: only with `until_idle`; else the next round tries again.
    """
    ages, done = _Ages(), Ran()
    while True:
        before = done
        try:
            done = _round(handle, ages, done, everything=until_idle, engine=engine)
        except (Ambiguous, Contended, Unavailable):  # the next round recognises what this one did
            if until_idle:
                raise
        if done == before:
            if until_idle:
                return done
            handle.context.clock.sleep(_TICK_SECONDS)


def _round(handle: TableHandle, ages: _Ages, done: Ran, *, everything: bool, engine: Engine) -> Ran:
    now = handle.context.clock.monotonic()
    located = {region.id: region for region in regions(handle.context)}
    for status in read_status(handle).regions:
        if status.wal_rows and (everything or _flush_is_due(status, handle.settings, ages, now)):
            made = flush_region(handle, located[status.region])
            done = replace(done, generations=done.generations + (made is not None))
    pending = [status for status in read_status(handle).regions if status.generations]
    if any(everything or _merge_is_due(status, handle.settings, ages, now) for status in pending):
        merged = merge_table(handle, engine=engine)
        optimized = optimize_table(handle)
        done = replace(
            done,
            merges=done.merges + 1,
            merged_generations=done.merged_generations + merged.generations,
            compactions=done.compactions + bool(optimized.fragments_removed),
        )
    return done


def _flush_is_due(status: RegionStatus, settings: Settings, ages: _Ages, now: float) -> bool:
    newest = status.merged_generation + status.generations
    age = ages.seconds("tail", status.region, newest, now)
    large = status.wal_rows >= settings.flush_rows or status.wal_bytes >= settings.flush_bytes
    return large or age >= settings.flush_age_seconds


def _merge_is_due(status: RegionStatus, settings: Settings, ages: _Ages, now: float) -> bool:
    age = ages.seconds("pending", status.region, status.merged_generation, now)
    return status.generations >= settings.merge_generations or age >= settings.merge_age_seconds
