"""A written report in a real browser: it asks for nothing else, and is legible on wide and narrow screens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lancelsm
from tests.browser.chromium import Page, browser, unusable
from tests.cli.console import Run

pytestmark = [
    pytest.mark.rest,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(bool(unusable()), reason=unusable()),
]
SIZES = [(width, dark) for width in (400, 1400) for dark in (False, True)]

# Each problem of the layout, as text. Two texts overlap if the boxes of their lines share more than an edge.
PROBLEMS = """(() => {
  const found = [], wide = document.documentElement.clientWidth, boxes = [];
  if (document.documentElement.scrollWidth > wide) found.push("the page is wider than the window");
  for (const plot of document.querySelectorAll("figure svg, td svg")) {
    const { width, height } = plot.getBoundingClientRect();
    if (width < 20 || height < 4) found.push(`plot ${plot.ariaLabel} is ${width} x ${height}`);
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const parent = node.parentElement, text = node.textContent.trim();
    if (!text || parent.closest("style, svg, title, details:not([open]) > :not(summary)")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const lines = [...range.getClientRects()].filter((box) => box.width > 0);
    if (!lines.length && !parent.closest("thead")) found.push(`hidden: ${text}`);
    for (const box of lines) {
      if (box.left < 0 || box.right > wide + 0.5) found.push(`outside: ${text}`);
      const around = parent.getBoundingClientRect();
      if (box.right > around.right + 1) found.push(`overflows: ${text}`);
      boxes.push([box, text]);
    }
    if (parseFloat(getComputedStyle(parent).fontSize) < 11) found.push(`tiny: ${text}`);
  }
  boxes.sort((one, other) => one[0].top - other[0].top);
  boxes.forEach(([one, text], at) => {
    for (let next = at + 1; next < boxes.length && boxes[next][0].top < one.bottom - 4; next++) {
      const [other, name] = boxes[next];
      const shared = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      if (shared > 1) found.push(`overlap: ${text} / ${name}`);
    }
  });
  return found;
})()"""
# The lowest contrast between a text and the ground behind it, as in WCAG.
CONTRAST = """(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => parts(text).slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return parts(colour)[3] === 0 && node.parentElement ? ground(node.parentElement) : colour;
  };
  return Math.min(...[...document.querySelectorAll("main *:not(svg *, style)")].map((node) => {
    const both = [light(getComputedStyle(node).color), light(ground(node))].sort((one, other) => other - one);
    return (both[0] + 0.05) / (both[1] + 0.05);
  }));
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def report(tmp_path: Path, run: Run) -> Path:
    """The report of a damaged table with 64 regions, long names, and rows in each level."""
    key = "the_number_of_the_order_in_the_shop_where_it_was_made"
    columns = pa.schema([pa.field(key, pa.int64()), pa.field("v", pa.float64())])
    uri = tmp_path / f"{'orders-of-all-shops-' * 5}2026"
    table = lancelsm.create(uri, columns, primary_key=key, regions=f"bucket({key}, 64)")
    table.upsert([{key: number, "v": 0.0} for number in range(400)])
    table.flush()
    table.merge(engine="inprocess")
    table.upsert([{key: number, "v": 1.0} for number in range(8)])
    table.snapshot("before-the-upgrade-" * 4)
    next(uri.glob("_mem_wal/*/wal/*")).write_bytes(b"x" * 40)
    file = tmp_path / "report.html"
    assert run("report", uri, "--to", file).code == 0
    return file


def test_a_report_is_legible_in_a_browser_and_asks_for_nothing_else(page: Page, report: Path) -> None:
    for width, dark in SIZES:
        page.open(report, width=width, dark=dark)

        assert page.evaluate(PROBLEMS) == [], (width, dark)
        assert page.evaluate("document.querySelectorAll('figure svg').length") == 7
        assert page.evaluate("document.querySelectorAll('.finding').length") == 1
        assert page.evaluate(CONTRAST) > 4.5, (width, dark)
        assert (page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches"), page.problems) == (dark, [])
        assert page.requests == [report.as_uri()]
