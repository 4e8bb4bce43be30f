"""The function `backup` copies each table that has changed, on a schedule, and only reads the table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.common.layout import TableId, table_key
from lancelsm.errors import Corrupt, Invalid
from lancelsm.table import Table
from tests.handlers.conftest import ORDERS, Context, Deployment, load_function
from tests.unit.counting import CountingRegistry


@dataclass
class Scheduled:
    """The function in a deployment with two tables. Its registry has the two tables."""

    module: Any
    tables: list[Table]
    backups: Path
    registry: CountingRegistry = field(default_factory=CountingRegistry)
    bodies: list[str] = field(default_factory=list)

    def run(self) -> list[dict[str, Any]]:
        """Run the schedule, then deliver its messages. Return the answers."""
        assert self.module.handler({"scheduled": "changed"}, Context()) == {"queued": len(self.tables)}
        sent, self.bodies[:] = list(self.bodies), []
        return [self.deliver(body) for body in sent]

    def deliver(self, body: str, *, left: int = 60_000) -> Any:
        return self.module.handler({"Records": [{"body": body}]}, Context(left=left))

    def message(self, table: str) -> str:
        return json.dumps({"backup": "changed", "table": table})


@pytest.fixture
def scheduled(deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scheduled:
    backups = tmp_path / "backups"
    for name, value in (("BACKUPS", str(backups)), ("REGISTRY", "dynamodb:r"), ("BACKUP_QUEUE_URL", "queue")):
        monkeypatch.setenv(f"LANCELSM_{name}", value)
    module = load_function("backup")
    made = Scheduled(module, [deployment.table("a"), deployment.table("shop/b")], backups)
    made.tables.sort(key=lambda table: table.config.table)
    for table in made.tables:
        table.upsert(ORDERS)
        made.registry.swap(table_key(table.config.table), expect=None, change={"uri": table.uri, "format": 1})
    monkeypatch.setattr(module, "_registry", lambda: made.registry)

    def send(url: str, bodies: Sequence[str]) -> None:
        assert url == "queue"
        made.bodies.extend(bodies)

    monkeypatch.setattr(module, "send_bodies", send)
    return made


def _files(table: Table) -> dict[str, bytes]:
    """Return the files of a table, without those that SQLite keeps while its file is open."""
    files = (path for path in Path(table.uri).rglob("*") if path.is_file() and ".sqlite-" not in path.name)
    return {str(path): path.read_bytes() for path in files}


def test_a_backup_has_the_rows_of_a_changed_table_and_writes_nothing_to_it(
    scheduled: Scheduled, tmp_path: Path
) -> None:
    first, second = scheduled.tables
    other = {"uri": "s3://other/tables/a", "format": 1}  # of another deployment
    scheduled.registry.swap(table_key(TableId("other")), expect=None, change=other)
    before = [_files(table) for table in scheduled.tables]
    answers = scheduled.run()
    assert [_files(table) for table in scheduled.tables] == before
    for table, answer in zip(scheduled.tables, answers, strict=True):
        assert answer["backup"].startswith(f"{scheduled.backups}/{table.uri.partition('/tables/')[2]}/")
        assert (answer["table"], answer["rows"]) == (table.uri, table.count())

    second.delete([1])
    scheduled.registry.units.clear()
    unchanged, changed = scheduled.run()

    assert unchanged == {"table": first.uri, "backup": answers[0]["backup"], "unchanged": True}
    # the list of tables; the record of each table and of its last backup; one new record
    assert scheduled.registry.units == {"record_reads": 1 + 2 * 2, "record_writes": 1}
    lancelsm.restore(changed["backup"], tmp_path / "again")
    again = lancelsm.open(tmp_path / "again").scan().to_arrow().sort_by("id")
    assert again.equals(second.scan().to_arrow().sort_by("id"))


@pytest.mark.rest
def test_a_backup_that_was_removed_or_is_elsewhere_is_made_again(
    scheduled: Scheduled, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = (answer["backup"] for answer in scheduled.run())
    shutil.rmtree(first)
    assert ["unchanged" in one for one in scheduled.run()] == [False, True]

    monkeypatch.setitem(scheduled.module.SETTINGS, "LANCELSM_BACKUPS", f"{scheduled.backups}-2")
    assert ["unchanged" in one for one in scheduled.run()] == [False, False]


def test_a_damaged_table_fails_and_does_not_stop_the_others(scheduled: Scheduled) -> None:
    first, second = scheduled.tables
    entry = sorted((Path(first.uri) / "_mem_wal").glob("*/wal/*.arrow"))[0]
    entry.write_bytes(entry.read_bytes()[:-9])

    for _ in range(2):
        with pytest.raises(Corrupt):
            scheduled.deliver(scheduled.message(first.config.table))
    assert scheduled.deliver(scheduled.message(second.config.table))["rows"] == second.count()
    assert scheduled.deliver(scheduled.message("gone")) == {"dropped": True}
    (made,) = scheduled.backups.rglob("backup.json")
    assert second.uri.partition("/tables/")[2] in str(made)


@pytest.mark.rest
def test_a_backup_that_could_not_be_recorded_says_so_and_is_made_again(
    scheduled: Scheduled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Invalid("not allowed")

    with monkeypatch.context() as denied:
        denied.setattr(scheduled.registry, "swap", refuse)
        scheduled.run()
    assert [vars(one)["noted"] for one in caplog.records if one.message == "backed up"] == [False, False]
    assert ["unchanged" in one for one in scheduled.run()] == [False, False]


@pytest.mark.rest
@pytest.mark.parametrize(("seconds", "interval"), [(60, 3600), (9000, 60)])
def test_a_table_that_needs_more_time_is_named_with_what_to_do(
    scheduled: Scheduled, deployment: Deployment, seconds: int, interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is that of the invocation, and that for which a collection keeps the objects."""
    table = deployment.table("c", settings={"collect_interval_seconds": interval})
    scheduled.registry.swap(table_key(table.config.table), expect=None, change={"uri": table.uri, "format": 1})
    ticks = iter(range(0, 10**6, 40))
    monkeypatch.setattr(type(scheduled.module.PORTS.clock), "monotonic", lambda _: float(next(ticks)))

    with pytest.raises(Invalid, match="needs more than") as raised:
        scheduled.deliver(scheduled.message(table.config.table), left=1000 * seconds)

    assert f"lancelsm backup {table.uri} " in json.loads(str(raised.value))["error"]["remedy"]
    assert not list(scheduled.backups.rglob("backup.json"))


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"scheduled": "sample"},
        {"scheduled": "changed", "table": "orders"},
        {"Records": []},
        {"Records": [{"body": "{}"}]},
        {"Records": [{"body": '{"backup": "all", "table": "x"}'}]},
        {"Records": [{"body": '{"scrub": "sample", "table": "x"}'}]},
    ],
)
def test_an_event_that_names_no_backup_is_refused(event: dict[str, Any], scheduled: Scheduled) -> None:
    with pytest.raises(Invalid):
        scheduled.module.handler(event, Context())
