"""The cloud store handles answers that a working store rarely gives."""

from __future__ import annotations

import pytest

from lancelsm.common.clock import SeededIds
from lancelsm.errors import Invalid, Unavailable
from lancelsm.objects import Listed, Object, PreconditionFailed, WriteUnknown, Written
from lancelsm.objects.cloud import CloudStore
from lancelsm.objects.open import list_directories
from tests.conformance.ministack import options
from tests.conformance.stub import BUCKET, etag, serving
from tests.simulation.faults import FakeClock


@pytest.fixture(scope="module")
def server():
    with serving() as stub:
        yield stub


@pytest.fixture
def stub(server):
    server.objects.clear()
    server.script.clear()
    server.requests.clear()
    return server


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(stub, clock):
    return open_handle(stub, clock)


def open_handle(stub, clock=None, **extra):
    merged = options(stub.endpoint) | extra
    return CloudStore(f"s3://{BUCKET}/t", merged, clock=clock or FakeClock(), ids=SeededIds(1))


def test_a_conflict_on_create_is_refused_after_one_request(store, stub):
    stub.script["PUT", "t/k"] = [409]

    assert store.create("k", b"x") == PreconditionFailed()
    assert stub.count("PUT", "t/k") == 1
    assert store.get("k") is None


def test_a_conflict_on_replace_is_refused_after_one_request(store, stub):
    stub.objects["t/k"] = b"old"
    stub.script["PUT", "t/k"] = [409]

    assert store.replace("k", b"new", expect=etag(b"old")) == PreconditionFailed()
    assert stub.count("PUT", "t/k") == 1
    assert store.get("k").body == b"old"


@pytest.mark.parametrize("event", ["applied 500", "applied drop"])
def test_a_create_whose_reply_is_lost_is_unknown_and_not_sent_again(store, stub, event):
    stub.script["PUT", "t/k"] = [event]

    assert isinstance(store.create("k", b"x"), WriteUnknown)
    assert stub.count("PUT", "t/k") == 1
    assert store.get("k").body == b"x"


@pytest.mark.parametrize("event", ["applied 500", "applied drop"])
def test_a_replace_whose_reply_is_lost_is_unknown_and_not_sent_again(store, stub, event):
    stub.objects["t/k"] = b"old"
    stub.script["PUT", "t/k"] = [event]

    assert isinstance(store.replace("k", b"new", expect=etag(b"old")), WriteUnknown)
    assert stub.count("PUT", "t/k") == 1
    assert store.get("k").body == b"new"


def test_a_late_create_creates_the_object_or_changes_nothing(store, stub):
    # Given two creates in flight, and another create that takes the key of one of them first
    stub.script |= {("PUT", "t/free"): ["late"], ("PUT", "t/taken"): ["late"]}
    assert isinstance(store.create("free", b"late"), WriteUnknown)
    assert isinstance(store.create("taken", b"late"), WriteUnknown)
    assert store.get("free") is None
    assert isinstance(store.create("taken", b"first"), Written)

    # When they land
    assert stub.land() == [200, 412]

    assert (store.get("free").body, store.get("taken").body) == (b"late", b"first")


def test_a_late_replace_changes_nothing_after_another_replace(store, stub):
    stub.objects |= {"t/same": b"old", "t/other": b"old"}
    stub.script |= {("PUT", "t/same"): ["late"], ("PUT", "t/other"): ["late"]}
    assert isinstance(store.replace("same", b"late", expect=etag(b"old")), WriteUnknown)
    assert isinstance(store.replace("other", b"late", expect=etag(b"old")), WriteUnknown)
    assert isinstance(store.replace("other", b"first", expect=etag(b"old")), Written)

    assert stub.land() == [200, 412]

    assert (store.get("same").body, store.get("other").body) == (b"late", b"first")


@pytest.mark.parametrize("event", [500, 503, "drop"])
def test_a_failed_write_whose_effect_is_unclear_is_unknown(store, stub, event):
    stub.script["PUT", "t/k"] = [event]

    assert isinstance(store.create("k", b"x"), WriteUnknown)
    assert stub.count("PUT", "t/k") == 1
    assert store.create("k", b"x") == Written(etag=etag(b"x"))


def test_a_write_to_an_unreachable_server_is_unknown():
    store = CloudStore(f"s3://{BUCKET}/t", options("http://127.0.0.1:1"), clock=FakeClock(), ids=SeededIds(1))

    assert isinstance(store.create("k", b"x"), WriteUnknown)


