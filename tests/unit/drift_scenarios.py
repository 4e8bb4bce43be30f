"""What must hold when another tool changes the base of a table: its columns, its key."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import lance
import pytest

from lancelsm.errors import Invalid
from lancelsm.region.drift import Drifted, resume, stop_writers
from lancelsm.region.handle import open_configured
from lancelsm.table import Table
from lancelsm.wal.claim import claim
from tests.simulation.faults import Call, FaultPlan
from tests.unit.tables import create, faulty, row, rows_of

CHANGE = Drifted("another tool changed the base")


def changed_table(path: Path) -> Table:
    """A table with one row in a generation and one in its log, without one of its columns in the base."""
    table = create(path, [row(0)])
    table.upsert([row(1)])
    table.flush()
    table.upsert([row(2)])
    lance.dataset(table.uri).drop_columns(["v"])
    return table


def refuses_rows(table: Table) -> None:
    with pytest.raises(Invalid, match="takes no rows for now"):
        table.upsert([row(3)])


def flush_stops_writers(path: Path) -> None:
    """The first flush that meets the change flushes what was appended, and then nothing more is acknowledged."""
    table = changed_table(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(table.flush()) == 1
    refuses_rows(table)


def merge_stops_writers(path: Path) -> None:
    """So does the first merge, and it merges nothing."""
    table = changed_table(path)
    version = lance.dataset(table.uri).version
    with pytest.raises(Invalid, match="column 'v' is gone"):
        table.merge(engine="inprocess")
    assert lance.dataset(table.uri).version == version
    refuses_rows(table)


def append_in_flight(path: Path) -> None:
    """A region is stopped between the put of an entry and its swap: the entry is refused, and never becomes visible."""
    table = create(path)
    table.upsert([row(1)])

    def stops(call: Call) -> None:
        if call.method == "swap":
            plan.stop()
            stop_writers(table._context, CHANGE)

    plan = FaultPlan(stops)
    lean = Table(open_configured(table.uri, ports=faulty(plan)))
    refuses_rows(lean)
    for region in table.list_regions():
        resume(region, region.head())
    lean.upsert([row(4)])
    assert rows_of(table) == [row(1), row(4)]


def claim_before_the_mark(path: Path) -> None:
    """Another writer claims the region right before the swap of the mark. The mark fences that epoch too."""
    table = create(path)
    (region,) = table.list_regions()

    def claims(call: Call) -> None:
        if call.method == "swap":
            plan.stop()
            claim(region, owner=table.config.owner)

    plan = FaultPlan(claims)
    stop_writers(open_configured(table.uri, ports=faulty(plan)).context, CHANGE)
    head = region.head()
    assert (head.epoch, head.stopped) == (3, CHANGE.message)


def read_without_the_key(path: Path) -> None:
    """A column of the key is gone from the base, so its rows can't be compared by key."""
    table = create(path, [row(1, "a"), row(1, "b")], primary_key=["id", "v"])
    lance.dataset(table.uri).drop_columns(["v"])
    reads: list[Callable[[], object]] = [table.scan, lambda: table.get([(1, "a")])]
    for read in reads:
        with pytest.raises(Invalid, match="changed the key of the base"):
            read()
