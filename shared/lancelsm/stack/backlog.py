"""What waits in the regions of a table: for a flush in the log, and for a merge in generations. Pure functions.

`dispatch` measures it from the heads and manifests that it reads anyway, so it costs no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lancelsm.common.layout import RegionId
from lancelsm.region.head import Head
from lancelsm.region.manifest import Manifest
from lancelsm.region.since import Since
from lancelsm.stack.telemetry import Telemetry, Unit

UNITS: Final[Mapping[str, Unit]] = {
    "oldest_unflushed_seconds": "Seconds",
    "log_bytes": "Bytes",
    "pending_generations": "Count",
    "merge_lag_seconds": "Seconds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits in a region.

    Args:
        log_bytes: the bytes of the log that are in no generation.
        generations: those that are not merged, as far as the merger has reported; a compacted one counts once.
        log_since: the time of the oldest row in the log, in Unix seconds; None if there is none, or it is not known.
        merge_since: the time of the oldest row in these generations, in the same way.
    """

    log_bytes: int = 0
    generations: int = 0
    log_since: float | None = None
    merge_since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """The largest value of a measure in a table, and the region that has it."""

    name: str
    value: float
    region: RegionId


def backlog_of(head: Head, manifest: Manifest) -> Backlog:
    """Return what waits in the region with this head, whose manifest this is."""
    log, merge = Since.parse(head.log_since), Since.parse(head.merge_since)
    generations = sum(one.generation > head.merged for one in manifest.generations)
    return Backlog(
        log_bytes=head.wal_bytes - manifest.wal_bytes,
        generations=generations,
        log_since=log.at if log is not None and head.wal_rows > manifest.wal_rows else None,
        merge_since=merge.at if merge is not None and generations else None,
    )


def measures(waiting: Iterable[tuple[RegionId, Backlog]], *, now: float) -> Iterator[Measure]:
    """Yield each measure that is above 0 in a table, from what waits in its regions."""
    found = list(waiting)
    for name in UNITS:
        value, region = max(((_value(name, one, now), region) for region, one in found), default=(0.0, RegionId("")))
        if value > 0:
            yield Measure(name=name, value=value, region=region)


def _value(name: str, waiting: Backlog, now: float) -> float:
    if name == "log_bytes":
        return float(waiting.log_bytes)
    if name == "pending_generations":
        return float(waiting.generations)
    since = waiting.log_since if name == "oldest_unflushed_seconds" else waiting.merge_since
    return 0.0 if since is None else max(0.0, now - since)


def emit(found: Mapping[str, Iterable[Measure]], telemetry: Telemetry) -> None:
    """Write the measures of these tables as metrics, and the largest ones with table and region as one log line.

    The line answers where something is stuck: metrics have no dimension for regions.
    """
    largest: dict[str, tuple[float, str, RegionId]] = {}
    for table, some in found.items():
        for one in some:
            telemetry.measure(one.name, one.value, table=table, unit=UNITS[one.name], largest=True)
            largest[one.name] = max(largest.get(one.name, (0.0, "", one.region)), (one.value, table, one.region))
    for name, (value, table, region) in largest.items():
        telemetry.log("waits", measure=name, value=round(value), table=table, region=region)
