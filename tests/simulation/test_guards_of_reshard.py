"""Each guard of a reshard is needed: without it, its scenario fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pytest

import lancelsm
from lancelsm.admin import reshard as resharding
from lancelsm.errors import Invalid
from lancelsm.read import reader
from lancelsm.read.transact import source_offsets
from lancelsm.region import config as configs
from lancelsm.region.catalog import Region
from lancelsm.wal.claim import add_to_catalog, create_region
from lancelsm.wal.log_writer import open_log
from tests.simulation.marks import changed, without
from tests.simulation.removal import anywhere, with_and_without
from tests.unit.moved_scenarios import (
    collected_log_behind_a_moved_message,
    collected_log_of_a_new_region,
    sender_with_an_old_configuration,
    waiting_messages,
)
from tests.unit.resharded_streams import in_order


def _table(path: Path) -> lancelsm.Table:
    rows = [{"id": key, "v": 0} for key in range(3)]
    settings = {"retry_budget_seconds": 1}
    return lancelsm.create(path / "table", rows, primary_key="id", regions="identity(id)", settings=settings)


def _row(key: int, value: int) -> list[dict[str, Any]]:
    return [{"id": key, "v": value}]


def region_that_a_stale_writer_needs(path: Path) -> None:
    """A writer that knows the old spec meets values that had no region under it."""
    table = _table(path)
    stale = open_log(table.uri)
    table.reshard("bucket(id, 2)")
    table.upsert(_row(7, 5))
    stale.upsert(_row(7, 6))
    assert table.get(7)["v"].to_pylist() == [6]


def region_without_a_head(path: Path) -> None:
    """The creator of a region stalls right before it creates the head."""
    table = _table(path)
    table.upsert(_row(1, 1))
    target, known = table._target, table.list_regions()[0]
    stalled = target.directory.named(((known.values[0][0], b"\7" + b"\0" * 7),))
    assert isinstance(stalled, Region)
    add_to_catalog(stalled, budget=target.context.budget())
    table.reshard("bucket(id, 2)")
    with pytest.raises(Invalid, match="sealed"):
        create_region(
            target.context, spec_id=stalled.spec_id, values=stalled.values, owner=target.owner, resharding=True
        )


def rows_of_a_writer_at_the_end(path: Path) -> None:
    """A writer appends when the last flush has begun; the flush does not see its rows."""
    table = _table(path)
    table.upsert(_row(1, 1))
    held = open_log(table.uri)
    flush, calls = resharding.flush_table, []

    def late(handle: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            held.upsert(_row(1, 2))
        return [] if len(calls) < 3 else flush(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resharding, "flush_table", late)
        table.reshard("bucket(id, 2)")
    table.upsert(_row(1, 3))
    table.merge()
    assert table.get(1)["v"].to_pylist() == [3]
    assert lancelsm.open(table.uri).count() == 3


def read_of_a_table_that_is_held_open(path: Path) -> None:
    """A reader that has the table open looks up a key in its new region."""
    table = _table(path)
    held = lancelsm.open(table.uri)
    assert held.get(1)["v"].to_pylist() == [0]
    table.reshard("bucket(id, 2)")
    table.upsert(_row(1, 4))
    assert held.get(1)["v"].to_pylist() == [4]


def _resharded(table: lancelsm.Table, by: lancelsm.Table) -> None:
    """Another process writes a row and reshards the table. Then another thread of this one follows the reshard."""
    by.upsert(_row(1, 7))
    by.reshard("bucket(id, 2)")
    assert table.get(2)["v"].to_pylist() == [0]


def token_of_a_read_before_a_reshard(path: Path) -> None:
    """The table is resharded between the view of a read and its token."""
    table = _table(path)
    other, get, calls = lancelsm.open(table.uri), reader.get, []

    def late(*args: Any, **more: Any) -> Any:
        found = get(*args, **more)
        calls.append(1)
        if len(calls) == 1:
            _resharded(table, by=other)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "get", late)
        found = table.get(1, with_token=True)
    table.upsert(_row(1, found.rows["v"][0].as_py() + 1), if_unchanged=found.token)
    assert table.get(1)["v"].to_pylist() == [8]


def writes_of_rows_before_a_reshard(path: Path) -> None:
    """The table is resharded between the read of the rows of an update, or a delete, and its entry."""
    updated = _table(path / "updated")
    _reshard_before_append(updated)
    updated.update(where="id = 1", set={"v": "v + 1"})
    assert updated.get(1)["v"].to_pylist() == [8]
    deleted = _table(path / "deleted")
    _reshard_before_append(deleted)
    deleted.delete(where="id = 1 and v = 0")
    assert deleted.get(1)["v"].to_pylist() == [7]


def _reshard_before_append(table: lancelsm.Table) -> None:
    other, transactions, calls = lancelsm.open(table.uri), table._transactions, []
    append = transactions._append

    def late(*args: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            _resharded(table, by=other)
        return append(*args, **more)

    transactions._append = late


def atomic_transaction_that_a_reshard_would_split(path: Path) -> None:
    """Two keys that were in one region are in two after a reshard, which a process that holds the table open meets."""
    rows = [{"id": key, "v": 0} for key in range(9)]
    table = lancelsm.create(path / "table", rows, primary_key="id", regions="bucket(id, 1)")
    table.upsert(_row(1, 1))
    lancelsm.open(table.uri).reshard("identity(id)")
    with pytest.raises(Invalid, match="several regions"):
        table.transact([1, 2], lambda current: _row(1, 2) + _row(2, 2), atomic=True)
    assert sorted(table.get([1, 2])["v"].to_pylist()) == [0, 1]


def base_before_the_reshard(path: Path) -> None:
    """Lance restores the base to a version before the reshard, under a reader that holds the table open."""
    table = _table(path)
    table.upsert(_row(1, 1))
    version = table._handle.read_base().version
    held = lancelsm.open(table.uri)
    table.reshard("bucket(id, 2)")
    assert held.count() == 3
    lance.dataset(table.uri, version=version).restore()
    assert held.scan(where="v = 1").to_arrow().num_rows == 1


def stream_across_a_reshard(path: Path) -> None:
    """A stream reads several entries of an old region at once, and follows the table after a reshard."""
    table = _table(path)
    for value in range(1, 21):
        table.upsert(_row(1, value))
    table.reshard("bucket(id, 2)")
    table.upsert(_row(1, 21))
    assert [change.rows["v"].to_pylist() for change in table.changes()] == [[value] for value in range(1, 22)]


def event_that_an_old_region_has(path: Path) -> None:
    """A source repeats an event after a reshard, when its row was replaced."""
    table = _table(path)
    with pytest.MonkeyPatch.context() as patch:  # its offset is not recorded
        patch.setattr(source_offsets, "move_offset", lambda *_, **__: None)
        table.apply_changes(_row(1, 1), source="s", offset=1)
    table.reshard("bucket(id, 2)")
    table.upsert(_row(1, 9))
    table.apply_changes(_row(1, 1), source="s", offset=1)
    assert table.get(1)["v"].to_pylist() == [9]


def reshard_that_stalled(path: Path) -> None:
    """A process stalls before it writes the configuration; others finish the reshard, and do the next one."""
    table = _table(path)
    table.reshard("bucket(id, 2)")
    first = table.config.regions
    table.reshard("bucket(id, 3)")
    assert first is not None
    context = table._context
    configs.change_regions(context.objects, first, uri=table.uri, budget=context.budget())
    found = configs.read(context.objects, uri=table.uri)
    assert found is not None
    assert str(found.regions) == "bucket(id, 3)"


test_scenarios_pass, test_scenarios_fail_without_a_guard = with_and_without(
    {
        "a region of an old spec is not created": (
            [without("region of an old spec is not created")],
            region_that_a_stale_writer_needs,
        ),
        "a region without a head is created before it is sealed": (
            [without("region without a head is created before it is sealed")],
            region_without_a_head,
        ),
        "every region is sealed": ([without("reshard seals every region")], rows_of_a_writer_at_the_end),
        "sealed regions are merged": (
            [without("sealed regions are merged", instead=True)],
            rows_of_a_writer_at_the_end,
        ),
        "a read follows a reshard": ([without("read follows a reshard")], read_of_a_table_that_is_held_open),
        "a token has the regions of its view": (
            [without("token has the regions of its view", instead=True)],
            token_of_a_read_before_a_reshard,
        ),
        "an atomic transaction is not split": (
            [without("reshard does not split an atomic transaction")],
            atomic_transaction_that_a_reshard_would_split,
        ),
        "rows are read again": (
            [without("rows that were read before a reshard are read again")],
            writes_of_rows_before_a_reshard,
        ),
        "moved messages are judged by their old region": (
            [without("moved message is judged by its old region")],
            anywhere(waiting_messages),
        ),
        "moved messages are applied once": (
            [without("moved message is applied once")],
            anywhere(collected_log_behind_a_moved_message),
        ),
        "lower messages are older": (
            [without("lower message of the same producer is older", instead=False)],
            anywhere(waiting_messages),
        ),
        "the log is kept": (
            [without("log behind older rows is not collected")],
            anywhere(collected_log_of_a_new_region),
        ),
        "a sender routes again": (
            [without("sender routes again after a reshard", instead=True)],
            anywhere(sender_with_an_old_configuration),
        ),
        "the base has the rows of retired regions": (
            [without("base of a view has the rows of retired regions")],
            base_before_the_reshard,
        ),
        "a stream reads old regions first": (
            [without("old regions are read to their end first")],
            stream_across_a_reshard,
        ),
        "a stream of Spark reads old regions first": (
            [changed("stream reads old regions first", "waiting = []")],
            in_order,
        ),
        "an event of an old region is applied once": (
            [changed("event of an earlier region is applied once", "True")],
            event_that_an_old_region_has,
        ),
        "the region spec never goes back": ([without("region spec never goes back")], reshard_that_stalled),
    },
    own=(
        region_that_a_stale_writer_needs,
        region_without_a_head,
        rows_of_a_writer_at_the_end,
        read_of_a_table_that_is_held_open,
        reshard_that_stalled,
        base_before_the_reshard,
        stream_across_a_reshard,
        event_that_an_old_region_has,
    ),
)
pytestmark = pytest.mark.rest
