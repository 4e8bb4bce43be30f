"""The requests that the DynamoDB registry sends, and how it is opened."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.exceptions import ClientError, NoCredentialsError

from lancelsm.common import aws
from lancelsm.common.clock import SeededIds
from lancelsm.common.layout import (
    Epoch,
    Generation,
    Key,
    Nonce,
    Position,
    RegionId,
    TableId,
    Version,
    head_key,
    staged_manifest,
)
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, Invalid
from lancelsm.region import head as heads
from lancelsm.region.head import Head, RegionState
from lancelsm.region.producers import MOST, Producer, producer_id
from lancelsm.registry import SwapLost
from lancelsm.registry.dynamodb import DynamoRegistry
from lancelsm.registry.open import open_registry
from tests.simulation.faults import FakeClock, MemoryStore

KEY = Key(partition="H#t#r", sort="head")
UUID = "9c1d5f0e-6d5b-4c5e-8f86-0a8f3c1f7b11"
_LARGE = 10**15


class Client:
    """A client that returns the given answers in order and records the requests."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    def __getattr__(self, method):
        def call(**request):
            self.requests.append((method, request))
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def registry_with(*answers):
    client = Client(*answers)
    return client, DynamoRegistry("registry", client=client, clock=FakeClock(), ids=SeededIds(1))


def client_error(code, *, status=400, **more):
    return ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}, **more}, "UpdateItem"
    )


def test_a_swap_is_conditional_on_expected_fields_and_on_fields_that_never_decrease():
    client, registry = registry_with({"Attributes": {"pk": {"S": "H"}, "sk": {"S": "h"}, "epoch": {"N": "2"}}})

    registry.swap(KEY, expect={"epoch": 1, "gone": None}, change={"epoch": 2, "owner": "o", "dirty": None})

    ((method, request),) = client.requests
    assert method == "update_item"
    assert request["ConditionExpression"] == (
        "attribute_exists(pk) AND #0 = :0 AND attribute_not_exists(#1) AND (attribute_not_exists(#0) OR #0 <= :1)"
    )
    assert request["UpdateExpression"] == "SET #0 = :1, #2 = :2 REMOVE #3"
    assert request["ExpressionAttributeNames"] == {"#0": "epoch", "#1": "gone", "#2": "owner", "#3": "dirty"}
    assert request["ExpressionAttributeValues"] == {":0": {"N": "1"}, ":1": {"N": "2"}, ":2": {"S": "o"}}


def test_a_creation_sends_no_empty_expressions():
    client, registry = registry_with({"Attributes": {"pk": {"S": "H"}, "sk": {"S": "h"}}})

    assert registry.swap(KEY, expect=None, change={"dirty": None}).record == {}

    ((_, request),) = client.requests
    assert request["ConditionExpression"] == "attribute_not_exists(pk)"
    assert not request.keys() & {"UpdateExpression", "ExpressionAttributeNames", "ExpressionAttributeValues"}


def test_the_refusing_item_distinguishes_a_lost_swap_from_a_decreasing_field():
    item = {"pk": {"S": "H"}, "sk": {"S": "h"}, "epoch": {"N": "5"}, "owner": {"S": "o"}}
    failed = client_error("ConditionalCheckFailedException", Item=item)
    _, registry = registry_with(failed, failed, client_error("ConditionalCheckFailedException"))

    assert registry.swap(KEY, expect={"owner": "p"}, change={"epoch": 4}) == SwapLost(record={"epoch": 5, "owner": "o"})
    with pytest.raises(Corrupt, match="epoch would decrease from 5 to 4"):
        registry.swap(KEY, expect={"owner": "o"}, change={"epoch": 4})
    assert registry.swap(KEY, expect={"owner": "o"}, change={"epoch": 4}) == SwapLost(record=None)


