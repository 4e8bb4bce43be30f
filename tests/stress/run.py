"""Writers, rivals, folders, collectors, holders of snapshots, consumers and readers on one table in a directory.

    python -m tests.stress.run --seconds 60 [--seed N] [--place DIR]

They run in real processes on real files, some of which are killed again and again. Nobody knows the truth but each can
tell it from the seed: see `stream`. Ends with what everybody did, or with the first thing that somebody saw that is
not so, and then the directory stays.
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
from lancelsm.admin.drop import drop_table
from lancelsm.errors import Contended
from tests.stress import actors, copiers
from tests.stress.actors import Part
from tests.stress.stream import COLUMNS, REGIONS, STREAMS, Expected

SETTINGS = {
    "flush_rows": 300,
    "optimize_small_fragments": 8,
    "keep_versions_seconds": 2,
    "collect_floor_bytes": 1 << 20,
}
PROCESSES: dict[str, dict[str, Callable[[Part], None]]] = {
    "writing": {
        **{f"writer {stream}": partial(actors.write, stream=stream) for stream in range(STREAMS)},
        "rival": actors.rival,
        "consumer": actors.follow,
    },
    "folding": {"folder 0": actors.fold, "folder 1": actors.fold, "collector 0": actors.collect},
    "reading": {
        "reader 0": actors.read,
        "reader 1": actors.read,
        "holder 0": actors.hold,
        "holder 1": actors.hold,
        "collector 1": actors.collect,
    },
    "copying": {"copier": copiers.copy, "scrubber": copiers.scrub},
}
KILLED = ("writing", "folding", "copying")
_STARTING_SECONDS = 60.0
_LIFE_SECONDS = 12.0  # of a process that is killed, at least, once all in it have done something


def stress(place: Path, *, seed: int, seconds: float) -> dict[str, int]:
    """Let everybody work for so long; returns how much each actor did.

    Raises:
        AssertionError: somebody saw what is not so.
    """
    place.mkdir(parents=True)
    (place / "counts").mkdir()
    empty = COLUMNS.empty_table()
    lancelsm.create(place / "table", empty, primary_key="id", regions=REGIONS, settings=SETTINGS)
    dice, running = random.Random(seed), dict[str, subprocess.Popen[bytes]]()
    end = time.monotonic() + seconds
    try:
        for name in PROCESSES:
            running[name] = _started(name, place, seed, end)
        births, deaths = dict.fromkeys(KILLED, time.time()), dict[str, float]()
        while (now := time.monotonic()) < end:
            time.sleep(0.2)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    _fail_if_asked(place)
                    assert process.returncode == 0, f"{name} ended with {process.returncode}"
                elif name in births and name not in deaths:
                    if _works(name, place, since=births[name]):
                        deaths[name] = now + _LIFE_SECONDS * (1 + dice.random())
                elif name in births and now > deaths[name] and end - now > _LIFE_SECONDS:
                    process.kill()
                    process.wait()
                    running[name], births[name] = _started(name, place, seed, end), time.time()
                    del deaths[name]
        for process in running.values():
            process.wait(_STARTING_SECONDS)
    finally:
        for process in running.values():
            if process.poll() is None:
                process.kill()
                process.wait()
    _fail_if_asked(place)
    _settle(place, seed)
    return {path.name: int(path.read_text()) for path in (place / "counts").iterdir() if not path.suffix}


def _started(name: str, place: Path, seed: int, end: float) -> subprocess.Popen[bytes]:
    left = max(1.0, end - time.monotonic())
    command = [sys.executable, "-m", "tests.stress.run", "--process", name, "--place", str(place)]
    return subprocess.Popen([*command, "--seed", str(seed), "--seconds", str(left)])


def _works(name: str, place: Path, *, since: float) -> bool:
    """Whether each of its actors has done something: a busy machine takes its time to start a process."""
    counts = [place / "counts" / actor for actor in PROCESSES[name]]
    return all(count.exists() and count.stat().st_mtime > since for count in counts)


def _fail_if_asked(place: Path) -> None:
    raised = sorted(place.glob("failure *.txt"))
    assert not raised, "\n".join(path.read_text() for path in raised)


def _settle(place: Path, seed: int) -> None:
    """Alone now: fold and collect everything; the table is what its streams say, also from the base alone."""
    table = lancelsm.open(place / "table")
    for region in table.regions():
        table.claim(region)
    expected = Expected(seed)
    expected.check(table.scan().to_arrow())
    for snapshot in table.snapshots():
        if snapshot.clone:
            _when_free(partial(drop_table, snapshot.clone))
            continue
        Expected(seed).check(table.at(snapshot.name).scan().to_arrow())
        table.drop_snapshot(snapshot.name)
    actors.follow(Part(place / "table", seed, "consumer", time.monotonic() + 1.0, place / "counts"))
    for _ in range(2):
        table.flush()
        _when_free(lambda: table.merge(engine="inprocess"))
        table.collect(yes=True, interval_seconds=0)
        expected.check(table.scan().to_arrow())
    assert table.flush() == []


def _when_free(act: Callable[[], object]) -> None:
    """Once the lease of a process that was killed has ended."""
    for _ in range(200):
        try:
            act()
        except Contended:
            time.sleep(0.5)
        else:
            return
    act()


def work(name: str, place: Path, *, seed: int, seconds: float) -> int:
    """One process: its actors, each in a thread."""
    deadline = time.monotonic() + seconds
    failed: list[str] = []

    def run(actor: str, act: Callable[[Part], None]) -> None:
        try:
            act(Part(place / "table", seed, actor, deadline, place / "counts"))
        except BaseException:  # noqa: BLE001 - whatever it is, it must be seen
            failed.append(actor)
            (place / f"failure of {actor}.txt").write_text(f"{actor}, seed {seed}:\n{traceback.format_exc()}")

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
    parser.add_argument("--place", type=Path, default=None)
    parser.add_argument("--process", choices=PROCESSES, default=None)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    if given.process is not None:
        return work(given.process, given.place, seed=seed, seconds=given.seconds)
    place = given.place or Path(tempfile.mkdtemp(prefix="lancelsm-stress-")) / "run"
    print(f"seed {seed}, in {place}", flush=True)
    for actor, count in sorted(stress(place, seed=seed, seconds=given.seconds).items()):
        print(f"{count:>8} {actor}")
    shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
