"""What a crash left of a table is finished by who began it, or dropped: it is nobody else's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest

import lancelsm
from lancelsm import backup
from lancelsm.admin import clone, create, drop
from lancelsm.admin.adopt import adopt
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.drop import drop_table
from lancelsm.backup import back_up, restore
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

ROWS = [{"id": n, "v": 0} for n in range(4)]


@pytest.fixture
def source(tmp_path: Path) -> Table:
    table = lancelsm.create(tmp_path / "source", ROWS, primary_key="id")
    table.delete([3])
    table.snapshot("monday", "never")
    return table


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def interrupted(module: Any, name: str, do: Callable[[], Any]) -> None:
        def crash(*_: Any, **__: Any) -> None:
            raise Crash

        with monkeypatch.context() as patched:
            patched.setattr(module, name, crash)
            with pytest.raises(Crash):
                do()

    return interrupted


def ids(place: Path) -> list[int]:
    return sorted(lancelsm.open(place).scan().to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("at", ["share_base", "_append"])
def test_a_clone_that_was_begun_is_no_other_table_and_is_finished_or_dropped(source, tmp_path, interrupted, at):
    place = tmp_path / "clone"
    interrupted(clone, at, lambda: clone_snapshot(open_table(source.uri), "monday", place))
    back_up(source, tmp_path / "backup")

    others = [
        lambda: lancelsm.create(place, source.schema, primary_key="id"),
        lambda: lancelsm.create(place, ROWS, primary_key="id"),
        lambda: restore(tmp_path / "backup", place),
        lambda: adopt(place),
    ]
    for other in others:
        with pytest.raises(Invalid, match="was begun there"):
            other()
    with pytest.raises(Invalid, match="a clone was begun there") as raised:
        others[0]()
    assert f"lancelsm drop {place}" in raised.value.remedy

    clone_snapshot(open_table(source.uri), "monday", place)
    assert ids(place) == [0, 1, 2]
    drop_table(place)
    assert [pin.name for pin in source.snapshots()] == ["monday"]
    assert lancelsm.create(place, source.schema, primary_key="id").scan().to_arrow().num_rows == 0


def test_a_clone_that_was_begun_and_whose_note_is_gone_is_no_table_of_its_source_s_id(source, tmp_path, interrupted):
    place = tmp_path / "clone"
    interrupted(clone, "catalogued", lambda: clone_snapshot(open_table(source.uri), "monday", place))
    (place / CLONE).unlink()
    rows = lance.dataset(place).to_table()

    with pytest.raises(Invalid, match="a clone was begun there"):
        lancelsm.create(place, rows, primary_key="id")


@pytest.mark.parametrize("at", ["begin_base", "catalogued"])
def test_a_restored_table_that_was_begun_is_no_other_table_and_is_finished_or_dropped(
    source, tmp_path, interrupted, at
):
    place = tmp_path / "restored"
    back_up(source, tmp_path / "backup")
    back_up(source, tmp_path / "other backup")
    interrupted(backup, at, lambda: restore(tmp_path / "backup", place))

    for other in (
        lambda: lancelsm.create(place, source.schema, primary_key="id"),
        lambda: restore(tmp_path / "other backup", place),
        lambda: clone_snapshot(open_table(source.uri), "monday", place),
        lambda: adopt(place),
    ):
        with pytest.raises(Invalid, match="was begun there"):
            other()
    assert [pin.name for pin in source.snapshots()] == ["monday"]

    restore(tmp_path / "backup", place)
    assert ids(place) == [0, 1, 2]
    drop_table(place)

    interrupted(backup, at, lambda: restore(tmp_path / "backup", place))
    drop_table(place)
    assert lancelsm.create(place, source.schema, primary_key="id").scan().to_arrow().num_rows == 0


def test_a_table_that_was_begun_with_rows_is_finished_with_the_same_rows_alone(source, tmp_path, interrupted):
    place = tmp_path / "table"
    interrupted(create, "catalogued", lambda: lancelsm.create(place, ROWS, primary_key="id"))

    for other in (source.schema, [], ROWS[1:], [*ROWS[1:], {"id": 0, "v": 1}]):
        with pytest.raises(Invalid, match="with other rows was begun there"):
            lancelsm.create(place, other or source.schema, primary_key="id")
    lancelsm.create(place, ROWS[::-1], primary_key="id")
    assert ids(place) == [0, 1, 2, 3]


def test_a_table_that_was_begun_is_not_cloned_over_and_can_still_be_finished(source, tmp_path, interrupted):
    place = tmp_path / "table"
    interrupted(create, "catalogued", lambda: lancelsm.create(place, ROWS, primary_key="id"))

    with pytest.raises(Invalid, match="another table was begun there"):
        clone_snapshot(open_table(source.uri), "monday", place)
    assert [pin.name for pin in source.snapshots()] == ["monday"]
    lancelsm.create(place, ROWS, primary_key="id")
    assert ids(place) == [0, 1, 2, 3]


@pytest.mark.parametrize("left", ["nothing", "another clone"])
def test_what_a_source_keeps_for_a_clone_whose_place_is_empty_ends_by_hand(source, tmp_path, left):
    place = tmp_path / "clone"
    clone_snapshot(open_table(source.uri), "monday", place)
    kept = next(pin.name for pin in source.snapshots() if pin.clone)
    with pytest.raises(Invalid, match="a clone shares the files that this snapshot keeps"):
        source.drop_snapshot(kept)
    shutil.rmtree(place)
    if left == "another clone":
        clone_snapshot(open_table(source.uri), "monday", place)

    with pytest.raises(Invalid, match="a clone shares its files") as raised:
        drop_table(source.uri)
    assert f"snapshot drop {source.uri} --name " in raised.value.remedy
    source.drop_snapshot(kept)

    assert kept not in [pin.name for pin in source.snapshots()]
    assert not any(kept.removeprefix("clone-") in tag for tag in tags(uri=source.uri))
    if left == "another clone":
        assert ids(place) == [0, 1, 2]
        drop_table(place)
    drop_table(source.uri)


def test_a_source_that_was_moved_can_end_what_it_kept_for_a_clone_that_was_dropped_since(source, tmp_path):
    clone_snapshot(open_table(source.uri), "monday", tmp_path / "clone")
    moved = Path(source.uri).rename(tmp_path / "moved")
    drop_table(tmp_path / "clone")

    table = lancelsm.open(moved)
    table.drop_snapshot(next(pin.name for pin in table.snapshots() if pin.clone))
    drop_table(moved)


UNREADABLE = [b"", b'{"table": "a', b"\xff", b"{}", b"[]", b'{"table": "a"}', b'{"table": 1, "registry": "sqlite"}']


def names(note: str, *calls: Callable[[], Any]) -> None:
    for call in calls:
        with pytest.raises(Corrupt) as raised:
            call()
        assert raised.value.where["object"] == note
        assert "that object" in raised.value.remedy


@pytest.mark.parametrize("left", UNREADABLE)
def test_a_note_of_a_copy_that_can_t_be_read_is_named(source, tmp_path, interrupted, left):
    place, restored = tmp_path / "clone", tmp_path / "restored"
    back_up(source, tmp_path / "backup")
    interrupted(clone, "share_base", lambda: clone_snapshot(open_table(source.uri), "monday", place))
    interrupted(backup, "begin_base", lambda: restore(tmp_path / "backup", restored))
    (place / CLONE).write_bytes(left)
    (restored / RESTORED).write_bytes(left)

    names(CLONE, lambda: clone_snapshot(open_table(source.uri), "monday", place), lambda: drop_table(place))
    names(RESTORED, lambda: restore(tmp_path / "backup", restored), lambda: drop_table(restored))


@pytest.mark.parametrize("left", [*UNREADABLE, b'{"table": "another", "registry": "sqlite"}'])
def test_a_note_of_a_drop_that_can_t_be_read_or_is_another_table_s_is_named_and_nothing_deleted(
    source, tmp_path, interrupted, left
):
    context, place = open_table(source.uri).context, Path(source.uri)
    interrupted(drop, "close_table", lambda: drop_table(source.uri))
    (place / DROPPING).write_bytes(left)

    names(DROPPING, lambda: drop_table(source.uri))
    if left in UNREADABLE:
        names(DROPPING, lambda: cancel_drop(context))
    assert (place / CONFIG).exists()

    (place / DROPPING).unlink()
    assert ids(place) == [0, 1, 2]
    drop_table(source.uri)


def test_what_is_left_of_a_clone_whose_note_was_removed_is_not_dropped_by_the_id_of_its_source(
    source, tmp_path, interrupted
):
    """Right after Lance's clone the base says what the source's says, and one registry may hold both: DynamoDB."""
    place, shared = tmp_path / "clone", SqliteRegistry(Path(source.uri, SQLITE))
    interrupted(copies, "commit", lambda: clone_snapshot(open_table(source.uri), "monday", place))
    (place / CLONE).unlink()

    with pytest.raises(Corrupt, match="a clone was begun there") as raised:
        drop_table(place, ports=Ports(registry=lambda *_, **__: shared))
    assert raised.value.where["object"] == CLONE
    assert ids(source.uri) == [0, 1, 2]


def test_a_clone_whose_source_can_t_be_told_of_its_end_is_dropped_once_it_can(source, tmp_path):
    place, config = tmp_path / "clone", Path(source.uri, CONFIG)
    clone_snapshot(open_table(source.uri), "monday", place)

    def denied(uri: str, options: Any) -> Any:
        if uri == source.uri:
            raise Invalid("access denied")
        return open_store(uri, options)

    def refused(why: str, ports: Ports | None = None) -> None:
        with pytest.raises(Invalid, match=why) as raised:
            drop_table(place, ports=ports)
        assert raised.value.where["object"] == CLONE
        assert "drop its snapshot in the source" in raised.value.remedy

    refused("access denied", Ports(store=denied))
    kept = config.read_bytes()
    config.write_text('{"format": 99}')
    refused("has format 99")
    config.write_bytes(kept)
    assert [pin.clone for pin in source.snapshots() if pin.clone] == [str(place)]

    drop_table(place)
    assert [pin.name for pin in source.snapshots()] == ["monday"]


@pytest.mark.parametrize("error", [Corrupt, Unavailable])
def test_a_table_that_is_not_dropped_since_its_clones_could_not_be_asked_for_is_as_before(
    source, tmp_path, monkeypatch, error
):
    def fails(**_: Any) -> None:
        raise error("a tag can't be read")

    with monkeypatch.context() as patch:
        patch.setattr(drop, "tags", fails)
        with pytest.raises(error):
            drop_table(source.uri)

    clone_snapshot(open_table(source.uri), "monday", tmp_path / "clone")
    assert ids(tmp_path / "clone") == [0, 1, 2]


def test_who_meets_another_that_is_making_a_table_is_told_to_run_it_again(tmp_path, interrupted, monkeypatch):
    place = tmp_path / "t"
    interrupted(create, "catalogued", lambda: lancelsm.create(place, ROWS, primary_key="id"))

    with monkeypatch.context() as patched:
        patched.setattr(create, "find_base", lambda **_: None)  # as if that base had come right after the look
        with pytest.raises(Contended) as raised:
            lancelsm.create(place, ROWS, primary_key="id")

    assert raised.value.message == "another process is making a table there"
    assert raised.value.remedy == "Run it again: it finishes what is there"
    lancelsm.create(place, ROWS, primary_key="id")
    assert ids(place) == [0, 1, 2, 3]


def test_who_meets_another_that_is_making_a_clone_is_told_to_run_it_again(source, tmp_path, interrupted, monkeypatch):
    place = tmp_path / "clone"
    interrupted(clone, "catalogued", lambda: clone_snapshot(open_table(source.uri), "monday", place))

    with monkeypatch.context() as patched:
        patched.setattr(copies, "find_base", lambda **_: None)
        with pytest.raises(Contended, match="another process is making a table there") as raised:
            clone_snapshot(open_table(source.uri), "monday", place)

    assert raised.value.where["table"] == str(place)
    clone_snapshot(open_table(source.uri), "monday", place)
    assert ids(place) == [0, 1, 2]


@pytest.mark.parametrize("below", ["inner", "data/inner", "_mem_wal/deep/inner"])
def test_nothing_is_made_inside_a_table_whose_drop_may_delete_it(source, tmp_path, below):
    place = Path(source.uri) / below
    back_up(source, tmp_path / "backup")
    lance.write_dataset(source.scan().to_arrow(), place.with_name("dataset"))

    for make in (
        lambda: lancelsm.create(place, ROWS, primary_key="id"),
        lambda: lancelsm.create(f"file://{place}", ROWS, primary_key="id"),
        lambda: clone_snapshot(open_table(source.uri), "monday", place),
        lambda: back_up(source, place),
        lambda: restore(tmp_path / "backup", place),
        lambda: adopt(place.with_name("dataset")),
    ):
        with pytest.raises(Invalid, match=f"it lies inside the table at {source.uri}") as raised:
            make()
        assert raised.value.remedy == "Choose another place"
    assert not place.exists()


def test_a_place_beside_a_table_is_free_however_it_is_written(source, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (Path(source.uri) / "link").symlink_to(tmp_path / "elsewhere")

    lancelsm.create(Path(source.uri) / ".." / "beside", ROWS, primary_key="id")
    lancelsm.create(Path(source.uri) / "link" / "t", ROWS, primary_key="id")
    drop_table(source.uri)

    assert ids(tmp_path / "beside") == ids(tmp_path / "elsewhere" / "t") == [0, 1, 2, 3]
