"""An object store for a scrub: it reports an object that can't be reached under its key, and continues without it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from lancelsm.errors import Corrupt
from lancelsm.objects import Body, ETag, Listed, Object, ObjectStore, PreconditionFailed, WriteUnknown, Written
from lancelsm.scrubbing.report import ObjectKind, Tally, problem_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachableStore:
    """The objects of a table. An object behind a symbolic link is reported and counts as missing.

    A listing that meets a key that is no path reports the key and ends.
    """

    inner: ObjectStore
    tally: Tally

    def get(self, key: str) -> Object | None:
        try:
            return self.inner.get(key)
        except Corrupt as error:
            self._report(error, key)
            return None

    def list(self, prefix: str) -> Iterator[Listed]:
        try:
            yield from self.inner.list(prefix)
        except Corrupt as error:
            self._report(error, prefix)

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        return self.inner.create(key, body)

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed | WriteUnknown:
        return self.inner.replace(key, body, expect=expect)

    def delete(self, keys: Collection[str]) -> None:
        self.inner.delete(keys)

    def _report(self, error: Corrupt, key: str) -> None:
        self.tally.add(str(error.where.get("object", key)), ObjectKind.FOREIGN, problem_of(error))
