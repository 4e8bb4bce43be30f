"""Translate errors of Lance's library into errors of lancelsm.

pylance has one error class of its own, for commit conflicts. All other errors are `OSError`, `ValueError` or Arrow
errors that differ only by their text. The patterns match texts of the pinned release;
tests/interop/test_pylance_contract.py checks them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa

from lancelsm.common.full_disk import no_room, says_full
from lancelsm.common.panics import is_panic
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.record.batches import without_slices

FILE_ROWS = 1 << 20  # of a data file, if more rows are written at once

T = TypeVar("T")

_TRIES = 10

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
USER = re.compile(r"^Invalid user input: ")
_NO_DIRECTORY = re.compile(r"not a directory", re.IGNORECASE)
_SOURCE = re.compile(r"(, location: |, )\S+\.rs:\d+:\d+")  # position in Lance's source code
_STORE = re.compile(r"LanceError\(IO\)|Generic \w+ error", re.IGNORECASE)
_FILE = re.compile(r"[\w./:+-]+\.(?:lance|arrow|bin|manifest|idx)\b")
_DAMAGED = (OSError, ValueError, LookupError, OverflowError, RuntimeError, pa.ArrowException)
_REMEDY = "lancelsm scrub names every wrong file; restore these from a copy of the bucket"


class Carried:
    """Batches for Lance to read. Keeps an `LsmError`, a lack of memory or an interrupt that ended them: Lance passes on
    only its text.

    Lance gets no slices that it can't write. It makes none itself, since batches end where a file of `FILE_ROWS` does.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.error: BaseException | None = None
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            rows = 0
            for batch in self._batches:
                start = 0
                while start < batch.num_rows:
                    part = batch.slice(start, FILE_ROWS - rows % FILE_ROWS)
                    start += part.num_rows
                    rows += part.num_rows
                    yield without_slices(part)
        except GeneratorExit:
            raise
        except BaseException as error:
            if isinstance(error, LsmError | MemoryError) or not isinstance(error, Exception):
                self.error = error
            raise


@contextmanager
def native_errors(doing: str, *, reading: Carried | None = None, **where: str) -> Iterator[None]:
    """Translate errors that Lance raises in the block, with the original as cause.

    Args:
        doing: what failed, as the start of a sentence: "the base can't be written".
        reading: batches that Lance reads in the block; their own error, or an interrupt in them, is raised unchanged.
        where: context for the error: `table`, or `object` for a generation.

    Raises:
        Contended: another commit came first.
        Invalid: the store denies access, or the input doesn't fit.
        Corrupt: a file is missing or unreadable.
        Unavailable: the store did not answer, or the disk is full. A commit may have been applied.
    """
    try:
        yield
    except (LsmError, ConnectionError):
        raise
    except (_conflict_error(), OSError, ValueError, RuntimeError) as cause:
        if reading is not None and reading.error is not None:
            raise reading.error from cause
        error = translated(cause, doing=doing, **where)
        if error is None:
            raise
        raise error from cause
    except BaseException as cause:
        if not is_panic(cause):
            raise
        raise _corrupt(f"{doing}: {cause}", **where) from cause


@contextmanager
def read_errors(doing: str, *, condition: str | None = None, **where: str) -> Iterator[None]:
    """Translate errors of a block that only reads stored files: a failure means damage, not wrong input.

    Args:
        condition: the caller's text of a `conditions.Condition`, if the block applies one.

    Raises:
        Invalid: the store denies access, or the condition fails on a row.
        Corrupt: a file is missing or unreadable. Names the file if Lance does.
        Unavailable: the store did not answer.
    """
    try:
        yield
    except (LsmError, ConnectionError, MemoryError):
        raise
    except _DAMAGED as cause:
        error = _read_error(cause, doing, where)
        if condition is not None and _APPLYING.search(text_of(cause)):
            error = invalid_condition(condition, text_of(cause), **where)
        raise error from cause
    except BaseException as cause:
        if not is_panic(cause):
            raise
        raise _corrupt(f"{doing}: {cause}", **where) from cause


