"""Kill a writer at each line of the local store in turn. Each writer has a directory of its own: `0`, `1`, ...

    python -m tests.conformance.crashing create|replace DIRECTORY

It prints how many writers died.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from lancelsm.objects import filesystem, posix
from lancelsm.objects.filesystem import LocalStore
from tests.conformance.race import ROOT

KEY = "_mem_wal/region/wal/0001.arrow"
OLD, NEW = b"old", b"new"
_ADAPTER = {filesystem.__file__, posix.__file__}


def killed_at_every_line(method: str, directory: Path) -> list[Path]:
    """Return the tables that the killed writers left, and last the table of the writer that survived."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance.crashing", method, str(directory)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    return [directory / str(number) for number in range(int(done.stdout) + 1)]


def _survives(line: int, act: Callable[[], object]) -> bool:
    """Run `act` in a child process that ends at its `line`th line of the adapter, without any clean-up."""
    child = os.fork()
    if child == 0:
        remaining = line

        def trace(frame, event, _argument):
            nonlocal remaining
            if frame.f_code.co_filename not in _ADAPTER:
                return None
            if event == "line":
                remaining -= 1
                if remaining < 0:
                    os._exit(1)
            return trace

        sys.settrace(trace)
        act()
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def main() -> None:
    method, directory = sys.argv[1], Path(sys.argv[2])
    for line in itertools.count():
        # Only a process dies here, not the machine, so syncs do not matter.
        store = LocalStore(directory / str(line), fsync=lambda descriptor: None)
        if method == "create":
            survived = _survives(line, lambda store=store: store.create(KEY, NEW))
        else:
            etag = store.create(KEY, OLD).etag
            fresh = LocalStore(directory / str(line), fsync=lambda descriptor: None)
            survived = _survives(line, lambda store=fresh, etag=etag: store.replace(KEY, NEW, expect=etag))
        if survived:
            print(line)
            return


if __name__ == "__main__":
    main()
