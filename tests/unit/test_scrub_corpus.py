"""Every kind of object of a table, damaged in every way: scrub names it, and whoever reads it refuses it.

What is damaged lies in `fixtures/corrupt`, which says how it was made. Where nothing is named, or readers go on, the
tables below say why that does no harm.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.common.layout import Key
from lancelsm.errors import LsmError
from lancelsm.registry.object import object_key
from lancelsm.scrub.report import Report
from lancelsm.scrub.table import scrub_place

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "corrupt" / "tree.tar.xz"
FAULTS = ("missing", "cut", "flipped", "stale", "foreign", "doubled")
FLIPS = 3


def scan(table: str, **how: Any) -> list[dict[str, Any]]:
    return sorted(lancelsm.open(table, **how).scan().to_arrow().to_pylist(), key=lambda row: row["id"])


def append(table: str) -> list[dict[str, Any]]:
    lancelsm.open(table).upsert([{"id": number, "v": "new"} for number in range(100, 110)])
    return [row for row in scan(table) if row["id"] < 100]


def flushed(table: str) -> list[dict[str, Any]]:
    lancelsm.open(table).flush()
    return scan(table)


def merged(table: str) -> list[dict[str, Any]]:
    lancelsm.open(table).merge(engine="inprocess")
    return scan(table)


def swept(table: str) -> list[dict[str, Any]]:
    merged(table)
    lancelsm.open(table).collect(yes=True, interval_seconds=0)
    return scan(table)


def collected(table: str) -> list[dict[str, Any]]:
    lancelsm.open(table).drop_snapshot("kept")
    return swept(table)


def got(table: str) -> list[dict[str, Any]]:
    found = lancelsm.open(table).get(range(100)).to_pylist()
    return sorted(found, key=lambda row: row["id"])


def at_snapshot(table: str) -> list[dict[str, Any]]:
    return scan(table, at="kept")


def searched(table: str) -> list[dict[str, Any]]:
    found = lancelsm.open(table).scan(where="v >= 'ours 1'").to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["id"])


def streamed(table: str) -> list[dict[str, Any]]:
    changes = lancelsm.open(table).changes(cursor="mine")
    found = [(change.position, row) for change in changes for row in change.rows.to_pylist()]
    return [row for _, row in sorted(found, key=str)]


READ_BY: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "head": scan,
    "catalog": scan,
    "table": collected,
    "snapshot": at_snapshot,
    "snapshot of a region": at_snapshot,
    "cursor": streamed,
    "cursor of a region": streamed,
    "staged": scan,
    "published": flushed,
    "hint": flushed,
    "tail entry": scan,
    "folded entry": collected,
    "generation data": merged,
    "generation manifest": merged,
    "generation hint": merged,
    "generation transaction": merged,
    "key index": got,
    "key index pages": got,
    "bloom": got,
    "base data": scan,
    "base deletion": scan,
    "base manifest": scan,
    "base hint": merged,
    "transaction": merged,
    "index": searched,
    "index pages": searched,
    "tag": swept,
    "lease": merged,
    "config": scan,
    "list": collected,
    "base list": collected,
}

ORPHAN = "nothing names the second copy"
LEFT = "a pin that was dropped leaves as much, a collection removes it"
FREE = "a lease is free then, or until it ends"
NO_SUM = "other bounds in as many bytes, which lead to these pages too"
SAME = "it never changes, so an older version is the same"

# Whatever becomes of one of these, nobody names it, and nobody misses it.
UNUSED = {
    "generation hint": "generations are opened by version",
    "generation transaction": "a generation is committed once",
    "base hint": "Lance finds the newest version without it",
    "transaction": "a version has a copy of its own in it",
}

NOT_NAMED = {
    **{(name, fault): why for name, why in UNUSED.items() for fault in FAULTS},
    ("head", "doubled"): ORPHAN,
    ("catalog", "stale"): SAME,
    ("table", "stale"): "a registry that went back",
    ("table", "doubled"): ORPHAN,
    ("snapshot", "missing"): "a snapshot that was dropped leaves as much",
    ("snapshot", "stale"): "it expires sooner, and is the same view",
    ("snapshot of a region", "stale"): SAME,
    ("snapshot of a region", "doubled"): LEFT,
    ("cursor", "missing"): "a cursor that was dropped leaves as much",
    ("cursor", "stale"): "it says nothing of where the cursor stands",
    ("cursor of a region", "stale"): "a registry that went back",
    ("cursor of a region", "foreign"): "every position that the log has is one where a cursor can stand",
    ("cursor of a region", "doubled"): LEFT,
    ("staged", "doubled"): ORPHAN,
    ("hint", "stale"): "readers walk up from it",
    ("hint", "foreign"): "one that is not above the newest version is a place to walk up from",
    ("hint", "doubled"): ORPHAN,
    ("folded entry", "doubled"): "it lies below the floor of the log",
    ("generation data", "doubled"): ORPHAN,
    ("generation manifest", "doubled"): ORPHAN,
    ("key index", "doubled"): ORPHAN,
    ("key index pages", "doubled"): ORPHAN,
    ("bloom", "doubled"): ORPHAN,
    ("base data", "doubled"): ORPHAN,
    ("base deletion", "doubled"): ORPHAN,
    ("base manifest", "doubled"): "Lance looks for names of versions alone",
    ("index", "doubled"): ORPHAN,
    ("index pages", "stale"): NO_SUM,
    ("index pages", "foreign"): NO_SUM,
    ("index pages", "doubled"): ORPHAN,
    ("tag", "stale"): SAME,
    ("tag", "doubled"): LEFT,
    ("lease", "missing"): FREE,
    ("lease", "stale"): FREE,
    ("lease", "foreign"): FREE,
    ("lease", "doubled"): "nobody takes one of this name",
    ("config", "stale"): "only settings of pace differ",
    ("config", "doubled"): ORPHAN,
    ("list", "doubled"): ORPHAN,
    ("base list", "doubled"): ORPHAN,
}

EARLIER = "the version before it is read, whose next generations are kept: they are merged again"
ADVISORY = "we do not rest on it, Lance's readers do"
GONE_BACK = "a registry that went back is an older table, whole in itself: appends and commits meet what is newer"
TAGGED = "our collections go by pins; Lance's own clean-up goes by tags"
UNSUMMED = "Lance's files carry no sums, and its readers compare no counts"

NOT_REFUSED = {
    ("lease", "cut"): "nothing rests on one: who can't read it removes it",
    ("catalog", "foreign"): "regions are read by their id, and their values from the manifest",
    ("catalog", "doubled"): "it has no head, and so no rows",
    ("snapshot", "doubled"): "the one that is read is whole",
    ("cursor", "doubled"): "the one that is read is whole",
    ("staged", "stale"): "a commit holds it against what was published, a scan does not",
    ("published", "missing"): "the next commit publishes it",
    ("hint", "missing"): ADVISORY,
    ("hint", "cut"): ADVISORY,
    ("hint", "flipped"): ADVISORY,
    ("tail entry", "doubled"): "it is no part of the log, but no append passes it",
    ("key index pages", "missing"): "the rows are read then",
    ("key index pages", "foreign"): "its bounds are wider here",
    ("bloom", "missing"): "every key is looked up then",
    ("base manifest", "missing"): EARLIER,
    ("base manifest", "stale"): EARLIER,
    ("tag", "missing"): TAGGED,
    ("tag", "foreign"): TAGGED,
}

OTHER_ROWS = {
    ("head", "stale"): GONE_BACK,
    ("catalog", "missing"): GONE_BACK,
    ("cursor", "missing"): "a consumer whose cursor is gone begins anew",
    ("cursor of a region", "stale"): GONE_BACK,
    ("cursor of a region", "foreign"): "its consumer goes on from there",
    ("base deletion", "stale"): UNSUMMED,
    ("base deletion", "foreign"): UNSUMMED,
    ("key index", "stale"): "an index that lacks a key hides it: it carries no sum",
    ("key index", "foreign"): "an index that lacks a key hides it: it carries no sum",
    ("key index pages", "stale"): "bounds that leave a key out hide it",
}


FLIPS_PASS = {
    "base data": UNSUMMED,
    "base deletion": UNSUMMED,
    "base manifest": UNSUMMED,
    "index": UNSUMMED,
    "index pages": UNSUMMED,
    "cursor of a region": "as the foreign one",
    "key index": "as the stale one",
    "key index pages": "as the stale one",
}
FLIPS_PASS_SCRUB = {
    "base data": "rows of the base carry no sum: another value of the right type is a value",
    "base manifest": "nor does Lance's manifest",
    "index": "nor do its indexes",
    "index pages": "nor do its indexes",
    "cursor of a region": "as the foreign one",
}


class Tree:
    """The frozen tree, and the right answers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(root, filter="data")
        self.objects: dict[str, dict[str, str]] = json.loads((root / "objects.json").read_text())
        self.rows = {
            read: read(str(self.copy(root.parent / read.__name__) / "table")) for read in set(READ_BY.values())
        }

    def copy(self, place: Path) -> Path:
        """A copy that shares its files: whatever is damaged is replaced, never written into."""
        shutil.copytree(self.root, place, copy_function=os.link)
        return place


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("corrupt") / "tree")


