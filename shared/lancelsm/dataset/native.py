"""What Lance's library raises, as our kinds of error.

pylance has one class of its own, for commit conflicts; everything else comes as `OSError`, `ValueError` or an Arrow
error and differs in words alone. The words are those of the pinned release; tests/interop/test_pylance_contract.py
holds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from lance.commit import CommitConflictError

from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, Unavailable

_CONFLICT = re.compile(r"commit conflict|incompatible transaction|stale sstable", re.IGNORECASE)
_REFUSED = re.compile(r"(permission|access) ?denied|forbidden|unauthenticated|credential|\b40[13]\b", re.IGNORECASE)
_GONE = re.compile(r"not found|no such file|nosuch", re.IGNORECASE)
_UNREADABLE = re.compile(
    r"sufficient data|corrupt|invalid magic|failed to decode|protobuf|correct footer|before end of stream|panicked"
    r"|parser error|invalid range|file size is too small",
    re.IGNORECASE,
)
_INPUT = re.compile(
    r"invalid user input|already exists|different schema|no object store provider|error applying filter",
    re.IGNORECASE,
)
_USER = re.compile(r"^Invalid user input: ")
_NO_PLACE = re.compile(r"not a directory", re.IGNORECASE)
_SOURCE = re.compile(r"(, location: |, )\S+\.rs:\d+:\d+")  # where in Lance's source
_STORE = re.compile(r"LanceError\(IO\)|Generic \w+ error", re.IGNORECASE)


class Carried:
    """Batches for Lance to read, and the error that ended them: Lance would pass on its words alone."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.error: LsmError | None = None
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except LsmError as error:
            self.error = error
            raise


@contextmanager
def native_errors(
    doing: str, *, reading: Carried | None = None, condition: str | None = None, **where: str
) -> Iterator[None]:
    """Raise what Lance raises within as one of our kinds, cause chained.

    Args:
        doing: what failed, as the start of a sentence: "the base can't be read".
        reading: what Lance reads from us within; its own error is raised as it was.
        condition: the caller's SQL, if Lance reads some: then that is the input which doesn't fit.
        where: what the error is to name: `table`, or `object` for a generation.

    Raises:
        Contended: another commit came first.
        Invalid: the store refuses us, or the input doesn't fit.
        Corrupt: a file is gone or unreadable.
        Unavailable: the store did not answer. A commit may have been applied.
    """
    try:
        yield
    except (LsmError, ConnectionError):
        raise
    except (CommitConflictError, OSError, ValueError, RuntimeError) as cause:
        if reading is not None and reading.error is not None:
            raise reading.error from cause
        error = translated(cause, doing=doing, condition=condition, **where)
        if error is None:
            raise
        raise error from cause
    except BaseException as cause:
        if type(cause).__name__ != "PanicException":  # Lance's code gave up over bytes that it did not expect
            raise
        raise Corrupt(f"{doing}: {cause}", remedy="Restore what is missing from a backup", **where) from cause


def translated(cause: Exception, *, doing: str, condition: str | None = None, **where: str) -> LsmError | None:
    """Our error for one of Lance's, or None if it is none of Lance's."""
    words = " ".join(_SOURCE.sub("", str(cause)).split("\n")).strip()
    reason = f"{doing}: {words}"
    if isinstance(cause, CommitConflictError) or _CONFLICT.search(words):
        return Contended(reason, **where)
    if _REFUSED.search(words):
        return Invalid(reason, remedy="Check the credentials and their rights on the table's prefix", **where)
    if _NO_PLACE.search(words):
        return Invalid(f"{doing}: a file stands where a directory should be", remedy="Choose another place", **where)
    if _INPUT.search(words) and condition is not None:
        return Invalid(
            f"the condition {condition!r} can't be applied: {_USER.sub('', words).rstrip('.')}",
            remedy="Correct it: text stands in 'quotes', a column name that is no plain word in `backticks`",
            discreet="the condition can't be applied",
            **where,
        )
    if _INPUT.search(words):
        return Invalid(reason, **where)
    if _GONE.search(words) or _UNREADABLE.search(words):
        return Corrupt(reason, remedy="Restore what is missing from a backup", **where)
    if isinstance(cause, OSError) or _STORE.search(words):
        return Unavailable(reason, **where)
    return None
