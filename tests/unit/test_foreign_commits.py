"""Files that another tool added to the base, or removed, are found with few requests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pytest

from lancelsm.compaction.maintenance import optimize_table
from lancelsm.dataset import statement
from lancelsm.read import foreign_commits
from lancelsm.read.foreign_commits import ForeignFiles, foreign_files
from lancelsm.read.problems import ProblemKind
from lancelsm.table import Table
from tests.unit.tables import create, row


def merge(table: Table) -> None:
    table.upsert([row(key) for key in range(8)])
    table.flush()
    table.merge(engine="inprocess")


def found(table: Table) -> ForeignFiles:
    return foreign_files(table._handle, table._handle.read_base())


def calls(table: Table, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the reads that the search for foreign files adds to those of the base."""
    context, made, base = table._handle.context, Counter[str](), table._handle.read_base()

    def counted(name: str, real: Any) -> Any:
        return lambda *args, **options: made.update([name]) or real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(context.objects), "get", counted("get", type(context.objects).get))
        patch.setattr(type(context.registry), "read", counted("registry", type(context.registry).read))
        patch.setattr(foreign_commits, "open_base", counted("version", foreign_commits.open_base))
        patch.setattr(foreign_commits, "files_of", counted("files", foreign_commits.files_of))
        foreign_files(table._handle, base)
    return dict(made)


def test_own_commits_are_not_foreign_and_cost_at_most_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path)
    assert calls(table, monkeypatch) == {}
    merge(table)  # the repaired marker is a version without a statement of its own
    assert calls(table, monkeypatch) == {"get": 1, "files": 1}
    table.create_index("v", kind="BITMAP")
    assert calls(table, monkeypatch) == {}
    merge(table)  # of the first fragment, no row is left
    assert found(table) == ForeignFiles()
    optimize_table(table._handle)
    assert calls(table, monkeypatch) == {}
    table.drop_index("v_idx")
    assert table.status().problems == ()


def test_a_foreign_commit_costs_at_most_one_more_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(tmp_path)
    merge(table)
    lance.dataset(table.uri).delete("id = 3")

    assert [path.partition("/")[0] for path in found(table).added] == ["_deletions"]
    assert calls(table, monkeypatch) == {"registry": 1, "get": 1, "version": 1, "files": 2}


def test_a_foreign_index_is_found_on_a_base_that_was_never_merged(tmp_path: Path) -> None:
    table = create(tmp_path, [row(1)])
    lance.dataset(table.uri).create_scalar_index("v", "BITMAP")

    assert [path.partition("/")[0] for path in found(table).added] == ["_indices"]


@pytest.mark.parametrize("merged", [True, False])
def test_a_removed_data_file_is_found(tmp_path: Path, merged: bool) -> None:
    table = create(tmp_path) if merged else create(tmp_path, [row(1)])
    if merged:
        merge(table)
    (path,) = (f"data/{file.name}" for file in Path(table.uri, "data").iterdir())
    lance.dataset(table.uri).delete("true")

    assert found(table) == ForeignFiles(removed=(path,))
    (problem,) = [one for one in table.status().problems if one.kind is ProblemKind.COMMIT]
    assert f"removed 1 file, such as {path}" in problem.message


def test_a_base_that_is_older_than_the_last_check_is_not_compared_with_it(tmp_path: Path) -> None:
    table = create(tmp_path)
    merge(table)
    lance.dataset(table.uri).delete("id = 3")
    old = table._handle.read_base()
    merge(table)
    table.collect(yes=True)

    assert foreign_files(table._handle, old) == ForeignFiles()


def test_files_that_were_too_large_to_be_summed_by_a_merge_are_not_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statement, "_BYTES_FOUND", 0)
    table = create(tmp_path, [row(100)])
    merge(table)
    lance.dataset(table.uri).update_config({"theirs": "1"})
    assert table.scrub().unsummed == 1

    assert found(table) == ForeignFiles()
