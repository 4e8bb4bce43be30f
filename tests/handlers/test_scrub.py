"""The function `scrub` returns the problems that it finds and raises no error for them. On a schedule it logs them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lancelsm.common.layout import TableId, scheduled_key, table_key
from lancelsm.errors import Corrupt, Invalid
from lancelsm.scrubbing.report import Report
from lancelsm.scrubbing.table import scrub_location
from lancelsm.stack import documents, scrub_round
from lancelsm.stack.scrub_round import SAMPLE_OBJECTS
from lancelsm.table import Table
from tests.handlers.conftest import ORDERS, Context, Deployment, load_function
from tests.unit.counting import CountingRegistry


def test_problems_are_returned_and_not_raised(deployment: Deployment) -> None:
    table = deployment.table()
    table.upsert(ORDERS)
    handler = load_function("scrub").handler
    assert handler({"table": table.uri}, Context()) == documents.scrubbed(table.scrub())
    entry = sorted((Path(table.uri) / "_mem_wal").glob("*/wal/*.arrow"))[0]
    entry.write_bytes(entry.read_bytes()[:-9])

    answer = handler({"table": table.uri}, Context())

    assert answer["ok"] is False
    assert [problem["path"] for problem in answer["problems"]] == [entry.relative_to(table.uri).as_posix()]
    intact = next(region.id for region in table.list_regions() if region.id != entry.parts[-3])
    assert handler({"table": table.uri, "region": intact, "limit": 100}, Context())["ok"] is True


def test_an_unknown_snapshot_is_refused(deployment: Deployment) -> None:
    table = deployment.table()

    with pytest.raises(Invalid) as raised:
        load_function("scrub").handler({"table": table.uri, "at": "never"}, Context())

    assert json.loads(str(raised.value))["error"]["snapshot"] == "never"


@dataclass
class Scheduled:
    """The function in a deployment with two tables and a schedule. Its registry has the two tables."""

    module: Any
    tables: list[Table]
    registry: CountingRegistry = field(default_factory=CountingRegistry)
    bodies: list[str] = field(default_factory=list)
    scrubbed: list[tuple[str, int | None]] = field(default_factory=list)  # URI and limit of each scrub
    reports: list[Report] = field(default_factory=list)  # of the first table

    def run(self, scope: str = "sample") -> list[dict[str, Any]]:
        """Run the schedule, then deliver its messages. Return the answers."""
        assert self.module.handler({"scheduled": scope}, Context()) == {"queued": len(self.tables)}
        sent, self.bodies[:] = list(self.bodies), []
        self.scrubbed.clear()
        return [self.deliver(body) for body in sent]

    def deliver(self, body: str, *, left: int = 60_000) -> Any:
        return self.module.handler({"Records": [{"body": body}]}, Context(left=left))


@pytest.fixture
def scheduled(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Scheduled:
    module = load_function("scrub")
    made = Scheduled(module, [deployment.table("a"), deployment.table("b")])
    made.tables.sort(key=lambda table: table.config.table)
    for table in made.tables:
        made.registry.swap(table_key(table.config.table), expect=None, change={"uri": table.uri, "format": 1})
    monkeypatch.setenv("LANCELSM_SCRUB_QUEUE_URL", "queue")
    monkeypatch.setattr(module, "_registry", lambda: made.registry)

    def send(url: str, bodies: Sequence[str]) -> None:
        assert url == "queue"
        made.bodies.extend(bodies)

    real = module.scrub_changed.__kwdefaults__["scrub"]

    def scrub(uri: str, *, limit: int | None, **more: Any) -> Any:
        made.scrubbed.append((uri, limit))
        report = real(uri, limit=limit, **more)
        if uri == made.tables[0].uri:
            made.reports.append(report)
        return report

    monkeypatch.setattr(module, "send_bodies", send)
    monkeypatch.setitem(module.scrub_changed.__kwdefaults__, "scrub", scrub)
    return made


def test_a_scheduled_scrub_reads_only_tables_that_changed_since_their_last_scrub(scheduled: Scheduled) -> None:
    first, second = scheduled.tables
    assert [one["ok"] for one in scheduled.run()] == [True, True]
    assert scheduled.scrubbed == [(first.uri, SAMPLE_OBJECTS), (second.uri, SAMPLE_OBJECTS)]

    second.upsert([{"id": 1, "state": "sent"}])
    scheduled.registry.units.clear()
    assert [one.get("unchanged", False) for one in scheduled.run()] == [True, False]

    assert scheduled.scrubbed == [(second.uri, SAMPLE_OBJECTS)]
    # the list of tables; the record of each table and of its last scrub; one new record
    assert scheduled.registry.units == {"record_reads": 1 + 2 * 2, "record_writes": 1}


@pytest.mark.rest
def test_a_merge_is_a_change_and_a_scrub_of_everything_serves_as_a_sample(scheduled: Scheduled) -> None:
    first, second = scheduled.tables
    scheduled.run("sample")
    assert [one["complete"] for one in scheduled.run("everything")] == [True, True], "a sample is not everything"
    assert scheduled.scrubbed == [(first.uri, None), (second.uri, None)]

    first.upsert([{"id": 1, "state": "sent"}])
    first.flush()
    scheduled.run("everything")
    assert scheduled.scrubbed == [(first.uri, None)]
    assert scheduled.run("sample") == [{"table": one.uri, "unchanged": True} for one in scheduled.tables]
    first.merge()
    scheduled.run("sample")
    assert scheduled.scrubbed == [(first.uri, SAMPLE_OBJECTS)]


def test_a_damaged_table_is_logged_as_corrupt_in_each_run_and_does_not_stop_the_others(
    scheduled: Scheduled, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    first = scheduled.tables[0]
    first.upsert(ORDERS)
    entry = sorted((Path(first.uri) / "_mem_wal").glob("*/wal/*.arrow"))[0]
    entry.write_bytes(entry.read_bytes()[:-9])

    for _ in range(2):
        caplog.clear()
        capsys.readouterr()
        assert [one.get("ok", True) for one in scheduled.run()] == [False, True]
        (line,) = (vars(one) for one in caplog.records if vars(one).get("kind") == "Corrupt")
        assert (line["table"], line["problems"]) == (first.uri, 1)
        assert line["paths"] == [entry.relative_to(first.uri).as_posix()]
        assert '"scrub_problems":[1.0]' in capsys.readouterr().out
    assert scheduled.scrubbed == [(first.uri, SAMPLE_OBJECTS)], "the other table has not changed"


class _NoTime:
    stopped = True

    def __init__(self, **_: Any) -> None: ...

    def has_time(self, _done: int, _total: int) -> bool:
        return False


def test_a_scrub_without_time_for_everything_says_so_and_is_repeated(
    scheduled: Scheduled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scheduled.module, "Pace", _NoTime)
    assert [one["complete"] for one in scheduled.run("everything")] == [False, False]
    assert [vars(one)["out_of_time"] for one in caplog.records if one.message == "scrubbed"] == [True, True]
    (last, _) = (scheduled.registry.read(scheduled_key(one.config.table)) or {} for one in scheduled.tables)
    assert "everything" not in last


@pytest.mark.rest
def test_samples_of_several_days_read_every_object_once(scheduled: Scheduled, monkeypatch: pytest.MonkeyPatch) -> None:
    table = scheduled.tables[0]
    for _ in range(4):
        table.upsert(ORDERS)
        table.flush()
    full = scrub_location(table.uri)
    monkeypatch.setattr(scrub_round, "SAMPLE_OBJECTS", 3)

    def days() -> list[Report]:
        """Run samples until the table counts as unchanged."""
        scheduled.reports.clear()
        while "unchanged" not in scheduled.run("sample")[0]:
            assert len(scheduled.reports) < 20
        return list(scheduled.reports)

    records = scrub_location(table.uri, after="~").checked
    first = days()
    assert [one.checked - records for one in first[:-1]] == [3] * (len(first) - 1)
    assert sum(one.checked - records for one in first) == full.checked - records
    assert days() == []

    table.upsert(ORDERS)
    scheduled.run("sample")
    table.upsert(ORDERS)
    assert len(days()) > 2 * len(first) - 1, "a change within a cycle is read in the next one"


def test_a_dropped_table_is_skipped_and_a_table_that_is_gone_fails(scheduled: Scheduled) -> None:
    first, second = (table.config.table for table in scheduled.tables)
    assert scheduled.deliver(json.dumps({"scrub": "sample", "table": str(TableId("x"))})) == {"dropped": True}

    scheduled.registry.swap(table_key(first), expect={}, change={"uri": scheduled.tables[1].uri})
    with pytest.raises(Invalid, match="another table"):
        scheduled.deliver(json.dumps({"scrub": "sample", "table": first}))
    scheduled.registry.swap(table_key(second), expect={}, change={"uri": "orders"})
    with pytest.raises(Corrupt, match="neither an absolute path nor a URL"):
        scheduled.deliver(json.dumps({"scrub": "sample", "table": second}))


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"scheduled": "all"},
        {"scheduled": "sample", "table": "orders"},
        {"scheduled": "sample"},  # no schedule is deployed
        {"Records": []},
        {"Records": [{"body": "{}"}]},
        {"Records": [{"body": '{"scrub": "all", "table": "x"}'}]},
    ],
)
def test_an_event_that_names_no_scrub_is_refused(event: dict[str, Any], deployment: Deployment) -> None:
    with pytest.raises(Invalid):
        load_function("scrub").handler(event, Context())
