"""The object store interface: reads and writes every object outside Lance's own datasets.

Outcomes that callers must distinguish are values, not exceptions. One call is one attempt: an adapter never retries a
conditional write, and it turns off the retries of its client. After a lost reply, the retry would be refused because of
the first attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NewType, Protocol, final

ETag = NewType("ETag", str)
Body = bytes | bytearray | memoryview


@final
class Object:
    """An object as one read saw it.

    Args:
        etag: the ETag, or the function that computes it from the body when it is first needed.
    """

    __slots__ = ("_etag", "body")

    def __init__(self, *, body: bytes, etag: ETag | Callable[[bytes], ETag]) -> None:
        self.body = body
        self._etag = etag

    @property
    def etag(self) -> ETag:
        if callable(self._etag):
            self._etag = self._etag(self.body)
        return self._etag

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Object) and (self.body, self.etag) == (other.body, other.etag)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Object({len(self.body)} bytes, etag={self.etag!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One object in a listing. `etag` is None if the store's listings have none."""

    key: str
    size: int
    etag: ETag | None = field(default=None, compare=False)


@final
class Written:
    """The write was applied.

    Args:
        etag: the ETag of the new object, or the function that computes it when it is first needed.
    """

    __slots__ = ("_etag",)

    def __init__(self, *, etag: ETag | Callable[[], ETag]) -> None:
        self._etag = etag

    @property
    def etag(self) -> ETag:
        if callable(self._etag):
            self._etag = self._etag()
        return self._etag

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Written) and self.etag == other.etag

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Written(etag={self.etag!r})"


@dataclass(frozen=True, slots=True)
class PreconditionFailed:
    """The condition did not hold: this attempt changed nothing and never will.

    The object there may be our own, from an earlier attempt: read it and compare its nonce.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteUnknown:
    """There was no conclusive answer: the write may have been applied, or may still be applied later."""

    cause: str


class ObjectStore(Protocol):
    """The objects of one table. Every adapter passes tests/conformance/test_objects.py, races included.

    Reads are strongly consistent. The adapter retries them, and raises `Unavailable` if the store does not answer.
    Writes return `WriteUnknown` in that case. If the store refuses all access (credentials, missing bucket), calls
    raise `Invalid` or `Unavailable` with a remedy. A write with the outcome `Written` is durable. Thread-safe.
    """

    def get(self, key: str) -> Object | None:
        """Read an object; None if it does not exist."""
        ...

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        """Write an object if the key has no object."""
        ...

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed | WriteUnknown:
        """Replace an object if it has this ETag. `PreconditionFailed` if it has another one, or does not exist."""
        ...

    def list(self, prefix: str) -> Iterator[Listed]:
        """List every object whose key starts with `prefix`, in key order."""
        ...

    def delete(self, keys: Collection[str]) -> None:
        """Delete these objects; missing objects are ignored.

        A deletion may be lost in a power failure, and a deletion without an answer may still happen later. So delete an
        object only if its key is never written again.

        Raises:
            Unavailable: the store did not answer; some of the objects may be deleted.
        """
        ...


def put_once(store: ObjectStore, key: str, body: Body, *, attempts: Iterable[object]) -> bytes | None:
    """Write an object if the key has no object; return the bytes that are there afterwards.

    They are ours, or those of another writer that was faster.

    Args:
        attempts: one item for each attempt.

    Returns:
        The bytes at the key. None if no attempt had a conclusive answer: the store did not answer, or it refused the
        write although there is no object, as S3 does during a concurrent request. The write may still be applied later.
    """
    for _ in attempts:
        outcome = store.create(key, body)
        if isinstance(outcome, Written):
            return bytes(body)
        if isinstance(outcome, PreconditionFailed) and (found := store.get(key)) is not None:
            return found.body
    return None
