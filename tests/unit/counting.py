"""An in-memory registry that counts the units DynamoDB would charge for."""

from __future__ import annotations

from collections import Counter

from lancelsm.common.layout import Key
from lancelsm.registry import Fields, Record, SwapApplied, SwapLost
from tests.simulation.faults import MemoryRegistry


class CountingRegistry(MemoryRegistry):
    """Counts units of on-demand capacity. Every record in these tests is smaller than one unit."""

    def __init__(self) -> None:
        super().__init__()
        self.units: Counter[str] = Counter()

    def read(self, key: Key) -> Record | None:
        self.units["record_reads"] += 1
        return super().read(key)

    def list(self, partition: str) -> list[tuple[Key, Record]]:
        self.units["record_reads"] += 1
        return super().list(partition)

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost:
        before = super().read(key) or {}
        outcome = super().swap(key, expect=expect, change=change)
        after = super().read(key) or {}
        self.units["record_writes"] += 1 + (before.get("dirty") != after.get("dirty"))
        return outcome

    def delete(self, key: Key, *, expect: Fields) -> SwapApplied | SwapLost:
        self.units["record_writes"] += 1
        return super().delete(key, expect=expect)

    def discard(self, key: Key) -> None:
        self.units["record_writes"] += 1
        super().discard(key)