def retry_removed(act: Callable[[], T], *, what: str, table: str) -> T:
    """Call a function of Lance that lists objects and then reads each, until no object was removed in between.

    Args:
        act: translates Lance's errors, see `read_errors`. Calling it again does no harm.
        what: the listed objects: "versions of the base".

    Raises:
        Contended: other processes kept removing objects.
        Corrupt: `act` failed twice with the same error. A removed object is not listed again, so one is damaged.
    """
    last_message = ""
    for _ in range(_TRIES):
        try:
            return act()
        except Corrupt as error:
            if error.message == last_message:
                raise
            last_message = error.message
    raise Contended(f"other processes kept removing {what} while they were listed", table=table)


def translated(cause: Exception, *, doing: str, **where: str) -> LsmError | None:
    """Translate an error of Lance; None if it is not an error of Lance."""
    text = text_of(cause)
    reason = f"{doing}: {text}"
    if says_full(text):
        return no_room(reason, **where)
    if isinstance(cause, _conflict_error()) or _CONFLICT.search(text):
        return Contended(reason, **where)
    if (refused := _access_problem(text, doing, where)) is not None:
        return refused
    if _INPUT.search(text):
        return Invalid(reason, **where)
    if _GONE.search(text) or _UNREADABLE.search(text):
        return _corrupt(reason, **where)
    if isinstance(cause, OSError) or _STORE.search(text):
        return Unavailable(reason, **where)
    return None


def _conflict_error() -> type[Exception]:
    from lance.commit import CommitConflictError  # noqa: PLC0415 - a process that only looks does not load Lance

    return CommitConflictError


def _read_error(cause: Exception, doing: str, where: Mapping[str, str]) -> LsmError:
    text = text_of(cause)
    reason = f"{doing}: {text}"
    if says_full(text):
        return no_room(reason, **where)
    if (refused := _access_problem(text, doing, where)) is not None:
        return refused
    damage = _GONE.search(text) or _UNREADABLE.search(text) or _INPUT.search(text)
    if not damage and (isinstance(cause, OSError) or _STORE.search(text)):
        return Unavailable(reason, **where)
    return _corrupt(reason, **where)


def _access_problem(text: str, doing: str, where: Mapping[str, str]) -> Invalid | None:
    """Return the error if the location can't be accessed at all."""
    if _REFUSED.search(text):
        remedy = "Check the credentials and their permissions on the table's prefix"
        return Invalid(f"{doing}: {text}", remedy=remedy, **where)
    if _NO_DIRECTORY.search(text):
        return Invalid(f"{doing}: a file exists where a directory should be", remedy="Choose another location", **where)
    return Invalid(f"{doing}: {text}", **where) if _NO_STORE.search(text) else None


def invalid_condition(condition: str, problem: str, *, remedy: str = "", **where: str) -> Invalid:
    """Build the error for a condition that can't be planned, or fails on a row."""
    return Invalid(
        f"the condition {condition!r} can't be applied: {USER.sub('', problem).rstrip('.')}",
        remedy=remedy or sql_remedy(problem),
        redacted="the condition can't be applied",
        **where,
    )


def sql_remedy(problem: str) -> str:
    """Return what to do about SQL that Lance refuses with this text."""
    if "is not supported SQL" in problem:
        return "Lance evaluates no SQL of this kind, such as CASE or subqueries: use AND, OR and functions"
    if "could not convert to literal" in problem:
        return "Cast the column to a type that has this number, such as CAST(total AS DOUBLE)"
    return "Write text in 'quotes', and a column name that is not a plain word in `backticks`"


def text_of(cause: BaseException) -> str:
    """Return the text of an error of Lance in one line, without positions in its source code."""
    return " ".join(_SOURCE.sub("", str(cause)).split("\n")).strip() or type(cause).__name__


def _corrupt(reason: str, **where: str) -> Corrupt:
    """Build the error. It names the object of the caller, else the file that Lance names, else the data of the base."""
    found = _FILE.search(reason)
    if "object" not in where and "table" in where:
        where["object"] = found[0] if found else f"{where['table']}/data"
    return Corrupt(reason, remedy=_REMEDY, **where)
