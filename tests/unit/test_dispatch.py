"""The scheduled dispatch: it starts each due flush and merge once, and a bad table does not stop the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lancelsm.common.layout import CONFIG, Generation, Key, RegionId, TableId, table_key
from lancelsm.common.settings import Settings
from lancelsm.compaction.compact import compact_table
from lancelsm.compaction.maintenance import merge_table
from lancelsm.errors import Invalid, Unavailable
from lancelsm.region import compare_and_swap
from lancelsm.region.handle import TableHandle, open_configured, open_table
from lancelsm.region.head import Head
from lancelsm.region.lease import compaction_lease, flush_lease, lease
from lancelsm.region.manifest import Manifest
from lancelsm.registry import Record
from lancelsm.stack.dispatch import AwsWork, Dispatched, Lag, dispatch, due, next_collection
from lancelsm.stack.fan_out import read_dirty
from lancelsm.table import Table
from tests.unit.tables import create, row

TABLE = TableId("11111111-2222-4333-8444-555555555555")
SETTINGS = Settings(flush_rows=100, flush_bytes=1000, flush_age_seconds=60, merge_generations=8, merge_age_seconds=900)
NOW = 10_000.0


def lag(
    *,
    rows: int = 0,
    size: int = 0,
    newest: int = 0,
    merged: int = 0,
    live: int | None = None,
    age: float = 0,
    region: str = "r",
) -> Lag:
    live = newest - merged if live is None else live
    return Lag(
        region=RegionId(region),
        rows=rows,
        bytes=size,
        newest=Generation(newest),
        merged=Generation(merged),
        live=live,
        compactable=live > SETTINGS.max_generations,
        since=NOW - age,
    )


def needs(*lags: Lag, now: float = NOW) -> tuple[bool, bool]:
    found = due(TABLE, lags, settings=SETTINGS, now=now)
    return bool(found.flush), found.merge is not None


@pytest.mark.parametrize(
    ("lag_of_region", "expected"),
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
def test_a_flush_or_a_merge_is_due_by_amount_or_age(lag_of_region: Lag, expected: tuple[bool, bool]) -> None:
    assert needs(lag_of_region) == expected
    assert needs(lag(), lag_of_region) == expected


def test_one_due_region_makes_the_table_due() -> None:
    assert needs(lag(rows=1), lag(rows=100, region="s")) == (True, False)
    assert needs(lag(newest=1), lag(newest=8, region="s")) == (False, True)


def test_only_due_regions_are_flushed_and_small_ones_share_an_invocation() -> None:
    lags = [
        lag(rows=100, size=5000, region="large"),
        lag(rows=100, size=400, region="b"),
        lag(rows=100, size=500, region="c"),
        lag(rows=100, size=300, region="a"),
        lag(rows=99, size=999, region="young"),
    ]

    found = due(TABLE, lags, settings=SETTINGS, now=NOW).flush

    assert found == (("a", "b"), ("c",), ("large",))


def test_a_region_whose_flush_runs_is_not_flushed_again(tmp_path: Path) -> None:
    table, registry, work = create(tmp_path, regions="bucket(id, 2)"), DirtyIndex(), FakeWork()
    table.upsert([row(key) for key in range(8)])
    registry.add(table)
    busy, free = table.list_regions()

    with lease(open_table(table.uri).context, flush_lease(busy.id)):
        run(registry, open_table=EAGER, work=work)
    run(registry, open_table=EAGER, work=work)

    assert [sorted(group) for group in work.groups] == [[free.id], sorted([busy.id, free.id])]


def name(*lags: Lag, now: float = NOW) -> str:
    found = due(TABLE, lags, settings=SETTINGS, now=now).merge
    assert found is not None
    return found


def test_the_same_work_gives_a_merge_the_same_name() -> None:
    one, other = lag(newest=8, age=10), lag(newest=1, region="s", age=5)

    assert name(one, other) == name(other, one) == name(one, other, now=NOW + 880)
    assert name(one, other, lag(rows=3, region="t")) == name(one, other)
    assert name(one).startswith(TABLE)
    assert len(name(one)) <= 80


def test_new_generations_or_an_expired_age_give_a_merge_another_name() -> None:
    lag_of_region = lag(newest=8, age=10)

    names = [
        name(lag_of_region),
        name(lag(newest=9, age=10)),
        name(lag(newest=9, merged=1, age=10)),
        name(lag_of_region, lag(newest=1, region="s")),
        name(lag_of_region, now=NOW + 890),
        name(lag_of_region, now=NOW + 1790),
    ]

    assert len(set(names)) == len(names)


@dataclass
class DirtyIndex:
    """A fake registry: the `dirty` index and the records of tables."""

    records: dict[Key, Record] = field(default_factory=dict)
    marks: list[tuple[TableId, RegionId, str]] = field(default_factory=list)

    def read(self, key: Key) -> Record | None:
        return self.records.get(key)

    def dirty(self) -> list[tuple[TableId, RegionId, str]]:
        return self.marks

    def add(self, table: Table) -> None:
        """Add the table as the index shows it once it has caught up."""
        identity = table.config.table
        self.records[table_key(identity)] = {"format": 1, "uri": table.uri}
        self.marks += [(identity, one.id, one.head().dirty) for one in table.list_regions() if one.head().dirty]


@dataclass
class FakeWork:
    flushes: list[str] = field(default_factory=list)
    groups: list[tuple[RegionId, ...]] = field(default_factory=list)
    compactions: list[tuple[str, tuple[RegionId, ...]]] = field(default_factory=list)
    merges: list[tuple[str, str]] = field(default_factory=list)
    running: list[str] = field(default_factory=list)

    def flush(self, table: str, *, regions: Sequence[RegionId]) -> None:
        self.flushes.append(table)
        self.groups.append(tuple(regions))

    def compact(self, table: str, *, regions: Sequence[RegionId]) -> None:
        self.compactions.append((table, tuple(regions)))

    def running_merges(self) -> Sequence[str]:
        return self.running

    def merge(self, table: str, *, name: str) -> str:
        self.merges.append((table, name))
        return f"execution:{name}"


def run(registry: DirtyIndex, **options: Any) -> Dispatched:
    """Read which regions are dirty and serve all tables, as a run of a small deployment does."""
    return dispatch(registry, read_dirty(registry), **options)


def table_opener(**settings: float) -> Any:
    def open_table_there(uri: str) -> TableHandle:
        return open_configured(uri, settings=settings)

    return open_table_there


EAGER = table_opener(flush_rows=1, merge_generations=1)


def test_written_rows_are_flushed_and_flushed_generations_are_merged(tmp_path: Path) -> None:
    table, registry, work = create(tmp_path, regions="bucket(id, 2)"), DirtyIndex(), FakeWork()
    table.upsert([row(1), row(2), row(3)])
    registry.add(table)

    first = run(registry, open_table=EAGER, work=work)
    table.flush()
    second = run(registry, open_table=EAGER, work=work)

    assert (first.flushed, first.merges, first.failed) == ((table.uri,), (), {})
    assert (second.flushed, len(second.merges)) == ((), 1)
    assert (work.flushes, [uri for uri, _ in work.merges]) == ([table.uri], [table.uri])


def test_two_concurrent_dispatches_start_one_merge(tmp_path: Path) -> None:
    table, registry, work = create(tmp_path), DirtyIndex(), FakeWork()
    table.upsert([row(1)])
    table.flush()
    registry.add(table)

    first, second = (run(registry, open_table=EAGER, work=work) for _ in range(2))

    assert (first.merges, first.failed) == (second.merges, second.failed)
    assert len(set(work.merges)) == 1


def test_a_compaction_is_due_above_the_maximum_and_twice_as_much_while_a_merge_is_due() -> None:
    settings = replace(SETTINGS, merge_generations=100)
    found = [due(TABLE, [lag(newest=30, live=n), lag(region="s")], settings=settings, now=NOW) for n in (8, 9, 17)]
    assert [(one.compact, one.crowded, one.merge) for one in found] == [
        ((), (), None),
        (("r",), (), None),
        (("r",), ("r",), None),
    ]
    merging = [due(TABLE, [lag(newest=30, live=n)], settings=SETTINGS, now=NOW) for n in (9, 16, 17)]
    assert [(one.compact, one.merge is not None) for one in merging] == [((), True), ((), True), (("r",), True)]


@pytest.mark.rest
def test_a_region_with_too_many_generations_is_compacted_unless_another_invocation_does(tmp_path: Path) -> None:
    table, registry = create(tmp_path, settings={"max_generations": 1}), DirtyIndex()
    for key in range(2):
        table.upsert([row(key)])
        table.flush()
    registry.add(table)
    (region,) = [one.id for one in table.list_regions()]
    opener = table_opener(merge_generations=100)

    work, busy, merging = FakeWork(), FakeWork(), FakeWork(running=[f"{table.config.table}-0123456789abcdef"])
    assert run(registry, open_table=opener, work=work).compacted == (table.uri,)
    with lease(table._handle.context, compaction_lease(region)):
        assert run(registry, open_table=opener, work=busy).compacted == ()
        assert compact_table(table._handle, leased=True) == []
    run(registry, open_table=opener, work=merging)
    assert (work.compactions, busy.compactions, merging.compactions) == ([(table.uri, (region,))], [], [])
    assert [one.parts for one in compact_table(table._handle, only=[region], leased=True)] == [2]
    run(registry, open_table=opener, work=busy)
    assert busy.compactions == []


@pytest.mark.rest
@pytest.mark.parametrize("theirs", [1, 2, 3])
def test_generations_that_lances_writer_flushed_start_no_compaction(
    theirs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, registry, work = create(tmp_path, settings={"max_generations": 1}), DirtyIndex(), FakeWork()
    for key in range(3):
        table.upsert([row(key)])
        table.flush()
    registry.add(table)

    def newest(*found: Any) -> tuple[Head, Manifest]:
        head, manifest = compare_and_swap.newest(*found)
        foreign = [replace(one, folded=None) for one in manifest.generations[:theirs]]
        return head, replace(manifest, generations=(*foreign, *manifest.generations[theirs:]))

    monkeypatch.setattr("lancelsm.stack.dispatch.newest", newest)
    run(registry, open_table=table_opener(merge_generations=100), work=work)

    (region,) = [one.id for one in table.list_regions()]
    assert work.compactions == ([(table.uri, (region,))] if theirs == 1 else []), "two of ours can become one"


def test_a_table_with_a_running_merge_gets_no_second_one(tmp_path: Path) -> None:
    table, registry = create(tmp_path), DirtyIndex()
    table.upsert([row(1)])
    table.flush()
    registry.add(table)

    busy = run(registry, open_table=EAGER, work=FakeWork(running=[f"{table.config.table}-0123456789abcdef"]))
    other = run(registry, open_table=EAGER, work=FakeWork(running=[f"{TABLE}-0123456789abcdef"]))

    assert (busy.merges, len(other.merges)) == ((), 1)


def test_a_stale_dirty_mark_starts_nothing(tmp_path: Path) -> None:
    table, registry, work = create(tmp_path), DirtyIndex(), FakeWork()
    table.upsert([row(1)])
    registry.add(table)
    table.flush()
    merge_table(open_table(table.uri), engine="inprocess")

    done = run(registry, open_table=table_opener(flush_rows=1, merge_generations=1, merge_age_seconds=0.001), work=work)

    assert (done.flushed, done.merges, done.failed) == ((), (), {})


def test_bad_tables_do_not_stop_the_dispatch_of_others(tmp_path: Path) -> None:
    registry, work = DirtyIndex(), FakeWork()
    tables = [create(tmp_path / name) for name in ("a", "b", "c", "d")]
    for table in tables:
        table.upsert([row(1)])
        registry.add(table)
    Path(tables[0].uri, CONFIG).write_text("{")
    del registry.records[table_key(tables[1].config.table)]
    registry.records[table_key(tables[2].config.table)] = {"uri": tables[3].uri}

    done = run(registry, open_table=EAGER, work=work)

    assert done.flushed == (tables[3].uri,)
    assert sorted(type(error).__name__ for error in done.failed.values()) == ["Corrupt", "Invalid", "Invalid"]


def test_a_dispatch_can_be_limited_to_one_table(tmp_path: Path) -> None:
    registry, work = DirtyIndex(), FakeWork()
    for name in ("a", "b"):
        table = create(tmp_path / name)
        table.upsert([row(1)])
        registry.add(table)

    assert run(registry, open_table=EAGER, work=work, only=table.uri).flushed == (table.uri,)


class Services:
    """The calls of Lambda and Step Functions that `AwsWork` makes."""

    class exceptions:
        class ExecutionAlreadyExists(ClientError):
            pass

    def __init__(self, *, failing: str = "") -> None:
        self.calls: list[dict[str, Any]] = []
        self.names: set[str] = set()
        self.failing = failing

    def __call__(self, _service: str) -> Services:
        return self

    def invoke(self, **request: Any) -> None:
        self._record(request)

    def start_execution(self, **request: Any) -> None:
        self._record(request)
        if request["name"] in self.names:
            raise self.exceptions.ExecutionAlreadyExists({"Error": {"Code": "ExecutionAlreadyExists"}}, "Start")
        self.names.add(request["name"])

    def get_paginator(self, _operation: str) -> Services:
        return self

    def paginate(self, **request: Any) -> list[dict[str, Any]]:
        self._record(request)
        begun = datetime.fromtimestamp(NOW, tz=UTC)
        return [
            {"executions": [{"name": name, "startDate": begun + timedelta(seconds=seconds)}]}
            for name, seconds in (("a", 10), ("b", -20))
        ]

    def _record(self, request: dict[str, Any]) -> None:
        self.calls.append(request)
        if self.failing:
            raise ClientError({"Error": {"Code": self.failing, "Message": "no"}}, "Operation")


MACHINE = "arn:aws:states:us-east-1:111111111111:stateMachine:lancelsm-test-merge"


def test_starting_a_merge_twice_returns_the_same_execution() -> None:
    services = Services()
    work = AwsWork(compaction="compaction", machine=MACHINE, service=services)

    first, second = work.merge("s3://t", name="one"), work.merge("s3://t", name="one")

    assert first == second == "arn:aws:states:us-east-1:111111111111:execution:lancelsm-test-merge:one"
    assert json.loads(services.calls[0]["input"]) == {"table": "s3://t"}


def test_a_flush_is_invoked_asynchronously_and_running_merges_are_listed_once() -> None:
    services = Services()
    work = AwsWork(compaction="compaction", machine=MACHINE, service=services)

    work.flush("s3://t", regions=[RegionId("r"), RegionId("s")])

    assert services.calls[0]["InvocationType"] == "Event"
    assert json.loads(services.calls[0]["Payload"]) == {"table": "s3://t", "regions": ["r", "s"]}
    assert work.longest_merge(now=NOW) == 0, "not listed yet, and not for this"
    assert (work.running_merges(), work.running_merges(), len(services.calls)) == (["a", "b"], ["a", "b"], 2)
    assert (work.longest_merge(now=NOW + 5), len(services.calls)) == (25, 2)
    work.compact("s3://t", regions=[RegionId("r")])
    assert json.loads(services.calls[2]["Payload"]) == {"table": "s3://t", "compact": ["r"]}
    assert services.calls[1]["statusFilter"] == "RUNNING"


@pytest.mark.parametrize(("code", "kind"), [("AccessDeniedException", Invalid), ("ThrottlingException", Unavailable)])
def test_a_refusal_of_aws_is_invalid_and_throttling_is_unavailable(code: str, kind: type[Exception]) -> None:
    work = AwsWork(compaction="compaction", machine=MACHINE, service=Services(failing=code))

    for call in (
        lambda: work.flush("s3://t", regions=[]),
        work.running_merges,
        lambda: work.merge("s3://t", name="one"),
    ):
        with pytest.raises(kind, match=code):
            call()


def collection(now: float, *, interval: float = 3600.0) -> tuple[str, str]:
    return next_collection(TABLE, settings=Settings(collect_interval_seconds=interval), now=now)


def test_merges_within_one_time_span_share_a_collection_that_begins_at_its_end() -> None:
    assert collection(0.0) == collection(7199.9) == (f"{TABLE}-19700101T020000", "1970-01-01T02:00:00Z")
    assert collection(7200.0) == (f"{TABLE}-19700101T040000", "1970-01-01T04:00:00Z")


@pytest.mark.parametrize("interval", [0.0, 0.3, 1.5, 60.0, 86_400.0])
def test_a_collection_begins_after_the_merge_and_two_intervals_before_the_next_collection(interval: float) -> None:
    now = 1_000_000.25
    begins = datetime.fromisoformat(collection(now, interval=interval)[1]).timestamp()
    following = datetime.fromisoformat(collection(begins, interval=interval)[1]).timestamp()

    assert now < begins
    assert following - begins >= 2 * interval
