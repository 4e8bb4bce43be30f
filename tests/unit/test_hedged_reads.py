"""A slow read of an object is sent twice, within a budget, and everything else once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import lancelsm
from lancelsm.common.clock import SystemClock, SystemIds
from lancelsm.common.read_trace import Trace
from lancelsm.errors import Unavailable
from lancelsm.objects import Body, ETag, Listed, Object, ObjectStore, PreconditionFailed, WriteUnknown, Written
from lancelsm.objects.filesystem import LocalStore
from lancelsm.objects.hedged import HedgedStore
from lancelsm.region.handle import Ports, table_handle
from lancelsm.registry import Registry
from lancelsm.registry.object import ObjectRegistry

KNOWN_READS = 64


class SlowStore:
    """A store in which the first read of a key `slow...` waits for `release`, and fails then if `fails` is set.

    The second read of a key `... twice` waits for `answers`.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.release = threading.Event()
        self.answers = threading.Event()
        self.fails = False
        self._lock = threading.Lock()

    def get(self, key: str) -> Object | None:
        with self._lock:
            self.calls[key] += 1
            first = self.calls[key] == 1
        if key.startswith("slow") and first:
            self.release.wait(10)
            if self.fails:
                raise Unavailable("the store did not answer", remedy="Retry")
        if key.endswith("twice"):
            self.answers.wait(10)
        return Object(body=key.encode(), etag=ETag("1"))

    def list(self, prefix: str) -> Iterator[Listed]:
        self.calls[f"list {prefix}"] += 1
        return iter(())

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        self.calls[f"create {key}"] += 1
        return Written(etag=ETag("1"))

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed | WriteUnknown:
        self.calls[f"replace {key}"] += 1
        return Written(etag=ETag("2"))

    def delete(self, keys: list[str]) -> None:
        self.calls[f"delete {keys}"] += 1


@pytest.fixture
def slow() -> Iterator[SlowStore]:
    store = SlowStore()
    yield store
    store.release.set()


def hedged(store: SlowStore, *, percent: int = 50) -> HedgedStore:
    found = HedgedStore(store, percent=percent, clock=SystemClock())
    for number in range(KNOWN_READS):
        found.get(f"known {number}")
    return found


def test_a_slow_read_is_sent_twice_and_the_first_answer_counts(slow: SlowStore) -> None:
    found = hedged(slow).get("slow")

    assert found is not None
    assert bytes(found.body) == b"slow"
    assert slow.calls["slow"] == 2
    assert not slow.release.is_set()


def test_no_more_reads_are_sent_twice_than_the_share_allows(slow: SlowStore) -> None:
    store = hedged(slow, percent=2)
    threads = [threading.Thread(target=store.get, args=(f"slow {number}",)) for number in range(20)]
    for thread in threads:
        thread.start()
    slow.release.set()
    for thread in threads:
        thread.join()

    again = sum(slow.calls.values()) - KNOWN_READS - len(threads)
    assert again <= (KNOWN_READS + len(threads)) * 2 // 100


def test_an_error_counts_only_if_no_other_request_is_on_its_way(slow: SlowStore) -> None:
    slow.fails = True
    store = hedged(slow)
    found: list[Object | None] = []
    reader = threading.Thread(target=lambda: found.append(store.get("slow, twice")))
    reader.start()
    while slow.calls["slow, twice"] < 2:
        time.sleep(0.001)
    slow.release.set()  # the first request fails
    slow.answers.set()
    reader.join()

    assert [one is not None for one in found] == [True]
    with pytest.raises(Unavailable):
        HedgedStore(slow, percent=50, clock=SystemClock()).get("slow")  # sent once: no times are known


def test_nothing_but_a_read_is_sent_twice(slow: SlowStore) -> None:
    store = hedged(slow)
    slow.calls.clear()
    store.create("a", b"")
    store.replace("a", b"", expect=ETag("1"))
    list(store.list("a"))
    store.delete(["a"])

    assert set(slow.calls.values()) == {1}
    assert len(slow.calls) == 4


@pytest.mark.parametrize(
    ("uri", "percent", "hedges"), [("s3://bucket/t", 0, False), ("s3://bucket/t", 5, True), ("/t", 5, False)]
)
def test_the_setting_turns_it_on_for_object_stores_but_not_for_the_registry(
    tmp_path: Path, uri: str, percent: int, hedges: bool
) -> None:
    table = lancelsm.create(tmp_path, [{"id": 1}], primary_key="id", registry="object")
    store = LocalStore(tmp_path)
    settings = {"hedged_reads_percent": percent}
    opened = []

    def registry(*_: object, store: ObjectStore, **__: object) -> Registry:
        opened.append(store)
        return ObjectRegistry(store, clock=SystemClock(), ids=SystemIds())

    handle = table_handle(
        table.config, store, uri, settings=settings, storage_options=None, ports=Ports(registry=registry)
    )

    assert isinstance(handle.context.objects, HedgedStore) is hedges
    assert opened == [store]


def test_explain_counts_the_second_requests(slow: SlowStore) -> None:
    counted: Counter[str] = Counter()

    class Counting(Trace):
        def request(self, kind: str, _size: int = 0) -> None:
            counted[kind] += 1

    store = hedged(slow).traced(Counting())
    store.get("slow")

    assert counted == {"objects.get, sent again": 1}
