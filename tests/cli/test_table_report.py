"""The command `report`: one page that needs nothing else, with the numbers of `status`."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import lancelsm
from lancelsm.cli.table_report_facts import part_of
from tests.cli.console import Json, Run, lines

VOID = {"meta"}


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
    levels = page.sections["Levels and lag of each region"]
    for region in status["regions"]:
        assert re.search(rf"{region['region'][:8]} .* {region['generations']} ", levels)
    summary = page.sections[""]
    assert re.search(r"\b1 rows to flush\b", " ".join(summary.split()))
    assert re.search(r"\b2 generations to merge\b", " ".join(summary.split()))
    assert "3 rows in version" in page.sections["Growth of the base"]
    assert "of the newest" in page.sections["Merges"]
    assert "monday" in page.sections["Snapshots and cursors"]
    assert "None found" in page.sections["Problems"]
    assert {"svg", "polyline", "rect"} <= page.tags
    assert page.addresses == []
    assert "script" not in page.tags


def test_text_of_a_table_is_never_markup(tmp_path: Path, run: Run) -> None:
    uri = tmp_path / "<b>x&"
    lancelsm.create(uri, [{"<i>k": 1}], primary_key="<i>k")
    page = report_of(uri, run)

    assert {"b", "i"} & page.tags == {"b"}  # of the sums
    assert "<b>x&" in page.sections[""]


def test_problems_are_listed_and_counted(orders: Path, run: Run) -> None:
    import lance

    lance.dataset(str(orders)).drop_columns(["price"])
    file = orders.with_name("r.html")
    done = run("report", orders, "--to", file, "--output", "json").document

    assert (done["file"], done["problems"] > 0) == (str(file), True)
    assert "None found" not in Page(file.read_text()).sections["Problems"]


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
