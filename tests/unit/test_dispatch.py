"""What a schedule starts: what is due, once, and for every table that can be served."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lancelsm.common.layout import CONFIG, Generation, Key, RegionId, TableId, table_key
from lancelsm.common.settings import Settings
from lancelsm.compaction.maintenance import merge_table
from lancelsm.errors import Invalid, Unavailable
from lancelsm.region.handle import TableHandle, open_configured, open_table
from lancelsm.registry import Record
from lancelsm.stack.dispatch import Elsewhere, Lag, dispatch, due, next_collection
from lancelsm.table import Table
from tests.unit.tables import create, row

TABLE = TableId("11111111-2222-4333-8444-555555555555")
SETTINGS = Settings(flush_rows=100, flush_bytes=1000, flush_age_seconds=60, merge_generations=8, merge_age_seconds=900)
NOW = 10_000.0


def lag(*, rows: int = 0, size: int = 0, newest: int = 0, merged: int = 0, age: float = 0, region: str = "r") -> Lag:
    return Lag(
        region=RegionId(region),
        rows=rows,
        bytes=size,
        newest=Generation(newest),
        merged=Generation(merged),
        since=NOW - age,
    )


def needs(*lags: Lag, now: float = NOW) -> tuple[bool, bool]:
    found = due(TABLE, lags, settings=SETTINGS, now=now)
    return found.flush, found.merge is not None


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (lag(), (False, False)),
        (lag(age=1_000_000), (False, False)),
        (lag(rows=99, size=999, age=59), (False, False)),
        (lag(rows=100), (True, False)),
        (lag(rows=1, size=1000), (True, False)),
        (lag(rows=1, age=60), (True, False)),
        (lag(newest=7, age=899), (False, False)),
        (lag(newest=8), (False, True)),
        (lag(newest=12, merged=5), (False, False)),
        (lag(newest=13, merged=5), (False, True)),
        (lag(newest=6, merged=5, age=900), (False, True)),
        (lag(newest=5, merged=5, age=900), (False, False)),
        (lag(rows=1, newest=1, age=900), (True, True)),
    ],
)
def test_a_flush_or_a_merge_is_due_by_amount_or_age(held: Lag, expected: tuple[bool, bool]) -> None:
    assert needs(held) == expected
    assert needs(lag(), held) == expected


def test_one_region_that_is_due_is_enough() -> None:
    assert needs(lag(rows=1), lag(rows=100, region="s")) == (True, False)
    assert needs(lag(newest=1), lag(newest=8, region="s")) == (False, True)


def name(*lags: Lag, now: float = NOW) -> str:
    found = due(TABLE, lags, settings=SETTINGS, now=now).merge
    assert found is not None
    return found


def test_the_name_of_a_merge_is_the_same_for_the_same_work() -> None:
    one, other = lag(newest=8, age=10), lag(newest=1, region="s", age=5)

    assert name(one, other) == name(other, one) == name(one, other, now=NOW + 880)
    assert name(one, other, lag(rows=3, region="t")) == name(one, other)
    assert name(one).startswith(TABLE)
    assert len(name(one)) <= 80


def test_new_generations_and_the_passing_of_an_age_give_a_merge_another_name() -> None:
    held = lag(newest=8, age=10)

    names = [
        name(held),
        name(lag(newest=9, age=10)),
        name(lag(newest=9, merged=1, age=10)),
        name(held, lag(newest=1, region="s")),
        name(held, now=NOW + 890),
        name(held, now=NOW + 1790),
    ]

    assert len(set(names)) == len(names)


@dataclass
class Marked:
    """A registry's index and its records of tables."""

    records: dict[Key, Record] = field(default_factory=dict)
    marks: list[tuple[TableId, RegionId, str]] = field(default_factory=list)

    def read(self, key: Key) -> Record | None:
        return self.records.get(key)

    def dirty(self) -> list[tuple[TableId, RegionId, str]]:
        return self.marks

    def add(self, table: Table) -> None:
        """As the index is once it has caught up."""
        identity = table.config.table
        self.records[table_key(identity)] = {"format": 1, "uri": table.uri}
        self.marks += [(identity, one.id, one.head().dirty) for one in table.regions() if one.head().dirty]


