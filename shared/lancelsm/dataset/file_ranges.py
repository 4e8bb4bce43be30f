"""Read a large object in pieces. Lance's file session reads ranges; the object store port reads whole objects."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from lance.file import LanceFileSession

from lancelsm.dataset.native import read_errors
from lancelsm.objects.filesum import ReadRange


def range_reader(uri: str, storage_options: Mapping[str, str] | None = None) -> ReadRange:
    """Return a function that reads a part of an object below a location.

    The function raises `Corrupt` if the object is missing or shorter, and `Unavailable` if the store does not answer.
    """

    @cache
    def session() -> LanceFileSession:
        return LanceFileSession(uri, storage_options=dict(storage_options or {}))

    def read(key: str, start: int, size: int) -> bytes:
        with read_errors("a file can't be read", object=f"{uri}/{key}"):
            return bytes(session().read_range(key, start, size))

    return read
