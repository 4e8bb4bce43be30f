"""The client of a deployment: rows in order, once, and no retry that the queue might no longer recognise."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import os
import pathlib
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lancelsm.client import Client
from lancelsm.client.batching import BATCH_BYTES, RETRY_SECONDS
from lancelsm.common.clock import SeededIds
from lancelsm.common.write_result import Committed, CommittedEntry
from lancelsm.errors import Ambiguous, Contended, Fenced, Invalid, LsmError, Unavailable
from tests.simulation.faults import FakeClock
from tests.unit.functions_fake import (
    FakeAws,
    Fault,
    broken_answer,
    failed,
    lost_reply,
    lost_request,
    no_connection,
    no_trust,
    raised,
    refused,
    throttled,
)


class State(Enum):
    PAID = "paid"
    KEY = uuid.UUID(int=1)


def client_and_aws(*faults: Fault | None, clock: FakeClock | None = None, **options: Any) -> tuple[Client, FakeAws]:
    clock = clock or FakeClock()
    aws = FakeAws(clock, faults=faults)
    given = {"interval_seconds": None, "clock": clock, "ids": SeededIds(1), "service": aws.service, **options}
    return Client(**given), aws


def rows(*ids: int, v: str = "a") -> list[dict[str, Any]]:
    return [{"id": key, "v": v} for key in ids]


def ids(aws: FakeAws, table: str = "orders") -> list[int]:
    return [row["id"] for row in aws.delivered.get(table, [])]


def test_small_writes_are_sent_in_one_request_at_a_flush() -> None:
    client, aws = client_and_aws()

    for key in range(100):
        client.upsert("orders", rows(key))
    assert aws.payloads == []
    client.flush()

    assert (len(aws.payloads), ids(aws)) == (1, list(range(100)))


def test_leaving_the_context_sends_buffered_rows() -> None:
    client, aws = client_and_aws()

    with client:
        client.upsert("orders", rows(1))

    assert ids(aws) == [1]
    with pytest.raises(Invalid, match="closed"):
        client.upsert("orders", rows(2))


def test_a_request_holds_up_to_one_mebibyte_of_rows() -> None:
    client, aws = client_and_aws()
    row = {"id": 0, "v": "x" * 1000}
    size = len(json.dumps(row)) + 2

    for key in range(10, 3 * BATCH_BYTES // size + 20):
        client.upsert("orders", [row | {"id": key}])

    assert len(aws.payloads) == 3
    assert all(BATCH_BYTES - size < len(payload) <= BATCH_BYTES + 300 for payload in aws.payloads)


def test_one_call_with_many_rows_is_several_requests_in_order() -> None:
    client, aws = client_and_aws()

    client.upsert("orders", [{"id": key, "v": "x" * 10_000} for key in range(250)])
    client.flush()

    assert (len(aws.payloads), ids(aws)) == (3, list(range(250)))
    assert [event["sequence"] for event in aws.events] == [0, 1, 2]
    assert len({event["producer"] for event in aws.events}) == 1


def test_upserts_and_deletes_of_a_key_keep_their_order() -> None:
    client, aws = client_and_aws()

    client.upsert("orders", rows(1))
    client.delete("orders", [{"id": 1}])
    client.upsert("orders", rows(1, v="b"))
    client.flush()

    assert [(row["op"], row.get("v")) for row in aws.delivered["orders"]] == [
        ("upsert", "a"),
        ("delete", None),
        ("upsert", "b"),
    ]


def test_arrow_data_of_one_schema_is_sent_together_and_compressed() -> None:
    client, aws = client_and_aws()

    for start in range(0, 1000, 100):
        client.upsert("orders", pa.table({"id": range(start, start + 100), "v": ["same"] * 100}))
    client.flush()

    assert (len(aws.payloads), ids(aws)) == (1, list(range(1000)))
    assert len(aws.payloads[0]) < 16_000 / 2


def test_arrow_data_may_have_empty_chunks_and_narrow_dictionaries() -> None:
    client, aws = client_and_aws()
    ids = pa.chunked_array([pa.array(range(5))])
    numbers = pa.array([1, None, 2, 3, 4, 5])
    gaps = pa.table({"id": ids, "v": pa.chunked_array([numbers[:2], numbers[:0], numbers[3:]])})
    days = [pa.array([f"{day} {word}" for word in range(100)]).dictionary_encode() for day in range(3)]
    categories = [
        pa.table({"id": pa.array(range(100)), "v": day.cast(pa.dictionary(pa.int8(), pa.string()))}) for day in days
    ]

    for data in (gaps, *categories):
        client.upsert("orders", data)
        client.flush()
    client.upsert("orders", pa.concat_tables(categories))
    client.flush()

    sent = [pa.ipc.open_stream(base64.b64decode(event["arrow"])).read_all().to_pydict() for event in aws.events]
    assert sent == [data.to_pydict() for data in (gaps, *categories, pa.concat_tables(categories))]


def test_arrow_and_dicts_keep_their_order() -> None:
    client, aws = client_and_aws()

    client.upsert("orders", rows(1))
    client.upsert("orders", pa.table({"id": [2]}))
    client.upsert("orders", pa.table({"id": pa.array([3], pa.int32())}))
    client.upsert("orders", rows(4))
    client.flush()

    assert ids(aws) == [1, 2, 3, 4]


def test_arrow_data_with_large_rows_is_split_at_one_mebibyte_in_memory() -> None:
    client, aws = client_and_aws()
    sizes = [10, 900_000, 10, 10, 2_000_000, 10, 600_000, 600_000]

    client.upsert("orders", pa.table({"id": range(len(sizes)), "v": ["x" * size for size in sizes]}))
    client.flush()

    assert ids(aws) == list(range(len(sizes)))
    assert len(aws.payloads) >= 4


@pytest.mark.parametrize("size", [600_000, 7_000_000])
def test_a_row_too_large_for_a_message_is_sent_through_the_bucket(size: int) -> None:
    client, aws = client_and_aws(lost_reply)
    blob = np.random.default_rng(1).bytes(size)

    client.upsert("orders", pa.table({"id": [1], "v": [blob]}))
    client.flush()

    (key,) = aws.objects
    assert key.startswith("work/inbox/")
    assert ids(aws) == [1]
    assert all(len(payload) < 1000 for payload in aws.payloads)


def test_a_json_row_too_large_for_an_invocation_is_refused_with_a_hint_to_use_arrow() -> None:
    client, aws = client_and_aws()

    with pytest.raises(Invalid, match="Arrow"):
        client.upsert("orders", [{"id": 1, "v": "x" * 7_000_000}])

    assert aws.payloads == []


@pytest.mark.parametrize(
    "fault", [lost_reply, lost_request, no_connection, throttled, refused("ServiceException", 500)]
)
def test_a_request_is_retried_under_the_same_sequence_and_applied_once(fault: Fault) -> None:
    client, aws = client_and_aws(fault, fault)

    client.upsert("orders", rows(1, 2))
    client.flush()
    client.upsert("orders", rows(3))
    client.flush()

    assert ids(aws) == [1, 2, 3]
    assert aws.payloads[0] == aws.payloads[1] == aws.payloads[2]
    assert [event["sequence"] for event in aws.events] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    "fault",
    [
        raised(Unavailable("the queue did not answer")),
        raised(Contended("overloaded")),
        failed("Sandbox.Timedout", "Task timed out after 30.00 seconds"),
        failed("Runtime.ExitError", "signal: killed"),
    ],
)
def test_a_function_that_fails_temporarily_is_called_again(fault: Fault) -> None:
    client, aws = client_and_aws(fault)

    client.upsert("orders", rows(1))
    client.flush()

    assert ids(aws) == [1]


def test_no_retry_starts_that_could_end_after_the_deduplication_window() -> None:
    client, aws = client_and_aws(lost_reply, *[lost_request] * 10_000)

    client.upsert("orders", rows(1))
    with pytest.raises(Ambiguous, match="Read the table"):
        client.flush()

    assert RETRY_SECONDS - 5 < aws.times[-1] - aws.times[0] < RETRY_SECONDS
    assert ids(aws) == [1]


def test_a_suspended_machine_does_not_extend_the_retry_window() -> None:
    wall = FakeClock()

    class SuspendedClock(FakeClock):
        def now(self) -> float:
            return wall.now()

    def suspend(aws: FakeAws, payload: bytes) -> Any:
        wall.advance(3600)  # the monotonic clock does not advance
        return lost_reply(aws, payload)

    client, aws = client_and_aws(suspend, clock=SuspendedClock())

    client.upsert("orders", rows(1))
    with pytest.raises(Ambiguous):
        client.flush()

    assert len(aws.payloads) == 1


def test_a_request_that_was_never_accepted_is_not_ambiguous() -> None:
    client, aws = client_and_aws(*[throttled, no_connection] * 5_000)

    client.upsert("orders", rows(1))
    with pytest.raises(Unavailable, match="not sent"):
        client.flush()

    assert ids(aws) == []


@pytest.mark.parametrize(
    "error",
    [
        Invalid("column 'x' is missing", remedy="Add it", field="x", row=3),
        Fenced("another owner holds it", remedy="Take it over", region="r1"),
    ],
)
def test_a_refusal_is_raised_at_once_with_its_remedy_and_the_refused_rows(error: LsmError) -> None:
    client, aws = client_and_aws(None, raised(error))

    client.upsert("orders", rows(1, 2))
    client.flush()
    client.upsert("orders", rows(3))
    with pytest.raises(type(error)) as caught:
        client.flush()

    assert caught.value.remedy == error.remedy
    assert error.where.items() <= caught.value.where.items() | {("rows", 1)}
    assert (caught.value.where["first_row"], caught.value.where["rows"]) == (2, 1)
    assert len(aws.payloads) == 2


def test_rows_after_a_refused_request_stay_in_the_buffer() -> None:
    client, aws = client_and_aws(raised(Invalid("no")))

    client.upsert("orders", rows(1))
    client.delete("orders", [{"id": 2}])
    with pytest.raises(Invalid):
        client.flush()
    client.flush()

    assert ids(aws) == [2]


def test_a_refusal_after_a_lost_reply_names_the_earlier_attempt() -> None:
    client, _ = client_and_aws(lost_request, refused("AccessDeniedException", 403))

    client.upsert("orders", rows(1))
    with pytest.raises(Invalid, match="InvokeFunction") as caught:
        client.flush()

    assert "earlier_attempt" in caught.value.where


def test_an_unexpected_error_of_the_function_is_not_retried() -> None:
    client, aws = client_and_aws(failed("TypeError", "no"))

    client.upsert("orders", rows(1))
    with pytest.raises(Ambiguous, match="TypeError"):
        client.flush()

    assert len(aws.payloads) == 1


def test_an_interrupted_request_is_resumed_under_its_sequence() -> None:
    def interrupt(aws: FakeAws, payload: bytes) -> Any:
        aws.run(payload)
        raise KeyboardInterrupt

    client, aws = client_and_aws(interrupt)

    client.upsert("orders", rows(1))
    with pytest.raises(KeyboardInterrupt):
        client.flush()
    client.flush()

    assert ids(aws) == [1]


def test_an_interrupted_request_is_not_resumed_after_the_deduplication_window() -> None:
    def interrupt(aws: FakeAws, payload: bytes) -> Any:
        aws.run(payload)
        raise KeyboardInterrupt

    clock = FakeClock()
    client, aws = client_and_aws(interrupt, clock=clock)
    client.upsert("orders", rows(1))
    with pytest.raises(KeyboardInterrupt):
        client.flush()

    clock.advance(RETRY_SECONDS)
    with pytest.raises(Ambiguous):
        client.flush()

    assert len(aws.payloads) == 1


def test_a_restart_after_a_crash_never_leaves_a_gap_in_the_rows() -> None:
    clock = FakeClock()
    aws = FakeAws(clock)
    for seed in (1, 2):  # the restarted process begins with the first row again
        client = Client(interval_seconds=None, clock=clock, ids=SeededIds(seed), service=aws.service)
        client.upsert("orders", rows(1))
        client.flush()
        client.upsert("orders", rows(2))

    assert ids(aws) == [1, 1]  # another producer: repeated rows in the same order do no harm, a gap would


def test_a_forked_process_is_a_producer_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    client, aws = client_and_aws()
    client.upsert("orders", rows(1))
    client.flush()

    monkeypatch.setattr(os, "getpid", lambda: -1)
    client.upsert("orders", rows(2))
    client.flush()

    assert len({event["producer"] for event in aws.events}) == 2


def test_tables_do_not_share_requests_or_sequences() -> None:
    client, aws = client_and_aws()

    client.upsert("orders", rows(1))
    client.upsert("refunds", rows(2))
    client.flush()

    assert (ids(aws), ids(aws, "refunds")) == ([1], [2])
    assert [event["sequence"] for event in aws.events] == [0, 0]


def test_the_background_thread_sends_rows_that_have_waited() -> None:
    sent = threading.Event()

    class Aws(FakeAws):
        def run(self, payload: bytes) -> Any:
            done = super().run(payload)
            sent.set()
            return done

    aws = Aws(FakeClock())
    with Client(interval_seconds=0.001, service=aws.service) as client:
        client.upsert("orders", rows(1))
        assert sent.wait(10)

    assert ids(aws) == [1]


def test_a_background_failure_is_raised_by_the_next_call_which_takes_no_rows() -> None:
    clock = FakeClock()
    client, aws = client_and_aws(raised(Invalid("no")), clock=clock)
    client.upsert("orders", rows(1))
    clock.advance(2)
    client._buffer_of("orders").send_aged(1)

    with pytest.raises(Invalid):
        client.upsert("orders", rows(2))
    client.upsert("orders", rows(3))
    client.flush()

    assert ids(aws) == [3]


def test_values_that_json_cannot_express_are_sent_as_text() -> None:
    client, aws = client_and_aws()
    row = {
        "id": np.int64(1),
        "f": np.float32(0.5),
        "at": [np.datetime64("2020-01-01", "ns"), np.datetime64(120, "ns"), np.datetime64("2020-10-10")],
        "missing": [pd.NA, pd.NaT, np.datetime64("NaT")],
        "nan": float("nan"),
        "inf": [float("-inf")],
        "b": b"\x00\xff",
        "m": memoryview(b"\x00a\xff")[::2],
        "d": datetime.date(2026, 1, 2),
        "t": datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC),
        "n": decimal.Decimal("1.10"),
        "u": uuid.UUID(int=1),
        "e": [State.PAID, State.KEY],
        "p": pathlib.PurePosixPath("/a"),
        "s": {"x": None},
        "big": 1 << 80,
    }

    client.upsert("orders", [row])
    client.flush()

    (sent,) = aws.events[0]["upserts"]
    assert sent == {
        "id": 1,
        "f": 0.5,
        "at": ["2020-01-01T00:00:00", "1970-01-01T00:00:00.00000012", "2020-10-10"],
        "missing": [None, None, None],
        "nan": "NaN",
        "inf": ["-Infinity"],
        "b": "AP8=",
        "m": "AP8=",
        "d": "2026-01-02",
        "t": "2026-01-02T03:00:00+00:00",
        "n": "1.10",
        "u": "00000000-0000-0000-0000-000000000001",
        "e": ["paid", "00000000-0000-0000-0000-000000000001"],
        "p": "/a",
        "s": {"x": None},
        "big": 1 << 80,
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"id": 1}, {"id": object()}], "'id' of row 1"),
        ([{"id": {1, 2}}], "'id' of row 0"),
        ([{"id": {1: 2}}], "'id' of row 0"),
        ([{"id": "\ud800"}], "'id' of row 0"),
        ([{"id": np.timedelta64(5, "ns")}], "'id' of row 0"),
        ([1], "row 0 is a int"),
        ("text", "str"),
        ({"id": [1]}, "dict"),
        (7, "int"),
    ],
)
def test_data_that_is_not_rows_is_refused_before_any_row_is_buffered(data: Any, message: str) -> None:
    client, aws = client_and_aws()

    with pytest.raises(Invalid, match=message):
        client.upsert("orders", data)
    client.flush()

    assert aws.payloads == []


@pytest.mark.parametrize("nothing", [[], pa.table({"id": pa.array([], pa.int64())})])
def test_a_write_of_no_rows_sends_no_request(nothing: Any) -> None:
    client, aws = client_and_aws()

    client.upsert("orders", nothing)
    client.flush()

    assert client.write("orders", nothing) == Committed(rows=0, entries=())
    assert aws.payloads == []


def test_a_direct_write_returns_the_positions() -> None:
    client, aws = client_and_aws()

    committed = client.write("orders", rows(1, 2), deletes=[{"id": 3}])

    assert committed == Committed(rows=3, entries=(CommittedEntry(region="r", position=7, rows=3),))  # type: ignore[arg-type]
    assert "producer" not in aws.events[0]


@pytest.mark.parametrize("fault", [lost_reply, lost_request, broken_answer, failed("Sandbox.Timedout", "")])
def test_a_direct_write_without_an_answer_is_ambiguous_and_not_retried(fault: Fault) -> None:
    client, aws = client_and_aws(fault)

    with pytest.raises(Ambiguous):
        client.write("orders", rows(1))

    assert len(aws.payloads) == 1


def test_a_direct_write_that_certainly_did_not_run_is_retried() -> None:
    client, aws = client_and_aws(throttled, no_connection, no_trust)

    client.write("orders", rows(1))

    assert ids(aws) == [1]


@pytest.mark.parametrize("error", [Contended("busy"), Unavailable("no answer"), Fenced("held", remedy="Take it")])
def test_a_direct_write_raises_what_the_function_raises(error: LsmError) -> None:
    client, _ = client_and_aws(raised(error))

    with pytest.raises(type(error), match=error.message):
        client.write("orders", rows(1))


def test_a_direct_write_too_large_for_an_invocation_is_sent_whole_through_the_bucket() -> None:
    client, aws = client_and_aws(work="s3://lake/work/")
    blob = np.random.default_rng(1).bytes(7_000_000)

    client.write("orders", pa.table({"id": [1], "v": [blob]}))

    assert (len(aws.payloads), len(aws.objects), ids(aws)) == (1, 1, [1])


def test_a_query_follows_the_url_of_a_large_answer() -> None:
    client, aws = client_and_aws(lost_request, fetch=lambda url: json.dumps({"url": url}).encode() + b"\n")
    aws.answer = {"url": "https://lake/result", "rows": 1, "bytes": 7_000_000}

    assert client.query("orders", where="v = 'a'", limit=5) == [{"url": "https://lake/result"}]
    assert aws.events[-1] == {"table": "orders", "where": "v = 'a'", "limit": 5}


@pytest.mark.parametrize("body", [b"", b'{"id": 1}\n', b'{"id": 1}\n{"id"'])
def test_an_answer_that_is_not_whole_is_unavailable(body: bytes) -> None:
    client, aws = client_and_aws(fetch=lambda _: body)
    aws.answer = {"url": "https://lake/result", "rows": 2, "bytes": 20}

    for read in (client.query, client.query_arrow):
        with pytest.raises(Unavailable):
            read("orders")


def test_a_search_sends_its_vector_as_numbers() -> None:
    client, aws = client_and_aws()
    aws.answer = {"rows": [{"id": 1, "_distance": 0.5}]}

    for vector in ([0.5, 1.0], np.array([0.5, 1.0], np.float32), pa.array([0.5, 1.0])):
        assert client.search("docs", vector, k=1) == client.search("docs", vector=vector, k=1) == aws.answer["rows"]
        assert aws.events[-1] == aws.events[-2] == {"table": "docs", "vector": [0.5, 1.0], "k": 1}
    client.search("docs", [np.array([0.5]), (np.float32(1.0),)])
    assert aws.events[-1]["vector"] == [[0.5], [1.0]]
    client.search("docs", "late parcel", columns=["id"])
    assert aws.events[-1] == {"table": "docs", "text": "late parcel", "k": 10, "columns": ["id"]}
    for wrong in ({}, {"query": "a", "text": "b"}, {"query": [1.0], "vector": [1.0]}, {"vector": object()}):
        with pytest.raises(Invalid):
            client.search("docs", **wrong)


def test_a_count_is_a_number() -> None:
    client, aws = client_and_aws()
    aws.answer = {"count": 12}

    assert client.count("orders") == 12
    assert client.count("orders", at="monday") == 12
    assert [event.get("at") for event in aws.events] == [None, "monday"]


def test_the_names_of_the_functions_can_be_set() -> None:
    class RecordingAws(FakeAws):
        names: Iterable[str] = ()

        def invoke(self, *, FunctionName: str, Payload: bytes) -> Any:
            self.names = (*self.names, FunctionName)
            return super().invoke(FunctionName=FunctionName, Payload=Payload)

    aws = RecordingAws(FakeClock())
    client = Client(stage="prod", functions={"ingest": "arn:mine"}, interval_seconds=None, service=aws.service)

    client.upsert("orders", rows(1))
    client.flush()
    client.write("orders", rows(1))

    assert aws.names == ("arn:mine", "lancelsm-prod-writer_flush:live")


def test_the_client_imports_without_any_other_package() -> None:
    absent = ("boto3", "botocore", "pyarrow", "numpy", "obstore", "mmh3", "google", "lance", "typer")
    script = f"import sys; sys.modules |= dict.fromkeys({absent}); import lancelsm.client"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
