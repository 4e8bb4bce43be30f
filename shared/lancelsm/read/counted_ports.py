"""Count the requests of a read to the store and the registry, for `Table.explain`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from lancelsm.common.layout import Key
from lancelsm.common.read_trace import Trace
from lancelsm.objects import Body, ETag, Listed, Object, ObjectStore, PreconditionFailed, WriteUnknown, Written
from lancelsm.objects.hedged import HedgedStore
from lancelsm.region.catalog import TableContext
from lancelsm.registry import Fields, Record, Registry, SwapApplied, SwapLost, SwapUnknown
from lancelsm.registry.object import ObjectRegistry


def counted(context: TableContext, trace: Trace) -> TableContext:
    """Return a context whose requests the trace counts."""
    store = context.objects.traced(trace) if isinstance(context.objects, HedgedStore) else context.objects
    return replace(context, objects=_CountedStore(store, trace, "objects"), registry=_registry(context.registry, trace))


def _registry(registry: Registry, trace: Trace) -> Registry:
    if isinstance(registry, ObjectRegistry):  # a call is several requests
        return registry.on(lambda store: _CountedStore(store, trace, "registry"))
    return _CountedRegistry(registry, trace)


class _CountedStore:
    def __init__(self, store: ObjectStore, trace: Trace, of: str) -> None:
        self._store = store
        self._trace = trace
        self._of = of

    def get(self, key: str) -> Object | None:
        found = self._store.get(key)
        self._trace.request(f"{self._of}.get", 0 if found is None else len(found.body))
        return found

    def list(self, prefix: str) -> Iterator[Listed]:
        self._trace.request(f"{self._of}.list")
        return self._store.list(prefix)

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        self._trace.request(f"{self._of}.create")
        return self._store.create(key, body)

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed | WriteUnknown:
        self._trace.request(f"{self._of}.replace")
        return self._store.replace(key, body, expect=expect)

    def delete(self, keys: Collection[str]) -> None:
        raise AssertionError(f"a read deletes nothing, but {len(keys)} objects")


class _CountedRegistry:
    def __init__(self, registry: Registry, trace: Trace) -> None:
        self._registry = registry
        self._trace = trace

    def read(self, key: Key) -> Record | None:
        found = self._registry.read(key)
        self._trace.request("registry.read", _size(found))
        return found

    def list(self, partition: str) -> list[tuple[Key, Record]]:
        found = self._registry.list(partition)
        self._trace.request("registry.list", sum(_size(record) for _, record in found))
        return found

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        self._trace.request("registry.swap")
        return self._registry.swap(key, expect=expect, change=change)

    def delete(self, key: Key, *, expect: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        self._trace.request("registry.delete")
        return self._registry.delete(key, expect=expect)

    def discard(self, key: Key) -> None:
        self._trace.request("registry.discard")
        self._registry.discard(key)


def _size(record: Record | None) -> int:
    return sum(len(name) + len(str(value)) for name, value in (record or {}).items())
