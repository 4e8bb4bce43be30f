"""What Lance's library raises, as our kinds of error.

pylance has one class of its own, for commit conflicts; everything else comes as `OSError`, `ValueError` or an Arrow
error and differs in words alone. The words are those of the pinned release; tests/interop/test_pylance_contract.py
holds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import lance
import pyarrow as pa
from lance.commit import CommitConflictError

from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, Unavailable

_CONFLICT = re.compile(r"commit conflict|incompatible transaction|stale sstable", re.IGNORECASE)
_REFUSED = re.compile(
    r"(permission|access) ?denied|forbidden|unauthori[sz]ed|unauthenticated|credential|status:? 40[13]\b", re.IGNORECASE
)
_GONE = re.compile(r"not found|no such file|nosuch", re.IGNORECASE)
_UNREADABLE = re.compile(
    r"sufficient data|corrupt|invalid magic|failed to decode|protobuf|correct footer|before end of stream|panicked"
    r"|parser error|invalid range|file size is too small|fill whole buffer|unexpected ?eof|internal error"
    r"|LanceError\(Arrow\)|invalid argument",
    re.IGNORECASE,
)
_INPUT = re.compile(r"invalid user input|already exists|different schema|no object store provider", re.IGNORECASE)
_NO_STORE = re.compile(r"no object store provider", re.IGNORECASE)
_APPLYING = re.compile(r"error applying filter", re.IGNORECASE)
_USER = re.compile(r"^Invalid user input: ")
_NO_PLACE = re.compile(r"not a directory", re.IGNORECASE)
_SOURCE = re.compile(r"(, location: |, )\S+\.rs:\d+:\d+")  # where in Lance's source
_STORE = re.compile(r"LanceError\(IO\)|Generic \w+ error", re.IGNORECASE)
_FILE = re.compile(r"[\w./:+-]+\.(?:lance|arrow|bin|manifest|idx)\b")
_DAMAGED = (OSError, ValueError, LookupError, OverflowError, RuntimeError, pa.ArrowException)
_REMEDY = "lancelsm scrub names every file that is wrong; put those back from a copy of the bucket"


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
def native_errors(doing: str, *, reading: Carried | None = None, **where: str) -> Iterator[None]:
    """Raise what Lance raises within as one of our kinds, cause chained.

    Args:
        doing: what failed, as the start of a sentence: "the base can't be written".
        reading: what Lance reads from us within; its own error is raised as it was.
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
        error = translated(cause, doing=doing, **where)
        if error is None:
            raise
        raise error from cause
    except BaseException as cause:
        if not _is_panic(cause):
            raise
        raise _corrupt(f"{doing}: {cause}", **where) from cause


@contextmanager
def read_errors(
    doing: str, *, condition: str | None = None, columns: pa.Schema | None = None, **where: str
) -> Iterator[None]:
    """As `native_errors`, where nothing but stored files is read: what they fail over is damage, nobody's input.

    Args:
        condition: the caller's SQL, if Lance reads some: whether it is that which fails is asked only then.
        columns: what the condition is over.

    Raises:
        Invalid: the store refuses us, or the condition is no SQL over these columns or fails on a row.
        Corrupt: a file is gone or unreadable. Names it, if Lance does.
        Unavailable: the store did not answer.
    """
    try:
        yield
    except (LsmError, ConnectionError, MemoryError):
        raise
    except _DAMAGED as cause:
        error = _of_reading(cause, doing, where)
        if condition is not None and isinstance(error, Corrupt):
            error = _of_condition(_words(cause), condition, columns, where) or error
        raise error from cause
    except BaseException as cause:
        if not _is_panic(cause):
            raise
        raise _corrupt(f"{doing}: {cause}", **where) from cause


def translated(cause: Exception, *, doing: str, **where: str) -> LsmError | None:
    """Our error for one of Lance's, or None if it is none of Lance's."""
    words = _words(cause)
    reason = f"{doing}: {words}"
    if isinstance(cause, CommitConflictError) or _CONFLICT.search(words):
        return Contended(reason, **where)
    if (refused := _of_place(words, doing, where)) is not None:
        return refused
    if _INPUT.search(words):
        return Invalid(reason, **where)
    if _GONE.search(words) or _UNREADABLE.search(words):
        return _corrupt(reason, **where)
    if isinstance(cause, OSError) or _STORE.search(words):
        return Unavailable(reason, **where)
    return None


def _of_reading(cause: Exception, doing: str, where: Mapping[str, str]) -> LsmError:
    words = _words(cause)
    reason = f"{doing}: {words}"
    if (refused := _of_place(words, doing, where)) is not None:
        return refused
    damage = _GONE.search(words) or _UNREADABLE.search(words) or _INPUT.search(words)
    if not damage and (isinstance(cause, OSError) or _STORE.search(words)):
        return Unavailable(reason, **where)
    return _corrupt(reason, **where)


def _of_place(words: str, doing: str, where: Mapping[str, str]) -> Invalid | None:
    """That we may not or can't read or write there at all."""
    if _REFUSED.search(words):
        remedy = "Check the credentials and their rights on the table's prefix"
        return Invalid(f"{doing}: {words}", remedy=remedy, **where)
    if _NO_PLACE.search(words):
        return Invalid(f"{doing}: a file stands where a directory should be", remedy="Choose another place", **where)
    return Invalid(f"{doing}: {words}", **where) if _NO_STORE.search(words) else None


def _of_condition(words: str, condition: str, columns: pa.Schema | None, where: Mapping[str, str]) -> Invalid | None:
    """That the condition fails, on a row that was read or on no row at all."""
    problem = words if _APPLYING.search(words) else _problem_of(condition, columns)
    if not problem:
        return None
    return Invalid(
        f"the condition {condition!r} can't be applied: {_USER.sub('', problem).rstrip('.')}",
        remedy="Correct it: text stands in 'quotes', a column name that is no plain word in `backticks`",
        redacted="the condition can't be applied",
        **where,
    )


def _problem_of(condition: str, columns: pa.Schema | None) -> str:
    """Why Lance can't plan the condition where there is no file to be damaged; empty if it can."""
    if columns is None:
        return ""
    plain = pa.schema([pa.field(column.name, column.type) for column in columns])
    try:
        # A store in memory of its own, gone with the handle.
        lance.write_dataset(plain.empty_table(), "memory://plan").scanner(filter=condition).explain_plan()
    except (OSError, ValueError, RuntimeError) as cause:
        return _words(cause)
    return ""


def _words(cause: BaseException) -> str:
    return " ".join(_SOURCE.sub("", str(cause)).split("\n")).strip() or type(cause).__name__


def _is_panic(cause: BaseException) -> bool:
    """Whether Lance's code gave up over bytes that it did not expect."""
    return type(cause).__name__ == "PanicException"


def _corrupt(reason: str, **where: str) -> Corrupt:
    """Names the file that Lance names; else what the caller names, or the files of the base."""
    found = _FILE.search(reason)
    if "object" not in where and "table" in where:
        where["object"] = found[0] if found else f"{where['table']}/data"
    return Corrupt(reason, remedy=_REMEDY, **where)
