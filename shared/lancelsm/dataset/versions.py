"""The versions of a base that are still there, and what each of them merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lancelsm.common.layout import Generation, RegionId
from lancelsm.dataset.base_table import StorageOptions, counters, open_dataset
from lancelsm.dataset.native import read_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseVersion:
    """One version of a base.

    `operation` is Lance's name for what made it, None where pylance can't say. `merged` holds the counters that it
    moved, None where its predecessor is gone, so that nobody can tell.
    """

    version: int
    time: datetime
    operation: str | None
    rows: int
    merged: Mapping[RegionId, Generation] | None


def base_versions(*, uri: str, newest: int, storage_options: StorageOptions = None) -> list[BaseVersion]:
    """The newest versions of a base, oldest first.

    Args:
        newest: how many; each costs a few reads.

    Raises:
        Invalid: no dataset is there.
        Corrupt, Unavailable: as `base_table.open_base`.
    """
    dataset = open_dataset(uri=uri, version=None, storage_options=storage_options)
    with read_errors("the base's versions can't be read", table=uri):
        found: list[dict[str, Any]] = dataset.versions()  # type: ignore[assignment]
    before = _counters(uri, found[-newest - 1]["version"], storage_options) if len(found) > newest else None
    versions = []
    for entry in found[-newest:]:
        number = entry["version"]
        now = _counters(uri, number, storage_options)
        known = before if number > 1 else {}
        # Counters, not the transaction's properties: they are what readers go by, and pylance can't read every history.
        merged = None if known is None else {r: g for r, g in now.items() if g != known.get(r)}
        versions.append(
            BaseVersion(
                version=number,
                time=entry["timestamp"].astimezone(UTC),
                operation=_operation(dataset, number),
                rows=int(entry["metadata"]["total_rows"]),
                merged=merged,
            )
        )
        before = now
    return versions


def _counters(uri: str, version: int, storage_options: StorageOptions) -> dict[RegionId, Generation]:
    dataset = open_dataset(uri=uri, version=version, storage_options=storage_options)
    metadata = dataset.schema.metadata or {}
    return counters({key.decode(): value.decode() for key, value in metadata.items()})


def _operation(dataset: object, version: int) -> str | None:
    try:
        transaction = dataset.read_transaction(version)  # type: ignore[attr-defined]
    except (TypeError, OSError, ValueError):
        # pylance 14 has no Python form of some operations: a compaction that remapped an index.
        return None
    return None if transaction is None else type(transaction.operation).__name__
