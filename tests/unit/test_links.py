"""Nothing is read, written or deleted through a symbolic link below the directory of a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.common.layout import LANCE_DIRECTORIES, LOCK, OWN_DIRECTORIES, SQLITE
from lancelsm.dataset.cleanup import stored_versions
from lancelsm.errors import Corrupt, Invalid
from lancelsm.objects import Written
from lancelsm.objects.filesystem import TEMPORARY, LocalStore
from lancelsm.objects.links import first_link, linked_part
from lancelsm.table import Table
from tests.unit.tables import NEWEST, by_key, three_levels

OLD = 1  # a time of change that is more than 7 days ago


def foreign(directory: Path) -> Path:
    """A directory with files of another owner, which are old and have names of Lance and of lancelsm."""
    names = ("precious", "x.lance", "data/y.lance", "_versions/1.manifest", "wal/1.arrow", "deadbeef_gen_1/z")
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)
        os.utime(directory / name, (OLD, OLD))
    return directory


def is_intact(directory: Path) -> bool:
    found = {
        os.path.relpath(os.path.join(at, name), directory) for at, _, names in os.walk(directory) for name in names
    }
    return len(found) == 6 and all((directory / name).read_text() == name for name in found)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return foreign(tmp_path / "elsewhere")


# The store


@pytest.fixture
def store(tmp_path: Path, elsewhere: Path) -> LocalStore:
    """A store with an object `a/real`, links to a directory and to a file of another owner, and a cycle."""
    store = LocalStore(tmp_path / "t")
    store.create("a/real", b"ours")
    for name, target in {"dir": elsewhere, "file": elsewhere / "precious", "up": tmp_path, "self": "self"}.items():
        (tmp_path / "t" / "a" / name).symlink_to(target)
    (tmp_path / "t" / "cycle").symlink_to(tmp_path / "t")
    return store


@pytest.mark.parametrize(
    ("key", "link"),
    [
        ("a/dir/precious", "a/dir"),
        ("a/file", "a/file"),
        ("a/up/t/a/real", "a/up"),
        ("cycle/a/real", "cycle"),
        ("cycle/cycle/a/real", "cycle"),
        ("a/self", "a/self"),
        ("a/self/x", "a/self"),
        ("a/dir/new", "a/dir"),
    ],
)
def test_a_key_through_a_link_is_corrupt_and_the_link_is_named(
    store: LocalStore, elsewhere: Path, key: str, link: str
) -> None:
    for call in (
        lambda: store.get(key),
        lambda: store.create(key, b"x"),
        lambda: store.replace(key, b"x", expect=LocalStore(elsewhere.parent / "t").get("a/real").etag),  # type: ignore[union-attr]
    ):
        with pytest.raises(Corrupt, match=f"^{link} is a symbolic link") as raised:
            call()
        assert raised.value.where["object"] == key
        assert str(raised.value.where["path"]).endswith(f"/t/{link}")
    assert is_intact(elsewhere)


def test_a_listing_has_links_but_nothing_below_them(store: LocalStore) -> None:
    assert [line.key for line in store.list("")] == ["a/dir", "a/file", "a/real", "a/self", "a/up", "cycle"]
    assert [line.key for line in store.list("a/")] == ["a/dir", "a/file", "a/real", "a/self", "a/up"]
    assert [line.key for line in store.list("cy")] == ["cycle"]
    for prefix in ("a/dir/", "a/dir/p", "cycle/", "cycle/a/", "a/self/"):
        assert list(store.list(prefix)) == []


def test_a_deletion_removes_the_link_and_not_what_it_points_to(store: LocalStore, elsewhere: Path) -> None:
    for key in ("a/dir/precious", "cycle/a/real", "a/up/elsewhere/precious"):
        with pytest.raises(Corrupt, match="is a symbolic link"):
            store.delete([key])
    store.delete(["a/dir", "a/file", "a/self", "a/up", "cycle"])

    assert [line.key for line in store.list("")] == ["a/real"]
    assert is_intact(elsewhere)


@pytest.mark.parametrize("link", ["_lancelsm", TEMPORARY, LOCK])
def test_a_store_keeps_its_own_files_behind_no_link(tmp_path: Path, elsewhere: Path, link: str) -> None:
    store = LocalStore(tmp_path / "t")
    store.create("a/real", b"ours")
    for name in (LOCK, TEMPORARY):
        (tmp_path / "t" / name).rename(tmp_path / name.replace("/", "-"))
    if link == "_lancelsm":
        (tmp_path / "t" / link).rmdir()
    (tmp_path / "t" / link).symlink_to(elsewhere)

    fresh = LocalStore(tmp_path / "t")
    for call in (lambda: fresh.create("b", b"x"), lambda: fresh.delete(["a/real"])):
        if link == TEMPORARY and call is not None and "delete" in call.__code__.co_names:
            continue  # a deletion needs no temporary file
        with pytest.raises(Corrupt, match=f"^{link} is a symbolic link"):
            call()
    assert is_intact(elsewhere)


def test_the_directory_of_a_store_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = LocalStore(tmp_path / "link")

    assert isinstance(store.create("a/b", b"x"), Written)
    assert [line.key for line in LocalStore(tmp_path / "real").list("")] == ["a/b"]
    store.delete(["a/b"])
    assert not (tmp_path / "real" / "a").exists()


def test_the_first_link_is_found_in_directories_and_at_them(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "data" / "b").mkdir(parents=True)
    assert first_link(str(tmp_path), OWN_DIRECTORIES) is None
    (tmp_path / "other").symlink_to(elsewhere)
    assert first_link(str(tmp_path), OWN_DIRECTORIES) is None
    (tmp_path / "data" / "b" / "c").symlink_to(elsewhere)
    assert first_link(str(tmp_path), OWN_DIRECTORIES) == "data/b/c"
    (tmp_path / "_versions").symlink_to(elsewhere)
    assert first_link(str(tmp_path), OWN_DIRECTORIES) == "_versions"
    assert first_link("s3://bucket/t", OWN_DIRECTORIES) is None
    assert linked_part(tmp_path, "data/b/x/y") is None
    assert linked_part(tmp_path, "data/b/c/y") == "data/b/c"
    assert linked_part(tmp_path, "") is None


# Tables


def rows_of(location: Path | str) -> dict[int, Any]:
    return by_key(lancelsm.open(location).scan().to_arrow())


def test_a_table_whose_directory_is_a_link_works_and_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    table = three_levels(tmp_path / "link")
    table.run()
    table.collect(yes=True, interval_seconds=0)
    assert rows_of(tmp_path / "real") == rows_of(tmp_path / "link") == NEWEST
    lancelsm.drop(tmp_path / "link")

    assert not (tmp_path / "real" / "data").exists()
    assert (tmp_path / "link").is_symlink()


@pytest.mark.one_case
@pytest.mark.parametrize("directory", OWN_DIRECTORIES)
def test_a_drop_deletes_links_and_not_what_they_point_to(tmp_path: Path, elsewhere: Path, directory: str) -> None:
    location = tmp_path / "t"
    three_levels(location)
    (location / directory / "inner").mkdir(parents=True, exist_ok=True)
    for name, target in {
        "away": elsewhere,
        "inner/file": elsewhere / "precious",
        "loop": location,
        "gone": "gone",
    }.items():
        (location / directory / name).symlink_to(target)

    lancelsm.drop(location)

    assert is_intact(elsewhere)
    assert not (location / directory).exists() or directory == "_lancelsm"
    assert first_link(str(location), OWN_DIRECTORIES) is None
    lancelsm.create(location, [{"id": 1}], primary_key="id")


def merged_often(location: Path, *, times: int = 3) -> Table:
    """A table with old versions, files and generations for collection."""
    settings = {"keep_versions_seconds": 0.001, "skew_allowance_seconds": 0.001}
    table = lancelsm.create(location, [{"id": n, "v": 0} for n in range(4)], primary_key="id", settings=settings)
    for value in range(1, times + 1):
        table.upsert([{"id": n, "v": value} for n in range(4)])
        table.flush()
        table.merge(engine="inprocess")
    return table


def places(table: Table) -> list[str]:
    region = f"_mem_wal/{table.list_regions()[0].id}"
    return [
        *LANCE_DIRECTORIES,
        "_mem_wal",
        region,
        f"{region}/wal",
        f"{region}/manifest",
        f"{region}/gc",
        "_lancelsm/gc",
    ]


def test_a_collection_deletes_nothing_behind_a_link_and_a_cycle_stops_nothing(tmp_path: Path, elsewhere: Path) -> None:
    table = merged_often(tmp_path / "t")
    generations = list((tmp_path / "t" / "_mem_wal").glob("*/????????_gen_?"))
    for number, place in enumerate(places(table)):
        (tmp_path / "t" / place).mkdir(exist_ok=True)
        for name, target in {"deadbeef_gen_1": elsewhere, "loop": tmp_path / "t", "x": "x"}.items():
            (tmp_path / "t" / place / f"{name}{number}" if name == "x" else tmp_path / "t" / place / name).symlink_to(
                target
            )

    for value in (7, 8):
        table.upsert([{"id": n, "v": value} for n in range(4)])
        table.run()
        done = table.collect(yes=True, interval_seconds=0)

    assert is_intact(elsewhere)
    assert done.corrupt == ()
    assert not any(path.exists() for path in generations), "those of the table itself are collected"
    assert rows_of(tmp_path / "t") == dict.fromkeys(range(4), 8)
    assert table.scrub().problems == ()


@pytest.mark.one_case
@pytest.mark.parametrize("directory", ["data", "_versions", "_transactions", "_indices", "_deletions"])
def test_versions_of_the_base_stay_while_a_link_is_in_it(tmp_path: Path, elsewhere: Path, directory: str) -> None:
    """Lance's clean-up follows links, and deletes old files that no version names."""
    table = merged_often(tmp_path / "t", times=9)
    (tmp_path / "t" / directory).mkdir(exist_ok=True)
    link = tmp_path / "t" / directory / "away"
    link.symlink_to(elsewhere)
    before = [one.version for one in stored_versions(uri=table.uri)]
    assert len(before) > 16

    for yes in (False, True, True):
        done = table.collect(yes=yes, interval_seconds=0)
        kept = [one for one in done.kept if one.kind == "base_version"]
        assert len(kept) >= len(before) - 1
        assert f"the symbolic link {directory}/away" in kept[0].why
        assert "base_version" not in {one.kind for one in done.candidates}
    assert {*before} <= {one.version for one in stored_versions(uri=table.uri)}
    assert is_intact(elsewhere)

    link.unlink()
    table.collect(yes=True, interval_seconds=0)
    assert len(stored_versions(uri=table.uri)) < len(before)
    assert is_intact(elsewhere)


