"""A table, clone or restore that a crash interrupted is finished by the same call or dropped; other calls refuse it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest

import lancelsm
from lancelsm.admin import backup, clone, create, drop
from lancelsm.admin.adopt import adopt
from lancelsm.admin.clone import clone_snapshot
from lancelsm.common.layout import CLONE, CONFIG, DROPPING, RESTORED, SQLITE
from lancelsm.dataset import copies
from lancelsm.dataset.tags import tags
from lancelsm.errors import Contended, Corrupt, Invalid, Unavailable
from lancelsm.gc.delete_table import cancel_drop
from lancelsm.objects.open import open_store
from lancelsm.region.handle import Ports, open_table
from lancelsm.registry.sqlite import SqliteRegistry
from lancelsm.table import Table
from tests.simulation.faults import Crash

pytestmark = pytest.mark.rest

ROWS = [{"id": n, "v": 0} for n in range(4)]


@pytest.fixture
def source(tmp_path: Path) -> Table:
    table = lancelsm.create(tmp_path / "source", ROWS, primary_key="id")
    table.delete([3])
    table.snapshot("monday", "never")
    return table


@pytest.fixture
def crash_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def crash_in(module: Any, name: str, do: Callable[[], Any]) -> None:
        def crash(*_: Any, **__: Any) -> None:
            raise Crash

        with monkeypatch.context() as patched:
            patched.setattr(module, name, crash)
            with pytest.raises(Crash):
                do()

    return crash_in


def ids(location: Path) -> list[int]:
    return sorted(lancelsm.open(location).scan().to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("step", ["share_base", "_append"])
def test_an_unfinished_clone_is_finished_or_dropped_and_other_calls_refuse_it(source, tmp_path, crash_in, step):
    location = tmp_path / "clone"
    crash_in(clone, step, lambda: clone_snapshot(open_table(source.uri), "monday", location))
    lancelsm.backup(source, tmp_path / "backup")

    others = [
        lambda: lancelsm.create(location, source.schema, primary_key="id"),
        lambda: lancelsm.create(location, ROWS, primary_key="id"),
        lambda: lancelsm.restore(tmp_path / "backup", location),
        lambda: adopt(location),
    ]
    for other in others:
        with pytest.raises(Invalid, match="was begun there"):
            other()
    with pytest.raises(Invalid, match="a clone was begun there") as raised:
        others[0]()
    assert f"lancelsm drop {location}" in raised.value.remedy

    clone_snapshot(open_table(source.uri), "monday", location)
    assert ids(location) == [0, 1, 2]
    lancelsm.drop(location)
    assert [pin.name for pin in source.snapshots()] == ["monday"]
    assert lancelsm.create(location, source.schema, primary_key="id").scan().to_arrow().num_rows == 0


def test_an_unfinished_clone_without_its_marker_file_is_not_mistaken_for_its_source(source, tmp_path, crash_in):
    location = tmp_path / "clone"
    crash_in(clone, "register_table", lambda: clone_snapshot(open_table(source.uri), "monday", location))
    (location / CLONE).unlink()
    rows = lance.dataset(location).to_table()

    with pytest.raises(Invalid, match="a clone was begun there"):
        lancelsm.create(location, rows, primary_key="id")


@pytest.mark.parametrize("step", ["ensure_base", "register_table"])
def test_an_unfinished_restore_is_finished_or_dropped_and_other_calls_refuse_it(source, tmp_path, crash_in, step):
    location = tmp_path / "restored"
    lancelsm.backup(source, tmp_path / "backup")
    lancelsm.backup(source, tmp_path / "other backup")
    crash_in(backup, step, lambda: lancelsm.restore(tmp_path / "backup", location))

    for other in (
        lambda: lancelsm.create(location, source.schema, primary_key="id"),
        lambda: lancelsm.restore(tmp_path / "other backup", location),
        lambda: clone_snapshot(open_table(source.uri), "monday", location),
        lambda: adopt(location),
    ):
        with pytest.raises(Invalid, match="was begun there"):
            other()
    assert [pin.name for pin in source.snapshots()] == ["monday"]

    lancelsm.restore(tmp_path / "backup", location)
    assert ids(location) == [0, 1, 2]
    lancelsm.drop(location)

    crash_in(backup, step, lambda: lancelsm.restore(tmp_path / "backup", location))
    lancelsm.drop(location)
    assert lancelsm.create(location, source.schema, primary_key="id").scan().to_arrow().num_rows == 0


def test_an_unfinished_table_with_rows_is_finished_only_with_the_same_rows(source, tmp_path, crash_in):
    location = tmp_path / "table"
    crash_in(create, "register_table", lambda: lancelsm.create(location, ROWS, primary_key="id"))

    for other in (source.schema, [], ROWS[1:], [*ROWS[1:], {"id": 0, "v": 1}]):
        with pytest.raises(Invalid, match="with other rows was begun there"):
            lancelsm.create(location, other or source.schema, primary_key="id")
    lancelsm.create(location, ROWS[::-1], primary_key="id")
    assert ids(location) == [0, 1, 2, 3]


def test_an_unfinished_table_is_not_overwritten_by_a_clone_and_can_be_finished(source, tmp_path, crash_in):
    location = tmp_path / "table"
    crash_in(create, "register_table", lambda: lancelsm.create(location, ROWS, primary_key="id"))

    with pytest.raises(Invalid, match="another table was begun there"):
        clone_snapshot(open_table(source.uri), "monday", location)
    assert [pin.name for pin in source.snapshots()] == ["monday"]
    lancelsm.create(location, ROWS, primary_key="id")
    assert ids(location) == [0, 1, 2, 3]


@pytest.mark.parametrize("contents", ["nothing", "another clone"])
def test_the_pin_of_a_clone_that_was_removed_by_hand_can_be_dropped(source, tmp_path, contents):
    location = tmp_path / "clone"
    clone_snapshot(open_table(source.uri), "monday", location)
    pin_name = next(pin.name for pin in source.snapshots() if pin.clone)
    with pytest.raises(Invalid, match="a clone shares the table's files, and this snapshot keeps them"):
        source.drop_snapshot(pin_name)
    shutil.rmtree(location)
    if contents == "another clone":
        clone_snapshot(open_table(source.uri), "monday", location)

    with pytest.raises(Invalid, match="a clone shares the table's files") as raised:
        lancelsm.drop(source.uri)
    assert f"snapshot drop {source.uri} --name " in raised.value.remedy
    source.drop_snapshot(pin_name)

    assert pin_name not in [pin.name for pin in source.snapshots()]
    assert not any(pin_name.removeprefix("clone-") in tag for tag in tags(uri=source.uri))
    if contents == "another clone":
        assert ids(location) == [0, 1, 2]
        lancelsm.drop(location)
    lancelsm.drop(source.uri)


def test_a_moved_source_can_drop_the_pin_of_a_dropped_clone(source, tmp_path):
    clone_snapshot(open_table(source.uri), "monday", tmp_path / "clone")
    moved = Path(source.uri).rename(tmp_path / "moved")
    lancelsm.drop(tmp_path / "clone")

    table = lancelsm.open(moved)
    table.drop_snapshot(next(pin.name for pin in table.snapshots() if pin.clone))
    lancelsm.drop(moved)


UNREADABLE = [b"", b'{"table": "a', b"\xff", b"{}", b"[]", b'{"table": "a"}', b'{"table": 1, "registry": "sqlite"}']


def assert_names(object_key: str, *calls: Callable[[], Any]) -> None:
    for call in calls:
        with pytest.raises(Corrupt) as raised:
            call()
        assert raised.value.where["object"] == object_key
        assert "Delete this object" in raised.value.remedy


@pytest.mark.parametrize("contents", UNREADABLE)
def test_an_unreadable_marker_file_of_a_copy_is_named(source, tmp_path, crash_in, contents):
    location, restored = tmp_path / "clone", tmp_path / "restored"
    lancelsm.backup(source, tmp_path / "backup")
    crash_in(clone, "share_base", lambda: clone_snapshot(open_table(source.uri), "monday", location))
    crash_in(backup, "ensure_base", lambda: lancelsm.restore(tmp_path / "backup", restored))
    (location / CLONE).write_bytes(contents)
    (restored / RESTORED).write_bytes(contents)

    assert_names(
        CLONE, lambda: clone_snapshot(open_table(source.uri), "monday", location), lambda: lancelsm.drop(location)
    )
    assert_names(RESTORED, lambda: lancelsm.restore(tmp_path / "backup", restored), lambda: lancelsm.drop(restored))


@pytest.mark.parametrize("contents", [*UNREADABLE, b'{"table": "another", "registry": "sqlite"}'])
def test_a_wrong_marker_file_of_a_drop_is_named_and_nothing_is_deleted(source, tmp_path, crash_in, contents):
    context, location = open_table(source.uri).context, Path(source.uri)
    crash_in(drop, "delete_config", lambda: lancelsm.drop(source.uri))
    (location / DROPPING).write_bytes(contents)

    assert_names(DROPPING, lambda: lancelsm.drop(source.uri))
    if contents in UNREADABLE:
        assert_names(DROPPING, lambda: cancel_drop(context))
    assert (location / CONFIG).exists()

    (location / DROPPING).unlink()
    assert ids(location) == [0, 1, 2]
    lancelsm.drop(source.uri)


def test_dropping_an_unfinished_clone_without_its_marker_file_does_not_drop_its_source(source, tmp_path, crash_in):
    """At this step the base still has the table id of its source, and in DynamoDB one registry may hold both tables."""
    location, shared = tmp_path / "clone", SqliteRegistry(Path(source.uri, SQLITE))
    crash_in(copies, "commit", lambda: clone_snapshot(open_table(source.uri), "monday", location))
    (location / CLONE).unlink()

    with pytest.raises(Corrupt, match="a clone was begun there") as raised:
        lancelsm.drop.on(Ports(registry=lambda *_, **__: shared))(location)
    assert raised.value.where["object"] == CLONE
    assert ids(source.uri) == [0, 1, 2]


def test_a_clone_is_dropped_only_when_its_source_can_be_updated(source, tmp_path):
    location, config = tmp_path / "clone", Path(source.uri, CONFIG)
    clone_snapshot(open_table(source.uri), "monday", location)

    def denied(uri: str, options: Any) -> Any:
        if uri == source.uri:
            raise Invalid("access denied")
        return open_store(uri, options)

    def refused(why: str, ports: Ports) -> None:
        with pytest.raises(Invalid, match=why) as raised:
            lancelsm.drop.on(ports)(location)
        assert raised.value.where["object"] == CLONE
        assert "drop its snapshot in the source" in raised.value.remedy

    refused("access denied", Ports(store=denied))
    pin_name = config.read_bytes()
    config.write_text('{"format": 99}')
    refused("has format 99", Ports())
    config.write_bytes(pin_name)
    assert [pin.clone for pin in source.snapshots() if pin.clone] == [str(location)]

    lancelsm.drop(location)
    assert [pin.name for pin in source.snapshots()] == ["monday"]


@pytest.mark.parametrize("error", [Corrupt, Unavailable])
def test_a_drop_that_cannot_read_the_clones_leaves_the_table_unchanged(source, tmp_path, monkeypatch, error):
    def fails(**_: Any) -> None:
        raise error("a tag can't be read")

    with monkeypatch.context() as patch:
        patch.setattr(drop, "tags", fails)
        with pytest.raises(error):
            lancelsm.drop(source.uri)

    clone_snapshot(open_table(source.uri), "monday", tmp_path / "clone")
    assert ids(tmp_path / "clone") == [0, 1, 2]


def test_a_create_that_races_another_create_is_contended_and_can_be_retried(tmp_path, crash_in, monkeypatch):
    location = tmp_path / "t"
    crash_in(create, "register_table", lambda: lancelsm.create(location, ROWS, primary_key="id"))

    with monkeypatch.context() as patched:
        patched.setattr(create, "find_base", lambda **_: None)  # as if the other base appeared right after the checks
        patched.setattr(create, "first_foreign", lambda _: None)
        with pytest.raises(Contended) as raised:
            lancelsm.create(location, ROWS, primary_key="id")

    assert raised.value.message == "another process is creating a table there"
    assert raised.value.remedy == "Retry: the call finishes what exists"
    lancelsm.create(location, ROWS, primary_key="id")
    assert ids(location) == [0, 1, 2, 3]


def test_a_clone_that_races_another_clone_is_contended_and_can_be_retried(source, tmp_path, crash_in, monkeypatch):
    location = tmp_path / "clone"
    crash_in(clone, "register_table", lambda: clone_snapshot(open_table(source.uri), "monday", location))

    with monkeypatch.context() as patched:
        patched.setattr(copies, "find_base", lambda **_: None)
        with pytest.raises(Contended, match="another process is creating a table there") as raised:
            clone_snapshot(open_table(source.uri), "monday", location)

    assert raised.value.where["table"] == str(location)
    clone_snapshot(open_table(source.uri), "monday", location)
    assert ids(location) == [0, 1, 2]


@pytest.mark.parametrize("below", ["inner", "data/inner", "_mem_wal/deep/inner"])
def test_nothing_can_be_created_inside_the_directory_of_a_table(source, tmp_path, below):
    location = Path(source.uri) / below
    lancelsm.backup(source, tmp_path / "backup")
    lance.write_dataset(source.scan().to_arrow(), location.with_name("dataset"))

    for create_there in (
        lambda: lancelsm.create(location, ROWS, primary_key="id"),
        lambda: lancelsm.create(f"file://{location}", ROWS, primary_key="id"),
        lambda: clone_snapshot(open_table(source.uri), "monday", location),
        lambda: lancelsm.backup(source, location),
        lambda: lancelsm.restore(tmp_path / "backup", location),
        lambda: adopt(location.with_name("dataset")),
    ):
        with pytest.raises(Invalid, match=f"the location is inside the table at {source.uri}") as raised:
            create_there()
        assert raised.value.remedy == "Choose another location"
    assert not location.exists()


def test_a_table_can_be_created_beside_a_table_through_any_spelling_of_the_path(source, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (Path(source.uri) / "link").symlink_to(tmp_path / "elsewhere")

    lancelsm.create(Path(source.uri) / ".." / "beside", ROWS, primary_key="id")
    lancelsm.create(Path(source.uri) / "link" / "t", ROWS, primary_key="id")
    lancelsm.drop(source.uri)

    assert ids(tmp_path / "beside") == ids(tmp_path / "elsewhere" / "t") == [0, 1, 2, 3]