def damage(place: Path, objects: dict[str, str], fault: str, seed: str) -> None:
    path = place / objects["path"]
    body = path.read_bytes()
    if fault == "doubled":
        path = place / objects["doubled"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return
    wanted = {"cut": body[: len(body) * 2 // 3], "flipped": flipped(body, seed)}
    if fault in ("stale", "foreign"):
        wanted[fault] = (place / objects[fault]).read_bytes()
    path.unlink()
    if fault != "missing":
        path.write_bytes(wanted[fault])


def flipped(body: bytes, seed: str) -> bytes:
    dice = random.Random(seed)
    changed = bytearray(body)
    changed[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def names(report: Report, path: str) -> bool:
    """Whether a problem is about this object, the directory of Lance that it lies in, or its record."""
    key = path.partition("/")[2]
    for problem in report.problems:
        partition, _, sort = problem.path.rpartition("/")
        record = object_key(Key(partition=partition, sort=sort)) if partition else ""
        if key in (problem.path, record) or key.startswith(f"{problem.path.rstrip('/')}/"):
            return True
    return False


def answer(read: Callable[[str], list[dict[str, Any]]], table: str) -> list[dict[str, Any]] | LsmError:
    try:
        return read(table)
    except LsmError as error:
        return error


def test_the_whole_tree_has_no_problem(tree: Tree) -> None:
    for name in ("table", "other"):
        report = scrub_place(tree.root / name)

        assert report.problems == ()
        assert report.complete


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "flipped"])
@pytest.mark.parametrize("name", READ_BY)
def test_what_is_damaged_is_named_and_refused(tree: Tree, tmp_path: Path, name: str, fault: str) -> None:
    objects, case = tree.objects[name], (name, fault)
    place = tree.copy(tmp_path / "tree")
    damage(place, objects, fault, "")

    report = scrub_place(place / "table")
    found = answer(READ_BY[name], str(place / "table"))

    damaged = objects["doubled"] if fault == "doubled" else objects["path"]
    assert names(report, damaged) != (case in NOT_NAMED), report.problems
    if case in NOT_NAMED:
        assert report.problems == ()
    if case in OTHER_ROWS:
        assert not isinstance(found, LsmError)
    elif case in NOT_NAMED:
        assert found == tree.rows[READ_BY[name]] or (isinstance(found, LsmError) and name not in UNUSED)
    elif case in NOT_REFUSED:
        assert found == tree.rows[READ_BY[name]]
    else:
        assert isinstance(found, LsmError), found


@pytest.mark.parametrize("seed", range(FLIPS))
@pytest.mark.parametrize("name", READ_BY)
def test_a_flipped_bit_is_named_or_has_no_meaning(tree: Tree, tmp_path: Path, name: str, seed: int) -> None:
    place = tree.copy(tmp_path / "tree")
    damage(place, tree.objects[name], "flipped", f"{name} {seed}")

    report = scrub_place(place / "table")
    found = answer(READ_BY[name], str(place / "table"))

    unharmed = found == tree.rows[READ_BY[name]]
    if name not in FLIPS_PASS:
        assert unharmed or isinstance(found, LsmError), f"seed {seed}"
    assert unharmed or not report.ok or name in FLIPS_PASS_SCRUB, f"seed {seed}"
    assert name not in UNUSED or (unharmed and report.ok), f"seed {seed}"


def test_no_append_passes_what_stands_in_its_way(tree: Tree, tmp_path: Path) -> None:
    place = tree.copy(tmp_path / "tree")
    damage(place, tree.objects["tail entry"], "doubled", "")

    assert isinstance(answer(append, str(place / "table")), LsmError)
