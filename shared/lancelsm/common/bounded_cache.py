"""Keep values in memory up to a number of bytes; the one that was used longest ago goes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

_ENTRY_BYTES = 1024  # what a value takes besides its own bytes, about


class BoundedCache:
    """Values by key. Thread-safe. With a limit of 0 it keeps nothing.

    Args:
        most_bytes: the limit for all values together, with 1 KiB for each.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._values: dict[Hashable, tuple[Any, int]] = {}  # those used longest ago come first
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def kept_bytes(self) -> int:
        return self._bytes

    def get(self, key: Hashable) -> Any:
        """Return the value, which counts as used now; None if it is not kept."""
        with self._lock:
            found = self._values.pop(key, None)
            if found is None:
                return None
            self._values[key] = found
            return found[0]

    def put(self, key: Hashable, value: Any, *, size: int) -> None:
        """Keep a value in place of the one under this key. It is not kept if it alone is larger than the limit."""
        size += _ENTRY_BYTES
        with self._lock:
            self._bytes -= self._values.pop(key, (None, 0))[1]
            if size > self._most:
                return
            self._values[key] = value, size
            self._bytes += size
            while self._bytes > self._most:
                _, removed = self._values.pop(next(iter(self._values)))
                self._bytes -= removed

    def takes(self, size: int) -> bool:
        """Return whether `put` keeps a value of this size."""
        return size + _ENTRY_BYTES <= self._most

    def get_or_make(self, key: Hashable, make: Callable[[], T], *, size: Callable[[T], int]) -> T:
        """Return the value; if it is not kept, make it and keep it. Several threads may make it at once."""
        found: T | None = self.get(key)
        if found is None:
            found = make()
            self.put(key, found, size=size(found))
        return found

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._bytes = 0


NOTHING_KEPT = BoundedCache(0)
