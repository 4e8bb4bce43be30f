"""Each guard of clones and drops is needed: without it, a clone loses rows, or a drop deletes another table."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pytest

import lancelsm
from lancelsm.admin import clone, create, drop
from lancelsm.admin.rebuild import rebuild
from lancelsm.common.layout import DROPPING, SQLITE
from lancelsm.dataset.tags import tags
from lancelsm.errors import Contended, Invalid
from lancelsm.gc import collect, delete_table
from lancelsm.objects import ObjectStore
from lancelsm.region.catalog import TableContext
from lancelsm.region.handle import Ports, open_table
from lancelsm.region.lease import LEASE_SECONDS
from lancelsm.region.lineage import TAG_PREFIX
from lancelsm.table import Table
from tests.simulation.faults import Crash, FakeClock
from tests.simulation.marks import Edit, moved, without
from tests.simulation.removal import fails
from tests.unit import copies_scenarios

Scenario = Callable[[Table, Path, pytest.MonkeyPatch], None]  # gets a table with a snapshot, and a directory


def judged_before(table: Table, path: Path, _: pytest.MonkeyPatch) -> None:
    copies_scenarios.snapshot_judged_before_its_clone_was_pinned_stays(table, path)


def dropped_before_the_pin(table: Table, path: Path, patch: pytest.MonkeyPatch) -> None:
    """Before a clone is pinned, a drop of its source writes its marker, finds no clone, closes the table, crashes."""
    begin = clone.pins.begin

    def dropped(*arguments: Any) -> Any:
        patch.undo()
        with mock.patch.object(drop, "delete_records", side_effect=Crash("killed")), pytest.raises(Crash):
            lancelsm.drop(table.uri)
        return begin(*arguments)

    patch.setattr(clone.pins, "begin", dropped)
    with pytest.raises(Invalid, match="being dropped"):
        copies_scenarios.cloned(table, path / "clone")
    lancelsm.drop(table.uri)


def cloned_after_the_check(table: Table, path: Path, patch: pytest.MonkeyPatch) -> None:
    """A clone is created right after a drop of its source has looked for clones."""
    look = drop._check_no_clones

    def looked(*arguments: Any) -> None:
        look(*arguments)
        with pytest.raises(Invalid, match="being dropped"):
            copies_scenarios.cloned(table, path / "clone")

    patch.setattr(drop, "_check_no_clones", looked)
    lancelsm.drop(table.uri)


def overtaken_by_another_drop(table: Table, _: Path, patch: pytest.MonkeyPatch) -> None:
    copies_scenarios.finished_drop_leaves_a_new_table_alone(table, patch)


def overtaken_by_the_next_drop(table: Table, _: Path, patch: pytest.MonkeyPatch) -> None:
    """A new table at the same location is dropped, too, but that drop has not looked for clones yet."""
    path = Path(table.uri)

    def overtaken(context: TableContext) -> int:
        patch.undo()
        lancelsm.drop.on(replace(Ports(), clock=FakeClock(context.clock.now() + LEASE_SECONDS + 1)))(path)
        following = lancelsm.create(path, [{"id": 1, "v": 1}], primary_key="id").config
        context.objects.create(DROPPING, json.dumps({"table": following.table, "registry": "sqlite"}).encode())
        return drop.delete_objects(context)

    patch.setattr(drop, "delete_objects", overtaken)
    with contextlib.suppress(Contended):
        lancelsm.drop(path)

    delete_table.cancel_drop(open_table(path).context)
    assert copies_scenarios.values_by_id(lancelsm.open(path)) == {1: 1}


def created_by_another_call(_: Table, path: Path, patch: pytest.MonkeyPatch) -> None:
    """Another call creates the table after this one has found no base, and before it looks for foreign files."""
    first_foreign, rows = create.first_foreign, [{"id": 1, "v": 1}]

    def created_before(store: ObjectStore) -> str | None:
        patch.undo()
        lancelsm.create(path / "t", rows, primary_key="id")
        return first_foreign(store)

    patch.setattr(create, "first_foreign", created_before)
    assert copies_scenarios.values_by_id(lancelsm.create(path / "t", rows, primary_key="id")) == {1: 1}


def cloned_by_another_call(table: Table, path: Path, patch: pytest.MonkeyPatch) -> None:
    """Another call creates the clone after this one has found no marker file, before it looks for foreign files."""
    first_foreign = create.first_foreign

    def cloned_before(store: ObjectStore) -> str | None:
        patch.undo()
        copies_scenarios.cloned(table, path / "clone")
        return first_foreign(store)

    patch.setattr(create, "first_foreign", cloned_before)
    assert copies_scenarios.values_by_id(copies_scenarios.cloned(table, path / "clone")) == copies_scenarios.NEWEST


def copied(table: Table, path: Path, _: pytest.MonkeyPatch) -> None:
    """A copy of the directory of a clone is dropped."""
    copies_scenarios.cloned(table, path / "clone")
    with pytest.warns(UserWarning, match="was a copy of the clone"):
        lancelsm.drop(shutil.copytree(path / "clone", path / "copy"))
    assert [pin.clone for pin in table.snapshots() if pin.clone] == [str(path / "clone")]


def copied_without_a_pin(table: Table, path: Path, _: pytest.MonkeyPatch) -> None:
    """The source has lost its pins. The drop of a copy crashes after it has deleted the records of the copy."""
    copies_scenarios.cloned(table, path / "clone")
    shutil.copytree(path / "clone", path / "copy")
    for file in Path(table.uri).glob(f"{SQLITE}*"):
        file.unlink()
    rebuild(open_table(table.uri))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with mock.patch.object(drop, "delete_objects", side_effect=Crash("killed")), pytest.raises(Crash):
            lancelsm.drop(path / "copy")
        lancelsm.drop(path / "copy")
    assert [tag for tag in tags(uri=table.uri) if tag.startswith(TAG_PREFIX)]


def linked_before_the_sweep(table: Table, path: Path, _: pytest.MonkeyPatch) -> None:
    """A symbolic link appears in the base after a round of the base is committed."""
    handle = open_table(table.uri, settings={"keep_versions_seconds": 1e-3})
    for number in range(16):
        lance.dataset(table.uri).update_config({"more": str(number)})
    rounds = collect.mark(handle).rounds
    collect.commit(handle, collect.verify(handle, rounds).rounds)
    foreign = path / "elsewhere" / "x.lance"
    foreign.parent.mkdir()
    foreign.write_text("precious")
    os.utime(foreign, (1, 1))
    Path(table.uri, "data", "link").symlink_to(foreign.parent)
    collect.sweep(handle, rounds)
    assert foreign.read_text() == "precious"


GUARDS: dict[str, tuple[list[Edit], Scenario]] = {
    "a snapshot is kept when its clone is pinned": (
        [without("snapshot is kept when its clone is pinned")],
        judged_before,
    ),
    "a table that is being dropped is not cloned": (
        [without("dropped table is not cloned")],
        dropped_before_the_pin,
    ),
    "a clone is pinned before it looks for a drop of its source": (
        [moved("dropped table is not cloned", by=-3)],
        dropped_before_the_pin,
    ),
    "a drop is recorded before it looks for clones": (
        [moved("drop is recorded before it looks for clones", by=-2)],
        cloned_after_the_check,
    ),
    "each part of a snapshot is appended to a clone once": (
        [without("part of a snapshot is appended once")],
        partial(copies_scenarios.stalled_clone_adds_no_older_row, stalls_at=1),
    ),
    "a drop goes on only while its marker exists": (
        [without("drop goes on only while its marker exists")],
        overtaken_by_another_drop,
    ),
    "a drop goes on only while the marker is its own": (
        [without("drop goes on only while the marker is its own")],
        overtaken_by_the_next_drop,
    ),
    "a file of another call that creates the table is not foreign": (
        [without("file of another creator is not foreign")],
        created_by_another_call,
    ),
    "a file of another call that creates the clone is not foreign": (
        [without("file of another call for the copy is not foreign")],
        cloned_by_another_call,
    ),
    "a drop of a copy of a clone leaves the pin of the clone": (
        [without("copy of a clone leaves its pin")],
        copied,
    ),
    "a drop remembers where its clone was created": (
        [without("drop remembers where its clone was created")],
        copied_without_a_pin,
    ),
    "Lance follows no link out of the base": (
        [without("Lance follows no link out of the base")],
        linked_before_the_sweep,
    ),
}


@pytest.fixture(scope="module")
def source_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copies_scenarios.create_source(tmp_path_factory.mktemp("copies") / "source")


@pytest.fixture
def source(source_directory: Path, tmp_path: Path) -> Table:
    return lancelsm.open(shutil.copytree(source_directory, tmp_path / "source"))


@pytest.fixture
def act(
    source: Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Scenario], None]:
    return lambda scenario: scenario(source, tmp_path, monkeypatch)


OWN = [
    dropped_before_the_pin,
    cloned_after_the_check,
    overtaken_by_the_next_drop,
    created_by_another_call,
    cloned_by_another_call,
    copied,
    copied_without_a_pin,
    linked_before_the_sweep,
]


@pytest.mark.parametrize("scenario", OWN)
def test_a_scenario_passes_with_all_guards(scenario: Scenario, act: Callable[[Scenario], None]) -> None:
    act(scenario)


@pytest.mark.one_case
@pytest.mark.parametrize("guard", GUARDS)
def test_the_scenario_fails_without_its_guard(guard: str, act: Callable[[Scenario], None]) -> None:
    edits, scenario = GUARDS[guard]

    assert fails(edits, partial(act, scenario))
