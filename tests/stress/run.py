"""Run writers, a rival owner, mergers, collectors, snapshot holders, a consumer and readers on one table. Others change
its columns and its regions.

    python -m tests.stress.run --seconds 60 [--seed N] [--directory DIR]

They run in real processes on real files, and some processes are killed repeatedly. No actor knows what the others did,
but each can check what it reads by the seed: see `stream`. The run ends with the number of actions of each actor, or
with the first wrong read. Then the directory is kept.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lancelsm
from lancelsm.errors import Contended
from tests.stress import actors, changers, copiers
from tests.stress.actors import ActorContext
from tests.stress.stream import COLUMNS, REGIONS, STREAMS, Expected

SETTINGS = {
    "flush_rows": 300,
    "max_generations": 2,
    "optimize_small_fragments": 8,
    "keep_versions_seconds": 2,
    "collect_floor_bytes": 1 << 20,
}
PROCESSES: dict[str, dict[str, Callable[[ActorContext], None]]] = {
    "writing": {
        **{f"writer {stream}": partial(actors.write, stream=stream) for stream in range(STREAMS)},
        "rival": actors.rival,
        "consumer": actors.follow,
    },
    "maintenance": {"merger 0": actors.maintain, "merger 1": actors.maintain, "collector 0": actors.collect},
    "reading": {
        "reader 0": actors.read,
        "reader 1": actors.read,
        "holder 0": actors.hold_snapshots,
        "holder 1": actors.hold_snapshots,
        "collector 1": actors.collect,
    },
    "copying": {"copier": copiers.copy, "scrubber": copiers.scrub},
    "changing": {"columns": changers.change_columns, "resharder": changers.reshard},
}
KILLED = ("writing", "maintenance", "copying", "changing")
_STARTING_SECONDS = 60.0
_LIFE_SECONDS = 12.0  # minimum before a process is killed, counted from when all its actors have done something


def stress(directory: Path, *, seed: int, seconds: float) -> dict[str, int]:
    """Run all actors for some seconds, and return the number of actions of each.

    Raises:
        AssertionError: an actor read something wrong.
    """
    directory.mkdir(parents=True)
    (directory / "counts").mkdir()
    empty = COLUMNS.empty_table()
    lancelsm.create(directory / "table", empty, primary_key="id", regions=REGIONS, settings=SETTINGS)
    rng, running = random.Random(seed), dict[str, subprocess.Popen[bytes]]()
    end = time.monotonic() + seconds
    try:
        for name in PROCESSES:
            running[name] = _start_process(name, directory, seed, end)
        births, deaths = dict.fromkeys(KILLED, time.time()), dict[str, float]()
        while (now := time.monotonic()) < end:
            time.sleep(0.2)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    _raise_failures(directory)
                    assert process.returncode == 0, f"{name} ended with {process.returncode}"
                elif name in births and name not in deaths:
                    if _all_active(name, directory, since=births[name]):
                        deaths[name] = now + _LIFE_SECONDS * (1 + rng.random())
                elif name in births and now > deaths[name] and end - now > _LIFE_SECONDS:
                    process.kill()
                    process.wait()
                    running[name], births[name] = _start_process(name, directory, seed, end), time.time()
                    del deaths[name]
        for process in running.values():
            process.wait(_STARTING_SECONDS)
    finally:
        for process in running.values():
            if process.poll() is None:
                process.kill()
                process.wait()
    _raise_failures(directory)
    _settle(directory, seed)
    return {path.name: int(path.read_text()) for path in (directory / "counts").iterdir() if not path.suffix}


def _start_process(name: str, directory: Path, seed: int, end: float) -> subprocess.Popen[bytes]:
    remaining = max(1.0, end - time.monotonic())
    command = [sys.executable, "-m", "tests.stress.run", "--process", name, "--directory", str(directory)]
    return subprocess.Popen([*command, "--seed", str(seed), "--seconds", str(remaining)])


def _all_active(name: str, directory: Path, *, since: float) -> bool:
    """Return whether each actor of a process has done something. Starting takes long on a busy machine."""
    counts = [directory / "counts" / actor for actor in PROCESSES[name]]
    return all(count.exists() and count.stat().st_mtime > since for count in counts)


def _raise_failures(directory: Path) -> None:
    failures = sorted(directory.glob("failure *.txt"))
    assert not failures, "\n".join(path.read_text() for path in failures)


def _settle(directory: Path, seed: int) -> None:
    """Merge and collect everything after the run. The table must match its streams, before and after that."""
    table = lancelsm.open(directory / "table")
    actors.claim_all(table)
    expected = Expected(seed)
    expected.check(table.scan().to_arrow())
    for snapshot in table.snapshots():
        if snapshot.clone:
            _when_free(partial(lancelsm.drop, snapshot.clone))
            continue
        Expected(seed).check(table.at(snapshot.name).scan().to_arrow())
        table.drop_snapshot(snapshot.name)
    actors.follow(ActorContext(directory / "table", seed, "consumer", time.monotonic() + 1.0, directory / "counts"))
    for _ in range(2):
        table.flush()
        _when_free(lambda: table.merge(engine="inprocess"))
        table.collect(yes=True, interval_seconds=0)
        expected.check(table.scan().to_arrow())
    assert table.flush() == []


def _when_free(act: Callable[[], object]) -> None:
    """Retry until the lease of a killed process has expired."""
    for _ in range(200):
        try:
            act()
        except Contended:
            time.sleep(0.5)
        else:
            return
    act()


def run_process(name: str, directory: Path, *, seed: int, seconds: float) -> int:
    """Run the actors of one process, each in a thread."""
    deadline = time.monotonic() + seconds
    failed: list[str] = []

    def run(actor: str, act: Callable[[ActorContext], None]) -> None:
        try:
            act(ActorContext(directory / "table", seed, actor, deadline, directory / "counts"))
        except BaseException:  # noqa: BLE001 - every failure must be reported
            failed.append(actor)
            (directory / f"failure of {actor}.txt").write_text(f"{actor}, seed {seed}:\n{traceback.format_exc()}")

    threads = [threading.Thread(target=run, args=item, name=item[0]) for item in PROCESSES[name].items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--process", choices=PROCESSES, default=None)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    if options.process is not None:
        return run_process(options.process, options.directory, seed=seed, seconds=options.seconds)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="lancelsm-stress-")) / "run"
    print(f"seed {seed}, in {directory}", flush=True)
    for actor, count in sorted(stress(directory, seed=seed, seconds=options.seconds).items()):
        print(f"{count:>8} {actor}")
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