@pytest.mark.parametrize("event", [500, 503, "drop", "cut"])
def test_a_read_is_retried_until_it_is_answered(store, stub, event):
    stub.objects["t/k"] = b"content"
    stub.script["GET", "t/k"] = [event, event]

    assert store.get("k") == Object(body=b"content", etag=etag(b"content"))
    assert stub.count("GET", "t/k") == 3


@pytest.mark.rest
def test_a_read_without_an_answer_gives_up_after_its_budget(store, stub, clock):
    stub.script["GET", "t/k"] = [500] * 10_000

    with pytest.raises(Unavailable, match="did not answer for 30 s"):
        store.get("k")
    assert 30 <= clock.monotonic() < 35
    assert 5 < stub.count("GET", "t/k") < 500


def test_a_listing_continues_over_pages_and_failures(store, stub):
    for number in range(10):
        stub.objects[f"t/wal/{number}"] = b"12"
    stub.objects["t/wax"] = b""
    stub.script["LIST", "t/wal/"] = [500, "drop", "ok", 500]

    assert list(store.list("wal/")) == [Listed(key=f"wal/{number}", size=2) for number in range(10)]
    assert [line.key for line in store.list("wa")] == [*(f"wal/{number}" for number in range(10)), "wax"]


def test_a_denied_read_names_the_permission_that_absent_keys_need(store, stub):
    stub.script["GET", "t/k"] = [403]

    with pytest.raises(Invalid, match="denied access") as raised:
        store.get("k")
    assert "s3:ListBucket" in raised.value.remedy
    assert raised.value.where == {"url": f"s3://{BUCKET}/t", "object": "k"}
    assert stub.count("GET", "t/k") == 1


def test_a_denied_write_or_listing_is_invalid(store, stub):
    stub.script["PUT", "t/k"] = [403]
    stub.script["LIST", "t/"] = [403]

    with pytest.raises(Invalid, match="AccessDenied"):
        store.create("k", b"x")
    with pytest.raises(Invalid, match="AccessDenied"):
        list(store.list(""))


def test_another_region_is_invalid(store, stub):
    stub.script["PUT", "t/k"] = [301]

    with pytest.raises(Invalid, match="another region") as raised:
        store.create("k", b"x")
    assert "aws_region" in raised.value.remedy


def test_a_name_that_no_bucket_has_is_invalid_without_a_retry(store, stub):
    stub.script["GET", "t/k"] = [400]

    with pytest.raises(Invalid, match="the bucket does not exist"):
        store.get("k")
    assert stub.count("GET", "t/k") == 1


def test_plain_http_must_be_allowed(stub):
    store = open_handle(stub, allow_http="false")

    with pytest.raises(Invalid) as raised:
        store.create("k", b"x")
    assert "allow_http" in raised.value.remedy


def test_options_have_the_names_that_lance_accepts(stub):
    plain = {
        "ACCESS_KEY_ID": "a",
        "secret_access_key": "b",
        "region": "us-east-1",
        "endpoint": stub.endpoint,
        "aws_allow_http": "TRUE",
        "timeout": "20s",
        "connect_timeout": "5s",
        "client_max_retries": "3",
    }
    store = CloudStore(f"s3://{BUCKET}/t", plain, clock=FakeClock(), ids=SeededIds(1))

    assert isinstance(store.create("k", b"x"), Written)


@pytest.mark.parametrize(("url", "extra"), [("s3://b/t", {"nonsense": "1"}), ("nowhere://b/t", {}), ("s3://", {})])
def test_an_unknown_url_or_option_is_invalid(url, extra):
    with pytest.raises(Invalid) as raised:
        CloudStore(url, options("http://127.0.0.1:1") | extra)
    assert raised.value.where == {"url": url}


def test_a_bucket_that_does_not_exist_is_invalid(s3_endpoint):
    store = CloudStore("s3://no-such-bucket/t", options(s3_endpoint))

    for call in (
        lambda: store.get("k"),
        lambda: store.create("k", b"x"),
        lambda: store.replace("k", b"x", expect=etag(b"x")),
        lambda: list(store.list("")),
    ):
        with pytest.raises(Invalid, match="bucket does not exist"):
            call()


def test_the_directories_below_a_url_take_one_request(stub):
    stub.objects |= {"t/a.lance/x/y": b"", "t/a.lance/z": b"", "t/b.lance/x": b"", "t/file": b"", "u/c.lance/x": b""}

    assert sorted(list_directories(f"s3://{BUCKET}/t", options(stub.endpoint))) == ["a.lance", "b.lance"]
    assert len(stub.requests) == 1


def test_a_listing_of_directories_is_repeated_until_the_store_answers(store, stub):
    stub.objects["t/a.lance/x"] = b""
    stub.script["GET", BUCKET] = [500]

    assert store.directories() == ["a.lance"]