@dataclass
class Work:
    flushes: list[str] = field(default_factory=list)
    merges: list[tuple[str, str]] = field(default_factory=list)
    running: list[str] = field(default_factory=list)

    def flush(self, table: str) -> None:
        self.flushes.append(table)

    def merging(self) -> Sequence[str]:
        return self.running

    def merge(self, table: str, *, name: str) -> str:
        self.merges.append((table, name))
        return f"execution:{name}"


def opening(**settings: float) -> Any:
    def open_it(uri: str) -> TableHandle:
        return open_configured(uri, settings=settings)

    return open_it


EAGER = opening(flush_rows=1, merge_generations=1)


def test_what_was_written_is_flushed_and_what_was_flushed_is_merged(tmp_path: Path) -> None:
    table, registry, work = create(tmp_path, regions="bucket(id, 2)"), Marked(), Work()
    table.upsert([row(1), row(2), row(3)])
    registry.add(table)

    first = dispatch(registry, open_table=EAGER, work=work)
    table.flush()
    second = dispatch(registry, open_table=EAGER, work=work)

    assert (first.flushed, first.merges, first.failed) == ((table.uri,), (), {})
    assert (second.flushed, len(second.merges)) == ((), 1)
    assert (work.flushes, [uri for uri, _ in work.merges]) == ([table.uri], [table.uri])


def test_two_schedules_at_once_start_one_merge(tmp_path: Path) -> None:
    table, registry, work = create(tmp_path), Marked(), Work()
    table.upsert([row(1)])
    table.flush()
    registry.add(table)

    assert dispatch(registry, open_table=EAGER, work=work) == dispatch(registry, open_table=EAGER, work=work)
    assert len(set(work.merges)) == 1


def test_a_table_that_is_being_merged_is_left_to_that_merge(tmp_path: Path) -> None:
    table, registry = create(tmp_path), Marked()
    table.upsert([row(1)])
    table.flush()
    registry.add(table)

    busy = dispatch(registry, open_table=EAGER, work=Work(running=[f"{table.config.table}-0123456789abcdef"]))
    other = dispatch(registry, open_table=EAGER, work=Work(running=[f"{TABLE}-0123456789abcdef"]))

    assert (busy.merges, len(other.merges)) == ((), 1)


def test_a_mark_that_is_over_starts_nothing(tmp_path: Path) -> None:
    table, registry, work = create(tmp_path), Marked(), Work()
    table.upsert([row(1)])
    registry.add(table)
    table.flush()
    merge_table(open_table(table.uri), engine="inprocess")

    done = dispatch(registry, open_table=opening(flush_rows=1, merge_generations=1, merge_age_seconds=0.001), work=work)

    assert (done.flushed, done.merges, done.failed) == ((), (), {})


def test_one_bad_table_does_not_keep_the_others_from_being_served(tmp_path: Path) -> None:
    registry, work = Marked(), Work()
    tables = [create(tmp_path / name) for name in ("a", "b", "c", "d")]
    for table in tables:
        table.upsert([row(1)])
        registry.add(table)
    Path(tables[0].uri, CONFIG).write_text("{")
    del registry.records[table_key(tables[1].config.table)]
    registry.records[table_key(tables[2].config.table)] = {"uri": tables[3].uri}

    done = dispatch(registry, open_table=EAGER, work=work)

    assert done.flushed == (tables[3].uri,)
    assert sorted(type(error).__name__ for error in done.failed.values()) == ["Corrupt", "Invalid", "Invalid"]


def test_one_table_alone_can_be_looked_at(tmp_path: Path) -> None:
    registry, work = Marked(), Work()
    for place in ("a", "b"):
        table = create(tmp_path / place)
        table.upsert([row(1)])
        registry.add(table)

    assert dispatch(registry, open_table=EAGER, work=work, only=table.uri).flushed == (table.uri,)


