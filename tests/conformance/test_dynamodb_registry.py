"""The DynamoDB registry under lost replies, throttling and stale replicas: a swap happens once or not at all."""

from __future__ import annotations

import pytest

from lancelsm.common.clock import SeededIds
from lancelsm.common.layout import RegionId, TableId, head_key
from lancelsm.errors import Corrupt, Invalid, Unavailable
from lancelsm.region.catalog import TableContext
from lancelsm.region.head import RegionState
from lancelsm.registry import SwapApplied, SwapLost, SwapUnknown
from lancelsm.registry.dynamodb import DynamoRegistry
from lancelsm.wal.append import append
from lancelsm.wal.claim import claim, create_region
from tests.conformance.dynamodb import create_registry_table, dynamodb_client
from tests.simulation.environment import row
from tests.simulation.faults import FakeClock, MemoryStore

KEY = head_key(TableId("9c1d"), RegionId("71aa"))
LOST = ["500", "drop", "applied 500", "applied drop", "late", "cut"]
BUSY = [
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TransactionConflictException",
]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def table(proxy, tmp_path):
    return create_registry_table(dynamodb_client(proxy.endpoint), tmp_path.name)


@pytest.fixture
def registry(proxy, table, clock):
    return open_handle(proxy, table, clock)


def open_handle(proxy, table, clock=None):
    client = dynamodb_client(proxy.endpoint)
    return DynamoRegistry(table, client=client, clock=clock or FakeClock(), ids=SeededIds(1))


@pytest.mark.parametrize("event", LOST)
def test_a_swap_without_a_reply_is_unknown_and_not_sent_again(registry, proxy, event):
    registry.swap(KEY, expect=None, change={"n": 1, "nonce": "a"})
    proxy.script["UpdateItem"] = [event]

    outcome = registry.swap(KEY, expect={"n": 1}, change={"n": 2, "nonce": "b"})

    # It was sent once, and a later read shows its effect
    assert isinstance(outcome, SwapUnknown)
    assert proxy.count("UpdateItem") == 2
    happened = event.startswith("applied") or event == "cut"
    assert registry.read(KEY) == ({"n": 2, "nonce": "b"} if happened else {"n": 1, "nonce": "a"})


def test_a_late_swap_changes_nothing_after_another_swap(registry, proxy):
    # Given a swap in flight, and a faster one
    registry.swap(KEY, expect=None, change={"n": 1})
    proxy.script["UpdateItem"] = ["late"]
    assert isinstance(registry.swap(KEY, expect={"n": 1}, change={"n": 2, "by": "late"}), SwapUnknown)
    assert registry.swap(KEY, expect={"n": 1}, change={"n": 2, "by": "fast"}) == SwapApplied(
        record={"n": 2, "by": "fast"}
    )

    # When it lands
    proxy.land()

    assert registry.read(KEY) == {"n": 2, "by": "fast"}


def test_a_late_swap_happens_once(registry, proxy):
    registry.swap(KEY, expect=None, change={"n": 1})
    proxy.script["UpdateItem"] = ["late"]
    registry.swap(KEY, expect={"n": 1}, change={"n": 2, "by": "us"})

    proxy.land()

    assert registry.swap(KEY, expect={"n": 1}, change={"n": 2}) == SwapLost(record={"n": 2, "by": "us"})


@pytest.mark.parametrize("event", BUSY)
def test_a_throttled_swap_is_retried(registry, proxy, event):
    proxy.script["UpdateItem"] = [event] * 3

    assert registry.swap(KEY, expect=None, change={"n": 1}) == SwapApplied(record={"n": 1})
    assert proxy.count("UpdateItem") == 4


def test_a_swap_that_stays_throttled_is_unavailable_and_has_no_effect(registry, proxy, clock):
    proxy.script["UpdateItem"] = ["ThrottlingException"] * 10_000

    with pytest.raises(Unavailable, match="nothing was written"):
        registry.swap(KEY, expect=None, change={"n": 1})
    assert 30 <= clock.monotonic() < 35
    assert 5 < proxy.count("UpdateItem") < 500
    assert registry.read(KEY) is None


