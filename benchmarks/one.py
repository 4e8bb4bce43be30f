"""Run one benchmark and print each of its results as a line of JSON: `python -m benchmarks.one NAME SCALE`."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict

from benchmarks.figures import Curve


def main() -> None:
    name, scale = sys.argv[1:]
    for result in importlib.import_module(f"benchmarks.{name}").run(float(scale)):
        kind = "curve" if isinstance(result, Curve) else "figure"
        print(json.dumps({kind: asdict(result)}), flush=True)


if __name__ == "__main__":
    main()
