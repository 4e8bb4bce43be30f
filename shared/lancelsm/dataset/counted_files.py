"""Count what it takes to read files of Lance that are not read through a dataset, for `Table.explain`.

A dataset counts its own requests, a session of files does not. To open a file, Lance sends a HEAD and a GET of its end.
A file of at most one block needs no other request. Lance's counters of the process show the other requests of a longer
file, so reads of such files by other threads at the same moment are counted too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import lance
from lance.file import LanceFileReader, LanceFileSession

from lancelsm.common.read_trace import NO_TRACE, Trace

_BLOCK, _LOCAL_BLOCK = 64 << 10, 4 << 10  # what Lance reads at the end of a file, from a store and from a disk


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """An open file. Read it in `with file.reading() as reader`."""

    reader: LanceFileReader
    kind: str
    trace: Trace
    is_whole: bool  # the first request has read all of it

    @contextmanager
    def reading(self) -> Iterator[LanceFileReader]:
        before = _counters()
        yield self.reader
        if not self.is_whole:
            count, size = _since(before)
            self.trace.request(self.kind, size, count=count)


def open_file(files: LanceFileSession, name: str, *, uri: str, kind: str, trace: Trace = NO_TRACE) -> OpenFile:
    """Open a file, and report the two requests under a kind. Raises errors of Lance."""
    before = _counters()
    reader = files.open_reader(name)
    _, size = _since(before)
    trace.request(kind, size, count=2)
    block = _BLOCK if "://" in uri else _LOCAL_BLOCK
    return OpenFile(reader=reader, kind=kind, trace=trace, is_whole=size < block)


def _counters() -> tuple[int, int]:
    return lance.iops_counter(), lance.bytes_read_counter()


def _since(before: tuple[int, int]) -> tuple[int, int]:
    now = _counters()
    return now[0] - before[0], now[1] - before[1]
