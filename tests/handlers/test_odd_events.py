"""Every event of a function ends in a JSON document or in one of the six kinds of errors, whatever the event is."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lancelsm
from lancelsm import errors
from lancelsm.errors import LsmError
from lancelsm.record.normalize import upserts
from lancelsm.record.schema import TableSchema
from lancelsm.region.catalog import Region
from lancelsm.stack.delivery.message import Message, encode, packed
from lancelsm.table import Table
from tests.handlers.conftest import Context, load_function
from tests.handlers.test_client import Queue
from tests.unit.counting import CountingRegistry

NAMES = (
    "region_claim",
    "compaction",
    "merger",
    "query",
    "apply",
    "gc_round",
    "gc_sweep",
    "scrub",
    "report",
    "backup",
    "ingest",
    "writer_flush",
)
KINDS = {
    errors.Contended,
    errors.Fenced,
    errors.Ambiguous,
    errors.Unavailable,
    errors.Invalid,
}  # and `Corrupt`, which nothing here may be
ROWS = pa.table({"id": [1], "state": ["x"], "tags": [["a"]]})
DEEP: Any = []
for _ in range(900):
    DEEP = [DEEP]
HTTP = {"http": {"method": "POST"}}

# What JSON can have.
ODD = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            False,
            0,
            -1,
            1,
            2**31,
            2**63,
            10**400,
            1.5,
            1e308,
            "",
            "orders",
            "orders/",
            "orders/x",
            "..",
            "../work",
            "none",
            "a\0b",
            "\ud800",
            "a\nb",
            "a?b#c",
            "%2e%2e",
            "x" * 5_000,
            "s3://other/bucket",
            "://",
            "id = 1",
            "id = ?",
            "(" * 500,
            "state = 'x'",
            "upsert",
            "delete",
            "changes",
            "debezium",
            "mark",
            "verify",
            "plan",
            "record",
            "merge",
            "optimize",
            "inprocess",
            "====",
            "AAAA",
            base64.b64encode(packed(ROWS)).decode(),
            base64.b64encode(packed(ROWS)[:-30]).decode(),
            base64.b64encode(packed(ROWS.select(["id"]))).decode(),
            [],
            [None],
            [1],
            ["id"],
            ["x", {}],
            [[]],
            [{}],
            [{"id": 1}],
            [{"op": "u", "before": None, "after": {"id": 1, "state": "x", "tags": []}}],
            [{"id": 1, "state": "x", "tags": []}],
            [{"id": 1, "state": "x", "tags": [{}]}],
            [{"id": "x", "state": 1, "tags": 1}],
            [{"id": 10**30, "state": "\ud800", "tags": DEEP}],
            {},
            {"id": 1},
            {"id": [1]},
            {"": None},
            DEEP,
        ]
    ),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    for name, value in (
        ("LANCELSM_STACK", "test"),
        ("LANCELSM_TABLES", f"file://{tmp_path}/tables"),
        ("LANCELSM_WORK", f"file://{tmp_path}/work"),
        ("LANCELSM_QUEUE_URL", "queue"),
        ("LANCELSM_DEAD_LETTER_URL", "dead-letters"),
        ("LANCELSM_DISPATCH_QUEUE_URL", "chunks"),
        ("LANCELSM_BACKUP_QUEUE_URL", "backups"),
        ("LANCELSM_BACKUPS", f"file://{tmp_path}/backups"),
        ("LANCELSM_REGISTRY", "dynamodb:heads"),
        ("LANCELSM_REPORT", "arn"),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    table = lancelsm.create(tmp_path / "tables" / "orders", ROWS, primary_key="id", regions="bucket(id, 2)")
    table.upsert(ROWS)
    return table


def load(name: str) -> Any:
    module = load_function(name)
    for queue in {"QUEUE", "DEAD_LETTERS"} & set(vars(module)):
        setattr(module, queue, Queue())
    if name == "report":
        module._registry = CountingRegistry
    return module


def record(data: st.DataObject, region: Region, number: int) -> Any:
    """Draw a delivery of a message, of which some fields are odd."""
    message = Message(
        table="orders",
        region=region.id,
        values=region.values,
        producer="p",
        sequence=number,
        rows=packed(upserts(ROWS, schema=TableSchema(columns=ROWS.schema, primary_key=("id",)))),
    )
    body = json.loads(encode(message))
    body |= data.draw(st.dictionaries(st.sampled_from(sorted(body)), ODD, max_size=2), label="body")
    attributes = {"MessageGroupId": region.id, "SequenceNumber": str(number), "ApproximateReceiveCount": "1"}
    text = data.draw(st.just(json.dumps(body)) | st.text(max_size=3), label="text")
    made = {"messageId": f"m{number}", "receiptHandle": "r", "body": text, "attributes": attributes}
    return made | data.draw(st.dictionaries(st.sampled_from(sorted(made)), ODD, max_size=1), label="record")


def event_of(module: Any, data: st.DataObject, regions: list[Region]) -> Any:
    """Draw an event: often with the right names, and often for the table that exists."""
    names = [field.name for field in fields(module.Input)]
    form = data.draw(st.sampled_from(["fields", "fields", "fields", "odd", "http", "batch", "records"]), label="form")
    if form == "odd":
        return data.draw(ODD, label="event")
    if form == "batch":
        known = ["messageId", "receiptHandle", "body", "attributes"]
        records = st.lists(st.dictionaries(st.sampled_from(known), ODD, max_size=4) | ODD, max_size=3) | ODD
        return {"Records": data.draw(records, label="Records")}
    if form == "records":
        count = data.draw(st.integers(1, 3), label="records")
        return {"Records": [record(data, data.draw(st.sampled_from(regions)), number) for number in range(count)]}
    event = {"table": "orders", **data.draw(st.dictionaries(st.sampled_from(names), ODD, max_size=4), label="fields")}
    if form == "http":
        encoded = data.draw(ODD, label="isBase64Encoded")
        body = data.draw(st.just(json.dumps(event)) | ODD, label="body")
        return {"requestContext": HTTP, "body": body, "isBase64Encoded": encoded}
    return event


def check(name: str, module: Any, event: Any) -> None:
    refused = None
    try:
        answer = module.handler(event, Context(left=7_000))
    except LsmError as error:
        refused = error
    if refused is not None:
        document = json.loads(str(refused))["error"]
        assert type(refused) in KINDS, document
        assert document["kind"] == type(refused).__name__
        assert document["message"]
        assert document["remedy"]
        return
    json.dumps(answer, allow_nan=False)
    if name == "report":  # a page
        assert isinstance(answer, str)
        return
    assert isinstance(answer, Mapping)
    assert answer.get("statusCode") in (None, 200, 400, 409, 503), (name, answer)


def sample(name: str, examples: int, table: Table) -> None:
    module, regions = load(name), table.list_regions()

    @settings(max_examples=examples)
    @given(st.data())
    def one(data: st.DataObject) -> None:
        check(name, module, event_of(module, data, regions))

    one()


@pytest.mark.rest
@pytest.mark.parametrize("name", NAMES)
def test_an_odd_event_ends_right(table: Table, name: str) -> None:
    sample(name, 30, table)

    assert table.scrub().ok


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_many_odd_events_end_right(table: Table, name: str) -> None:
    sample(name, 1_000, table)

    assert table.scrub().ok
