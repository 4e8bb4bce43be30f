"""The contract of deletions, for every store and registry."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Key
from lancelsm.registry import SwapApplied, SwapLost
from tests.conformance.backends import OBJECTS, REGISTRIES, opened_registry, opened_store

KEY = Key(partition="S#table", sort="monday")


@pytest.fixture(params=OBJECTS)
def store(request, described):
    return opened_store(described(request.param))


@pytest.fixture(params=REGISTRIES)
def registry(request, described):
    return opened_registry(described(request.param))


def test_deleted_objects_are_gone_and_others_stay(store):
    for key in ("wal/a", "wal/b", "wal/b/c", "other"):
        store.create(key.replace("b/c", "bc"), b"body")

    store.delete(["wal/a", "wal/b"])

    assert [line.key for line in store.list("")] == ["other", "wal/bc"]
    assert store.get("wal/a") is None


def test_deleting_an_absent_object_is_no_error(store):
    store.create("wal/a", b"body")

    store.delete(["wal/absent", "nowhere/at/all", "wal/a"])
    store.delete(["wal/a"])
    store.delete([])

    assert list(store.list("")) == []


def test_an_object_can_be_created_where_one_was_deleted(store):
    store.create("wal/a", b"old")
    store.delete(["wal/a"])

    store.create("wal/a", b"new")

    assert store.get("wal/a").body == b"new"


def test_more_objects_than_fit_in_one_request_are_deleted(store):
    keys = [f"wal/{number:04}" for number in range(1_201)]
    for key in keys:
        store.create(key, b"")

    store.delete(keys)

    assert list(store.list("wal/")) == []


def test_a_record_is_deleted_only_under_its_witness(registry):
    registry.swap(KEY, expect=None, change={"version": 1, "expires": "10"})

    assert isinstance(registry.delete(KEY, expect={"version": 2}), SwapLost)
    assert registry.read(KEY) == {"version": 1, "expires": "10"}

    assert registry.delete(KEY, expect={"version": 1}) == SwapApplied(record={"version": 1, "expires": "10"})
    assert registry.read(KEY) is None
    assert registry.list(KEY.partition) == []


def test_a_refresh_after_the_deletion_is_lost(registry):
    registry.swap(KEY, expect=None, change={"version": 1})
    registry.delete(KEY, expect={"version": 1})

    assert registry.swap(KEY, expect={"version": 1}, change={"version": 2}) == SwapLost(record=None)
    assert registry.delete(KEY, expect={"version": 1}) == SwapLost(record=None)


def test_a_record_can_be_created_where_one_was_deleted(registry):
    registry.swap(KEY, expect=None, change={"version": 1, "old": "field"})
    registry.delete(KEY, expect={"version": 1})

    assert registry.swap(KEY, expect=None, change={"version": 7}) == SwapApplied(record={"version": 7})
    assert registry.list(KEY.partition) == [(KEY, {"version": 7})]


def test_discarding_removes_one_record_and_is_idempotent(registry):
    keys = [Key(partition=KEY.partition, sort=f"monday#{nonce}#region") for nonce in ("one", "two")]
    for key in (KEY, *keys):
        registry.swap(key, expect=None, change={"version": 1})

    for _ in range(2):
        registry.discard(keys[0])

    assert registry.read(keys[0]) is None
    assert registry.list(KEY.partition) == [(key, {"version": 1}) for key in (KEY, keys[1])]
    assert registry.swap(keys[0], expect={"version": 1}, change={"version": 2}) == SwapLost(record=None)
    assert registry.delete(keys[0], expect={"version": 1}) == SwapLost(record=None)
    assert registry.read(keys[0]) is None
