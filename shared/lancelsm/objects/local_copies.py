"""Keep local copies of objects that were read to sum them, so that Lance does not read them from the store again.

Lance then decodes the same bytes that were summed. Copies only save requests: without room for a copy, Lance reads the
object from the store.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from lancelsm.objects.location import local_path

COPIED_BYTES = 256 << 20


class LocalCopies:
    """A context that deletes its copies at its end. It is pickled as None: another machine makes its own copies.

    Args:
        uri: the location of the table. A table in a local directory gets no copies.
        room: the number of bytes that all copies may take together.
    """

    def __init__(self, uri: str, *, room: int = COPIED_BYTES) -> None:
        self._is_remote = local_path(uri) is None
        self._room = room
        self._lock = threading.Lock()
        self._begun: dict[str, LocalCopy] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for copy in self._begun.values():
            copy.drop()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def begin(self, name: str) -> LocalCopy:
        """Begin an empty copy. `find` returns it by this name."""
        directory = None
        if self._is_remote:
            with suppress(OSError):
                directory = tempfile.mkdtemp(prefix="lancelsm-")
        if name in self._begun:
            self._begun[name].drop()
        self._begun[name] = LocalCopy(self, directory)
        return self._begun[name]

    def find(self, name: str) -> str | None:
        """Return the directory of a copy; None if there is no complete copy of this name."""
        return self._begun[name].location if name in self._begun else None

    def take(self, size: int) -> bool:
        """Reserve room; return whether there is enough."""
        with self._lock:
            fits = size <= self._room
            self._room -= size if fits else 0
        return fits

    def give_back(self, size: int) -> None:
        with self._lock:
            self._room += size


class LocalCopy:
    """The copy of one directory of a store. `location` is None if the copy lacks a file and can't be used."""

    def __init__(self, copies: LocalCopies, directory: str | None) -> None:
        self._copies = copies
        self._directory = directory
        self._size = 0

    @property
    def location(self) -> str | None:
        return self._directory

    def add(self, path: str, piece: bytes) -> None:
        """Add bytes to the end of a file. If there is no room for them, drop the whole copy."""
        if self._directory is None:
            return
        if not self._copies.take(len(piece)):
            self.drop()
            return
        self._size += len(piece)
        try:
            file = Path(self._directory, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab") as opened:
                opened.write(piece)
        except OSError:
            self.drop()

    def drop(self) -> None:
        """Delete the files, and give back their room."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._copies.give_back(self._size)
            self._directory, self._size = None, 0
