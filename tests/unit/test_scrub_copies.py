"""Scrub of clones: what they share with their source is read where it lies, and named by where it lies."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import lance
import pytest

import lancelsm
from lancelsm.clone import clone_snapshot
from lancelsm.opening import open_table
from lancelsm.table import Table
from tests.unit.tables import create, row


@pytest.fixture
def source(tmp_path: Path) -> Table:
    """A base of several fragments, one of which hides rows, with an index over all."""
    table = create(tmp_path, regions="bucket(id, 2)")
    for number in range(2):
        table.upsert([row(key, str(number)) for key in range(8 * number, 12)])
        table.flush()
        table.merge(engine="inprocess")
    lance.dataset(table.uri).create_scalar_index("v", "BTREE")
    return table


def cloned(source: Table, to: Path) -> Table:
    source.snapshot("now")
    clone_snapshot(open_table(source.uri), "now", to)
    return lancelsm.open(to)


def test_a_fresh_clone_has_no_problem_nor_has_one_that_was_written(source: Table, tmp_path: Path) -> None:
    clone = cloned(source, tmp_path / "clone")
    assert clone.scrub().problems == ()

    clone.upsert([row(3, "own")])
    clone.flush()
    clone.merge(engine="inprocess")

    assert clone.scrub().problems == ()
    assert source.scrub().problems == ()


def test_a_clone_of_a_clone_has_no_problem(source: Table, tmp_path: Path) -> None:
    clone = cloned(source, tmp_path / "clone")
    clone.upsert([row(3, "own")])
    clone.flush()
    clone.merge(engine="inprocess")

    second = cloned(clone, tmp_path / "a second one")

    assert second.scrub().problems == ()
    second.snapshot("own")
    assert second.at("own").scrub().problems == ()


def removed(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flipped(path: Path) -> None:
    body = bytearray(path.read_bytes())
    for at in random.Random(path.name).choices(range(len(body)), k=20):
        body[at] ^= 0x55
    path.write_bytes(body)


@pytest.mark.parametrize(
    ("folder", "damage"),
    [
        ("data", removed),
        ("data", cut),
        ("data", flipped),
        ("_deletions", removed),
        ("_deletions", flipped),
        ("_indices", removed),
        ("_indices", cut),
    ],
)
def test_what_is_wrong_with_a_shared_file_is_named_in_every_clone(
    source: Table, tmp_path: Path, folder: str, damage: Callable[[Path], None]
) -> None:
    clone = cloned(source, tmp_path / "clone")
    second = cloned(clone, tmp_path / "second")
    path = next(found for found in sorted((tmp_path / "table" / folder).rglob("*")) if found.is_file())
    damage(path)

    named = str(path.parent if folder == "_indices" else path)
    for table in (clone, second):
        assert named in {problem.path for problem in table.scrub().problems}
    assert named.removeprefix(f"{source.uri}/") in {problem.path for problem in source.scrub().problems}
