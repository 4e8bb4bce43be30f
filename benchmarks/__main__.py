"""Run benchmarks and print their figures: `python -m benchmarks [NAME ...] [--scale S] [--json]`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import asdict

from benchmarks.figures import Figure, machine

BENCHMARKS = ("append_latency", "writes", "merge", "reads", "search", "requests", "hot_path", "sums")


def main() -> None:
    summaries = "\n".join(f"  {name:<16}{_summary(name)}" for name in BENCHMARKS)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"benchmarks:\n{summaries}",
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all)")
    parser.add_argument(
        "--scale", type=float, default=0.2, help="fraction of the full sizes (default: 0.2, which takes two minutes)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON document")
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"unknown benchmark {min(unknown)!r}; choose from {', '.join(BENCHMARKS)}")
    machine_text, figures = machine(), []
    for name in options.names or BENCHMARKS:
        print(f"{name}: {_summary(name)}", file=sys.stderr)
        for figure in importlib.import_module(f"benchmarks.{name}").run(options.scale):
            figures.append(figure)
            if not options.json:
                print(_line(figure), flush=True)
    if options.json:
        document = {
            "machine": machine_text,
            "scale": options.scale,
            "figures": [asdict(figure) | {"ratio": figure.ratio} for figure in figures],
        }
        print(json.dumps(document, indent=2))


def _summary(name: str) -> str:
    return (importlib.import_module(f"benchmarks.{name}").__doc__ or "").partition("\n")[0]


def _line(figure: Figure) -> str:
    ratio = "" if figure.ratio is None else f" {figure.ratio:6.2f}x"
    peer = "" if figure.peer is None else f"{figure.peer:10.4g}{ratio}"
    return f"  {figure.what:<58}{figure.ours:10.4g} {figure.unit:<9}{peer:<19}{figure.how}"


if __name__ == "__main__":
    main()
