"""Put the results of a run into docs/development/benchmarks.md: `python -m benchmarks.page [DIRECTORY]`.

The directory is build/benchmarks by default. What is between `<!-- begin NAME -->` and `<!-- end -->` becomes the
tables of the benchmark NAME. The charts are copied to docs/images. The explanations on the page are written by hand.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from benchmarks.report import heading, tables
from benchmarks.runs import ROOT, Run

PAGE = ROOT / "docs" / "development" / "benchmarks.md"
PARTS = re.compile(r"<!-- begin (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(page: str, run: Run) -> str:
    """Return the page with the tables of the run. Tables of benchmarks that the run does not have stay as they are."""

    def part(found: re.Match[str]) -> str:
        name = found.group(1)
        texts = [heading(run)] if name == "run" else list(tables(run, name))
        return f"<!-- begin {name} -->\n\n" + "\n\n".join(texts) + "\n\n<!-- end -->" if texts else found.group(0)

    return PARTS.sub(part, page)


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "build/benchmarks")
    run = Run.of_json((directory / "results.json").read_text())
    PAGE.write_text(filled(PAGE.read_text(), run))
    images = PAGE.parents[1] / "images"
    images.mkdir(exist_ok=True)
    for chart in directory.glob("*.png"):
        shutil.copy(chart, images)


if __name__ == "__main__":
    main()
