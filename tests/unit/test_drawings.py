"""Every drawing of the pages can be read: by a screen reader, on a dark ground, and to the end of each line."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
WIDTH = 0.53  # of a character, in its size, on average in a wide font

drawings = pytest.mark.parametrize(
    "drawing", sorted((DOCS / "images").glob("*.svg")), ids=lambda drawing: str(drawing.name)
)


@drawings
def test_a_drawing_says_what_it_shows_in_both_schemes_and_loads_nothing(drawing: Path) -> None:
    root = ElementTree.parse(drawing).getroot()
    text = drawing.read_text()

    assert all((root.findtext(f"{SVG}{name}") or "").strip() for name in ("title", "desc"))
    assert "@media (prefers-color-scheme: dark)" in text
    assert not {element.tag.removeprefix(SVG) for element in root.iter()} & {"script", "image", "foreignObject", "use"}
    assert not [word for word in ("href", "@import") if word in text]
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")


@drawings
def test_each_line_of_a_drawing_ends_within_it(drawing: Path) -> None:
    root = ElementTree.parse(drawing).getroot()
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    for line in root.iter(f"{SVG}text"):
        size = 12 if {"small", "quiet"} & set(line.attrib.get("class", "").split()) else 14
        length = WIDTH * size * len(line.text or "")
        left = float(line.attrib["x"]) - {"middle": length / 2, "end": length}.get(
            line.attrib.get("text-anchor", "start"), 0.0
        )

        assert 0 <= left <= width - length, line.text
        assert float(line.attrib["y"]) <= height, line.text


@drawings
def test_a_page_shows_the_drawing(drawing: Path) -> None:
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]

    assert any(f"images/{drawing.name})" in page.read_text() for page in pages)
