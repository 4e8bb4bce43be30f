"""Objects by key: the narrow port through which every file outside Lance's own datasets is read and written.

Outcomes that callers must tell apart are values. One call is one attempt: an adapter never repeats a conditional
write by itself and keeps its client from doing so, because after a lost reply the repetition is refused by its own
first try.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NewType, Protocol

ETag = NewType("ETag", str)
Body = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """What one read saw."""

    body: bytes
    etag: ETag


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One line of a listing."""

    key: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The write was applied; `etag` names what now stands there."""

    etag: ETag


@dataclass(frozen=True, slots=True)
class PreconditionFailed:
    """The condition did not hold: this attempt changed nothing and never will.

    It says nothing about the object there, which may be our own from an earlier attempt: read it and compare its nonce.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteUnknown:
    """No answer that proves anything: the write may have been applied, or may still be."""

    cause: str


class ObjectStore(Protocol):
    """Objects of one table. Every adapter passes tests/conformance/test_objects.py, races included.

    Reads are strongly consistent and retried within the adapter; they raise `Unavailable` when the store does not
    answer. Writes return `WriteUnknown` then. A store that refuses us altogether (credentials, no bucket) raises
    `Invalid` or `Unavailable` with the remedy. A write that was answered by `Written` is durable. Safe to use from
    several threads.
    """

    def get(self, key: str) -> Object | None:
        """The object, or None if there is none."""
        ...

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        """Write the object if the key has none."""
        ...

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed | WriteUnknown:
        """Write the object if the one there has this ETag; a key without an object refuses."""
        ...

    def list(self, prefix: str) -> Iterator[Listed]:
        """Every object whose key starts with `prefix`, in key order."""
        ...

    def delete(self, keys: Collection[str]) -> None:
        """Remove these objects; one that is not there is fine. Nothing but `gc` calls this.

        A deletion need not survive a power failure, and one whose answer was lost may still happen: only what can never
        be written again under its key may be deleted.

        Raises:
            Unavailable: the store gave no answer; some may be gone.
        """
        ...


def put_once(store: ObjectStore, key: str, body: Body, *, attempts: Iterable[object]) -> bytes | None:
    """What stands at a key once this was written there, if nothing was: perhaps another's, or our own of a lost reply.

    Args:
        attempts: how often to try.

    Returns:
        The bytes that stand there; None if every attempt went without an answer, or was refused where nothing stands,
        as S3 does beside another request in flight. Then they may still come to stand there.
    """
    for _ in attempts:
        outcome = store.create(key, body)
        if isinstance(outcome, Written):
            return bytes(body)
        if isinstance(outcome, PreconditionFailed) and (found := store.get(key)) is not None:
            return found.body
    return None
