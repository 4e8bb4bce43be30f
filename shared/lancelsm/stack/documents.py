"""Results as JSON documents, the same for the command line and the functions.

They are built from plain values, so a function that only writes does not load Lance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lancelsm.common.layout import Generation, RegionId
    from lancelsm.common.write_result import Committed
    from lancelsm.compaction.compact import CompactedGeneration
    from lancelsm.compaction.maintenance import Flushed
    from lancelsm.compaction.merge import Merged
    from lancelsm.compaction.optimize import Optimized
    from lancelsm.gc.collect import Collected
    from lancelsm.history.changes import CursorLag
    from lancelsm.history.pin_records import Pin
    from lancelsm.region.catalog import Region
    from lancelsm.region.config import Config
    from lancelsm.region.head import Head
    from lancelsm.scrubbing.report import Report

Document = dict[str, Any]


def committed(done: Committed) -> Document:
    """Return {"rows", "entries": [{"region", "position", "rows"}]}."""
    return {"rows": done.rows, "entries": [asdict(entry) for entry in done.entries]}


def committed_or_skipped(done: Committed) -> Document:
    """Return the document of `committed`, and "skipped": the number of rows that their condition left out."""
    return {**committed(done), "skipped": done.skipped}


def flushed(done: Iterable[Flushed]) -> Document:
    """Return {"generations": [{"region", "generation", "rows", "path"}]}."""
    found = [{"region": one.region, "generation": one.generation, "rows": one.rows, "path": one.path} for one in done]
    return {"generations": found}


def compacted(done: Iterable[CompactedGeneration]) -> Document:
    """Return {"generations": [{"region", "first_generation", "generation", "parts", "rows", "path"}]}."""
    return {"generations": [asdict(one) for one in done]}


def merged(done: Merged) -> Document:
    """Return {"merged": [{"region", "generation"}], "rows_upserted", "rows_deleted", "base_version"}."""
    return {
        "merged": generations(done.merged_now),
        "rows_upserted": done.rows_upserted,
        "rows_deleted": done.rows_deleted,
        "base_version": done.base_version,
    }


def optimized(done: Optimized) -> Document:
    """Return {"fragments_removed", "fragments_added", "indexes_extended", "base_version", "left", "rows_expired"}."""
    return asdict(done)


def collected(done: Collected) -> Document:
    """Return {"round": [key], "phase", "candidates": [{"path", "kind", "bytes", "why"}], "kept": [...], "deleted"}."""
    return {
        "round": list(done.rounds),
        "phase": done.phase,
        "candidates": [asdict(one) for one in done.candidates],
        "kept": [asdict(one) for one in done.kept],
        "deleted": done.deleted,
    }


def scrubbed(report: Report) -> Document:
    """Return {"ok", "checked", "complete", "unsummed", "problems": [{"path", "kind", "problem"}]}.

    `complete`: no limit was reached. `unsummed`: number of files of the base that have no checksum yet.
    """
    return {
        "ok": report.ok,
        "checked": report.checked,
        "complete": report.complete,
        "unsummed": report.unsummed,
        "problems": [asdict(one) for one in report.problems],
    }


def snapshot(pin: Pin) -> Document:
    """Return {"name", "created", "expires": null for never, "base_version", "clone"}, with times in ISO 8601."""
    return {
        "name": pin.name,
        "created": _moment(pin.created),
        "expires": None if pin.expires is None else _moment(pin.expires),
        "base_version": pin.base_version,
        "clone": pin.clone or None,
    }


def cursor(pin: Pin) -> Document:
    """Return {"name", "created", "positions": [{"region", "position"}]}."""
    positions = [{"region": region, "position": one.first_position} for region, one in sorted(pin.regions.items())]
    return {"name": pin.name, "created": _moment(pin.created), "positions": positions}


def behind(lag: CursorLag) -> Document:
    """Return {"behind": entries, "since": when the oldest of them was written, null if unknown}."""
    return {"behind": lag.entries, "since": None if lag.since is None else _moment(lag.since)}


def region_owners(regions: Iterable[tuple[Region, Head]], config: Config) -> Document:
    """Return {"regions": [{"region", "epoch", "owner", "status", "values"}]}."""
    found = [
        {
            "region": region.id,
            "epoch": head.epoch,
            "owner": head.owner,
            "status": head.status.value,
            "values": config.region_values(region.values, number=region.number),
        }
        for region, head in regions
    ]
    return {"regions": found}


def generations(newest: Mapping[RegionId, Generation]) -> list[Document]:
    """Return counters by region as a list of records."""
    return [{"region": region, "generation": number} for region, number in sorted(newest.items())]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
