"""What can go wrong, in six kinds: each tells its reader what to do next.

A kind exists only where a caller would act differently. The message says what happened, the remedy says what to do, and
`where` names table, region, position, field. Native errors are wrapped where they arise, cause chained.

"Nothing was written" is said of one region: rows for others may be acknowledged; `rows_in_other_regions` counts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class LsmError(Exception):
    """Root of every error that lancelsm raises on purpose.

    Args:
        message: what happened, one sentence.
        remedy: what the reader should do next; by default what the kind alone says.
        redacted: the message without values of rows, if it has some: what a log may keep.
        where: names and values that locate it (`table`, `region`, `position`, `field`, `row`, `object`).
    """

    kind: ClassVar[str] = "Error"
    exit_code: ClassVar[int] = 1
    next_step: ClassVar[str] = ""

    def __init__(self, message: str, *, remedy: str = "", redacted: str = "", **where: object) -> None:
        super().__init__(message)
        self.message = message
        self.redacted = redacted or message
        self.remedy = remedy or self.next_step
        self.where = {name: value for name, value in where.items() if value is not None}

    def __str__(self) -> str:
        place = ", ".join(f"{name} {value}" for name, value in self.where.items())
        text = f"{self.message} [{place}]" if place else self.message
        return f"{text}. {self.remedy}" if self.remedy else text

    def document(self, *, redacted: bool = False) -> dict[str, object]:
        """The error as the JSON document of the command line, and, without values of rows, of the functions."""
        message = self.redacted if redacted else self.message
        return {"error": {"kind": self.kind, "message": message, "remedy": self.remedy, **self.where}}


class Contended(LsmError):
    """Others were faster until the retry budget was spent. Nothing was written: retry."""

    kind = "Contended"
    exit_code = 3
    next_step = "Retry"


class Fenced(LsmError):
    """Another owner holds the region. Nothing was acknowledged: stop, or take the region over."""

    kind = "Fenced"
    exit_code = 3


class Ambiguous(LsmError):
    """It may or may not have happened, at most once. Not acknowledged: read again, then decide."""

    kind = "Ambiguous"
    exit_code = 5
    next_step = "Read, then decide whether to do it again"


class Unavailable(LsmError):
    """A store or a registry did not answer, or refuses load for now. Retry with a budget."""

    kind = "Unavailable"
    exit_code = 6
    next_step = "Retry"


class Invalid(LsmError):
    """The caller's input is wrong; nothing was written. The message names what to change."""

    kind = "Invalid"
    exit_code = 1
    next_step = "Correct it, then try again"


class Corrupt(LsmError):
    """An object contradicts the head or the manifest. The region stops; the object is named."""

    kind = "Corrupt"
    exit_code = 4
    next_step = "lancelsm scrub names all that is wrong; docs/runbooks/corrupt.md says how to put it right"


@contextmanager
def error_context(**where: object) -> Iterator[None]:
    """Let errors that are raised within say where, as far as they don't by themselves."""
    try:
        yield
    except LsmError as error:
        error.where = {**where, **error.where}
        raise
