"""The client with the real handlers: rows that an app sends arrive unchanged in the table, on every path."""

from __future__ import annotations

import datetime
import decimal
import io
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.client import Client
from lancelsm.common.clock import SeededIds
from lancelsm.errors import Contended, Invalid
from lancelsm.stack.delivery.queue import Delivery, Outgoing, Sent
from tests.handlers.conftest import load_function
from tests.simulation.faults import FakeClock

UTC = datetime.UTC

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("share", pa.float64()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
    ]
)


def row(key: int) -> dict[str, Any]:
    return {
        "id": key,
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        "day": datetime.date(2026, 1, 2),
        "price": decimal.Decimal("12.50"),
        "share": float("inf"),
        "raw": b"\x00\xff",
        "tags": ["żółć", None],
    }


class Queue:
    """A FIFO queue that ignores repeated messages and delivers all messages at once."""

    def __init__(self) -> None:
        self.messages: dict[tuple[str, str], Outgoing] = {}

    def identity(self) -> str:
        return "q"

    def send(self, messages: Sequence[Outgoing]) -> list[Sent]:
        for message in messages:
            self.messages.setdefault((message.group, message.dedup), message)
        return [Sent(id="m", sequence="1") for _ in messages]

    def postpone(self, receipts: Collection[str], *, seconds: int) -> None:
        """Messages are never hidden."""


class Context:
    aws_request_id = "request"
    function_name = "function"

    def get_remaining_time_in_millis(self) -> int:
        return 60_000


class Lambda:
    """Lambda, S3 and the runtime: calls the handlers in this process, and returns errors as the service does."""

    def __init__(self, handlers: dict[str, Callable[..., Any]], work: Path) -> None:
        self.handlers = handlers
        self.work = work
        self.payloads: list[int] = []

    def service(self, name: str, **_: object) -> Lambda:
        return self

    def invoke(self, *, FunctionName: str, Payload: bytes) -> Any:
        self.payloads.append(len(Payload))
        try:
            answer, extra = self.handlers[FunctionName](json.loads(Payload), Context()), {}
        except Exception as error:  # noqa: BLE001 - returned as the service returns it
            answer, extra = (
                {"errorType": type(error).__name__, "errorMessage": str(error)},
                {"FunctionError": "Unhandled"},
            )
        return {"Payload": io.BytesIO(json.dumps(answer).encode()), **extra}

    def put_object(self, *, Bucket: str, Key: str, Body: bytes) -> None:
        path = self.work.parent / Key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(Body)


class Deployment:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in (
            ("LANCELSM_STACK", "test"),
            ("LANCELSM_TABLES", f"file://{root}/tables"),
            ("LANCELSM_WORK", f"file://{root}/work"),
            ("LANCELSM_QUEUE_URL", "queue"),
            ("LANCELSM_DEAD_LETTER_URL", "dead-letters"),
        ):
            monkeypatch.setenv(name, value)
        self.queue = Queue()
        self.writer = load_function("writer_flush")
        ingest, self.query = load_function("ingest"), load_function("query")
        apply = load_function("apply")
        for module in (ingest, self.writer):
            monkeypatch.setattr(module, "QUEUE", self.queue)
        handlers = {"ingest": ingest.handler, "writer_flush": self.writer.handler, "query": self.query.handler}
        handlers["apply"] = apply.handler
        self.aws = Lambda(handlers, root / "work")
        names = {name: name for name in handlers}
        self.client = Client(
            functions=names,
            work="s3://bucket/work",
            interval_seconds=None,
            service=self.aws.service,
            clock=FakeClock(),
            ids=SeededIds(1),
        )
        self.table = lancelsm.create(root / "tables" / "orders", COLUMNS, primary_key="id", regions="bucket(id, 2)")

    def deliver(self) -> None:
        """Let the writer apply what is on the queue, as its event source mapping does."""
        from lancelsm.stack.delivery import apply

        deliveries = [
            Delivery(
                id=str(number),
                receipt=str(number),
                # Tables are paths here, and URLs in a deployment.
                body=message.body.replace('"table":"/', '"table":"file:///'),
                group=message.group,
                sequence=number,
            )
            for number, message in enumerate(self.queue.messages.values(), 1)
        ]
        ports = apply.BatchPorts(
            tables=self.writer.TABLES,
            inbox=self.writer.INBOX,
            dead_letters=self.queue,  # type: ignore[arg-type]
            source="q",
        )
        done = apply.apply(deliveries, ports=ports, seconds=60)
        assert [outcome for outcome in done.outcomes if outcome.rejection or outcome.retry] == []
        assert {one for entry in done.entries for one in entry.requests} == {Context.aws_request_id}

    def rows(self) -> list[dict[str, Any]]:
        return sorted(self.table.scan().to_arrow().to_pylist(), key=lambda row: int(row["id"]))


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    return Deployment(tmp_path, monkeypatch)