def test_a_swap_that_was_throttled_and_then_lost_its_reply_is_unknown(registry, proxy):
    proxy.script["UpdateItem"] = ["ThrottlingException", "applied drop"]

    assert isinstance(registry.swap(KEY, expect=None, change={"n": 1}), SwapUnknown)
    assert proxy.count("UpdateItem") == 2


@pytest.mark.parametrize("event", ["500", "drop", "cut", "ThrottlingException"])
def test_a_read_is_retried_until_it_is_answered(registry, proxy, event):
    registry.swap(KEY, expect=None, change={"n": 1})
    proxy.script |= {"GetItem": [event] * 2, "Query": [event] * 2}

    assert registry.read(KEY) == {"n": 1}
    assert registry.list(KEY.partition) == [(KEY, {"n": 1})]
    assert (proxy.count("GetItem"), proxy.count("Query")) == (3, 3)


@pytest.mark.rest
def test_a_read_without_an_answer_gives_up_after_its_budget(registry, proxy, clock):
    proxy.script["GetItem"] = ["500"] * 10_000

    with pytest.raises(Unavailable, match="got no answer for 30 s"):
        registry.read(KEY)
    assert 30 <= clock.monotonic() < 35


def test_all_reads_are_consistent_and_a_lost_swap_needs_no_read(registry, proxy, table):
    # Given a proxy whose replicas have no data
    registry.swap(KEY, expect=None, change={"n": 1})
    inconsistent = dynamodb_client(proxy.endpoint).get_item(
        TableName=table, Key={"pk": {"S": KEY.partition}, "sk": {"S": KEY.sort}}
    )
    assert "Item" not in inconsistent
    before = len(proxy.requests)

    assert registry.read(KEY) == {"n": 1}
    assert registry.list(KEY.partition) == [(KEY, {"n": 1})]
    assert registry.swap(KEY, expect={"n": 0}, change={"n": 1}) == SwapLost(record={"n": 1})
    registry.swap(KEY, expect={"n": 1}, change={"epoch": 5})
    with pytest.raises(Corrupt, match="epoch"):
        registry.swap(KEY, expect={}, change={"epoch": 4})

    requests = proxy.requests[before:]
    assert [action for action, _ in requests] == ["GetItem", "Query", "UpdateItem", "UpdateItem", "UpdateItem"]
    assert all(body["ConsistentRead"] for action, body in requests if action != "UpdateItem")


def test_a_swap_sends_only_the_fields_that_it_names(registry, proxy):
    registry.swap(KEY, expect=None, change={"epoch": 1, "owner": "o", "next_position": 1, "status": "open"})

    registry.swap(KEY, expect={"epoch": 1, "next_position": 1}, change={"next_position": 2})

    _, body = proxy.requests[-1]
    assert set(body["ExpressionAttributeNames"].values()) == {"epoch", "next_position"}


@pytest.mark.parametrize(
    ("event", "remedy"),
    [
        ("AccessDeniedException", "dynamodb:UpdateItem"),
        ("ResourceNotFoundException", "Deploy the stack"),
        ("UnrecognizedClientException", "profile"),
        ("ValidationException", "pk and sk"),
    ],
)
def test_a_permanent_refusal_is_invalid_at_once_and_has_a_remedy(registry, proxy, table, event, remedy):
    proxy.script["UpdateItem"] = [event]

    with pytest.raises(Invalid) as raised:
        registry.swap(KEY, expect=None, change={"n": 1})
    assert remedy in raised.value.remedy
    assert raised.value.where == {"registry": f"dynamodb:{table}"}
    assert proxy.count("UpdateItem") == 1