class Services:
    """Lambda and Step Functions, as far as `Elsewhere` asks them."""

    class exceptions:
        class ExecutionAlreadyExists(ClientError):
            pass

    def __init__(self, *, failing: str = "") -> None:
        self.calls: list[dict[str, Any]] = []
        self.names: set[str] = set()
        self.failing = failing

    def __call__(self, _service: str) -> Services:
        return self

    def invoke(self, **how: Any) -> None:
        self._note(how)

    def start_execution(self, **how: Any) -> None:
        self._note(how)
        if how["name"] in self.names:
            raise self.exceptions.ExecutionAlreadyExists({"Error": {"Code": "ExecutionAlreadyExists"}}, "Start")
        self.names.add(how["name"])

    def get_paginator(self, _operation: str) -> Services:
        return self

    def paginate(self, **how: Any) -> list[dict[str, Any]]:
        self._note(how)
        return [{"executions": [{"name": "a"}]}, {"executions": [{"name": "b"}]}]

    def _note(self, how: dict[str, Any]) -> None:
        self.calls.append(how)
        if self.failing:
            raise ClientError({"Error": {"Code": self.failing, "Message": "no"}}, "Operation")


MACHINE = "arn:aws:states:us-east-1:111111111111:stateMachine:lancelsm-test-merge"


def test_a_merge_that_was_started_before_is_named_and_not_an_error() -> None:
    services = Services()
    elsewhere = Elsewhere(compaction="compaction", machine=MACHINE, service=services)

    first, second = elsewhere.merge("s3://t", name="one"), elsewhere.merge("s3://t", name="one")

    assert first == second == "arn:aws:states:us-east-1:111111111111:execution:lancelsm-test-merge:one"
    assert json.loads(services.calls[0]["input"]) == {"table": "s3://t"}


def test_a_flush_is_an_asynchronous_invocation_and_running_merges_are_asked_for_once() -> None:
    services = Services()
    elsewhere = Elsewhere(compaction="compaction", machine=MACHINE, service=services)

    elsewhere.flush("s3://t")

    assert services.calls[0]["InvocationType"] == "Event"
    assert json.loads(services.calls[0]["Payload"]) == {"table": "s3://t"}
    assert (elsewhere.merging(), elsewhere.merging(), len(services.calls)) == (["a", "b"], ["a", "b"], 2)
    assert services.calls[1]["statusFilter"] == "RUNNING"


@pytest.mark.parametrize(("code", "kind"), [("AccessDeniedException", Invalid), ("ThrottlingException", Unavailable)])
def test_a_refusal_of_aws_is_told_from_no_answer(code: str, kind: type[Exception]) -> None:
    elsewhere = Elsewhere(compaction="compaction", machine=MACHINE, service=Services(failing=code))

    for call in (lambda: elsewhere.flush("s3://t"), elsewhere.merging, lambda: elsewhere.merge("s3://t", name="one")):
        with pytest.raises(kind, match=code):
            call()


def collection(now: float, *, interval: float = 3600.0) -> tuple[str, str]:
    return next_collection(TABLE, settings=Settings(collect_interval_seconds=interval), now=now)


def test_merges_of_a_span_of_time_have_one_collection_which_begins_when_it_is_over() -> None:
    assert collection(0.0) == collection(7199.9) == (f"{TABLE}-19700101T020000", "1970-01-01T02:00:00Z")
    assert collection(7200.0) == (f"{TABLE}-19700101T040000", "1970-01-01T04:00:00Z")


@pytest.mark.parametrize("interval", [0.0, 0.3, 1.5, 60.0, 86_400.0])
def test_a_collection_begins_after_the_merge_and_an_interval_before_the_next_one(interval: float) -> None:
    now = 1_000_000.25
    begins = datetime.fromisoformat(collection(now, interval=interval)[1]).timestamp()
    following = datetime.fromisoformat(collection(begins, interval=interval)[1]).timestamp()

    assert now < begins
    assert following - begins >= 2 * interval
