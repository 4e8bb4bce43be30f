"""Actors that work on one table. Each runs in its own thread with its own handle, and checks everything it reads."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lancelsm
from lancelsm.compaction.maintenance import optimize_table
from lancelsm.errors import Ambiguous, Contended, Fenced, Invalid, LsmError, Unavailable
from lancelsm.region.catalog import SealedRegion
from lancelsm.table import Table
from tests.stress.stream import KEYS, STREAMS, Expected, Followed, by_region, rows_of, slices_of, step, with_progress

TRANSIENT = (Contended, Fenced, Ambiguous, Unavailable)
CURSOR = "follower"
_PAUSE = 0.02
_READ_BACK = 20  # every 20th operation is read back


@dataclass
class ActorContext:
    """The location of the table, the seed, the name of the actor, when to end, and how much it has done."""

    location: Path
    seed: int
    name: str
    deadline: float
    counts: Path
    done: int = 0

    def __post_init__(self) -> None:
        file = self.counts / self.name
        self.done = int(file.read_text()) if file.exists() else 0  # includes processes that were killed

    def open(self, *, owner: str | None = None) -> Table:
        return lancelsm.open(self.location, owner=owner)

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline

    @property
    def rng(self) -> random.Random:
        return random.Random(f"{self.seed} {self.name} {self.done}")

    def count(self) -> None:
        """Count one completed action. The count is kept when the process is killed."""
        self.done += 1
        _replace(self.counts / self.name, str(self.done))


def write(context: ActorContext, stream: int) -> None:
    """Append the operations of a stream. Start with the last one that a killed process began: it may be committed."""
    table, expected, file = context.open(), Expected(context.seed), context.counts / f"{context.name}.json"
    number = int(file.read_text()) if file.exists() else 1
    while not context.over:
        _replace(file, str(number))
        try:
            table._append(rows_of(context.seed, stream, number))
        except Fenced:
            claim_all(table)
            continue
        except TRANSIENT:
            continue
        keys = step(context.seed, stream, number)
        if number % _READ_BACK == 1 and read_some(context, table, expected, keys):
            seen = {slice_: expected.at[slice_] for slice_ in slices_of(keys)}
            assert set(seen.values()) == {number}, f"operation {number} was acknowledged, but a read shows {seen}"
        number += 1
        context.count()
        time.sleep(_PAUSE)


def read_some(context: ActorContext, table: Table, expected: Expected, keys: Iterable[int] = ()) -> bool:
    """Get these keys or random ones, and check that each has the row of the newest visible operation of its stream.

    Returns:
        Whether the read succeeded.
    """
    wanted = with_progress(keys or context.rng.sample(range(KEYS * STREAMS), 20))
    return _succeeds(lambda: expected.check_some(table.get(wanted), wanted))


def claim_all(table: Table) -> None:
    """Claim all regions for the ordinary writers, but those that a reshard has sealed."""
    for region in table.list_regions():
        with suppress(*TRANSIENT, SealedRegion):
            table.claim(region)


def rival(context: ActorContext) -> None:
    """Claim regions from time to time, for the writers or for itself. No acknowledged row may be lost."""
    table, expected = context.open(), Expected(context.seed)
    while not context.over:
        time.sleep(1.0)
        region = context.rng.choice(table.list_regions())
        _succeeds(partial(table.claim, region, owner=context.rng.choice([None, "rival"])), SealedRegion)
        if read_some(context, table, expected):
            context.count()


def maintain(context: ActorContext) -> None:
    """Flush, compact, merge and optimize. No acknowledged row may be lost."""
    table, expected = context.open(), Expected(context.seed)
    while not context.over:
        merge = partial(table.merge, engine="inprocess")
        act = context.rng.choice([table.flush, table.flush, table.flush, table.compact, merge])
        if context.done % 20 == 19:
            act = lambda: optimize_table(table._handle)  # noqa: E731 - one of several actions
        _succeeds(act)
        if read_some(context, table, expected):
            context.count()
        time.sleep(_PAUSE)


def collect(context: ActorContext) -> None:
    """Run garbage collections. No acknowledged row may be lost."""
    table, expected = context.open(), Expected(context.seed)
    while not context.over:
        _succeeds(lambda: table.collect(yes=True, interval_seconds=0))
        if read_some(context, table, expected):
            context.count()
        time.sleep(0.3)


def read(context: ActorContext) -> None:
    """Scan the table or get some keys. A reader never sees an older state than before."""
    table, expected = context.open(), Expected(context.seed)
    while not context.over:
        if context.rng.random() < 0.5:
            succeeded = _succeeds(lambda: expected.check(table.scan().to_arrow()))
        else:
            succeeded = read_some(context, table, expected)
        if succeeded:
            context.count()


def hold_snapshots(context: ActorContext) -> None:
    """Take snapshots and read each several times. It must be consistent and always the same."""
    table, name = context.open(), context.name.replace(" ", "-")
    while not context.over:
        _succeeds(lambda: table.drop_snapshot(name), Invalid)  # left by a process that was killed
        if not _succeeds(lambda: table.snapshot(name, ttl="1h"), Invalid):
            continue
        first = None
        for _ in range(4):
            found: list[object] = []
            if _succeeds(lambda found=found: found.append(table.at(name).scan().to_arrow().sort_by("id"))):
                first = first or found[0]
                assert first == found[0], f"snapshot {name} has changed"
                context.count()
            _succeeds(lambda: table.refresh_snapshot(name, ttl="1h"))
            time.sleep(context.rng.random())
        if first is not None:
            Expected(context.seed).check(first)


def follow(context: ActorContext) -> None:
    """Read every change once and in order. Store progress and next positions together, then save the cursor."""
    table, file = context.open(), context.counts / f"{context.name}.json"
    while not context.over:
        _succeeds(lambda: _follow_some(table, context.seed, file))
        context.count()
        time.sleep(_PAUSE)


def _follow_some(table: Table, seed: int, file: Path) -> None:
    state = json.loads(file.read_text()) if file.exists() else {"at": [], "next": {}}
    followed = Followed(seed, {(stream, region): number for stream, region, number in state["at"]})
    changes = table.changes(cursor=CURSOR, start=state["next"] or "earliest", limit=500)
    for change in changes:
        for rows in by_region(change.rows):
            followed.take(rows)
    at = [[*slice_, number] for slice_, number in followed.at.items()]
    _replace(file, json.dumps({"at": at, "next": changes.positions}))
    changes.save()


def _succeeds(act: Callable[[], object], *also: type[LsmError]) -> bool:
    """Return whether an action succeeded. Errors that are always possible do not fail the test."""
    try:
        act()
    except (*TRANSIENT, *also):
        return False
    return True


def _replace(path: Path, text: str) -> None:
    """Replace a file. A process that is killed here leaves the old text or the new one."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
