"""The streams of a process that runs a command: without buffers, and with errors of their own."""

from __future__ import annotations

import errno
import io
import os
from typing import Any

from lancelsm.errors import Unavailable


class OutputClosed(Exception):
    """The reader of stdout is gone. Not an `OSError`: click would handle that, with another exit code."""


class OutputFailed(Unavailable):
    """Stdout can't be written."""


class Stdout(io.FileIO):
    """Stdout without a buffer. Its errors differ from those of other files."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            open_null(1)  # the interpreter flushes stdout again when it exits; this must not fail
            if error.errno == errno.EPIPE:
                raise OutputClosed from error
            raise OutputFailed(
                f"stdout can't be written: {error.strerror}", remedy="Free space, or send the output elsewhere"
            ) from error


class Stderr(io.FileIO):
    """Stderr without a buffer. Text that can't be written is dropped, since nobody can be informed."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def open_null(descriptor: int) -> None:
    """Open the null device as this descriptor. Writing to it succeeds, reading from it fails."""
    opened = os.open(os.devnull, os.O_WRONLY)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