@pytest.mark.parametrize("attribute", [{"N": "1.5"}, {"BOOL": True}, {"M": {}}])
def test_a_field_that_lancelsm_never_writes_is_corrupt_and_named(attribute):
    _, registry = registry_with({"Item": {"pk": {"S": "H"}, "sk": {"S": "h"}, "epoch": attribute}})

    with pytest.raises(Corrupt) as raised:
        registry.read(KEY)
    assert raised.value.where == {"record": "H#t#r/head", "field": "epoch"}


def test_missing_credentials_are_invalid():
    _, registry = registry_with(NoCredentialsError())

    with pytest.raises(Invalid, match="credentials"):
        registry.swap(KEY, expect=None, change={"n": 1})


def test_the_dirty_index_is_read_to_its_last_page_and_needs_its_own_grant():
    def page(region, **more):
        item = {"pk": {"S": f"H#t#{region}"}, "sk": {"S": "head"}, "dirty": {"S": "90"}}
        return {"Items": [item], **more}

    client, registry = registry_with(
        page("b", LastEvaluatedKey={"pk": "x"}), page("a"), client_error("AccessDeniedException")
    )

    assert registry.dirty() == [("t", "a", "90"), ("t", "b", "90")]
    assert client.requests[1] == (
        "scan",
        {"TableName": "registry", "IndexName": "dirty", "ExclusiveStartKey": {"pk": "x"}},
    )
    with pytest.raises(Invalid) as raised:
        registry.dirty()
    assert raised.value.remedy == "Grant dynamodb:Scan on the index dirty of the table registry"


def test_a_full_head_is_one_unit_of_capacity():
    key = head_key(TableId(UUID), RegionId(UUID))
    nonce = Nonce("f" * 32)
    head = Head(
        epoch=Epoch(_LARGE),
        owner="o" * 100,
        status=RegionState.SEALED,
        next_position=Position(_LARGE),
        entry_setsum=Setsum(),
        wal_rows=_LARGE,
        wal_bytes=_LARGE * 1000,
        producers={producer_id(str(number)): Producer(10**20 - 1, 20_000) for number in range(MOST)},
        nonce=nonce,
        first_position=Position(_LARGE),
        manifest_version=Version(_LARGE),
        manifest_key=staged_manifest(RegionId(UUID), Version(_LARGE), nonce),
        manifest_epoch=Epoch(_LARGE),
        current_generation=Generation(_LARGE),
        collector_round=_LARGE,
        manifest_nonce=nonce,
        merged=Generation(_LARGE),
        dirty="1800000000",
    )

    assert item_bytes(key, heads.to_record(head)) <= 1024
    assert heads.from_record(heads.to_record(head)).producers == head.producers


def item_bytes(key, record):
    """The size that DynamoDB charges: UTF-8 bytes of names and text; half a byte per digit of numbers, plus up to 3."""
    values = {"pk": key.partition, "sk": key.sort, **record}
    return sum(
        len(name.encode())
        + (
            len(str(value)) // 2 + 3
            if isinstance(value, int)
            else len(value if isinstance(value, bytes) else value.encode())
        )
        for name, value in values.items()
    )


def test_a_registry_is_opened_by_the_name_of_its_table(monkeypatch):
    services = []
    monkeypatch.setattr(aws, "client", lambda service: services.append(service) or Client({}))

    registry = open_kind("dynamodb:lancelsm-dev-registry")

    assert registry.read(KEY) is None
    assert services == ["dynamodb"]


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [("dynamodb", "dynamodb:NAME"), ("dynamodb:", "dynamodb:NAME"), ("dynamo:x", "sqlite, object or dynamodb:NAME")],
)
def test_a_registry_without_a_name_or_of_an_unknown_kind_is_invalid(kind, remedy):
    with pytest.raises(Invalid) as raised:
        open_kind(kind)
    assert remedy in raised.value.remedy


def open_kind(kind):
    return open_registry(kind, uri=Path("t"), store=MemoryStore(), clock=FakeClock(), ids=SeededIds(1))
