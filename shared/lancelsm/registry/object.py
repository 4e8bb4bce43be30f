"""Store records as small objects below the table: a registry that needs only the bucket.

A swap reads the object, decides, and replaces it under the ETag of that read, or of the last read or write of this
process. Each object contains a version, which increases by one, and the nonce of its write. So its content never
repeats, which ETags alone would not guarantee. After a lost reply the outcome can be read: our write is there, or
another write of the same version, or the version before it, and then the write is sent again. For the same reason a
deleted record stays as an object that marks the deletion. A discarded record does not, since its key is never used
again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from lancelsm.common.clock import Budget, Clock, Ids
from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import REGISTRY_OBJECTS, Key, Nonce
from lancelsm.common.task_pool import TaskPool
from lancelsm.errors import Contended, Corrupt, Invalid, Unavailable
from lancelsm.objects import ETag, Listed, ObjectStore, PreconditionFailed, WriteUnknown, Written
from lancelsm.registry import (
    Fields,
    Record,
    SwapApplied,
    SwapLost,
    SwapUnknown,
    apply_swap,
    bytes_to_json,
    check_record,
    matches,
    number,
    repair_remedy,
    text,
)

FORMAT = 1
_REMEMBERED = 4096  # records


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """One version of a record. `etag` is None if it is not written yet."""

    version: int
    nonce: Nonce
    record: Record | None  # None: deleted
    etag: ETag | None = None

    def encoded(self) -> bytes:
        document = {"format": FORMAT, "version": self.version, "nonce": self.nonce, "fields": self.record}
        return json.dumps(document, separators=(",", ":"), default=bytes_to_json).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Next:
    """The next record, and the record to return to the caller."""

    record: Record | None
    answer: Record


class ObjectRegistry:
    """Records below `_lancelsm/registry/` in a store.

    A swap returns `SwapUnknown` only if the reply of its write was lost, and then later writes hide the outcome or the
    store does not answer any more.

    Args:
        store: the object store of the table.
        clock, ids: pace the retries and give the nonces of the writes.
        budget_seconds: how long a swap retries. After that it raises `Contended`, and nothing was written.
        parallel: the maximum number of concurrent reads when a partition is listed.
    """

    def __init__(
        self, store: ObjectStore, *, clock: Clock, ids: Ids, budget_seconds: float = 30.0, parallel: int = 1
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._budget_seconds = budget_seconds
        self._parallel = parallel
        # The last reads and writes of this process: they save the next swap a read.
        self._last_seen: dict[str, _Stored] = {}

    def on(self, change: Callable[[ObjectStore], ObjectStore]) -> ObjectRegistry:
        """Return the same registry on another adapter of its store."""
        other = copy(self)
        other._store = change(self._store)
        return other

    def read(self, key: Key) -> Record | None:
        name = object_key(key)
        stored = self._stored(name)
        if stored is None:
            return None
        self._remember(name, stored)
        return stored.record

    def list(self, partition: str) -> list[tuple[Key, Record]]:
        prefix = _partition_prefix(partition)
        listed = list(self._store.list(prefix))
        if self._parallel > 1 and len(listed) > 1:
            with TaskPool(min(self._parallel, len(listed))) as pool:
                found = pool.map(self._listed, listed)
        else:
            found = [self._listed(line) for line in listed]
        return sorted(
            (Key(partition=partition, sort=_sort(line.key, prefix)), stored.record)
            for line, stored in zip(listed, found, strict=True)
            if stored is not None and stored.record is not None
        )

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        def next_record(old: Record | None) -> _Next | None:
            new = apply_swap(key, old, expect=expect, change=change)
            return None if new is None else _Next(record=new, answer=new)

        return self._write_next(key, next_record)

    def delete(self, key: Key, *, expect: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        def next_record(old: Record | None) -> _Next | None:
            return None if old is None or not matches(old, expect) else _Next(record=None, answer=old)

        return self._write_next(key, next_record)

    def discard(self, key: Key) -> None:
        name = object_key(key)
        self._last_seen.pop(name, None)
        self._store.delete([name])

    def _write_next(
        self, key: Key, next_record: Callable[[Record | None], _Next | None]
    ) -> SwapApplied | SwapLost | SwapUnknown:
        """Write the record that follows the present one, or return `SwapLost`."""
        name = object_key(key)
        known = self._last_seen.pop(name, None)
        if known is not None and next_record(known.record) is None:
            known = None  # only the present record can decide that a swap is lost
        sent: tuple[_Stored, Record] | None = None  # a write without an answer, and its result if applied
        cause = ""
        for _ in Budget(clock=self._clock, ids=self._ids, seconds=self._budget_seconds).attempts():
            try:
                found, known = known or self._stored(name), None
                if sent is not None and found is None and sent[0].version > 1:
                    return SwapUnknown(cause=f"{name}: {cause}; the record was discarded afterwards")
                if sent is not None and found is not None and found.version >= sent[0].version:
                    if found.nonce == sent[0].nonce:
                        return SwapApplied(record=sent[1])
                    if found.version > sent[0].version:
                        return SwapUnknown(cause=f"{name}: {cause}; later writes hide whether it was applied")
                    sent = None  # another write has its version
                old = None if found is None else found.record
                following = next_record(old)
                if following is None:
                    return SwapLost(record=old)
                # Send an unanswered write again unchanged: one of the two is applied, and the other is refused.
                version = 1 if found is None else found.version + 1
                fresh = _Stored(version=version, nonce=self._ids.nonce(), record=following.record)
                send, answer = sent or (fresh, following.answer)
                outcome = self._write(name, found, send)
            except Unavailable as error:
                if sent is None:
                    raise
                return SwapUnknown(cause=f"{name}: {cause}; then {error}")
            if isinstance(outcome, Written):
                self._remember(name, replace(send, etag=outcome.etag))
                return SwapApplied(record=answer)
            if isinstance(outcome, WriteUnknown):
                sent, cause = (send, answer), outcome.cause
        if sent is not None:
            return SwapUnknown(cause=f"{name}: {cause}")
        raise Contended(
            f"other writers were faster for {self._budget_seconds:g} s",
            record=f"{key.partition}/{key.sort}",
        )

    def _write(self, name: str, found: _Stored | None, send: _Stored) -> Written | PreconditionFailed | WriteUnknown:
        if found is None or found.etag is None:
            return self._store.create(name, send.encoded())
        return self._store.replace(name, send.encoded(), expect=found.etag)

    def _remember(self, name: str, stored: _Stored) -> None:
        if len(self._last_seen) >= _REMEMBERED:
            self._last_seen.clear()
        self._last_seen[name] = stored

    def _listed(self, line: Listed) -> _Stored | None:
        """Return the record of a line in a listing. It is read only if this process has not seen it with its ETag."""
        seen = self._last_seen.get(line.key)
        if seen is not None and line.etag is not None and seen.etag == line.etag:  # content never repeats
            return seen
        stored = self._stored(line.key)
        if stored is not None:
            self._remember(line.key, stored)
        return stored

    def _stored(self, name: str) -> _Stored | None:
        found = self._store.get(name)
        if found is None:
            return None
        try:
            document = parse_json(found.body)
            if not isinstance(document, dict):
                raise TypeError("it is not a map")
            if number(document, "format", least=1) > FORMAT:
                raise Invalid(
                    f"the record has format {document['format']}, this release reads up to {FORMAT}",
                    remedy="Install a newer lancelsm",
                    object=name,
                )
            return _Stored(
                version=number(document, "version", least=1),
                nonce=Nonce(text(document, "nonce")),
                record=None if document["fields"] is None else check_record(document["fields"]),
                etag=found.etag,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                "this object is not a record",
                remedy=repair_remedy(_unescaped(name.removeprefix(f"{REGISTRY_OBJECTS}/"))),
                object=name,
            ) from error


def object_key(key: Key) -> str:
    """Return the object key of a record.

    All bytes but letters, digits, `_`, `-` and `~` become `=` and two hex digits.
    """
    return f"{_partition_prefix(key.partition)}{_escaped(key.sort)}.json"


def _partition_prefix(partition: str) -> str:
    return f"{REGISTRY_OBJECTS}/{_escaped(partition)}/"


def _sort(name: str, prefix: str) -> str:
    return _unescaped(name.removeprefix(prefix).removesuffix(".json"))


def _unescaped(text: str) -> str:
    return unquote(text.replace("=", "%"))


def _escaped(text: str) -> str:
    return quote(text, safe="").replace(".", "%2E").replace("%", "=")
