"""Listings of the registry that lack records of a snapshot."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Key
from lancelsm.errors import Corrupt, Invalid
from lancelsm.history.snapshot import create_snapshot, drop_snapshot, find_snapshot
from lancelsm.region.handle import TableHandle
from lancelsm.registry import Record


def listing_lacks_records_of_a_snapshot(handle: TableHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing that lacks records is read again; if the second one lacks them too, the snapshot is corrupt."""
    create_snapshot(handle, "monday", ttl_seconds=None)
    inner = handle.context.registry.list
    seen: list[str] = []

    def partial(partition: str) -> list[tuple[Key, Record]]:
        seen.append(partition)
        return inner(partition)[: 2 if len(seen) == 1 else None]

    monkeypatch.setattr(handle.context.registry, "list", partial)
    found = find_snapshot(handle.context, "monday")
    assert found.complete
    assert len(seen) == 2
    monkeypatch.setattr(handle.context.registry, "list", lambda partition: inner(partition)[:2])
    with pytest.raises(Corrupt, match="records of the snapshot are missing"):
        find_snapshot(handle.context, "monday")


def snapshot_is_dropped_while_listings_lack_records(handle: TableHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two listings lack records, and the snapshot is dropped between them: it is not found, and not corrupt."""
    create_snapshot(handle, "monday", ttl_seconds=None)
    inner = handle.context.registry.list
    seen: list[str] = []

    def partial(partition: str) -> list[tuple[Key, Record]]:
        seen.append(partition)
        found = inner(partition)[:2]
        if len(seen) == 2:
            drop_snapshot(handle, "monday")
        return found

    monkeypatch.setattr(handle.context.registry, "list", partial)
    with pytest.raises(Invalid, match="snapshot not found"):
        find_snapshot(handle.context, "monday")
