"""Measure the memory of a piece of code: in a process of its own, above what an import of Lance takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_MEASURED = """
import threading, time, lance, lancelsm

def anonymous():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

before, peak, ended = anonymous(), [0], threading.Event()

def watch():
    while not ended.wait(0.003):
        peak[0] = max(peak[0], anonymous() - before)

watcher = threading.Thread(target=watch)
watcher.start()
try:
{code}
finally:
    ended.set()
    watcher.join()
print(peak[0] // 1024)
"""


def peak_megabytes(code: str, *arguments: object) -> int:
    """Return the peak of the anonymous memory that the code takes; `sys.argv` has the arguments."""
    indented = "".join(f"    {line}\n" for line in code.strip().splitlines())
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED.replace("{code}", indented), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])
