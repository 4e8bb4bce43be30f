"""What both demos print and check."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lancelsm.common.clock import Clock
from lancelsm.demo.flights import KEY
from lancelsm.errors import LsmError
from lancelsm.table import Table


class Reporter:
    """Prints what was done and how long it took."""

    def __init__(self, console: Console, *, clock: Clock) -> None:
        self._console = console
        self._clock = clock

    def now(self) -> float:
        return self._clock.monotonic()

    def report(self, since: float, text: str) -> None:
        """Print one step that began at `since`, a value of `now`."""
        self.print(f"{self.now() - since:5.1f} s  {text}")

    def print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def progress(self) -> Progress:
        """Return a progress bar of days; it is disabled without a terminal."""
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("days"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )


def prove(table: Table, expected: pa.Table, *, levels: str, reporter: Reporter) -> None:
    """Compare a scan of the table with the expected rows, value for value. Raises the same error as `check`."""
    start = reporter.now()
    by_key = [(name, "ascending") for name in KEY]
    found = table.scan().to_arrow().sort_by(by_key)
    check(
        found.equals(expected.sort_by(by_key)),
        f"{found.num_rows} rows that differ from the flights that flew",
        table.uri,
    )
    reporter.report(start, f"proved: a scan of {levels} has the {found.num_rows:,} flights that flew, value for value")


def check(holds: bool, found: str, uri: str) -> None:
    """Raise `LsmError` if a read is wrong. The demo exists to show that this does not happen."""
    if not holds:
        raise LsmError(f"the demo failed: a read found {found}", table=uri)


def next_commands(table: str) -> tuple[str, ...]:
    """Return commands to look at the demo's table, for the installed program."""
    program = "lancelsm" if shutil.which("lancelsm") else shlex.quote(str(Path(sys.executable).with_name("lancelsm")))
    location = shlex.quote(table)
    route = "--where \"origin = 'JFK' AND dest = 'SFO'\" --columns time_hour,carrier,flight,dep_delay,arr_delay"
    return (
        f"The table is {table}; look at it with:",
        f"  {program} status {location}",
        f"  {program} scan {location} --limit 5 {route}",
    )
