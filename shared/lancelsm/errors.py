"""The six kinds of errors. Each kind calls for a different reaction of the caller.

The message says what happened, the remedy says what to do next, and `where` names table, region, position, field and so
on. Errors of other libraries are wrapped where they occur; they are the cause of the new error.

"Nothing was written" refers to one region. Rows for other regions may be acknowledged; `rows_in_other_regions` in
`where` counts them.
"""

from __future__ import annotations

import re
from types import TracebackType
from typing import ClassVar

_USER_OF_URL = re.compile(r"(?<=://)[^\s/@]+@")


def _without_password(text: str) -> str:
    """Leave out the user and password of URLs: errors of stores quote their endpoint."""
    return _USER_OF_URL.sub("***@", text)


class LsmError(Exception):
    """The base class of all errors that lancelsm raises on purpose.

    Args:
        message: what happened, in one sentence.
        remedy: what to do next; by default the general advice for the kind.
        redacted: the message without values of rows, if it contains any; this version may be logged.
        where: names and values that locate the error (`table`, `region`, `position`, `field`, `row`, `object`).

    Attributes:
        kind: the name of the kind, as in JSON output.
        exit_code: the exit code of the command line for this kind.
    """

    kind: ClassVar[str] = "Error"
    exit_code: ClassVar[int] = 1
    next_step: ClassVar[str] = ""

    def __init__(self, message: str, *, remedy: str = "", redacted: str = "", **where: object) -> None:
        message = _without_password(message)
        super().__init__(message)
        self.message = message
        self.redacted = _without_password(redacted) or message
        self.remedy = remedy or self.next_step
        self.where = {name: value for name, value in where.items() if value is not None}

    def __str__(self) -> str:
        location = ", ".join(f"{name} {value}" for name, value in self.where.items())
        text = f"{self.message} [{location}]" if location else self.message
        return f"{text}. {self.remedy}" if self.remedy else text

    def document(self, *, redacted: bool = False) -> dict[str, object]:
        """Return the error as a JSON document, as the command line prints it; the functions return it redacted."""
        message = self.redacted if redacted else self.message
        return {"error": {"kind": self.kind, "message": message, "remedy": self.remedy, **self.where}}


class Contended(LsmError):
    """Other writers were faster until the retry budget was spent. Nothing was written: retry."""

    kind = "Contended"
    exit_code = 3
    next_step = "Retry"


class Fenced(LsmError):
    """Another owner holds the region. Nothing was acknowledged: stop, or claim the region."""

    kind = "Fenced"
    exit_code = 3


class Ambiguous(LsmError):
    """The outcome is unknown: the operation happened at most once. Nothing was acknowledged: read, then decide."""

    kind = "Ambiguous"
    exit_code = 5
    next_step = "Read, then decide whether to run it again"


class Unavailable(LsmError):
    """An object store or a registry did not answer, or refuses load for now. Retry with a budget."""

    kind = "Unavailable"
    exit_code = 6
    next_step = "Retry"


class Invalid(LsmError):
    """The input of the caller is wrong; nothing was written. The message names what to change."""

    kind = "Invalid"
    exit_code = 1
    next_step = "Correct the input, then try again"


class Corrupt(LsmError):
    """An object contradicts the head or the manifest. The region stops; the error names the object."""

    kind = "Corrupt"
    exit_code = 4
    next_step = "lancelsm scrub lists all damage; docs/operations/runbooks/corrupt.md explains how to repair it"


class LsmWarning(UserWarning):
    """Another tool uses the table in a way that lancelsm can't take into account. Reads and writes continue."""


class error_context:
    """Add these fields to errors that are raised inside the context, unless the error has them already."""

    __slots__ = ("_where",)

    def __init__(self, **where: object) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, LsmError):
            error.where = {**self._where, **error.where}
