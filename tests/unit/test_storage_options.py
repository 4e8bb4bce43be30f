"""The storage options of a table reach every call of Lance and every store that is opened for its files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import lance
import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.compaction import maintenance, tasks
from lancelsm.dataset import generation, generation_writer, scrub_reads
from lancelsm.objects.filesum import FileSums
from lancelsm.region.handle import open_table
from lancelsm.scrubbing import base as scrub_of_base
from lancelsm.table import Table

OPTIONS = {"lancelsm_test": "yes"}  # Lance ignores it in a directory
CALLS = {
    "dataset": (lance, "dataset"),
    "write_dataset": (lance, "write_dataset"),
    "commit": (lance.LanceDataset, "commit"),
    "fragments of a generation": (generation_writer, "write_fragments"),
    "files of a generation": (generation, "LanceFileSession"),
    "files for scrub": (scrub_reads, "LanceFileSession"),
    "store of a merge": (tasks, "open_store"),
    "store for scrub": (scrub_of_base, "open_store"),
}


@pytest.fixture
def without_options() -> Iterator[dict[str, list[str]]]:
    """The calls without the options, by name; an empty list for a name whose calls all had them."""
    found: dict[str, list[str]] = {}

    def recorded(name: str, original: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            given = named.get("storage_options", args[1] if name.startswith("store") and len(args) > 1 else None)
            in_memory = any(str(one).startswith("memory://") for one in args)
            found.setdefault(name, []).extend([] if given == OPTIONS or in_memory else [f"{args} {named}"])
            return original(*args, **named)

        return call

    with ExitStack() as stack:
        for call, (owner, name) in CALLS.items():
            stack.enter_context(mock.patch.object(owner, name, recorded(call, getattr(owner, name))))
        yield found


def rows(first: int, last: int, v: str) -> list[dict[str, Any]]:
    return [{"id": number, "v": v, "w": 0} for number in range(first, last)]


def use(table: Table) -> None:
    table.upsert(rows(2, 6, "new"))
    table.flush()
    table.get([2, 3])
    table.scan(where="v = 'new'").to_arrow()
    table.snapshot("monday", "never")
    table.merge(engine="inprocess")
    table.run()
    table.delete([4])
    table.upsert(rows(5, 8, "newer"))
    table.flush()
    table.merge(engine="inprocess")
    table.get([2])
    table.at("monday").scan().to_arrow()
    table.drop_snapshot("monday")
    data = min((Path(table.uri) / "data").iterdir())
    shutil.copy(data, data.with_name(f"{uuid4()}.lance"))  # no version names it
    for interval in (3600, 3600, 0):  # commit rounds, find that they wait, sweep them
        table.collect(yes=True, interval_seconds=interval)
    list(table.changes())


def test_every_call_of_lance_gets_the_storage_options_of_the_table(
    tmp_path: Path, without_options: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    location = tmp_path / "table"
    lancelsm.create(location, rows(0, 4, "old"), primary_key="id", storage_options=OPTIONS)
    table = lancelsm.open(location, storage_options=OPTIONS)
    use(table)
    table.snapshot("shared", "never")
    clone_snapshot(open_table(table.uri, storage_options=OPTIONS), "shared", tmp_path / "clone")
    for one in (table, lancelsm.open(tmp_path / "clone", storage_options=OPTIONS)):
        assert one.scrub().ok

    monkeypatch.setattr(maintenance, "sum_files", lambda *_, **__: FileSums(setsum=None, files=()))
    table.upsert(rows(9, 10, "last"))
    table.flush()
    lance.dataset(table.uri, storage_options=OPTIONS).drop_columns(["w"])
    monkeypatch.setattr(maintenance, "drift", lambda *_: None)
    table.merge(engine="inprocess")  # sums rows, since there is no sum of files and the base has other columns

    assert {name: calls for name, calls in without_options.items() if calls} == {}
    assert set(without_options) == set(CALLS)
