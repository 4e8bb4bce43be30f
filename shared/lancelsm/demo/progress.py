"""What a run of the demo tells and checks, wherever its table is."""

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


class Teller:
    """Says on a console what was done and how long it took."""

    def __init__(self, console: Console, *, clock: Clock) -> None:
        self._console = console
        self._clock = clock

    def now(self) -> float:
        return self._clock.monotonic()

    def did(self, since: float, text: str) -> None:
        """One step, that began at `since` by `now`."""
        self.say(f"{self.now() - since:5.1f} s  {text}")

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def progress(self) -> Progress:
        """A bar of days; nothing where there is no terminal."""
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


def prove(table: Table, expected: pa.Table, *, levels: str, teller: Teller) -> None:
    """Hold a scan of the table against the truth, row for row; raises as `check`."""
    start = teller.now()
    by_key = [(name, "ascending") for name in KEY]
    found = table.scan().to_arrow().sort_by(by_key)
    check(
        found.equals(expected.sort_by(by_key)), f"{found.num_rows} rows that are not the flights that flew", table.uri
    )
    teller.did(start, f"proved: a scan of {levels} is the {found.num_rows:,} flights that flew, value for value")


def check(holds: bool, found: str, uri: str) -> None:
    """Raise `LsmError` if a read is wrong; this is what the demo is to disprove."""
    if not holds:
        raise LsmError(f"the demo failed: a read found {found}", table=uri)


def looking(table: str) -> tuple[str, ...]:
    """What to type to look at the demo's table, wherever the program is installed."""
    program = "lancelsm" if shutil.which("lancelsm") else shlex.quote(str(Path(sys.executable).with_name("lancelsm")))
    place = shlex.quote(table)
    route = "--where \"origin = 'JFK' AND dest = 'SFO'\" --columns time_hour,carrier,flight,dep_delay,arr_delay"
    return (
        f"The table is {table}; look at it:",
        f"  {program} status {place}",
        f"  {program} scan {place} --limit 5 {route}",
    )