@pytest.mark.parametrize("form", ["dicts", "arrow"])
def test_conditional_writes_arrive_unchanged(deployment: Deployment, form: str) -> None:
    def data(*rows: dict[str, Any]) -> Any:
        kinds = pa.schema([field for field in COLUMNS if field.name in rows[0]])
        return list(rows) if form == "dicts" else pa.Table.from_pylist(list(rows), schema=kinds)

    client = deployment.client
    done = client.apply("orders", data(row(1), row(2)), if_absent=True)
    assert (done.rows, done.skipped) == (2, 0)
    read = client.get("orders", [1, 7])
    assert [one["id"] for one in read.rows] == [1]

    done = client.apply("orders", data({"id": 1, "share": 0.5}), partial=True, if_unchanged=read.token)
    assert done.rows == 1
    with pytest.raises(Contended):
        client.apply("orders", data(row(1)), if_unchanged=read.token)
    assert client.apply("orders", data(row(2)), if_newer="day").skipped == 1
    assert client.update("orders", where="id = 2", set={"share": "share - 1"}).rows == 1
    assert deployment.rows() == [{**row(1), "share": 0.5}, row(2)]
    assert client.delete_where("orders", "share = 0.5").rows == 1
    assert client.apply("orders", []).rows == 0
    assert deployment.rows() == [row(2)]


@pytest.mark.parametrize("form", ["dicts", "arrow"])
def test_rows_sent_through_the_queue_arrive_unchanged(deployment: Deployment, form: str) -> None:
    sent = [row(key) for key in range(20)]
    data: Any = sent if form == "dicts" else pa.Table.from_pylist(sent, schema=COLUMNS)

    deployment.client.upsert("orders", data)
    deployment.client.delete("orders", [{"id": 3}])
    deployment.client.flush()
    deployment.deliver()

    assert deployment.rows() == [one for one in sent if one["id"] != 3]


@pytest.mark.parametrize("form", ["dicts", "arrow"])
def test_direct_writes_return_positions_and_are_visible_at_once(deployment: Deployment, form: str) -> None:
    sent = [row(key) for key in range(20)]
    data: Any = sent if form == "dicts" else pa.Table.from_pylist(sent, schema=COLUMNS)

    committed = deployment.client.write("orders", data)

    assert (committed.rows, {entry.position for entry in committed.entries}) == (20, {1})
    assert deployment.rows() == sent
    assert deployment.client.count("orders", where="id < 5") == 5
    assert [found["id"] for found in deployment.client.query("orders", keys=[7], columns=["id"])] == [7]


def test_arrow_answers_have_the_types_of_the_table(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bytes] = []

    def keep(parts: Iterable[bytes], **_: object) -> str:
        kept.append(b"".join(parts))
        return (tmp_path / "answer").as_uri()

    monkeypatch.setattr(deployment.query, "keep_in_bucket", keep)
    monkeypatch.setattr(deployment.client, "_fetch", lambda _: kept[-1])
    rows = pa.Table.from_pylist([row(key) for key in range(20)], schema=COLUMNS)
    deployment.client.write("orders", rows)
    deployment.table.flush()
    colours = pa.table({"id": [1, 2], "c": pa.array(["red", "blue"]).dictionary_encode()})
    table = lancelsm.create(tmp_path / "tables" / "colours", colours, primary_key="id")
    table.upsert(colours.set_column(1, "c", pa.array(["green", "grey"]).dictionary_encode()).slice(1))

    every = deployment.client.query_arrow("orders")
    found = deployment.client.query_arrow("orders", keys=[7, 8], columns=["id", "price"])
    none = deployment.client.query_arrow("orders", where="id < 0")
    two = deployment.client.query_arrow("colours")

    assert every.sort_by("id").cast(COLUMNS).equals(rows)
    assert found.sort_by("id").equals(every.select(["id", "price"]).sort_by("id").slice(7, 2))
    assert (none.num_rows, none.schema) == (0, every.schema)
    assert dict(zip(*two.to_pydict().values(), strict=True)) == {1: "red", 2: "grey"}


def test_a_row_too_large_for_a_message_is_sent_through_the_bucket(deployment: Deployment) -> None:
    sent = [{**row(1), "raw": bytes(range(256)) * 10_000}, row(2)]

    deployment.client.upsert("orders", pa.Table.from_pylist(sent, schema=COLUMNS))
    deployment.client.flush()
    deployment.deliver()

    assert deployment.rows() == sent
    assert max(deployment.aws.payloads) < 10_000


def test_the_error_for_an_invalid_row_names_its_column(deployment: Deployment) -> None:
    deployment.client.upsert("orders", [{**row(1), "price": "much"}])

    with pytest.raises(Invalid, match="price") as raised:
        deployment.client.flush()

    assert raised.value.where["field"] == "price"
    assert deployment.queue.messages == {}
