"""SIGINT at any call of a public function raises KeyboardInterrupt, and the table stays whole and usable."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.errors import Invalid
from lancelsm.region.handle import open_table
from lancelsm.table import Table
from tests.interrupts import interrupted

# An interrupt in a finalizer can't be raised, and one in the middle of a step leaves files to the finalizers.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

ROWS = [{"id": number, "v": "new"} for number in range(30)]


def write_many(table: Table) -> None:
    with table.writer() as writer:
        for row in ROWS:
            writer.submit(row)


def write_in_flight(table: Table) -> None:
    with table.writer(pipeline_depth=4) as writer:
        for row in ROWS[:9]:
            writer.submit(row)


def hold(table: Table) -> None:
    with table.holding_snapshot("held") as held:
        held.scan().to_arrow()


def consume(table: Table) -> None:
    changes = table.changes(cursor="c")
    list(changes)
    changes.save()


CALLS: dict[str, Callable[[Table], Any]] = {
    "upsert": lambda table: table.upsert(ROWS),
    "delete": lambda table: table.delete([1, 2, 3]),
    "delete where": lambda table: table.delete(where="v = 'old'"),
    "scan": lambda table: table.scan().to_arrow(),
    "get": lambda table: table.get([1, 2]),
    "flush": lambda table: table.flush(),
    "merge": lambda table: table.merge(),
    "run": lambda table: table.run(),
    "collect": lambda table: table.collect(yes=True, interval_seconds=0),
    "scrub": lambda table: table.scrub(),
    "status": lambda table: table.status(),
    "snapshot": lambda table: table.snapshot("n"),
    "refresh": lambda table: table.refresh_snapshot("s"),
    "drop snapshot": lambda table: table.drop_snapshot("s"),
    "at": lambda table: table.at("s").scan().to_arrow(),
    "hold": hold,
    "set cursor": lambda table: table.set_cursor("d"),
    "changes": consume,
    "writer": write_many,
    "pipelined writer": write_in_flight,
    "claim": lambda table: table.claim(table.list_regions()[0]),
    "open": lambda table: lancelsm.open(table.uri),
    "create": lambda table: lancelsm.create(f"{table.uri}-new", ROWS, primary_key="id"),
    "clone": lambda table: clone_snapshot(open_table(table.uri), "s", f"{table.uri}-clone"),
    "drop": lambda table: lancelsm.drop(table.uri),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "t"
    rows = [{"id": number, "v": "old"} for number in range(50)]
    table = lancelsm.create(
        path, rows, primary_key="id", regions="bucket(id, 3)", settings={"retry_budget_seconds": 2.0}
    )
    table.upsert(rows[20:40])
    table.flush()
    table.upsert(rows[:5])
    table.snapshot("s")
    table.set_cursor("c")
    return path


def check(template: Path, folder: Path, name: str, times: int) -> None:
    chance = random.Random(f"interrupts {name}")
    total = 0
    for _ in range(times):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder / "t")
        table = lancelsm.open(folder / "t")
        total = interrupted(lambda table=table: CALLS[name](table), chance.randint(1, total) if total else 0)  # type: ignore[misc]
        if name == "drop":
            check_dropped(table)
        else:
            check_usable(table, name)


def check_usable(table: Table, name: str) -> None:
    if name == "pipelined writer":  # an exclusive writer could not give its regions back
        for region in table.list_regions():
            table.claim(region)
    table.upsert({"id": 7, "v": "after"})
    again = lancelsm.open(table.uri)
    assert again.get(7).to_pylist() == [{"id": 7, "v": "after"}]
    assert again.scrub().ok
    try:
        CALLS[name](again)
        again.run()
    except Invalid:  # it had been done already
        assert name in {"snapshot", "drop snapshot", "create", "clone", "hold"}
    assert again.scrub().ok


def check_dropped(table: Table) -> None:
    """The table can be dropped again or is gone, and its location is free."""
    with suppress(Invalid):
        lancelsm.drop(table.uri)
    assert lancelsm.create(table.uri, ROWS, primary_key="id").scan().to_arrow().num_rows == len(ROWS)


@pytest.mark.rest
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_leaves_the_table_usable(template: Path, tmp_path: Path, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(template, tmp_path / "f", name, 3)


@pytest.mark.long
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_many_calls_leaves_the_table_usable(template: Path, tmp_path: Path, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(template, tmp_path / "f", name, 20)
