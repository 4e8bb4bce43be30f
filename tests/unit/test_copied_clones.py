"""The pin of a clone in its source ends with the clone, not with a copy of the clone's directory."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest

import lancelsm
from lancelsm.admin import clone as cloning
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.rebuild import rebuild
from lancelsm.common.layout import DROPPING, SQLITE
from lancelsm.dataset.tags import tags
from lancelsm.errors import Invalid, LsmError
from lancelsm.gc.collect import collect
from lancelsm.region.handle import Ports, open_table
from lancelsm.table import Table
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, FAIL_AFTER, Crash, FakeClock, FaultPlan
from tests.unit.copies_scenarios import NEWEST, cloned, create_source, values_by_id
from tests.unit.tables import faulty

WARNING = "the table was a copy of the clone at"


@pytest.fixture(scope="module")
def source_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_source(tmp_path_factory.mktemp("source") / "table")


@pytest.fixture
def source(source_directory: Path, tmp_path: Path) -> Table:
    return lancelsm.open(shutil.copytree(source_directory, tmp_path / "source"))


def pins(source: Table) -> list[str]:
    return [pin.clone for pin in source.snapshots() if pin.clone]


def clone_tags(source: Table) -> list[str]:
    return [tag for tag in tags(uri=source.uri) if tag.startswith("lancelsm.clone.")]


def lose_registry(table: Table) -> None:
    """Lose the registry of a table, and rebuild it without pins."""
    for file in Path(table.uri).glob(f"{SQLITE}*"):
        file.unlink()
    rebuild(open_table(table.uri))


def collect_all(source: Table) -> None:
    """Collect every version of the source that nothing keeps."""
    handle = open_table(source.uri, settings={"keep_versions_seconds": 1e-3, "skew_allowance_seconds": 1e-3})
    for number in range(2):
        for again in range(16):
            lance.dataset(source.uri).update_config({"more": f"{number} {again}"})
        collect(handle, yes=True, interval_seconds=0)


@pytest.mark.parametrize("registry", ["kept", "lost"])
def test_a_drop_of_a_copy_leaves_the_clone_readable(source: Table, tmp_path: Path, registry: str) -> None:
    original = cloned(source, tmp_path / "clone")
    copy = Path(shutil.copytree(tmp_path / "clone", tmp_path / "copy"))
    source.drop_snapshot("monday")
    if registry == "lost":  # then only a tag keeps the files of the clone
        lose_registry(source)

    with pytest.warns(UserWarning, match=f"{WARNING} {original.uri}") as warned:
        lancelsm.drop(copy)

    assert warned[0].filename == __file__
    assert f"snapshot drop {source.uri} --name clone-" in str(warned[0].message)
    assert not (copy / "data").exists()
    assert pins(source) == ([original.uri] if registry == "kept" else [])
    assert len(clone_tags(source)) == 1
    collect_all(source)
    assert values_by_id(lancelsm.open(original.uri)) == NEWEST

    lancelsm.drop(original.uri)
    assert (pins(source), clone_tags(source)) == ([], [])
    lancelsm.drop(source.uri)


@pytest.mark.rest
@pytest.mark.parametrize("registry", ["kept", "lost"])
def test_a_drop_of_a_copy_that_is_interrupted_at_any_call_does_not_end_the_pin(
    source: Table, tmp_path: Path, registry: str
) -> None:
    original = cloned(source, tmp_path / "clone")
    if registry == "lost":
        lose_registry(source)
    expected = pins(source)

    def drop(number: int, ports: Ports) -> None:
        copy = tmp_path / f"copy-{number}"
        if not copy.exists():
            shutil.copytree(tmp_path / "clone", copy)
        elif not (copy / DROPPING).exists() and not (copy / "_lancelsm" / "config.json").exists():
            return  # only the reply was lost
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a call that only deletes the last files does not warn
            lancelsm.drop.on(ports)(copy)
        assert not (copy / "data").exists()

    plan = FaultPlan()
    drop(0, faulty(plan, process="undisturbed"))
    assert len(plan.calls) > 20
    for index in range(len(plan.calls)):
        fault = (CRASH_BEFORE, CRASH_AFTER, FAIL_AFTER)[index % 3]
        try:
            drop(index + 1, faulty(FaultPlan.at(index, fault), process=f"crashing-{index}"))
        except (Crash, LsmError):
            later = FakeClock(FakeClock().now() + 120)  # the lease of the crashed process has expired
            drop(index + 1, faulty(FaultPlan(), process=f"repeated-{index}", clock=later))
        assert (pins(source), len(clone_tags(source))) == (expected, 1), plan.calls[index]
    assert values_by_id(lancelsm.open(original.uri)) == NEWEST


def test_a_moved_clone_leaves_its_pin_which_can_then_be_dropped(source: Table, tmp_path: Path) -> None:
    cloned(source, tmp_path / "clone")
    (tmp_path / "clone").rename(tmp_path / "moved")
    assert values_by_id(lancelsm.open(tmp_path / "moved")) == NEWEST

    with pytest.warns(UserWarning, match="or that clone was moved"):
        lancelsm.drop(tmp_path / "moved")
    with pytest.raises(Invalid, match="a clone shares the table's files"):
        lancelsm.drop(source.uri)

    source.drop_snapshot(next(pin.name for pin in source.snapshots() if pin.clone))
    lancelsm.drop(source.uri)


@pytest.mark.parametrize("spelling", ["link", "url", "dots"])
def test_another_spelling_of_the_location_of_a_clone_is_no_copy(source: Table, tmp_path: Path, spelling: str) -> None:
    location = tmp_path / "clone"
    cloned(source, location)
    (tmp_path / "link").symlink_to(location)

    lancelsm.drop({"link": tmp_path / "link", "url": f"file://{location}", "dots": location / ".." / "clone"}[spelling])

    assert (pins(source), clone_tags(source)) == ([], [])


@pytest.mark.parametrize("step", ["share_base", "register_table", "_append", "_check_not_dropped"])
def test_a_drop_of_a_copy_of_an_unfinished_clone_does_not_stop_the_clone(
    source: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise Crash

    clone: Callable[[], Any] = lambda: clone_snapshot(open_table(source.uri), "monday", tmp_path / "clone")  # noqa: E731
    with monkeypatch.context() as patched:
        patched.setattr(cloning, step, crash)
        with pytest.raises(Crash):
            clone()
    shutil.copytree(tmp_path / "clone", tmp_path / "copy")

    with pytest.warns(UserWarning, match=WARNING):
        lancelsm.drop(tmp_path / "copy")
    clone()

    assert values_by_id(lancelsm.open(tmp_path / "clone")) == NEWEST
    assert pins(source) == [str(tmp_path / "clone")]
