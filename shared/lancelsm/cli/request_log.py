"""Log each request to the store and the registry on stderr, for `--verbose`: key, size, outcome and time.

Lance reads and writes its files itself; these requests are not logged.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Self

from lancelsm.common.clock import iso
from lancelsm.common.layout import Key
from lancelsm.objects import Body, ETag, Listed, Object, ObjectStore, PreconditionFailed, WriteUnknown, Written
from lancelsm.objects.open import open_store
from lancelsm.region.handle import Ports
from lancelsm.registry import Fields, Record, Registry, SwapApplied, SwapLost, SwapUnknown
from lancelsm.registry.open import open_registry

_log = logging.getLogger("lancelsm.requests")


def logged_ports(*, as_json: bool) -> Ports:
    """Return ports whose requests are logged: a line each, or with `as_json` a JSON object each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Text())
    _log.handlers = [handler]
    _log.setLevel(logging.DEBUG)
    _log.propagate = False

    def store(uri: str, storage_options: Mapping[str, str] | None) -> ObjectStore:
        return LoggedStore(open_store(uri, storage_options))

    def registry(kind: str, *, store: ObjectStore, **arguments: Any) -> Registry:
        return LoggedRegistry(open_registry(kind, store=store, **arguments))

    return Ports(store=store, registry=registry)


class _Timed:
    """Log a request at the end of its `with` block, with an error or the facts that the block added."""

    def __init__(self, request: str, key: str) -> None:
        self.facts: dict[str, Any] = {"request": request, "key": key}
        self._began = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.facts["seconds"] = round(time.perf_counter() - self._began, 6)
        if error is not None:
            self.facts["outcome"] = type(error).__name__
        _log.debug(self.facts["request"], extra={"facts": self.facts})


class LoggedStore:
    """An object store whose requests are logged."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def get(self, key: str) -> Object | None:
        with _Timed("objects.get", key) as timed:
            found = self._store.get(key)
            timed.facts |= {"outcome": "absent"} if found is None else {"bytes": len(found.body)}
            return found

    def list(self, prefix: str) -> Iterator[Listed]:
        with _Timed("objects.list", prefix) as timed:
            found = list(self._store.list(prefix))
            timed.facts["objects"] = len(found)
        return iter(found)

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        with _Timed("objects.create", key) as timed:
            outcome = self._store.create(key, body)
            timed.facts |= {"bytes": len(body), "outcome": type(outcome).__name__}
            return outcome

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed | WriteUnknown:
        with _Timed("objects.replace", key) as timed:
            outcome = self._store.replace(key, body, expect=expect)
            timed.facts |= {"bytes": len(body), "outcome": type(outcome).__name__}
            return outcome

    def delete(self, keys: Collection[str]) -> None:
        with _Timed("objects.delete", next(iter(keys), "")) as timed:
            timed.facts["objects"] = len(keys)
            self._store.delete(keys)


class LoggedRegistry:
    """A registry whose requests are logged."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def read(self, key: Key) -> Record | None:
        with _Timed("registry.read", _shown(key)) as timed:
            found = self._registry.read(key)
            timed.facts |= {"outcome": "absent"} if found is None else {}
            return found

    def list(self, partition: str) -> list[tuple[Key, Record]]:
        with _Timed("registry.list", partition) as timed:
            found = self._registry.list(partition)
            timed.facts["records"] = len(found)
            return found

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        with _Timed("registry.swap", _shown(key)) as timed:
            outcome = self._registry.swap(key, expect=expect, change=change)
            timed.facts["outcome"] = type(outcome).__name__
            return outcome

    def delete(self, key: Key, *, expect: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        with _Timed("registry.delete", _shown(key)) as timed:
            outcome = self._registry.delete(key, expect=expect)
            timed.facts["outcome"] = type(outcome).__name__
            return outcome

    def discard(self, key: Key) -> None:
        with _Timed("registry.discard", _shown(key)):
            self._registry.discard(key)


def _shown(key: Key) -> str:
    return f"{key.partition} {key.sort}"


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = dict(getattr(record, "facts", {}))
        request, key, seconds = facts.pop("request"), facts.pop("key"), facts.pop("seconds")
        rest = " ".join(f"{name}={value}" for name, value in facts.items())
        return f"{_time(record)} {request} {key} {rest} {seconds * 1000:.1f} ms".replace("  ", " ")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", {})
        return json.dumps({"time": _time(record), "level": "debug", **facts}, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return iso(record.created, digits="milliseconds")
