"""A table is created only where a drop or a collection of it would delete no file of another owner."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancelsm
from benchmarks.s3 import Server, serving
from lancelsm.admin import create
from lancelsm.admin.adopt import adopt
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.create import create_table
from lancelsm.admin.foreign_files import first_foreign, first_foreign_data
from lancelsm.common.layout import OWN_DIRECTORIES
from lancelsm.errors import Invalid
from lancelsm.objects.open import open_store
from lancelsm.region.handle import open_table
from tests.interop import lance_oracle as oracle
from tests.simulation.faults import FaultPlan
from tests.unit.tables import COLUMNS, faulty

ROWS = [{"id": n, "v": "a"} for n in range(4)]
NAMES = ("mine.csv", "deep/er/mine.lance", "_versions/1.manifest", "data/18446744073709551614.manifest")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a snapshot, and a backup of it."""
    directory = tmp_path_factory.mktemp("sources")
    table = lancelsm.create(directory / "table", ROWS, primary_key="id")
    table.snapshot("monday", "never")
    lancelsm.backup(table, directory / "backup")
    return directory


def creators(sources: Path, location: Path) -> dict[str, Callable[[], Any]]:
    return {
        "create": lambda: lancelsm.create(location, ROWS, primary_key="id"),
        "clone": lambda: clone_snapshot(open_table(sources / "table"), "monday", location),
        "restore": lambda: lancelsm.restore(sources / "backup", location),
    }


def files_in(location: Path) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(at, name), location) for at, _, names in os.walk(location) for name in names
    )


