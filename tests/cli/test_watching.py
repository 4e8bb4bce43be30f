"""What a person sees of the work: `status --watch`, `--verbose`, and progress on a terminal."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import lancelsm
from lancelsm.cli.watch import Seen, picture
from lancelsm.common.clock import SystemClock
from lancelsm.region.handle import open_table
from lancelsm.region.lease import lease
from tests.cli.console import COMMAND, Done, Run, lines


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Do something at each pause between two readings, and interrupt the command at the last one."""

    def plan(*acts: Callable[[], object]) -> None:
        waiting = list(acts)

        def sleep(_clock: SystemClock, _seconds: float) -> None:
            if not waiting:
                raise KeyboardInterrupt
            waiting.pop(0)()

        monkeypatch.setattr("lancelsm.cli.watch.SECONDS", 0.0)
        monkeypatch.setattr(SystemClock, "sleep", sleep)

    return plan


def test_a_watch_shows_levels_lag_and_work_until_it_is_interrupted(
    orders: Path, run: Run, readings: Callable[..., None]
) -> None:
    table, handle = lancelsm.open(orders), open_table(orders)
    with ExitStack() as held:
        readings(
            lambda: table.upsert([{"id": 7, "state": "new", "price": None}]),
            table.flush,
            *(partial(held.enter_context, lease(handle.context, name)) for name in ("base", "reshard")),
        )
        done = run("status", orders, "--watch", "--output", "json")

    assert done.code == 130
    assert [(one["wal_rows"], one["generations"], one["work"]) for one in done.rows] == [
        (0, 0, []),
        (1, 0, []),
        (0, 1, []),
        (0, 1, ["merge or optimize"]),
        (0, 1, ["merge or optimize", "reshard"]),
    ]
    assert [one["entries_per_second"] > 0 for one in done.rows] == [False, True, False, False, False]


def test_a_watch_draws_the_regions_that_wait_most_first(orders: Path, run: Run, readings: Callable[..., None]) -> None:
    run("write", orders, "-", stdin=lines(*({"id": key, "state": "x", "price": 1.0} for key in range(5))))
    readings()
    done = run("status", orders, "--watch")

    bars = [(len(found[1]), int(found[2])) for found in re.finditer(r"(█*) ?(\d+) +0 +0 of 0", done.out)]
    assert sum(rows for _, rows in bars) == 5
    assert bars == sorted(bars, reverse=True)
    assert bars[0][0] == 24
    assert "5 rows to flush, 0 generations to merge" in done.out


def test_a_picture_of_many_regions_is_short(orders: Path) -> None:
    status = lancelsm.open(orders).status()
    many = replace(status, regions=status.regions * 20)
    shown = picture(Seen(status=many, time=0.0, work=()), None)

    assert "and 10 more regions, which wait less" in str(getattr(shown, "renderables")[-1])  # noqa: B009 - of rich


def test_requests_are_logged_as_text_and_as_json(orders: Path, run: Run) -> None:
    row = lines({"id": 9, "state": "new", "price": 2.0})
    text = run("write", orders, "-", "--verbose", stdin=row)
    assert re.search(
        r"^\S+Z objects\.create _mem_wal/\S+ bytes=\d+ outcome=Written \d+\.\d ms$", text.err, re.MULTILINE
    )
    assert re.search(r"^\S+Z registry\.swap .* outcome=SwapApplied", text.err, re.MULTILINE)
    assert "objects" not in text.out

    done: Done = run("-v", "scan", orders, "--count", "--output", "json")
    logged = [json.loads(line) for line in done.err.splitlines()]
    assert done.document == {"count": 4}
    assert {"objects.get", "registry.list"} <= {one["request"] for one in logged}
    assert all({"time", "level", "key", "seconds"} <= one.keys() for one in logged)
    assert "new" not in done.err  # no values of rows


def test_a_failed_request_is_logged_with_its_error(orders: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise lancelsm.Unavailable("the disk sleeps")

    monkeypatch.setattr("lancelsm.objects.filesystem.LocalStore.get", fail)
    done = run("scan", orders, "--verbose", "--output", "json")

    assert done.code == 6
    assert json.loads(done.err.splitlines()[-1])["outcome"] == "Unavailable"


@pytest.mark.parametrize("command", ["status", "flush", "merge", "run", "region list", "describe", "gc --yes", "scrub"])
@pytest.mark.rest
def test_every_command_on_a_table_logs_its_requests(orders: Path, run: Run, command: str) -> None:
    name, *options = command.split()
    arguments = [name, options[0], orders] if name == "region" else [name, orders, *options]

    assert "objects.get _lancelsm/config.json" in run(*arguments, "--verbose").err


@pytest.mark.rest
def test_a_terminal_shows_progress(orders: Path) -> None:
    reader, writer = pty.openpty()
    arguments = [*COMMAND, "scan", str(orders), "--to", str(orders.with_name("out.csv"))]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=writer, text=True, check=False)
    os.close(writer)
    shown = os.read(reader, 1 << 16).decode()
    os.close(reader)

    assert (done.returncode, done.stdout) == (0, f"Wrote 3 rows to {orders.with_name('out.csv')}\n")
    assert "Writing" in shown


@pytest.mark.rest
@pytest.mark.parametrize(("stdin", "shows"), [(False, r"Applying.*\b1[0-9]{2}/1[0-9]{2} bytes"), (True, r"3 rows")])
def test_events_that_are_applied_show_how_much_is_done(orders: Path, stdin: bool, shows: str) -> None:
    events = orders.with_name("events.jsonl")
    events.write_text(lines(*({"id": key, "state": "żółć", "price": float(key)} for key in range(3))))
    reader, writer = pty.openpty()
    source = "-" if stdin else str(events)
    arguments = [*COMMAND, "apply", str(orders), source, "--sequence-by", "price"]
    with events.open() as opened:
        done = subprocess.run(
            arguments, stdin=opened if stdin else None, stdout=subprocess.PIPE, stderr=writer, text=True, check=False
        )
    os.close(writer)
    shown = os.read(reader, 1 << 16).decode()
    os.close(reader)

    assert done.returncode == 0, shown
    assert re.search(shows, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown), re.DOTALL), shown


# Commands that print as they go, read only a few records, or show their work in a function that they call.
QUICK = {
    ("changes", "drop"), ("changes", "list_"), ("changes", "set_"), ("changes", "tail"), ("compaction", "demo"),
    ("compaction", "run"), ("cost", "cost"), ("inspection", "manifest"), ("regions", "list_regions"), ("rows", "get"),
    ("rows", "write"), ("schema_commands", "show"), ("snapshots", "drop_snapshot"), ("snapshots", "list_"),
    ("snapshots", "refresh"), ("sql", "sql"), ("tables", "config_get"), ("tables", "config_set"),
    ("tables", "describe"),
}  # fmt: skip


def test_every_command_that_may_take_long_shows_that_it_works() -> None:
    silent = set()
    for file in Path(lancelsm.__file__).with_name("cli").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and "command(" in " ".join(map(ast.unparse, node.decorator_list)):
                silent |= set() if "session.working(" in ast.unparse(node) else {(file.stem, node.name)}

    assert silent == QUICK
