"""The command `report`: one page that needs nothing else, with the numbers of `status`."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

import lancelsm
from lancelsm.stack.table_report.report_facts import part_of
from tests.cli.console import Json, Run, lines

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects texts by section, tags and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: dict[str, str] = {}
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self._title = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self._title = data
        self.sections[self._title] = f"{self.sections.get(self._title, '')} {data}"


def report_of(orders: Path, run: Run) -> Page:
    file = orders.with_name("report.html")
    done = run("report", orders, "--to", file)
    assert (done.code, done.err) == (0, "")
    text = file.read_text()
    assert "url(" not in text
    return Page(text)


@pytest.mark.rest
def test_a_report_shows_levels_growth_merges_storage_and_pins(orders: Path, run: Run, as_json: Json) -> None:
    for part in range(2):
        rows = [{"id": 10 * part + key, "state": "new", "price": 1.0} for key in range(10)]
        run("write", orders, "-", stdin=lines(*rows))
        run("flush", orders)
        if part == 0:
            run("merge", orders)
    run("write", orders, "-", stdin=lines({"id": 99, "state": "new", "price": 1.0}))
    lancelsm.open(orders).snapshot("monday", ttl="1h")
    page = report_of(orders, run)

    status = as_json("status", orders)
    levels = page.sections["Regions and their lag"]
    for region in status["regions"]:
        assert re.search(rf"{region['region'][:8]} .* {region['generations']} ", levels)
    summary = " ".join(page.sections[""].split())
    assert "10 rows in the base 1 row to flush 2 generations to merge" in summary
    assert "since the oldest row waits" in summary
    assert "1 row 10 rows 10 rows" in " ".join(re.findall(r"\d+ rows?", page.sections["Levels"]))
    assert "had 3 rows: +7 rows in" in page.sections["Growth of the base"]
    assert "1 merge among the" in page.sections["History of merges and collections"]
    assert "4 generations were flushed, and 2 of these merged" in page.sections["History of merges and collections"]
    assert "Nothing was collected yet" in page.sections["History of merges and collections"]
    assert "monday" in page.sections["Snapshots and cursors"]
    assert "None" in page.sections["Problems found"]
    assert {"svg", "path", "line", "rect"} <= page.tags
    assert page.addresses == []
    assert "script" not in page.tags


def _newest(orders: Path, pattern: str) -> Path:
    return max(orders.glob(pattern), key=lambda file: file.stat().st_mtime_ns)


def _flip(file: Path) -> str:
    body = bytearray(file.read_bytes())
    body[len(body) // 2] ^= 255
    file.write_bytes(body)
    return file.name


def _gone(file: Path) -> str:
    file.unlink()
    return file.name


def _cut(file: Path, says: str) -> str:
    file.write_bytes(file.read_bytes()[:20])
    return says


def _lose_versions(orders: Path) -> str:
    for file in orders.glob("_versions/*.manifest"):
        file.unlink()
    return "no Lance dataset found"


def _lose_registry(orders: Path) -> str:
    for file in orders.glob("_lancelsm/*.sqlite*"):
        file.unlink()
    return "the registry does not know the table"


DAMAGE: dict[str, Callable[[Path], str]] = {  # does it, and returns what the report must say
    "entry of the log": lambda orders: _flip(_newest(orders, "_mem_wal/*/wal/*")),
    "entry that is gone": lambda orders: _gone(_newest(orders, "_mem_wal/*/wal/*")),
    "manifest of a region": lambda orders: _cut(_newest(orders, "_mem_wal/*/manifest/staged/*"), "not a manifest"),
    "manifest of the base": lambda orders: _cut(_newest(orders, "_versions/*.manifest"), "the base can't be opened"),
    "all versions of the base": _lose_versions,
    "file of the base": lambda orders: _gone(_newest(orders, "data/*.lance")),
    "registry": _lose_registry,
    "configuration": lambda orders: _cut(orders / "_lancelsm" / "config.json", "configuration is unreadable"),
}
STILL = {  # what is known in spite of the damage
    "configuration": r"\? rows in the base",
    "registry": r"3 rows in the base \? rows to flush",
    "manifest of a region": r"3 rows in the base \? rows to flush",
    "manifest of the base": r"\? rows in the base 1 row to flush",
    "all versions of the base": r"\? rows in the base 1 row to flush",
}


@pytest.mark.one_case
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_table_gets_a_report_that_names_the_damage(kind: str, orders: Path, run: Run) -> None:
    run("write", orders, "-", stdin=lines({"id": 99, "state": "new", "price": 1.0}))
    says = DAMAGE[kind](orders)
    page = report_of(orders, run)

    assert says in page.sections["Problems found"]
    assert re.search(STILL.get(kind, "3 rows in the base 1 row to flush"), " ".join(page.sections[""].split()))
    assert "None" not in page.sections["Problems found"]


def test_no_table_gets_no_report(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "report.html"
    done = run("report", tmp_path / "none", "--to", file)

    assert (done.code, file.exists()) == (1, False)
    assert "there is no table at this location" in done.err


@pytest.mark.rest
def test_a_report_says_what_is_special_about_a_table(orders: Path, run: Run) -> None:
    clone = orders.with_name("clone")
    table = lancelsm.open(orders)
    table.snapshot("monday")
    run("snapshot", "clone", orders, clone, "--name", "monday")
    run("reshard", orders, "bucket(id, 3)")

    about = report_of(clone, run).sections
    assert f"clone of {orders}" in " ".join(about["The table"].split())
    assert f"shares with {orders} are not counted" in about["Storage and its cost"]
    moved = report_of(orders, run).sections
    assert "5 regions: 3 open, 2 sealed. The table was resharded" in moved["Regions and their lag"]
    assert "bucket(id, 3)" in moved["The table"]


def test_text_of_a_table_is_never_markup(tmp_path: Path, run: Run) -> None:
    uri = tmp_path / "<b>x&"
    lancelsm.create(uri, [{"<i>k": 1}], primary_key="<i>k")
    page = report_of(uri, run)

    assert {"b", "i"} & page.tags == {"b"}  # of the tiles
    assert "<b>x&" in page.sections[""]


def test_problems_are_listed_and_counted(orders: Path, run: Run) -> None:
    import lance

    lance.dataset(str(orders)).drop_columns(["price"])
    file = orders.with_name("r.html")
    done = run("report", orders, "--to", file, "--output", "json").document

    assert (done["file"], done["problems"] > 0) == (str(file), True)
    assert "None" not in Page(file.read_text()).sections["Problems found"]


def test_a_report_can_be_printed(orders: Path, run: Run) -> None:
    done = run("report", orders, "--to", "-")

    assert (done.code, done.err) == (0, "")
    assert Page(done.out).sections


def test_a_file_that_cannot_be_written_is_invalid(orders: Path, run: Run) -> None:
    done = run("report", orders, "--to", orders / "none" / "r.html")

    assert done.code == 1
    assert "can't be written" in done.err


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("data/a.lance", "base: rows"),
        ("_deletions/1.arrow", "base: rows"),
        ("_indices/u/index.idx", "base: indexes"),
        ("_versions/1.manifest", "base: versions"),
        ("_mem_wal/r/wal/1.arrow", "log"),
        ("_mem_wal/r/manifest/1.binpb", "manifests"),
        ("_mem_wal/r/0011aabb_gen_3/data/a.lance", "generations"),
        ("_lancelsm/config.json", "other"),
    ],
)
def test_each_object_belongs_to_a_part(key: str, part: str) -> None:
    assert part_of(key) == part
