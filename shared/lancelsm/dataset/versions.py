"""List the existing versions of a base, and the generations that each of them merged."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lancelsm.common.layout import Generation, RegionId
from lancelsm.dataset.base_table import StorageOptions, VersionGone, counters, open_dataset
from lancelsm.dataset.native import read_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseVersion:
    """One version of a base.

    Args:
        version: its number.
        time: when it was committed, in UTC.
        operation: Lance's name of the operation that created it; None if pylance can't decode it.
        rows: how many rows it has.
        merged: by region, the newest generation that it merged; None if this is unknown because the version before is
            gone.
    """

    version: int
    time: datetime
    operation: str | None
    rows: int
    merged: Mapping[RegionId, Generation] | None


def base_versions(*, uri: str, newest: int, storage_options: StorageOptions = None) -> list[BaseVersion]:
    """Return the newest versions of a base, oldest first.

    Args:
        newest: number of versions; each costs a few reads.

    Raises:
        Invalid: there is no dataset.
        Corrupt, Unavailable: see `base_table.open_base`.
    """
    dataset = open_dataset(uri=uri, version=None, storage_options=storage_options)
    with read_errors("the base's versions can't be read", table=uri):
        found: list[dict[str, Any]] = dataset.versions()  # type: ignore[assignment]
    known_counters: dict[int, dict[RegionId, Generation]] = {0: {}}  # by version
    for entry in found[-newest - 1 :]:
        with suppress(VersionGone):  # a collection removed it meanwhile
            known_counters[entry["version"]] = _counters(uri, entry["version"], storage_options)
    versions = []
    for entry in found[-newest:]:
        number = entry["version"]
        now, known = known_counters.get(number), known_counters.get(number - 1)
        if now is None:
            continue
        # Compare counters, since readers use them, and pylance can't decode the transaction of every version.
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
    return versions


def _counters(uri: str, version: int, storage_options: StorageOptions) -> dict[RegionId, Generation]:
    dataset = open_dataset(uri=uri, version=version, storage_options=storage_options)
    metadata = dataset.schema.metadata or {}
    return counters({key.decode(): value.decode() for key, value in metadata.items()})


def _operation(dataset: object, version: int) -> str | None:
    try:
        transaction = dataset.read_transaction(version)  # type: ignore[attr-defined]
    except (TypeError, OSError, ValueError):
        # pylance 14 can't decode some operations, such as a compaction that remapped an index.
        return None
    return None if transaction is None else type(transaction.operation).__name__
