"""Run each benchmark in a process of its own. A crash or a timeout of one does not end the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from benchmarks.figures import Curve, Figure, machine

ROOT = Path(__file__).parents[1]
BENCHMARK_SECONDS = 240.0
RUN_SECONDS = 900.0
_PACKAGES = ("pyarrow", "pylance", "lancedb", "deltalake", "slatedb")


@dataclass
class Run:
    """The results of all benchmarks, and where and when they were measured.

    Args:
        figures, curves: by the name of the benchmark.
        failures: of a benchmark that did not reach its end, why. Its results up to then are kept.
    """

    date: str
    commit: str
    machine: str
    packages: dict[str, str]
    scale: float
    figures: dict[str, list[Figure]] = field(default_factory=dict)
    curves: dict[str, list[Curve]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def begun(cls, scale: float) -> Self:
        return cls(
            date=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            commit=_commit(),
            machine=machine(),
            packages={"python": sys.version.split()[0]} | {name: version(name) for name in _PACKAGES},
            scale=scale,
        )

    def to_json(self) -> str:
        document = asdict(self)
        for name, figures in self.figures.items():
            document["figures"][name] = [asdict(one) | {"ratio": one.ratio} for one in figures]
        for name, curves in self.curves.items():
            document["curves"][name] = [asdict(one) | {"slope": one.slope} for one in curves]
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def of_json(cls, text: str) -> Self:
        document = json.loads(text)
        for kind, made in (("figures", _figure), ("curves", _curve)):
            document[kind] = {name: [made(one) for one in listed] for name, listed in document[kind].items()}
        return cls(**document)


def measure(run: Run, name: str, *, ends: float, report: Callable[[Figure | Curve], object]) -> None:
    """Run a benchmark, and add its results to the run. It gets at most `BENCHMARK_SECONDS`.

    Args:
        ends: when the run is over, as `time.monotonic` counts: a benchmark is stopped then, and not started later.
    """
    started = time.monotonic()
    seconds = min(BENCHMARK_SECONDS, ends - started)
    if seconds <= 0:
        run.failures[name] = "not started: the time of the run was over"
        return
    if failure := _measure(run, name, seconds, report):
        run.failures[name] = failure
    run.seconds[name] = round(time.monotonic() - started, 1)


def _measure(run: Run, name: str, seconds: float, report: Callable[[Figure | Curve], object]) -> str | None:
    """Return why the benchmark ended early, or None."""
    command = [sys.executable, "-m", "benchmarks.one", name, str(run.scale)]
    # At each merge and search, Lance logs errors and warnings that need no action. This level is one of Python, which
    # Lance's Rust code does not know, so it logs nothing.
    environment = {**os.environ, "LANCE_LOG": "critical", "LANCEDB_LOG": "off"}
    late = threading.Event()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment | {"TMPDIR": directory},
            start_new_session=True,  # with a group of processes of its own, which is stopped as a whole
        )

        def stop() -> None:
            late.set()
            _stop(child)

        timer = threading.Timer(seconds, stop)
        timer.start()
        try:
            _collect(run, name, child, report)
        finally:
            timer.cancel()
    if late.is_set():
        return f"stopped after {seconds:.0f} s"
    return f"ended with exit code {child.returncode}; its error is above" if child.returncode else None


def _collect(run: Run, name: str, child: subprocess.Popen[str], report: Callable[[Figure | Curve], object]) -> None:
    """Add the results that the child prints until it ends. If the run is stopped, so is the child."""
    with child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                result = _result(line)
                if isinstance(result, Curve):
                    run.curves.setdefault(name, []).append(result)
                elif result:
                    run.figures.setdefault(name, []).append(result)
                if result:
                    report(result)
        except BaseException:
            _stop(child)
            raise


def _stop(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _result(line: str) -> Figure | Curve | None:
    """Return the result of a line; None for what a peer's library printed."""
    if line.startswith('{"figure": '):
        return _figure(json.loads(line)["figure"])
    if line.startswith('{"curve": '):
        return _curve(json.loads(line)["curve"])
    return None


def _figure(given: dict[str, Any]) -> Figure:
    given.pop("ratio", None)
    return Figure(**given)


def _curve(given: dict[str, Any]) -> Curve:
    given.pop("slope", None)
    return Curve(**given | {name: tuple(given[name]) for name in ("sizes", "seconds")})


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    return done.stdout.strip() or "unknown"