@pytest.mark.rest
def test_a_link_that_appears_between_the_steps_of_a_collection_keeps_the_versions(
    tmp_path: Path, elsewhere: Path
) -> None:
    table = merged_often(tmp_path / "t", times=9)
    before = len(stored_versions(uri=table.uri))
    table.collect(yes=True, interval_seconds=3600)
    (tmp_path / "t" / "data" / "away").symlink_to(elsewhere)

    table.collect(yes=True, interval_seconds=0)

    assert len(stored_versions(uri=table.uri)) >= before
    assert is_intact(elsewhere)


@pytest.mark.parametrize("directory", ["data", "_versions", "_deletions"])
def test_a_base_whose_directory_is_a_link_is_corrupt(tmp_path: Path, directory: str) -> None:
    table = merged_often(tmp_path / "t")
    moved = (tmp_path / "t" / directory).rename(tmp_path / "moved")
    (tmp_path / "t" / directory).symlink_to(moved)

    for use in (lambda: lancelsm.open(table.uri), lambda: table.scan().to_arrow(), lambda: lancelsm.drop(table.uri)):
        with pytest.raises(Corrupt, match=f"^{directory} is a symbolic link"):
            use()
    (tmp_path / "t" / directory).unlink()
    moved.rename(tmp_path / "t" / directory)
    assert rows_of(table.uri) == dict.fromkeys(range(4), 3)


