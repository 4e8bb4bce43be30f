"""Who works on the table, each in a thread of its own with a handle of its own; what each sees it checks by itself."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lancelsm
from lancelsm.compaction.maintenance import optimize_table
from lancelsm.errors import Ambiguous, Contended, Fenced, Invalid, LsmError, Unavailable
from lancelsm.table import Table
from tests.stress.stream import KEYS, STREAMS, Expected, Followed, step, touched, with_progress, written

PASSING = (Contended, Fenced, Ambiguous, Unavailable)
CURSOR = "follower"
_PAUSE = 0.02
_LOOKS = 20  # one operation of so many is read back


@dataclass
class Part:
    """What an actor knows: where the table is, the seed, its own name, when to end."""

    place: Path
    seed: int
    name: str
    deadline: float
    counts: Path
    done: int = 0

    def __post_init__(self) -> None:
        said = self.counts / self.name
        self.done = int(said.read_text()) if said.exists() else 0  # what an earlier life did

    def open(self, *, owner: str | None = None) -> Table:
        return lancelsm.open(self.place, owner=owner)

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline

    @property
    def dice(self) -> random.Random:
        return random.Random(f"{self.seed} {self.name} {self.done}")

    def count(self) -> None:
        """One more thing done; what is counted outlives the process."""
        self.done += 1
        _replace(self.counts / self.name, str(self.done))


def write(part: Part, stream: int) -> None:
    """Go on with a stream: first the last operation that an earlier life began, which may be there or may yet come."""
    table, expected, kept = part.open(), Expected(part.seed), part.counts / f"{part.name}.json"
    number = int(kept.read_text()) if kept.exists() else 1
    while not part.over:
        _replace(kept, str(number))
        try:
            table._append(written(part.seed, stream, number))
        except Fenced:
            _take_back(table)
            continue
        except PASSING:
            continue
        keys = step(part.seed, stream, number)
        if number % _LOOKS == 1 and _sees(part, table, expected, keys):
            seen = {place: expected.at[place] for place in touched(keys)}
            assert set(seen.values()) == {number}, f"operation {number} is acknowledged, {seen} is seen"
        number += 1
        part.count()
        time.sleep(_PAUSE)


def _sees(part: Part, table: Table, expected: Expected, keys: Iterable[int] = ()) -> bool:
    """Get these keys, or some: each has the row that it must have, as far as its stream is there.

    Returns:
        Whether there was an answer.
    """
    asked = with_progress(keys or part.dice.sample(range(KEYS * STREAMS), 20))
    return _passing(lambda: expected.check_some(table.get(asked), asked))


def _take_back(table: Table) -> None:
    for region in table.regions():
        try:
            table.claim(region)
        except PASSING:
            continue


def rival(part: Part) -> None:
    """Take regions now and then, for the writers or for itself; what was acknowledged before is there after it."""
    table, expected = part.open(), Expected(part.seed)
    while not part.over:
        time.sleep(1.0)
        region = part.dice.choice(table.regions())
        _passing(partial(table.claim, region, owner=part.dice.choice([None, "rival"])))
        if _sees(part, table, expected):
            part.count()


def fold(part: Part) -> None:
    """Flush, merge, optimize; nothing that was there before is gone after it."""
    table, expected = part.open(), Expected(part.seed)
    while not part.over:
        act = part.dice.choice([table.flush, table.flush, table.flush, lambda: table.merge(engine="inprocess")])
        if part.done % 20 == 19:
            act = lambda: optimize_table(table._opened)  # noqa: E731 - one of several
        _passing(act)
        if _sees(part, table, expected):
            part.count()
        time.sleep(_PAUSE)


def collect(part: Part) -> None:
    """Collect; nothing that was there before is gone after it."""
    table, expected = part.open(), Expected(part.seed)
    while not part.over:
        _passing(lambda: table.collect(yes=True, interval_seconds=0))
        if _sees(part, table, expected):
            part.count()
        time.sleep(0.3)


def read(part: Part) -> None:
    """Scan everything or get some; what one reader has seen is never taken back."""
    table, expected = part.open(), Expected(part.seed)
    while not part.over:
        if part.dice.random() < 0.5:
            came = _passing(lambda: expected.check(table.scan().to_arrow()))
        else:
            came = _sees(part, table, expected)
        if came:
            part.count()


def hold(part: Part) -> None:
    """Keep snapshots; what one shows is whole, and the same each time."""
    table, name = part.open(), part.name.replace(" ", "-")
    while not part.over:
        _passing(lambda: table.drop_snapshot(name), Invalid)  # of a holder that was killed
        if not _passing(lambda: table.snapshot(name, ttl="1h"), Invalid):
            continue
        first = None
        for _ in range(4):
            found: list[object] = []
            if _passing(lambda found=found: found.append(table.at(name).scan().to_arrow().sort_by("id"))):
                first = first or found[0]
                assert first == found[0], f"snapshot {name} has changed"
                part.count()
            _passing(lambda: table.refresh_snapshot(name, ttl="1h"))
            time.sleep(part.dice.random())
        if first is not None:
            Expected(part.seed).check(first)


def follow(part: Part) -> None:
    """Read every change once, in order: how far it is, is kept together with where the next one begins, then saved."""
    table, kept = part.open(), part.counts / f"{part.name}.json"
    while not part.over:
        _passing(lambda: _follow_some(table, part.seed, kept))
        part.count()
        time.sleep(_PAUSE)


def _follow_some(table: Table, seed: int, kept: Path) -> None:
    state = json.loads(kept.read_text()) if kept.exists() else {"at": [], "next": {}}
    followed = Followed(seed, {(stream, region): number for stream, region, number in state["at"]})
    changes = table.changes(cursor=CURSOR, start=state["next"] or "earliest", limit=500)
    for change in changes:
        followed.take(change.rows)
    at = [[*place, number] for place, number in followed.at.items()]
    _replace(kept, json.dumps({"at": at, "next": changes.positions}))
    changes.save()


def _passing(act: Callable[[], object], *also: type[LsmError]) -> bool:
    """Whether it came through; what may always be told is no failure."""
    try:
        act()
    except (*PASSING, *also):
        return False
    return True


def _replace(path: Path, text: str) -> None:
    """A process that is killed leaves the old text or this one."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