def ids(location: Path) -> list[int]:
    return sorted(lancelsm.open(location).scan().to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("how", ["create", "clone", "restore"])
@pytest.mark.parametrize("directory", OWN_DIRECTORIES)
def test_a_file_in_a_directory_of_the_table_is_named_and_nothing_is_written(
    sources: Path, tmp_path: Path, directory: str, how: str
) -> None:
    # Lance takes every manifest below `_versions` for one of the dataset, also in a directory in it.
    for name in NAMES if directory != "_versions" else NAMES[:2]:
        location = tmp_path / name.replace("/", "-")
        found = location / directory / name
        found.parent.mkdir(parents=True)
        found.write_text("mine")
        with pytest.raises(Invalid, match="a drop would delete it") as raised:
            creators(sources, location)[how]()

        assert raised.value.where["object"] == f"{directory}/{name}"
        assert raised.value.where["table"] == str(location)
        assert files_in(location) == [f"{directory}/{name}"]
    assert [pin.name for pin in lancelsm.open(sources / "table").snapshots()] == ["monday"]


@pytest.mark.parametrize("how", ["create", "clone", "restore"])
def test_files_elsewhere_are_accepted_and_stay_after_a_drop(sources: Path, tmp_path: Path, how: str) -> None:
    location, mine = tmp_path / "project", ["database/x", "notes.txt", "rows/1", "tree", "trees/x.lance"]
    for name in mine:
        (location / name).parent.mkdir(parents=True, exist_ok=True)
        (location / name).write_text("mine")
    (location / "data" / "empty").mkdir(parents=True)

    creators(sources, location)[how]()
    assert ids(location) == [0, 1, 2, 3]
    lancelsm.drop(location)

    assert set(mine) <= set(files_in(location))


@pytest.mark.parametrize("directory", ["data", "tree/inner", "_mem_wal"])
def test_the_parent_of_another_table_is_refused_and_that_table_stays(tmp_path: Path, directory: str) -> None:
    inner = lancelsm.create(tmp_path / directory, ROWS, primary_key="id")
    inner.upsert([{"id": 9, "v": "b"}])

    with pytest.raises(Invalid, match=f"would delete it: {directory}/"):
        lancelsm.create(tmp_path, ROWS, primary_key="id")
    with pytest.raises(Invalid, match="there is no table at this location"):
        lancelsm.drop(tmp_path)
    assert ids(tmp_path / directory) == [0, 1, 2, 3, 9]


@pytest.mark.parametrize("link", ["data", "_lancelsm", "_versions/old", "_mem_wal/loop", "data/a/dangling"])
@pytest.mark.parametrize("how", ["create", "clone", "restore"])
def test_a_symbolic_link_in_a_directory_of_the_table_is_named(
    sources: Path, tmp_path: Path, link: str, how: str
) -> None:
    location, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (location / link).parent.mkdir(parents=True)
    (location / link).symlink_to({"loop": location, "dangling": "gone"}.get(Path(link).name, elsewhere))

    with pytest.raises(Invalid) as raised:
        creators(sources, location)[how]()

    assert raised.value.where["object"] == link
    assert files_in(elsewhere) == []


# What a crash of an earlier call leaves


def crashed(location: Path) -> Iterator[str]:
    """Leave at a location what Lance leaves if it crashes before the first version; yield each state, the last first.

    The states are those of a real dataset, whose files are renamed back to the names under which Lance writes them.
    """
    lance.write_dataset(pa.table({"id": [7]}), location)
    (location / "_versions" / "latest_version_hint.json").unlink()
    (manifest,) = (location / "_versions").iterdir()
    manifest = manifest.rename(f"{manifest}#1")
    yield "the manifest is being written"
    manifest.unlink()
    yield "the transaction is complete"
    (transaction,) = (location / "_transactions").iterdir()
    transaction = transaction.rename(transaction.with_name(".tmpAb12xY"))
    yield "the transaction is being written"
    transaction.unlink()
    yield "the data is complete"
    (data,) = (location / "data").iterdir()
    data.rename(data.with_name(".tmp0zZ9aA"))
    yield "the data is being written"


def test_the_same_call_finishes_a_table_that_lance_left_before_its_first_version(tmp_path: Path) -> None:
    states = []
    for number, state in enumerate(crashed(tmp_path / "crashed")):
        location = Path(shutil.copytree(tmp_path / "crashed", tmp_path / f"{number}"))
        before = files_in(location)
        assert before, state

        lancelsm.create(location, ROWS, primary_key="id")

        assert ids(location) == [0, 1, 2, 3]
        assert set(before) <= set(files_in(location)), "a later collection removes them"
        lancelsm.drop(location)
        assert not (location / "data").exists()
        states.append(before)
    assert len({tuple(map(str, state)) for state in states}) == 5


def test_a_foreign_file_beside_the_files_of_a_crash_is_refused(tmp_path: Path) -> None:
    *_, _ = crashed(tmp_path)
    (tmp_path / "data" / "mine.csv").write_text("mine")

    with pytest.raises(Invalid, match=r"would delete it: data/mine\.csv"):
        lancelsm.create(tmp_path, ROWS, primary_key="id")


def test_a_table_that_another_process_creates_after_the_first_look_is_not_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, looked = tmp_path / "t", []
    find_base = create.find_base

    def created_after_the_first_look(**options: Any) -> Any:
        found = find_base(**options)
        if not looked:
            looked.append(found)
            with monkeypatch.context() as other:
                other.setattr(create, "find_base", find_base)
                lancelsm.create(location, ROWS, primary_key="id")
        return found

    monkeypatch.setattr(create, "find_base", created_after_the_first_look)
    lancelsm.create(location, ROWS, primary_key="id")

    assert looked == [None]
    assert ids(location) == [0, 1, 2, 3]


def test_a_create_lists_each_directory_once_and_a_repeated_one_lists_none(tmp_path: Path) -> None:
    plan = FaultPlan()
    create_table(tmp_path / "t", ROWS, primary_key="id", ports=faulty(plan))
    again = FaultPlan()
    (tmp_path / "t" / "_lancelsm" / "config.json").unlink()
    create_table(tmp_path / "t", ROWS, primary_key="id", ports=faulty(again))

    assert Counter(call.method for call in plan.calls)["list"] == len(OWN_DIRECTORIES) == 9
    assert [call.method for call in plan.calls[:15]] == ["get"] * 6 + ["list"] * 9
    assert "list" not in {call.method for call in again.calls}


# Object stores


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with serving() as found:
        yield found


@pytest.mark.parametrize("key", ["data/mine.csv", "_mem_wal/x", "data/x/../y.lance", "tree//x", "_refs/./x"])
def test_an_object_in_a_bucket_is_named_and_nothing_is_written(server: Server, key: str) -> None:
    server.objects[f"t/{key}"] = b"mine"

    with pytest.raises(Invalid, match="would delete it") as raised:
        lancelsm.create("s3://bucket/t", ROWS, primary_key="id", storage_options=server.options)

    assert str(raised.value.where["object"]).endswith(key)
    assert list(server.objects) == [f"t/{key}"]


@pytest.mark.rest
def test_objects_of_tables_with_a_longer_name_are_not_foreign(server: Server) -> None:
    server.objects["t2/data/x"] = server.objects["t/database/x"] = b"mine"

    lancelsm.create("s3://bucket/t", ROWS, primary_key="id", storage_options=server.options)
    lancelsm.drop("s3://bucket/t", storage_options=server.options)

    assert sorted(server.objects) == ["t/database/x", "t2/data/x"]


# Tables of Lance


def test_a_lance_table_with_a_foreign_file_in_its_data_is_not_adopted(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist(ROWS, schema=COLUMNS)
    oracle.make_table(tmp_path, COLUMNS, ("id",), rows, unsharded=True)
    (tmp_path / "data" / "mine.csv").write_text("mine")

    with pytest.raises(Invalid, match=r"would delete it: data/mine\.csv"):
        adopt(tmp_path)

    (tmp_path / "data" / "mine.csv").unlink()
    adopt(tmp_path)
    assert ids(tmp_path) == [0, 1, 2, 3]


def test_large_values_that_lance_stores_beside_its_data_are_not_foreign(tmp_path: Path) -> None:
    values = pa.array([b"x" * 5_000_000] * 2, pa.large_binary())
    column = pa.field("v", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    lance.write_dataset(pa.table([values], schema=pa.schema([column])), tmp_path)

    assert first_foreign_data(open_store(tmp_path)) is None
    assert first_foreign(open_store(tmp_path)) is not None