@pytest.mark.parametrize("part", ["", "/data", "/_versions", "/_pk_index"])
def test_a_generation_that_is_behind_a_link_is_corrupt(tmp_path: Path, part: str) -> None:
    table = three_levels(tmp_path / "t")
    for generation in (tmp_path / "t" / "_mem_wal").glob("*/*_gen_1"):
        linked = Path(f"{generation}{part}")
        moved = linked.rename(tmp_path / f"moved{generation.name}{part.replace('/', '-')}")
        linked.symlink_to(moved)

    for use in (table.scan, lambda: table.get([0, 1, 2])):
        with pytest.raises(Corrupt, match="is a symbolic link"):
            use() if use is not table.scan else use().to_arrow()
    with pytest.raises(Corrupt):
        table.merge(engine="inprocess")
    assert {one.problem for one in table.scrub().problems if "symbolic link" in one.problem}


def test_a_registry_file_that_is_a_link_is_corrupt(tmp_path: Path) -> None:
    table = three_levels(tmp_path / "t")
    moved = Path(table.uri, SQLITE).rename(tmp_path / "registry.sqlite")
    Path(table.uri, SQLITE).symlink_to(moved)

    with pytest.raises(Corrupt, match=f"^{SQLITE} is a symbolic link"):
        lancelsm.open(table.uri)


# URLs


@pytest.mark.parametrize(
    "url",
    [
        "file:///lake/t?x=1",
        "file:///lake/t#part",
        "file:///lake/t?",
        "file:///lake/t#",
        "s3://bucket/t?x=1",
        "s3://bucket/t#part",
        "s3://bucket/a/../t",
        "s3://bucket/./t",
    ],
)
def test_a_url_with_a_query_a_fragment_or_dots_is_refused(url: str) -> None:
    for use in (
        lambda: lancelsm.create(url, [{"id": 1}], primary_key="id"),
        lambda: lancelsm.open(url),
        lambda: lancelsm.drop(url),
    ):
        with pytest.raises(Invalid, match=r"has a query or a fragment|has a segment that is") as raised:
            use()
        assert url in raised.value.message
        assert raised.value.where["field"] == "uri"


def test_special_characters_are_escaped_in_a_url(tmp_path: Path) -> None:
    lancelsm.create(f"file://{tmp_path}/a%23b%3Fc", [{"id": 1}], primary_key="id")

    assert (tmp_path / "a#b?c" / "data").is_dir()
    assert lancelsm.open(tmp_path / "a#b?c").scan().to_arrow().num_rows == 1
