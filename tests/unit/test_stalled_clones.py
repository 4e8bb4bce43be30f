"""A `clone` call stalls while others finish the clone, write to it, drop it, or clone to the same location."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.admin import clone, create
from lancelsm.admin.clone import Copied, clone_snapshot
from lancelsm.common.layout import DROPPING
from lancelsm.dataset import copies
from lancelsm.errors import Contended, Invalid, LsmError
from lancelsm.gc.delete_table import cancel_drop
from lancelsm.objects import Written
from lancelsm.objects.open import open_store
from lancelsm.record.normalize import upserts
from lancelsm.region.handle import open_table
from lancelsm.routing.route import route
from lancelsm.table import Table
from lancelsm.wal.entry import draft
from lancelsm.wal.region_writer import RegionWriters
from tests.unit.tables import NEWEST, by_key, three_levels

pytestmark = pytest.mark.rest

KEYS = range(-4, 4)


@pytest.fixture
def source(tmp_path: Path) -> Table:
    table = three_levels(tmp_path / "source")
    table.snapshot("monday", "never")
    return table


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return tmp_path / "clone"


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, Callable[[], Any]], None]:
    """Patch a function: its first caller stalls until `act` has run."""

    def before(module: Any, name: str, act: Callable[[], Any]) -> None:
        real, others = getattr(module, name), [act]

        def stalling(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.setattr(module, name, real)
            if others:
                others.pop()()
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, stalling)

    return before


def clone_to(source: Table, location: Path) -> Copied:
    return clone_snapshot(open_table(source.uri), "monday", location)


def values(location: Path) -> dict[int, Any]:
    return by_key(lancelsm.open(location).scan().to_arrow())


def finish_and_use(source: Table, location: Path) -> None:
    """Another call finishes the clone, which is then written, merged and collected."""
    clone_to(source, location)
    table = lancelsm.open(location)
    table.upsert([{"id": key, "v": 9} for key in KEYS])
    table.run()
    table.upsert([{"id": 0, "v": 10}])
    table.run()
    table.collect(yes=True, interval_seconds=0)


def deliver(location: Path, queue: str, value: int) -> None:
    target = open_table(location).target()
    rows = upserts([{"id": key, "v": value} for key in KEYS], schema=target.schema)
    writers = RegionWriters(target, owner=target.owner)
    for part in route(rows, target.regions):
        encoded = draft(part.rows, applied_sequences={queue: str(10**19 + value)}, at=1.0)
        writers.of(part.values).append_after(lambda _, encoded=encoded: encoded)


@pytest.mark.rest
@pytest.mark.parametrize("call", ["find_base", "open_dataset", "open_base", "commit", "ensure_mem_wal"])
def test_a_stalled_clone_call_leaves_the_base_of_a_used_clone_alone(source, location, before, call):
    before(copies, call, lambda: finish_and_use(source, location))

    with pytest.raises(LsmError):
        clone_to(source, location)

    assert values(location) == dict.fromkeys(KEYS, 9) | {0: 10}
    assert lancelsm.open(location).scrub().problems == ()


@pytest.mark.one_case
@pytest.mark.parametrize("queues", [1, 4, 5])
def test_a_stalled_clone_call_appends_no_row_again_however_many_queues_deliver(source, location, before, queues):
    def others() -> None:
        clone_to(source, location)
        for number in range(queues):
            deliver(location, f"queue {number}", number)

    before(clone, "_draft_if_missing", others)

    with pytest.raises(Invalid, match="a table already exists at this location"):
        clone_to(source, location)

    assert values(location) == dict.fromkeys(KEYS, queues - 1)


@pytest.mark.one_case
@pytest.mark.parametrize("call", ["_pin_base_version", "share_base", "register_table", "_append", "take_view"])
def test_cloning_fails_if_the_clone_is_dropped_meanwhile(source, location, before, call):
    def others() -> None:
        clone_to(source, location)
        lancelsm.drop(location)

    before(clone, call, others)

    with pytest.raises(LsmError):
        clone_to(source, location)

    assert [pin.name for pin in source.snapshots()] == ["monday"]
    with pytest.raises(Invalid):
        lancelsm.open(location)


def test_cloning_is_undone_if_the_clone_is_dropped_right_before_its_last_step(source, location, before):
    before(clone.configs, "create", lambda: (clone_to(source, location), lancelsm.drop(location)))

    with pytest.raises(Contended, match="dropped while it was created"):
        clone_to(source, location)

    assert [pin.name for pin in source.snapshots()] == ["monday"]
    with pytest.raises(Invalid, match="there is no table at this location"):
        lancelsm.open(location)


def test_a_clone_whose_drop_is_cancelled_keeps_its_files_and_its_configuration(source, location, before, tmp_path):
    """A clone of the clone shares its files, so the drop is cancelled, whatever the stalled call saw meanwhile."""

    def others() -> None:
        clone_to(source, location)
        lancelsm.open(location).snapshot("own", "never")
        clone_snapshot(open_table(location), "own", tmp_path / "next")
        store = open_store(str(location))
        marker = {"table": clone_id(location), "registry": "sqlite"}
        assert isinstance(store.create(DROPPING, json.dumps(marker).encode()), Written)

    before(clone.configs, "create", others)
    with pytest.raises(Contended, match="dropped while it was created"):
        clone_to(source, location)
    cancel_drop(open_table(location).context)

    assert values(location) == NEWEST
    assert f"clone-{clone_id(location)[:8]}" in [pin.name for pin in source.snapshots()]


def test_a_stalled_clone_call_accepts_the_clone_that_another_call_finished(source, location, before):
    before(create, "find_base", lambda: clone_to(source, location))

    assert clone_to(source, location).rows == len(NEWEST)
    assert values(location) == NEWEST


def test_the_second_of_two_concurrent_clone_calls_is_contended(source, location, before):
    before(
        clone.pins, "begin", lambda: clone.pins.begin(source._context, "snapshot", f"clone-{clone_id(location)[:8]}")
    )

    with pytest.raises(Contended, match="another call is creating the clone") as raised:
        clone_to(source, location)
    assert raised.value.remedy == "Clone again"

    clone_to(source, location)
    assert values(location) == NEWEST


def clone_id(location: Path) -> str:
    lineage = clone.read_lineage(open_store(str(location)))
    assert lineage is not None
    return lineage.table
