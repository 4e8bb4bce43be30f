"""What the local store promises beyond the contract: no partial objects after a crash, durability before the reply."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

import lancelsm
from lancelsm.errors import Invalid, Unavailable
from lancelsm.objects import PreconditionFailed, WriteUnknown, Written, filesystem
from lancelsm.objects.filesystem import TEMPORARY, LocalStore, etag_of
from lancelsm.objects.location import local_path
from lancelsm.objects.open import open_store
from lancelsm.objects.posix import locks_work, to_lsm_error, try_lock
from tests.conformance.crashing import KEY, NEW, OLD, killed_at_every_line
from tests.conformance.durable import acknowledged_until_killed, body_of


class Syncs:
    """Record the synced paths, and whether the file `watched` existed at each sync. Fails for paths in `failing`."""

    def __init__(self, watched: Path | None = None) -> None:
        self.paths: list[str] = []
        self.existed: list[bool] = []
        self.failing: dict[str, int] = {}
        self._watched = watched

    def __call__(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        for part, number in self.failing.items():
            if part in path:
                raise OSError(number, os.strerror(number))
        os.fsync(descriptor)
        self.paths.append(path)
        self.existed.append(self._watched is not None and self._watched.exists())


def unsynced(root: Path) -> LocalStore:
    return LocalStore(root, fsync=lambda descriptor: None)


@pytest.mark.rest
def test_a_create_killed_at_any_line_leaves_no_object_or_the_complete_one(tmp_path):
    tables = killed_at_every_line("create", tmp_path)

    found = [LocalStore(table).get(KEY) for table in tables]
    assert len(tables) > 50
    assert found[0] is None
    assert found[-1] is not None
    assert {each.body for each in found if each} == {NEW}
    for table, each in zip(tables, found, strict=True):
        assert [line.key for line in LocalStore(table).list("")] == ([KEY] if each else [])
        assert isinstance(unsynced(table).create(KEY, b"again"), PreconditionFailed if each else Written)


@pytest.mark.rest
def test_a_replace_killed_at_any_line_leaves_the_old_object_or_the_new_one(tmp_path):
    tables = killed_at_every_line("replace", tmp_path)

    found = [LocalStore(table).get(KEY) for table in tables]
    assert len(tables) > 50
    assert found[0].body == OLD
    assert found[-1].body == NEW
    assert {each.body for each in found} == {OLD, NEW}
    for table, each in zip(tables, found, strict=True):
        assert [line.key for line in LocalStore(table).list("")] == [KEY]
        assert isinstance(unsynced(table).replace(KEY, b"next", expect=each.etag), Written)


def test_content_is_synced_before_it_gets_its_name_and_directories_before_the_reply(tmp_path):
    root = tmp_path / "lake" / "table"
    syncs = Syncs(watched=root / KEY)

    assert isinstance(LocalStore(root, fsync=syncs).create(KEY, b"x"), Written)

    first = next(index for index, path in enumerate(syncs.paths) if f"{root}/{TEMPORARY}/" in path)
    assert not any(syncs.existed[: first + 1])
    assert syncs.paths[-1] == str((root / KEY).parent)
    assert syncs.existed[-1]
    needed = {tmp_path, tmp_path / "lake", root, *((root / KEY).parents[i] for i in range(3))}
    assert {str(path) for path in needed} <= set(syncs.paths)


def test_directories_are_synced_once_and_then_an_object_needs_two_syncs(tmp_path):
    syncs = Syncs()
    store = LocalStore(tmp_path, fsync=syncs)
    store.create(KEY, b"x")
    before = len(syncs.paths)

    store.create(KEY + "2", b"x")
    assert len(syncs.paths) == before + 2


def test_directories_that_another_process_created_are_synced_too(tmp_path):
    (tmp_path / KEY).parent.mkdir(parents=True)
    syncs = Syncs()

    LocalStore(tmp_path, fsync=syncs).create(KEY, b"x")

    assert {str(tmp_path / "_mem_wal"), str(tmp_path / "_mem_wal/region"), str(tmp_path)} <= set(syncs.paths)


def test_a_refusal_is_durable_too(tmp_path):
    syncs = Syncs()
    etag = LocalStore(tmp_path).create(KEY, b"x").etag
    store = LocalStore(tmp_path, fsync=syncs)

    assert store.create(KEY, b"y") == PreconditionFailed()
    assert store.replace(KEY, b"y", expect=etag[::-1]) == PreconditionFailed()
    assert syncs.paths == [str((tmp_path / KEY).parent)] * 2


def test_a_write_whose_name_may_not_be_durable_is_unknown(tmp_path):
    syncs = Syncs()
    store = LocalStore(tmp_path, fsync=syncs)
    etag = store.create(KEY, b"x").etag
    syncs.failing = {"region/wal": errno.EIO}

    assert isinstance(store.create(KEY + "2", b"x"), WriteUnknown)
    assert isinstance(store.replace(KEY, b"y", expect=etag), WriteUnknown)


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, Unavailable), (errno.EIO, Unavailable)])
def test_a_failed_write_of_content_leaves_nothing_and_names_the_path(tmp_path, number, kind):
    syncs = Syncs()
    store = LocalStore(tmp_path, fsync=syncs)
    store.create("first", b"x")
    syncs.failing = {TEMPORARY: number}

    with pytest.raises(kind) as raised:
        store.create(KEY, b"x")

    assert raised.value.where["path"] == str(tmp_path / KEY)
    assert raised.value.remedy
    assert store.get(KEY) is None
    assert os.listdir(tmp_path / TEMPORARY) == []


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EACCES, Invalid), (errno.EROFS, Invalid), (errno.EDQUOT, Unavailable)]
)
def test_an_error_of_the_file_system_names_the_path_and_a_remedy(number, kind):
    error = to_lsm_error(OSError(number, os.strerror(number)), "/lake/table")

    assert isinstance(error, kind)
    assert error.where == {"path": "/lake/table"}
    assert error.remedy


def test_a_leftover_of_a_crash_is_not_an_object(tmp_path):
    store = LocalStore(tmp_path)
    store.create(KEY, b"x")
    (tmp_path / TEMPORARY / f"{os.getpid()}-1").write_bytes(b"half")  # the name that the next write would use

    assert isinstance(store.create(KEY + "2", b"y"), Written)
    assert [line.key for line in store.list("")] == [KEY, KEY + "2"]
    assert [line.key for line in store.list("_lancelsm/")] == []


@pytest.mark.parametrize("key", ["_lancelsm/lock", "_lancelsm/tmp", "_lancelsm/tmp/1-1", "_lancelsm/registry.sqlite"])
def test_internal_files_have_no_key(tmp_path, key):
    store = LocalStore(tmp_path)
    store.create("_lancelsm/config.json", b"{}")

    with pytest.raises(Invalid):
        store.get(key)
    assert [line.key for line in store.list("_lancelsm/")] == ["_lancelsm/config.json"]


def test_no_object_is_below_another(tmp_path):
    store = LocalStore(tmp_path)
    store.create("a/b", b"x")

    for key in ("a/b/c", "a"):
        with pytest.raises(Invalid):
            store.create(key, b"x")
        assert store.get(key) is None
    assert [line.key for line in store.list("")] == ["a/b"]


def test_a_directory_that_was_removed_is_created_again(tmp_path):
    store = LocalStore(tmp_path / "table")
    store.create(KEY, b"x")
    shutil.rmtree(tmp_path / "table" / "_mem_wal")
    assert isinstance(store.create(KEY, b"y"), Written)

    shutil.rmtree(tmp_path / "table")
    assert isinstance(store.create(KEY, b"z"), Written)
    assert LocalStore(tmp_path / "table").get(KEY).body == b"z"


def test_reading_creates_no_directory(tmp_path):
    store = LocalStore(tmp_path / "table")
    assert store.get(KEY) is None
    assert list(store.list("")) == []
    assert not (tmp_path / "table").exists()


def test_writes_acknowledged_to_a_killed_writer_are_complete(tmp_path):
    description = {"backend": "local", "uri": str(tmp_path)}

    acknowledged = acknowledged_until_killed("objects", description, 40)

    store = LocalStore(tmp_path)
    listed = list(store.list("wal/"))
    assert len(acknowledged) >= 40
    assert {f"wal/{int(number):08}" for number in acknowledged} <= {line.key for line in listed}
    for line in listed:  # one more than the acknowledged ones may exist, and is complete
        assert store.get(line.key).body == body_of(int(line.key[-8:]))
    assert len(listed) <= len(acknowledged) + 1


def test_locks_of_this_file_system_work(tmp_path):
    assert locks_work(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_paths_and_file_urls_open_the_same_store(tmp_path):
    root = tmp_path / "a b#c"
    LocalStore(root).create(KEY, b"x")

    for uri in (root, str(root), f"file://{tmp_path}/a%20b%23c", f"file://localhost{tmp_path}/a%20b%23c"):
        assert open_store(uri).get(KEY).body == b"x"
    assert local_path("s3://bucket/table") is None
    with pytest.raises(Invalid):
        open_store("file://elsewhere/table")


def test_the_next_process_removes_files_of_crashed_writers_but_not_of_active_ones(tmp_path):
    unsynced(tmp_path).create(KEY, OLD)
    abandoned, active = tmp_path / TEMPORARY / "1-1", tmp_path / TEMPORARY / "1-2"
    abandoned.touch()
    with open(active, "wb") as writing:
        assert try_lock(writing.fileno(), wait=False)
        unsynced(tmp_path).create("another", NEW)
        assert list((tmp_path / TEMPORARY).iterdir()) == [active]

    unsynced(tmp_path).create("a third", NEW)
    assert list((tmp_path / TEMPORARY).iterdir()) == []


@pytest.mark.parametrize("method", ["create", "replace"])
def test_a_file_removed_before_its_writer_locks_it_is_written_again(method, tmp_path, monkeypatch):
    before = unsynced(tmp_path).create(KEY, OLD)

    def cleaned_up_first(descriptor, *, wait):
        monkeypatch.undo()
        unsynced(tmp_path).create("another", b"")
        return try_lock(descriptor, wait=wait)

    store = unsynced(tmp_path)
    store.create("before", b"")
    monkeypatch.setattr(filesystem, "try_lock", cleaned_up_first)
    wrote = store.create("new", NEW) if method == "create" else store.replace(KEY, NEW, expect=before.etag)

    assert isinstance(wrote, Written)
    assert store.get("new" if method == "create" else KEY).body == NEW
    assert store.get("another").body == b""


def test_a_dropped_table_leaves_no_file_of_a_crashed_writer(tmp_path):
    lancelsm.create(tmp_path / "table", [{"id": 1}], primary_key="id")
    (tmp_path / "table" / TEMPORARY / "1-1").touch()

    lancelsm.drop(tmp_path / "table")

    assert not (tmp_path / "table" / TEMPORARY).exists()


def test_a_large_body_is_written_in_pieces_that_the_page_cache_takes_cheaply(tmp_path, monkeypatch):
    sizes = []
    write = os.write

    def counted(descriptor, data):
        sizes.append(len(data))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", counted)
    body = os.urandom(5 << 19)
    LocalStore(tmp_path).create("large", body)

    assert LocalStore(tmp_path).get("large").body == body
    assert sizes == [1 << 20, 1 << 20, 1 << 19]


def test_the_etag_of_a_write_is_computed_only_if_it_is_asked_for(tmp_path, monkeypatch):
    hashed = []
    monkeypatch.setattr(filesystem, "etag_of", lambda body: hashed.append(bytes(body)) or etag_of(body))
    written = unsynced(tmp_path).create(KEY, b"x")
    assert hashed == []
    assert written == Written(etag=etag_of(b"x")) != Written(etag=etag_of(b"y"))
    assert (written.etag, hashed) == (etag_of(b"x"), [b"x"])
