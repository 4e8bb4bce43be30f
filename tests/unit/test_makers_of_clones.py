"""A maker of a clone that stalls while others finish the clone, write to it, drop it, or use its place for another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.admin import clone, create
from lancelsm.admin.clone import Copied, clone_snapshot
from lancelsm.admin.drop import drop_table
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
from tests.unit.tables import NOW, by_key, three_levels

KEYS = range(-4, 4)


@pytest.fixture
def source(tmp_path: Path) -> Table:
    table = three_levels(tmp_path / "source")
    table.snapshot("monday", "never")
    return table


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "clone"


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, Callable[[], Any]], None]:
    """Who is about to call this stalls, the first time, until another has acted."""

    def before(module: Any, name: str, act: Callable[[], Any]) -> None:
        real, others = getattr(module, name), [act]

        def stalls(*given: Any, **how: Any) -> Any:
            monkeypatch.setattr(module, name, real)
            if others:
                others.pop()()
            return real(*given, **how)

        monkeypatch.setattr(module, name, stalls)

    return before


def make(source: Table, place: Path) -> Copied:
    return clone_snapshot(open_table(source.uri), "monday", place)


def values(place: Path) -> dict[int, Any]:
    return by_key(lancelsm.open(place).scan().to_arrow())


def used(source: Table, place: Path) -> None:
    """The clone is finished by another, and is written, merged and collected."""
    make(source, place)
    table = lancelsm.open(place)
    table.upsert([{"id": key, "v": 9} for key in KEYS])
    table.run()
    table.upsert([{"id": 0, "v": 10}])
    table.run()
    table.collect(yes=True, interval_seconds=0)


def delivered(place: Path, queue: str, value: int) -> None:
    target = open_table(place).target()
    rows = upserts([{"id": key, "v": value} for key in KEYS], schema=target.schema)
    writers = RegionWriters(target, owner=target.owner)
    for part in route(rows, target.regions):
        encoded = draft(part.rows, applied_sequences={queue: str(10**19 + value)})
        writers.of(part.values).append_after(lambda _, encoded=encoded: encoded)


@pytest.mark.parametrize("call", ["find_base", "open_dataset", "open_base", "commit", "ensure_mem_wal"])
def test_the_base_of_a_clone_that_is_in_use_keeps_its_counters(source, place, before, call):
    before(copies, call, lambda: used(source, place))

    with pytest.raises(LsmError):
        make(source, place)

    assert values(place) == dict.fromkeys(KEYS, 9) | {0: 10}
    assert lancelsm.open(place).scrub().problems == ()


@pytest.mark.parametrize("queues", [1, 4, 5])
def test_a_head_remembers_of_a_clone_what_it_has_however_many_queues_deliver(source, place, before, queues):
    def others() -> None:
        make(source, place)
        for number in range(queues):
            delivered(place, f"queue {number}", number)

    before(clone, "_unless_there", others)

    with pytest.raises(Invalid, match="a table exists there already"):
        make(source, place)

    assert values(place) == dict.fromkeys(KEYS, queues - 1)


@pytest.mark.parametrize("call", ["_keep_files", "share_base", "catalogued", "_append", "_count"])
def test_a_clone_that_was_dropped_while_it_was_made_is_not_told_as_made(source, place, before, call):
    def others() -> None:
        make(source, place)
        drop_table(place)

    before(clone, call, others)

    with pytest.raises(LsmError):
        make(source, place)

    assert [pin.name for pin in source.snapshots()] == ["monday"]
    with pytest.raises(Invalid):
        lancelsm.open(place)


def test_a_clone_that_was_dropped_right_before_its_end_is_taken_back(source, place, before):
    before(clone.configs, "create", lambda: (make(source, place), drop_table(place)))

    with pytest.raises(Contended, match="dropped while it was made"):
        make(source, place)

    assert [pin.name for pin in source.snapshots()] == ["monday"]
    with pytest.raises(Invalid, match="no table is there"):
        lancelsm.open(place)


def test_a_clone_whose_drop_is_refused_while_another_maker_ends_keeps_its_files_and_its_configuration(
    source, place, before, tmp_path
):
    """A clone of the clone shares its files: the drop takes back its note, whatever a late maker saw meanwhile."""

    def others() -> None:
        make(source, place)
        lancelsm.open(place).snapshot("own", "never")
        clone_snapshot(open_table(place), "own", tmp_path / "next")
        store = open_store(str(place))
        note = {"table": noted(place), "registry": "sqlite"}
        assert isinstance(store.create(DROPPING, json.dumps(note).encode()), Written)

    before(clone.configs, "create", others)
    with pytest.raises(Contended, match="dropped while it was made"):
        make(source, place)
    cancel_drop(open_table(place).context)

    assert values(place) == NOW
    assert f"clone-{noted(place)[:8]}" in [pin.name for pin in source.snapshots()]


def test_a_maker_that_meets_the_finished_clone_is_not_told_to_drop_it(source, place, before):
    before(create, "find_base", lambda: make(source, place))

    assert make(source, place).rows == len(NOW)
    assert values(place) == NOW


def test_of_two_makers_one_is_told_to_do_it_again(source, place, before):
    before(clone.pins, "begin", lambda: clone.pins.begin(source._context, "snapshot", f"clone-{noted(place)[:8]}"))

    with pytest.raises(Contended, match="another call is making the clone") as raised:
        make(source, place)
    assert raised.value.remedy == "Clone it again"

    make(source, place)
    assert values(place) == NOW


def noted(place: Path) -> str:
    lineage = clone.read_origin(open_store(str(place)))
    assert lineage is not None
    return lineage.table
