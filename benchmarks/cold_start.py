"""Measure the cold start of functions: import their module in a fresh process with only their layer on the path.

    python -m benchmarks.cold_start [--rounds N]

It needs the layers for this machine's architecture, and their Python on PATH (docs/development/packaging.md). As in a
function, the code is in one directory without bytecode. The file cache is warm: this measures the interpreter, without
the time that AWS takes to create the sandbox and to fetch layer and code.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import machine
from layers.building import BUILD, LAYERS, MACHINES, ROOT, interpreter, tree_bytes

LANCE = ("compaction", "merger", "query", "gc_round", "gc_sweep", "scrub")

# What a function would load with all its imports at the top of its module.
EAGER = """\
import boto3, lance, numpy, pyarrow.compute, pyarrow.dataset, pyarrow.parquet, pydantic
from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.utilities.batch import BatchProcessor
session = boto3.Session()
clients = [session.client(name) for name in ("dynamodb", "s3", "sqs")]
"""

_SETTINGS = {
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_REGION": "eu-west-1",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "LANCELSM_COMPACTION": "compaction",
    "LANCELSM_DEAD_LETTER_URL": "https://sqs.eu-west-1.amazonaws.com/111111111111/dead.fifo",
    "LANCELSM_MERGE_MACHINE": "arn:aws:states:eu-west-1:111111111111:stateMachine:merge",
    "LANCELSM_QUEUE_URL": "https://sqs.eu-west-1.amazonaws.com/111111111111/writes.fifo",
    "LANCELSM_REGISTRY": "dynamodb:registry",
    "LANCELSM_STACK": "benchmark",
    "LANCELSM_TABLES": "s3://bucket/tables",
    "LANCELSM_WORK": "s3://bucket/work",
}
_MEASURE = """\
import resource, sys, time
sys.path[:0] = {paths!r}
wall, cpu = time.perf_counter(), time.process_time()
{statement}
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print(wall * 1e3, cpu * 1e3, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The medians of several fresh processes."""

    what: str
    layer: str
    wall_ms: float
    cpu_ms: float
    memory_mb: float


class Bench:
    """Start fresh processes of one interpreter, with a layer and the code of the functions."""

    def __init__(self, python: Path, layers: Path, directory: Path, *, rounds: int) -> None:
        self._python, self._layers, self._directory, self._rounds = python, layers, directory, rounds
        self.code = directory / "code"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "functions", self.code, ignore=ignored)
        shutil.copytree(ROOT / "shared" / "lancelsm", self.code / "lancelsm", ignore=ignored)

    def start(self, what: str, layer: str, statement: str, *, unpacked: bool = True) -> Start:
        """Return the medians, without a first process that warms the file cache.

        Args:
            unpacked: whether a packed library is already unpacked, as in the second process of a sandbox.
        """
        measured = []
        for number in range(self._rounds + 1):
            temporary = self._directory / ("tmp" if unpacked else f"tmp-{number}")
            temporary.mkdir(exist_ok=True)
            measured.append(self._once(layer, statement, temporary))
            if not unpacked:
                shutil.rmtree(temporary)
        wall, cpu, memory = map(statistics.median, zip(*measured[1:], strict=True))
        return Start(what=what, layer=layer, wall_ms=wall, cpu_ms=cpu, memory_mb=memory)

    def _once(self, layer: str, statement: str, directory: Path) -> list[float]:
        paths = [str(self._layers / layer / "python"), str(self.code)]
        script = _MEASURE.format(paths=paths, statement=statement)
        environment = {**_SETTINGS, "TMPDIR": str(directory), "HOME": str(directory)}
        done = subprocess.run(
            [self._python, "-I", "-S", "-B", "-c", script], capture_output=True, text=True, env=environment, check=False
        )
        if done.returncode:
            sys.exit(f"{statement} failed:\n{done.stderr}")
        return [float(number) for number in done.stdout.split()]


def starts(bench: Bench) -> Iterator[Start]:
    yield bench.start("writer_flush", "lean", "import writer_flush")
    for name in sorted(path.stem for path in bench.code.glob("*.py")):
        if name != "writer_flush":
            yield bench.start(name, "lance" if name in LANCE else "lean", f"import {name}")
    yield bench.start("writer_flush", "lance", "import writer_flush")
    yield bench.start("writer_flush, everything eager", "lance", f"import writer_flush\n{EAGER}")
    yield bench.start("lance", "lance", "import lance")
    yield bench.start("lance, unpacked first", "lance", "import lance", unpacked=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold_start", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    arch = next(name for name, machine_name in MACHINES.items() if machine_name == platform.machine())
    layers, version = BUILD / arch, LAYERS["lean"].python
    python = interpreter(version)
    if python is None or not all((layers / name).is_dir() for name in ("lean", "lance")):
        sys.exit(f"this needs Python {version} on PATH, and the layers: make build ARCH={arch}")
    print(machine())
    for name in ("lean", "lance"):
        print(f"{name}: {tree_bytes([layers / name]) / 1e6:.1f} MB unzipped")
    print(f"{'import':<34}{'layer':<8}{'wall ms':>9}{'CPU ms':>9}{'MB':>6}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as directory:
        first = None
        for start in starts(Bench(python, layers, Path(directory), rounds=rounds)):
            first = first or start
            numbers = f"{start.wall_ms:9.0f}{start.cpu_ms:9.0f}{start.memory_mb:6.0f}{start.cpu_ms / first.cpu_ms:8.2f}"
            print(f"{start.what:<34}{start.layer:<8}{numbers}", flush=True)


if __name__ == "__main__":
    main()
