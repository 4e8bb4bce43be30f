"""Run benchmarks: `python -m benchmarks [NAME ...] [--scale S] [--directory D]`."""

from __future__ import annotations

import argparse
import ast
import signal
import sys
import time
from pathlib import Path

from benchmarks.charts import draw
from benchmarks.report import heading, line, pages
from benchmarks.runs import RUN_SECONDS, Run, measure

BENCHMARKS = (
    "append_latency",
    "puts",
    "bulk",
    "writes",
    "merge",
    "spark",
    "reads",
    "regions",
    "throughput",
    "growth",
    "requests",
    "hot_path",
    "sums",
    "search",
)


def main() -> None:
    summaries = "\n".join(f"  {name:<16}{_summary(name)}" for name in BENCHMARKS)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"benchmarks:\n{summaries}",
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all)")
    parser.add_argument(
        "--scale",
        type=float,
        default=0.2,
        help=f"fraction of the full sizes (default: 0.2); a run ends after {RUN_SECONDS / 60:.0f} minutes at most",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("build/benchmarks"),
        help="where results.json, results.md and the charts are written (default: build/benchmarks)",
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"unknown benchmark {min(unknown)!r}; choose from {', '.join(BENCHMARKS)}")
    names = options.names or BENCHMARKS
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stop the benchmark, and remove its tables
    run, ends = Run.begun(options.scale), time.monotonic() + RUN_SECONDS
    print(heading(run), flush=True)
    options.directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        print(f"{name}: {_summary(name)}", flush=True)
        measure(run, name, ends=ends, report=lambda one: print(line(one), flush=True))
        (options.directory / "results.json").write_text(run.to_json())  # each time: the run may be stopped
        (options.directory / "results.md").write_text(pages(run))
    charts = [chart.name for chart in draw(run, options.directory)]
    print(f"wrote {', '.join(['results.json', 'results.md', *charts])} to {options.directory}")
    for name, failure in run.failures.items():
        print(f"{name}: {failure}", file=sys.stderr)
    sys.exit(1 if run.failures else 0)


def _summary(name: str) -> str:
    """Return the first line of a benchmark's docstring, without importing what the benchmark needs."""
    source = (Path(__file__).parent / f"{name}.py").read_text()
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


if __name__ == "__main__":
    main()
