"""`lancelsm run --forever`: what it does, what it says, and how it ends."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lancelsm
from lancelsm.cli.service import TableService, serve
from lancelsm.cli.service_event import Event, error_event
from lancelsm.cli.service_metrics import LOCAL, Metrics, endpoints, parse_address
from lancelsm.cli.service_spans import span_recorder
from lancelsm.errors import Corrupt, Invalid, Unavailable
from lancelsm.region.handle import Ports, open_table
from lancelsm.region.lease import COLLECTOR_LEASE, is_held, lease
from tests.cli.console import COMMAND, Run
from tests.simulation.faults import FakeClock
from tests.unit.tables import row

DUE = {"flush_rows": 1, "merge_generations": 1}  # everything is due at once
WAIT = 20.0
EXAMPLES = Path(__file__).parents[2] / "examples"


def make_table(path: Path, **settings: object) -> lancelsm.Table:
    table = lancelsm.create(str(path), [row(0)], primary_key="id", settings={**DUE, **settings})
    table.upsert([row(1)])
    return table


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)


class Running(NamedTuple):
    services: list[TableService]
    events: list[Event]
    ended: list[Exception]  # the error that `serve` raised at the end


@contextmanager
def running(*tables: lancelsm.Table, metrics: Metrics | None = None) -> Iterator[Running]:
    """Serve tables in this process, until the block ends."""
    stop = threading.Event()
    events: list[Event] = []
    services = [
        TableService(open_table(one.uri), stop=stop, report=events.append, metrics=metrics, engine="inprocess")
        for one in tables
    ]
    ended: list[Exception] = []

    def run() -> None:
        try:
            serve(services, stop)
        except (lancelsm.LsmError, ZeroDivisionError) as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield Running(services, events, ended)
    finally:
        stop.set()
        thread.join()


def steps(events: list[Event], table: lancelsm.Table) -> list[str]:
    return [one.step for one in list(events) if one.table == table.uri]


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{LOCAL}:{port}{path}", timeout=WAIT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_several_tables_are_maintained_and_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancelsm.cli.service.TICK_SECONDS", 0.01)
    tables = [make_table(tmp_path / name) for name in ("a", "b")]
    with running(*tables) as (services, events, ended):
        wait_for(lambda: all("collect" in steps(events, one) for one in tables))
        assert all(is_held(one._handle.context, COLLECTOR_LEASE) for one in tables)
        assert [one.health()["ok"] for one in services] == [True, True]
        tables[0].upsert([row(2)])
        wait_for(lambda: steps(events, tables[0]).count("optimize") == 2)  # some rounds later
    assert ended == []

    for table in tables:
        assert steps(events, table)[:4] == ["flush", "merge", "optimize", "collect"]
        assert steps(events, table).count("collect") == 1  # until the interval is over
        assert table.status().regions[0].wal_rows == 0
        assert table.count_rows() == 2 + (table is tables[0])
        assert not is_held(table._handle.context, COLLECTOR_LEASE)
    flushed = events[0].document()
    assert {**flushed, "time": "", "seconds": 0, "region": ""} == {
        "time": "", "table": flushed["table"], "step": "flush", "seconds": 0, "region": "", "generations": 1, "rows": 1
    }  # fmt: skip


def test_only_one_service_of_a_table_collects(tmp_path: Path) -> None:
    table = make_table(tmp_path / "a")
    with lease(table._handle.context, COLLECTOR_LEASE), running(table) as (_, events, _):
        wait_for(lambda: "optimize" in steps(events, table))
    assert "collect" not in steps(events, table)


def test_a_lease_that_expired_is_taken_again(tmp_path: Path) -> None:
    table, clock, events = make_table(tmp_path / "a"), FakeClock(), []
    handle = open_table(table.uri, ports=Ports(clock=clock, threads=1))  # of one thread: nothing renews the lease
    service = TableService(handle, stop=threading.Event(), report=events.append)
    with ExitStack() as held:
        for _ in range(2):
            service._collect_if_due(held)
            assert is_held(handle.context, COLLECTOR_LEASE)
            clock.advance(4000.0)
    assert [one.step for one in events] == ["collect", "collect"]


def test_a_service_that_lost_the_lease_collects_no_more_until_it_is_free_again(tmp_path: Path) -> None:
    table, clock, events = make_table(tmp_path / "a"), FakeClock(), []
    handle, other = (open_table(table.uri, ports=Ports(clock=clock, threads=1)) for _ in range(2))
    service = TableService(handle, stop=threading.Event(), report=events.append)
    with ExitStack() as held:
        service._collect_if_due(held)
        clock.advance(4000.0)  # it stalls, and its lease expires
        with lease(other.context, COLLECTOR_LEASE) as is_ours:
            service._collect_if_due(held)
            assert (is_ours(), len(events)) == (True, 1)
        clock.advance(4000.0)
        service._collect_if_due(held)
    assert len(events) == 2


@pytest.mark.rest
def test_a_table_that_fails_leaves_the_others_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = (make_table(tmp_path / name) for name in ("good", "bad"))
    (region,) = bad.list_regions()
    next(iter((Path(bad.uri) / "_mem_wal" / region.id / "wal").iterdir())).unlink()

    with running(good, bad) as (services, events, ended):
        wait_for(lambda: "collect" in steps(events, good) and "error" in steps(events, bad))
        wait_for(lambda: services[1].failure is not None)
        good.upsert([row(2)])
        wait_for(lambda: steps(events, good).count("merge") == 2)
        healthy, broken = (one.health() for one in services)
        assert (healthy["ok"], broken["ok"]) == (True, False)
        assert str(broken["error"]).startswith("Corrupt: ")
    assert [type(one) for one in ended] == [Corrupt]


def test_an_error_that_may_pass_is_reported_once_and_unhealthy_only_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "a")
    calls = []

    def fail(*_: object, **__: object) -> None:
        calls.append(1)
        raise Unavailable("the store sleeps", remedy="Wait")

    monkeypatch.setattr("lancelsm.cli.service.TICK_SECONDS", 0.01)
    monkeypatch.setattr("lancelsm.compaction.background.flush_region", fail)
    with running(table) as (services, events, _):
        wait_for(lambda: len(calls) > 3)
        assert services[0].health() | {"last_round": ""} == {
            "table": table.uri, "ok": True, "last_round": "", "error": "Unavailable: the store sleeps"
        }  # fmt: skip
        monkeypatch.setattr("lancelsm.cli.service.FAILING_SECONDS", -1.0)
        assert services[0].health()["ok"] is False
    (event,) = events
    assert event.line().endswith(f"Z {table.uri} error Unavailable: the store sleeps. Wait")


def test_a_bug_ends_the_service_of_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(tmp_path / "a")

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("lancelsm.compaction.background.flush_region", fail)
    with running(table) as (services, events, ended):
        wait_for(lambda: bool(ended))
        assert services[0].health()["error"] == "Internal: ZeroDivisionError"
    assert [(one.error, one.facts["message"]) for one in events] == [("Internal", "ZeroDivisionError")]
    assert [type(one) for one in ended] == [ZeroDivisionError]


def test_health_and_metrics_are_answered(tmp_path: Path) -> None:
    table = make_table(tmp_path / "a")
    metrics = Metrics()
    with running(table, metrics=metrics) as (services, events, _):
        wait_for(lambda: "collect" in steps(events, table))
        with endpoints((LOCAL, 0), metrics, lambda: [one.health() for one in services]) as port:
            code, health = get(port, "/healthz")
            assert (code, json.loads(health)["ok"]) == (200, True)
            services[0].failure = Corrupt("broken")
            assert get(port, "/healthz")[0] == 503
            services[0].failure = None
            code, text = get(port, "/metrics")
            assert get(port, "/other")[0] == 404
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"http://{LOCAL}:{port}/healthz", timeout=1)

    assert code == 200
    label = f'table="{table.uri}"'
    assert f'lancelsm_rows_total{{step="merge",{label}}} 1.0' in text
    assert f'lancelsm_step_seconds_count{{step="collect",{label}}} 1.0' in text
    assert f"lancelsm_wal_rows{{{label}}} 0.0" in text


@pytest.mark.parametrize(
    ("text", "address"),
    [("9090", (LOCAL, 9090)), ("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:0", ("::1", 0)), (":7", (LOCAL, 7))],
)
def test_an_address_is_local_unless_it_names_a_host(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "70000", "host:", "::1:80", "-1", "9" * 5000])
def test_a_wrong_address_is_invalid(text: str) -> None:
    with pytest.raises(Invalid, match="is not PORT"):
        parse_address(text)


def test_a_client_that_breaks_off_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    threads = threading.active_count()
    with endpoints((LOCAL, 0), Metrics(), list) as port:
        client = socket.create_connection((LOCAL, port))
        client.sendall(b"GET /hea")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset it at once
        client.close()
        assert get(port, "/healthz")[0] == 200
    wait_for(lambda: threading.active_count() <= threads)
    assert capsys.readouterr().err == ""


def test_an_event_is_one_line_and_locates_its_error() -> None:
    error = Corrupt("the entry\nis missing", remedy="See", table="t", region="r", object=Path("a"))
    line = error_event("t\x1b[2J", error, time=0).line()

    assert line == "1970-01-01T00:00:00Z t\\x1b[2J error Corrupt: the entry\\nis missing [region r, object a]. See"


def test_a_taken_port_is_invalid() -> None:
    metrics = Metrics()
    with (
        endpoints((LOCAL, 0), metrics, list) as port,
        pytest.raises(Invalid, match="can't be bound"),
        endpoints((LOCAL, port), metrics, list),
    ):
        pass


def test_the_extra_is_named_if_it_is_missing(orders: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    done = run("run", orders, "--forever", "--serve", "0")

    assert done.code == 1
    assert "pip install 'lancelsm[serve]'" in done.err


@pytest.mark.rest
def test_steps_and_errors_are_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer", provider.get_tracer)
    record = span_recorder()
    assert record is not None
    record(Event(time=100.5, table="t", step="merge", seconds=0.5, facts={"generations": 3}))
    record(Event(time=101.0, table="t", step="error", facts={"message": "no"}, error="Corrupt"))

    merge, error = exporter.get_finished_spans()
    assert (merge.name, merge.start_time, merge.end_time) == ("lancelsm merge", 100 * 10**9, 100_500 * 10**6)
    assert dict(merge.attributes or {}) == {"lancelsm.table": "t", "lancelsm.generations": 3}
    assert (merge.status.is_ok, error.status.is_ok, error.status.description) == (True, False, "Corrupt")


def test_spans_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert span_recorder() is None


def test_the_options_of_run_are_checked(orders: Path, run: Run) -> None:
    assert run("run", orders, "--serve", "9090").code == 2
    assert run("run", orders, f"{orders}/../{orders.name}").code == 2
    assert run("run", orders, orders.with_name("none")).code == 1


@pytest.mark.rest
def test_several_tables_are_run_once(tmp_path: Path, run: Run) -> None:
    tables = [make_table(tmp_path / name) for name in ("a", "b")]
    done = run("run", *(one.uri for one in tables), "--output", "json").document

    assert [(one["table"], one["merges"], len(one["regions"])) for one in done["tables"]] == [
        (one.uri, 1, 1) for one in tables
    ]
    (region,) = tables[0].list_regions()
    tables[0].upsert([row(2)])
    next(iter((Path(tables[0].uri) / "_mem_wal" / region.id / "wal").iterdir())).unlink()
    failed = run("run", tables[0].uri, tmp_path / "none", tables[1].uri)
    assert (failed.code, failed.out.count("Flushed 0 generations")) == (1, 1)
    assert ("Corrupt: " in failed.err, "no table at this location" in failed.err) == (True, True)


@pytest.mark.rest
def test_the_examples_of_deployments_show_valid_commands(run: Run) -> None:
    unit = (EXAMPLES / "lancelsm.service").read_text()
    (command,) = re.findall(r"^ExecStart=\S*/lancelsm (.*)$", unit, re.MULTILINE)
    image = (EXAMPLES / "Dockerfile").read_text()
    (entry,), (arguments,) = (re.findall(rf"^{name} (.*)$", image, re.MULTILINE) for name in ("ENTRYPOINT", "CMD"))

    for words in (shlex.split(command), [*json.loads(entry)[1:], *json.loads(arguments)]):
        assert words[0] == "run"
        assert run(*words, "--help").code == 0


@pytest.mark.rest
def test_a_service_ends_if_stdout_is_closed(tmp_path: Path) -> None:
    tables = [make_table(tmp_path / name) for name in ("a", "b")]
    arguments = ["run", *(one.uri for one in tables), str(tmp_path / "none"), "--forever"]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    with process.stdout as out:
        assert "error Invalid: there is no table at this location" in out.readline()

    try:
        assert process.wait(timeout=WAIT) == 141
    finally:
        process.kill()


@pytest.mark.rest
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_service_after_its_step(tmp_path: Path, number: int, code: int) -> None:
    table = make_table(tmp_path / "a")
    arguments = ["run", table.uri, "--forever", "--serve", "0", "--output", "json"]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen: list[Any] = []
    for line in process.stdout:
        seen.append(json.loads(line))
        if seen[-1]["step"] == "collect":
            break
    process.send_signal(number)
    out, err = process.communicate(timeout=WAIT)

    assert (process.returncode, out) == (code, "")
    assert err.startswith("Serving /healthz and /metrics on port ")
    assert err.count("\n") == 1
    assert [one["step"] for one in seen] == ["flush", "merge", "optimize", "collect"]
    assert not is_held(table._handle.context, COLLECTOR_LEASE)