def test_an_absent_dynamodb_table_is_invalid_for_every_call(proxy):
    registry = open_handle(proxy, "no-such-table")

    for call in (
        lambda: registry.read(KEY),
        lambda: registry.list(KEY.partition),
        lambda: registry.swap(KEY, expect=None, change={"n": 1}),
        lambda: registry.delete(KEY, expect={"n": 1}),
        registry.dirty,
    ):
        with pytest.raises(Invalid, match="no DynamoDB table 'no-such-table'"):
            call()


def test_with_an_unreachable_server_a_swap_is_unknown_and_a_read_unavailable():
    client = dynamodb_client("http://127.0.0.1:1")
    registry = DynamoRegistry("registry", client=client, clock=FakeClock(), ids=SeededIds(1))

    assert isinstance(registry.swap(KEY, expect=None, change={"n": 1}), SwapUnknown)
    with pytest.raises(Unavailable):
        registry.read(KEY)


@pytest.mark.parametrize("event", LOST)
def test_a_deletion_without_a_reply_is_unknown(registry, proxy, event):
    registry.swap(KEY, expect=None, change={"n": 1})
    proxy.script["DeleteItem"] = [event]

    assert isinstance(registry.delete(KEY, expect={"n": 1}), SwapUnknown)
    assert proxy.count("DeleteItem") == 1


def test_the_index_lists_the_dirty_regions_of_all_tables(registry):
    regions = [(TableId(f"t{number % 3}"), RegionId(f"r{number:02}"), f"{100 + number}") for number in range(20)]
    for table, region, since in regions:
        registry.swap(head_key(table, region), expect=None, change={"epoch": 1, "dirty": since})
    registry.swap(head_key(TableId("t0"), RegionId("clean")), expect=None, change={"epoch": 1})
    registry.swap(head_key(*regions[0][:2]), expect={"epoch": 1}, change={"dirty": None})

    assert registry.dirty() == sorted(regions[1:])


def context(registry, clock):
    return TableContext(
        uri="memory",
        table=TableId("9c1d"),
        objects=MemoryStore(),
        registry=registry,
        clock=clock,
        ids=SeededIds(2),
        parallel=1,
    )


@pytest.mark.parametrize("event", [*LOST, "ThrottlingException"])
def test_an_append_whose_swap_loses_its_reply_is_acknowledged_once(registry, proxy, clock, event):
    # Given a region, and a fault in the next swap
    region = create_region(context(registry, clock), spec_id=0, values=(), owner="us")
    proxy.script["UpdateItem"] = [event]

    # When two entries are appended, and a late swap lands between them
    first = append(region, row(1), owner="us")
    proxy.land()
    second = append(region, row(2), owner="us", held=first.head)

    # Then each entry is committed once
    assert (first.summary.position, second.summary.position) == (1, 2)
    head = region.head()
    assert (head.next_position, head.wal_rows) == (3, 2)


@pytest.mark.parametrize("event", [*LOST, "ThrottlingException"])
@pytest.mark.parametrize("call", [0, 1, 2])
def test_a_claim_succeeds_whichever_of_its_swaps_loses_its_reply(registry, proxy, clock, event, call):
    # Given a region, and a fault in the claim's swap of the epoch, the fence or the manifest
    region = create_region(context(registry, clock), spec_id=0, values=(), owner="us")
    proxy.script["UpdateItem"] = [*["ok"] * call, event]

    head = claim(region, owner="them")

    proxy.land()
    assert region.head() == head
    assert (head.owner, head.epoch, head.manifest_epoch, head.status) == ("them", 2, 2, RegionState.OPEN)


@pytest.mark.parametrize("event", [*LOST, "ThrottlingException"])
@pytest.mark.parametrize("call", [0, 1])
def test_a_region_is_created_once_whichever_of_its_swaps_loses_its_reply(registry, proxy, clock, event, call):
    proxy.script["UpdateItem"] = [*["ok"] * call, event]

    region = create_region(context(registry, clock), spec_id=0, values=(), owner="us")

    proxy.land()
    assert append(region, row(1), owner="us").summary.position == 1
    assert [key.sort for key, _ in registry.list("T#9c1d")] == [region.id]
