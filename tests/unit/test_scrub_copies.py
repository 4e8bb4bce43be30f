"""Scrub of clones: files that they share with their source are read and named at the source.

A backup is not scrubbed: a restore compares what it reads with what was written.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import lance
import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.common.layout import BACKUP, CLONE
from lancelsm.errors import Corrupt, Invalid
from lancelsm.region.handle import open_table
from lancelsm.table import Table
from tests.unit.tables import create, row, rows_of


@pytest.fixture
def source(tmp_path: Path) -> Table:
    """A table whose base has several fragments, one of them with deleted rows, and an index over all."""
    table = create(tmp_path, regions="bucket(id, 2)")
    for number in range(2):
        table.upsert([row(key, str(number)) for key in range(8 * number, 12)])
        table.flush()
        table.merge(engine="inprocess")
    lance.dataset(table.uri).create_scalar_index("v", "BTREE")
    return table


def clone_of(source: Table, to: Path) -> Table:
    source.snapshot("now")
    clone_snapshot(open_table(source.uri), "now", to)
    return lancelsm.open(to)


@pytest.mark.rest
def test_a_clone_has_no_problem_before_and_after_it_is_written(source: Table, tmp_path: Path) -> None:
    clone = clone_of(source, tmp_path / "clone")
    assert clone.scrub().problems == ()

    clone.upsert([row(3, "own")])
    clone.flush()
    clone.merge(engine="inprocess")

    assert clone.scrub().problems == ()
    assert source.scrub().problems == ()


@pytest.mark.rest
def test_a_clone_of_a_clone_has_no_problem(source: Table, tmp_path: Path) -> None:
    clone = clone_of(source, tmp_path / "clone")
    clone.upsert([row(3, "own")])
    clone.flush()
    clone.merge(engine="inprocess")

    second = clone_of(clone, tmp_path / "a second one")

    assert second.scrub().problems == ()
    second.snapshot("own")
    assert second.at("own").scrub().problems == ()


def remove(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    for index in random.Random(path.name).choices(range(len(body)), k=20):
        body[index] ^= 0x55
    path.write_bytes(body)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("folder", "damage"),
    [
        ("data", remove),
        ("data", truncate),
        ("data", flip),
        ("_deletions", remove),
        ("_deletions", flip),
        ("_indices", remove),
        ("_indices", truncate),
    ],
)
def test_scrub_of_every_clone_names_a_damaged_shared_file(
    source: Table, tmp_path: Path, folder: str, damage: Callable[[Path], None]
) -> None:
    clone = clone_of(source, tmp_path / "clone")
    second = clone_of(clone, tmp_path / "second")
    path = next(found for found in sorted((tmp_path / "table" / folder).rglob("*")) if found.is_file())
    damage(path)

    named = str(path.parent if folder == "_indices" else path)
    for table in (clone, second):
        assert named in {problem.path for problem in table.scrub().problems}
    assert named.removeprefix(f"{source.uri}/") in {problem.path for problem in source.scrub().problems}


# "doubled" means that a second copy exists under another name.
FAULTS = ("missing", "cut", "flipped", "stale", "foreign", "doubled")


def write_damaged(path: Path, fault: str, *, stale: bytes, foreign: bytes) -> None:
    body = path.read_bytes()
    bodies = {
        "cut": body[: len(body) * 2 // 3],
        "flipped": body[:-1] + bytes([body[-1] ^ 1]),
        "stale": stale,
        "foreign": foreign,
        "doubled": body,
    }
    if fault == "doubled":
        path = path.with_stem(f"{path.stem}-2")  # no reader opens the copy
    else:
        path.unlink()
    if fault != "missing":
        path.write_bytes(bodies[fault])


@pytest.mark.rest
@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_lineage_marker_of_a_clone_is_named_and_its_drop_is_refused(
    source: Table, tmp_path: Path, fault: str
) -> None:
    marker = tmp_path / "clone" / CLONE
    clone_of(source, tmp_path / "clone")
    stale = marker.read_bytes()
    lancelsm.drop(tmp_path / "clone")
    source.drop_snapshot("now")
    clone = clone_of(source, tmp_path / "clone")
    clone_of(clone, tmp_path / "another")

    write_damaged(marker, fault, stale=stale, foreign=(tmp_path / "another" / CLONE).read_bytes())

    assert [problem.path for problem in clone.scrub().problems] == ([] if fault == "doubled" else [CLONE])
    if fault == "doubled":
        lancelsm.drop(tmp_path / "another")
        lancelsm.drop(clone.uri)
    elif fault != "missing":  # without the marker, a drop cannot know that the source keeps a version
        with pytest.raises(Corrupt):
            lancelsm.drop(clone.uri)


@pytest.mark.one_case
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("pattern", [BACKUP, "rows/*/data/*", "rows/*/_versions/*.manifest"])
def test_a_restore_of_a_damaged_backup_never_returns_other_rows(
    source: Table, tmp_path: Path, pattern: str, fault: str
) -> None:
    other = create(tmp_path / "other")
    other.upsert([row(key, "another") for key in range(9)])
    lancelsm.backup(source, tmp_path / "stale")
    source.upsert([row(3, "newer")])
    lancelsm.backup(source, tmp_path / "backup")
    lancelsm.backup(other, tmp_path / "foreign")
    (path,), (stale,), (foreign,) = (list((tmp_path / name).glob(pattern)) for name in ("backup", "stale", "foreign"))

    write_damaged(path, fault, stale=stale.read_bytes(), foreign=foreign.read_bytes())

    try:
        lancelsm.restore(tmp_path / "backup", tmp_path / "restored")
    except (Corrupt, Invalid):
        with pytest.raises(Invalid):
            lancelsm.open(tmp_path / "restored")
        assert fault != "doubled"
    else:
        assert fault in ("flipped", "doubled")  # the bit may have no meaning
        assert rows_of(lancelsm.open(tmp_path / "restored")) == rows_of(source)
