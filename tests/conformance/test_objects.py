"""The contract of `lancelsm.objects.ObjectStore`, for every adapter."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from lancelsm.errors import Invalid
from lancelsm.objects import Listed, Object, PreconditionFailed, Written
from tests.conformance import race
from tests.conformance.backends import OBJECTS, between_processes, opened_store

ODD_KEYS = (
    "#hash",
    "%23",
    "(round)",
    "*star",
    "a b",
    "a%20b",
    "a+b=c&d?e",
    "back\\slash",
    "colon:semi;comma,",
    "deep/er/and/deep/er",
    "dots...",
    "quote'\"",
    "tilde~",
    "umlaut/ä/ü.json",
    "[square]{curly}",
    "^`|<>",
    "~hash#in#middle",
    "日本/語",
    "😀",
)


@pytest.fixture(params=OBJECTS)
def description(request, described):
    return described(request.param)


@pytest.fixture
def store(description):
    return opened_store(description)


def test_a_deleted_object_may_be_created_again(store):
    first = store.create("a", b"first")
    store.delete(["a"])

    assert store.get("a") is None
    assert store.replace("a", b"stale", expect=first.etag) == PreconditionFailed()
    assert isinstance(store.create("a", b"second"), Written)
    assert store.create("a", b"third") == PreconditionFailed()
    assert store.get("a").body == b"second"
    assert [listed.key for listed in store.list("")] == ["a"]


def test_an_absent_key_has_no_object(store):
    assert store.get("absent") is None
    assert store.get("absent/too") is None
    assert list(store.list("")) == []
    assert list(store.list("absent/")) == []


def test_a_created_object_is_read_back_with_the_etag_of_its_write(store):
    written = store.create("a/b/c.x", b"first")

    assert isinstance(written, Written)
    assert store.get("a/b/c.x") == Object(body=b"first", etag=written.etag)


def test_a_second_create_is_refused_and_changes_nothing(store):
    store.create("a/b", b"first")

    assert store.create("a/b", b"second") == PreconditionFailed()
    assert store.create("a/b", b"first") == PreconditionFailed()
    assert store.get("a/b").body == b"first"


def test_a_replace_under_the_current_etag_is_applied(store):
    first = store.create("a/b", b"first")
    second = store.replace("a/b", b"second", expect=first.etag)
    third = store.replace("a/b", b"third", expect=store.get("a/b").etag)

    assert isinstance(second, Written)
    assert isinstance(third, Written)
    assert len({first.etag, second.etag, third.etag}) == 3
    assert store.get("a/b") == Object(body=b"third", etag=third.etag)


def test_a_replace_under_a_stale_etag_is_refused_and_changes_nothing(store):
    first = store.create("a/b", b"first")
    store.replace("a/b", b"second", expect=first.etag)

    assert store.replace("a/b", b"third", expect=first.etag) == PreconditionFailed()
    assert store.get("a/b").body == b"second"


def test_a_replace_of_an_absent_key_is_refused(store):
    etag = store.create("a/b", b"x").etag

    assert store.replace("a/c", b"x", expect=etag) == PreconditionFailed()
    assert store.replace("c/c", b"x", expect=etag) == PreconditionFailed()
    assert store.get("a/c") is None


@pytest.mark.parametrize("body", [b"", bytearray(b"array"), memoryview(b"view"), memoryview(bytearray(b"xyz"))[1:]])
def test_any_buffer_is_a_body(store, body):
    created = store.create("k", body)
    assert store.get("k").body == bytes(body)

    other = store.create("other", b"to replace")
    assert isinstance(created, Written)
    assert isinstance(store.replace("other", body, expect=other.etag), Written)
    assert store.get("other").body == bytes(body)
    assert store.get("other").etag == created.etag


def test_an_object_may_have_twenty_megabytes(store):
    body = bytes(range(256)) * 80_000
    written = store.create("big", body)

    assert isinstance(store.replace("big", body[1:], expect=written.etag), Written)
    assert store.get("big").body == body[1:]
    assert list(store.list("")) == [Listed(key="big", size=len(body) - 1)]


def test_keys_keep_special_characters(store):
    for key in ODD_KEYS:
        assert isinstance(store.create(key, key.encode()), Written), key

    assert [line.key for line in store.list("")] == sorted(ODD_KEYS, key=str.encode)
    assert {key: store.get(key).body.decode() for key in ODD_KEYS} == {key: key for key in ODD_KEYS}


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\0b", "a\nb", "\udcff"]
)
def test_a_key_that_leaves_the_table_or_is_not_canonical_is_invalid(store, key):
    for call in (
        lambda: store.get(key),
        lambda: store.create(key, b"x"),
        lambda: store.replace(key, b"x", expect="etag"),
    ):
        with pytest.raises(Invalid):
            call()
    assert list(store.list("")) == []


def test_a_listing_is_in_the_order_of_keys_not_of_directories(store):
    keys = sorted(["a!", "a-b/c", "a.b", "a/b", "a0", "b/a/a", "b/a-a", "b/a0", "B", "ab/c", "é"], key=str.encode)
    for key in reversed(keys):
        store.create(key, b"12")

    assert list(store.list("")) == [Listed(key=key, size=2) for key in keys]
    for prefix in ("a", "a-", "a-b/", "b/", "b/a", "b/a/", "b/a-", "x", "b/x/", "ab/c", "ab/cd"):
        assert [line.key for line in store.list(prefix)] == [key for key in keys if key.startswith(prefix)], prefix


@pytest.mark.one_case
def test_a_long_listing_is_complete(store):
    keys = [f"wal/{number:05}-{number * 7919 % 1250:04}" for number in range(1_250)]
    with ThreadPoolExecutor(16) as pool:
        assert all(isinstance(outcome, Written) for outcome in pool.map(lambda key: store.create(key, b"x"), keys))
    store.create("wal.after", b"x")

    assert [line.key for line in store.list("wal/")] == keys
    assert [line.key for line in store.list("wal/0001")] == keys[10:20]
    assert [line.key for line in itertools.islice(store.list("wal"), 2)] == ["wal.after", keys[0]]


NAMES = ("one", "two", "three", "four")


def assert_one_winner_each(store, wins):
    assert sorted(n for rounds in wins.values() for n in rounds) == list(range(race.ROUNDS))
    for name, rounds in wins.items():
        assert all(store.get(f"round/{n}").body == f"{n} {name}".encode() for n in rounds)


def test_of_racing_threads_one_creates(store):
    assert_one_winner_each(store, race.by_threads("create_each", store, NAMES))


def test_racing_threads_lose_no_replace(store):
    store.create(race.COUNTER, b'{"n": 0}')

    tries = race.by_threads("count_object", store, NAMES)

    assert json.loads(store.get(race.COUNTER).body)["n"] == race.STEPS * len(NAMES)
    assert sum(tries.values()) >= race.STEPS * len(NAMES)


@pytest.mark.one_case
@pytest.mark.parametrize("backend", between_processes(OBJECTS))
def test_of_racing_processes_one_creates(backend, described):
    description = described(backend)
    assert_one_winner_each(opened_store(description), race.by_processes("create_each", description, NAMES))


@pytest.mark.parametrize("backend", between_processes(OBJECTS))
@pytest.mark.one_case
def test_racing_processes_lose_no_replace(backend, described):
    description = described(backend)
    store = opened_store(description)
    store.create(race.COUNTER, b'{"n": 0}')

    race.by_processes("count_object", description, NAMES)

    assert json.loads(store.get(race.COUNTER).body)["n"] == race.STEPS * len(NAMES)
