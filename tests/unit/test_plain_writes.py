"""A table whose change events a sequence orders takes no plain writes: they would not be compared with its rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.rebuild import rebuild
from lancelsm.errors import Invalid
from lancelsm.read.transact.change_capture import Applied
from lancelsm.region import head as heads
from lancelsm.region.handle import open_table
from lancelsm.stack.delivery.request import write
from lancelsm.wal.log_writer import open_log
from tests.simulation.deployment import Deployment

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int64())])
REFUSED = r"takes no plain writes.*table\.apply_changes.*function apply"
LOW = {"id": 1, "v": 4}


def created(path: Path) -> lancelsm.Table:
    return lancelsm.create(path / "table", COLUMNS, primary_key="id", regions="bucket(id, 2)")


def event(key: int, v: int) -> dict[str, int]:
    return {"id": key, "v": v}


def submit(table: lancelsm.Table, **options: object) -> None:
    with table.writer(**options) as writer:
        writer.submit([LOW]).result()


WRITES = {
    "upsert": lambda table: table.upsert([LOW]),
    "upsert if_newer": lambda table: table.upsert([event(1, 9)], if_newer="v"),
    "upsert partial": lambda table: table.upsert([LOW], partial=True),
    "delete": lambda table: table.delete([1]),
    "delete where": lambda table: table.delete(where="v > 0"),
    "update": lambda table: table.update(where="true", set={"v": "v - 1"}),
    "transact": lambda table: table.transact([1], lambda rows: [LOW]),
    "submit": submit,
    "submit in a pipeline": lambda table: submit(table, pipeline_depth=2),
}


@pytest.mark.parametrize("name", WRITES)
def test_each_plain_write_of_a_table_is_refused(tmp_path: Path, name: str) -> None:
    table = created(tmp_path)
    opened_before = lancelsm.open(table.uri)
    opened_before.upsert([event(1, 1)])
    table.apply_changes([event(1, 5)], sequence_by="v")
    for one in (table, lancelsm.open(table.uri), opened_before):
        with pytest.raises(Invalid, match=REFUSED):
            WRITES[name](one)
    assert lancelsm.open(table.uri).scan().to_arrow().to_pylist() == [event(1, 5)]


def test_writers_without_a_base_are_refused(tmp_path: Path) -> None:
    table = created(tmp_path)
    before = open_log(table.uri)
    table.apply_changes([event(1, 5)], sequence_by="v")
    rows = pa.table([[1], [4], [False]], schema=before.handle.config.schema.stored)
    for log in (before, open_log(table.uri)):
        calls = (
            lambda log=log: log.upsert([LOW]),
            lambda log=log: log.delete([1]),
            lambda log=log: write(rows, handle=log.handle, seconds=30),
        )
        for call in calls:
            with pytest.raises(Invalid, match=REFUSED):
                call()
    assert table.scan().to_arrow().to_pylist() == [event(1, 5)]


def test_the_order_counts_from_the_call_that_names_it(tmp_path: Path) -> None:
    table = created(tmp_path)
    table.apply_changes([], sequence_by="v")
    for one in (table, lancelsm.open(table.uri)):
        with pytest.raises(Invalid, match=REFUSED):
            one.upsert([LOW])
    assert table.count() == 0


def test_rows_are_changed_and_deleted_by_events(tmp_path: Path) -> None:
    table = created(tmp_path)
    table.upsert([event(1, 1), event(2, 1)])
    table.apply_changes([event(1, 5)], sequence_by="v")
    with pytest.raises(Invalid, match=r"empties the source table.*table\.apply_changes\(table\.scan\(\)"):
        table.apply_changes([{"op": "t", "before": None, "after": None}], format="debezium")
    assert table.apply_changes(table.scan().to_arrow(), apply_as_deletes="true") == Applied(deleted=2)
    assert table.apply_changes([LOW]) == Applied(late=1)
    assert table.count() == 0


@pytest.mark.parametrize("change", ["rebuild", "reshard"])
def test_other_regions_take_no_plain_writes_either(tmp_path: Path, change: str) -> None:
    table = created(tmp_path)
    opened_before = lancelsm.open(table.uri)
    table.apply_changes([event(1, 5)], sequence_by="v")
    if change == "rebuild":
        rebuild(open_table(table.uri))
    else:
        table.reshard("bucket(id, 3)")
    with pytest.raises(Invalid, match=REFUSED):
        opened_before.upsert([LOW])


def test_a_region_is_marked_by_its_first_event_with_an_order(tmp_path: Path) -> None:
    table = created(tmp_path)
    for options, marks in (({}, ["", ""]), ({"sequence_by": "v"}, ["", "1"])):
        table.apply_changes([event(1, 5)], **options)
        assert sorted(region.head().ordered for region in table.list_regions()) == marks


def test_ingest_and_the_queue_know_the_order_without_a_new_configuration() -> None:
    deployment = Deployment(buckets=1)
    deployment.send([(1, 1)], sequence=1)
    deployment.deliver()
    deployment.send([(1, 2)], sequence=2)
    region = deployment.region(1)
    region.swap(heads.ordered(region.head()))

    with pytest.raises(Invalid, match=f"{REFUSED}.*Nothing was sent"):
        deployment.send([(1, 3)], sequence=3)
    outcomes = deployment.deliver()

    assert deployment.log() == {1: [1]}
    assert [outcome.retry for outcome in outcomes] == [None]
    assert len(deployment.dead_letters.held) == 1
