"""Who follows the log beside everybody else: consumers with a cursor, alone or sharing one, and plain tails.

What each must see is judged from the log: with a cursor every entry with rows, once and in order, from where the cursor
was made or set. Whoever sets one and gets no answer knows that it is where it was, or where it is to be, and may move
yet: until a set is answered, nothing that is read from it counts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from lancelsm.common.layout import Nonce, Position, cursors, head_key
from lancelsm.errors import Invalid, LsmError, Unavailable
from lancelsm.history.changes import Change, Changes
from lancelsm.history.cursor import drop_cursor
from lancelsm.history.pins import Pin, pins_of
from lancelsm.table import Table
from tests.simulation.environment import TABLE
from tests.simulation.faults import Crash
from tests.simulation.whole_table_env import ROWS, WholeTableEnv, rows_of_entry

SHARED = "shared"

Act = Callable[[str, random.Random], object]


@dataclass
class Kept:
    """What a consumer keeps: the entries that it took, and the position after them, from which it goes on."""

    begins: Position  # where its cursor was made, or set
    next: Position
    saved: Position  # by the last save that was answered: the cursor is there or further, at most at `next`
    taken: list[Position] = field(default_factory=list)


@dataclass
class Shared:
    """What those who share a cursor got from it, for as long as nobody sets it or makes it again."""

    begins: Position
    read: set[Position] = field(default_factory=set)
    saved: list[Position] = field(default_factory=list)  # what was read before a save that was answered, as they were


class Consumers:
    """What all consumers of a table environment know. `met` counts what happened to them."""

    def __init__(self, table_env: WholeTableEnv, met: Counter[str]) -> None:
        self._table_env = table_env
        self._met = met
        self.kept: dict[str, Kept] = {}
        self.moves: dict[str, list[range]] = {}  # by cursor: where sets without an answer may have put it, or may yet
        self.dropping: set[str] = set()  # cursors whose drop was not answered: they may go yet
        self.shared: dict[Nonce, Shared] = {}

    def follows(self, name: str) -> Act:
        """A consumer that keeps what it read together with where it is, and saves the cursor when it can."""

        def act(life: str, dice: random.Random) -> None:
            moves = name in self.moves
            if name in self.dropping:
                self._drops(life, name)
            elif dice.random() < (0.5 if moves else 0.3):
                self._sets_its_own(life, name, dice)
            elif moves:
                self._looks(life, name)
            else:
                self._goes_on(life, name, saves=dice.random() < 0.8)

        return act

    def _goes_on(self, life: str, name: str, *, saves: bool) -> None:
        context, kept = self._table_env.context(life), self.kept.get(name)
        if kept is not None:
            self._stands(name, kept)
            changes = Changes(context, ROWS, start={self._table_env.environment.id: kept.next}, cursor=name)
        else:
            try:
                changes = Changes(context, ROWS, start="earliest", cursor=name)
            except Invalid:
                self._drops(life, name)
                return
            kept = self.kept[name] = _kept(self._place_of(changes._pin))
        self._takes(kept, changes)
        if saves:
            changes.save()
            kept.saved = kept.next

    def _takes(self, kept: Kept, changes: Changes) -> None:
        for change in changes:
            self._is_as_written(change)
            assert not kept.taken or kept.taken[-1] < change.position, f"{change.position} after {kept.taken[-1]}"
            kept.taken.append(change.position)
            kept.next = changes.positions[change.region]
            self._met["a cursor's consumer has read"] += 1
        kept.next = changes.positions[
            self._table_env.environment.id
        ]  # past entries without rows, as the cursor that is saved now

    def _is_as_written(self, change: Change) -> None:
        shown = [(row["k"], row["_op"] == "delete") for row in change.rows.to_pylist()]
        want = rows_of_entry(self._table_env.environment.log[change.position])
        assert shown == [(key, dead) for key, _, dead in want], f"{change.position} is {want}, not {shown}"

    def _drops(self, life: str, name: str) -> None:
        """A cursor that is half made: its maker has crashed, or is another one."""
        before = self._record(name)
        self.dropping.add(name)
        try:
            drop_cursor(self._table_env.context(life), name)
        except Invalid:
            self._met["a cursor to drop is gone"] += 1  # it has expired, or another one was faster
        else:
            gone = before is not None and before.nonce in self.shared and self._record(name) is None
            self._met["a cursor is dropped that was read"] += gone
        self.dropping.discard(name)

    # Setting

    def _sets_its_own(self, life: str, name: str, dice: random.Random) -> None:
        pin = self._set(life, name, dice)
        if pin is not None:
            self.moves.pop(name, None)
            self.kept[name] = _kept(self._place_of(pin))

    def _set(self, life: str, name: str, dice: random.Random) -> Pin | None:
        """The cursor as it is set; None if the place was collected, or somebody else is making the cursor."""
        there, old = self._record(name), self._possible(name)
        floor, end = self._ends()
        start = dice.choice(["earliest", "latest", dice.randrange(1, end + 1), dice.randrange(floor, end + 1)])

        def to() -> range:
            if isinstance(start, int):
                return range(start, start + 1)
            floor_now, end_now = self._ends()
            return range(floor, floor_now + 1) if start == "earliest" else range(end, end_now + 1)

        try:
            pin = Table(self._table_env.handle(life)).set_cursor(name, start=start)
        except Invalid as error:
            now = self._record(name)
            if there is not None and there.confirmed and now is not None and now.nonce == there.nonce:
                self._met["a set is refused"] += 1
                if not isinstance(start, int) or start >= min(self._ends()[0], max(span[-1] for span in old)):
                    raise AssertionError(f"{name} could be set to {start}: {error}") from error
            return None
        except (LsmError, Crash):
            self._met["a set without an answer"] += 1
            self.moves.setdefault(name, []).append(to())
            raise
        self._met["a cursor is set"] += there is not None and there.confirmed
        assert self._place_of(pin) in to(), f"{name} is set to {start}, {to()}: it is at {self._place_of(pin)}"
        return pin

    def _looks(self, life: str, name: str) -> None:
        """What a cursor shows that may move yet."""
        possible = self._possible(name)
        try:
            changes = Changes(self._table_env.context(life), ROWS, cursor=name)
        except Invalid:
            assert name not in self.kept, f"cursor {name} is gone"
            self._drops(life, name)
            return
        place = self._place_of(changes._pin)
        assert any(place in span for span in possible), f"{name} is at {place}, not in {possible}"
        read = self._read(name, changes)
        if read is not None:
            assert read == self._due(place, changes.positions[self._table_env.environment.id])

    def _read(self, name: str, changes: Changes) -> list[Position] | None:
        """The positions of what a stream shows; None if its cursor moved, or was dropped, before it was read."""
        read: list[Position] = []
        try:
            for change in changes:
                self._is_as_written(change)
                read.append(change.position)
        except Invalid as error:
            now, following = self._record(name), changes.positions[self._table_env.environment.id]
            assert changes._pin is not None
            if now is not None and now.nonce == changes._pin.nonce and self._place_of(now) <= following:
                raise AssertionError(f"{name} keeps what follows {read}: {error}") from error
            return None
        return read

    # Sharing

    def shares(self, life: str, dice: random.Random) -> None:
        """A consumer beside others on one cursor, or one of those who set it."""
        if dice.random() >= 0.25:
            self.takes_its_share(life, limit=dice.choice([1, 2, 100]))
            return
        pin = self._set(life, SHARED, dice)
        if pin is not None:
            self._those_who_share(pin)

    def takes_its_share(self, life: str, *, limit: int) -> None:
        """What it read counts if it saved, and then it is its alone."""
        try:
            changes = Changes(self._table_env.context(life), ROWS, cursor=SHARED, limit=limit)
        except Invalid:
            self._drops(life, SHARED)
            return
        shared = self._those_who_share(changes._pin)
        batch = self._read(SHARED, changes)
        if batch is None:
            return
        shared.read.update(batch)
        for _ in range(3):
            with suppress(Unavailable):
                changes.save()
                assert not set(batch) & set(shared.saved), f"{batch} after {shared.saved}"
                self._met["saves are answered in another order"] += batch != [] and batch < shared.saved[-1:]
                shared.saved += batch
                return

    def _those_who_share(self, pin: Pin | None) -> Shared:
        assert pin is not None
        return self.shared.setdefault(pin.nonce, Shared(self._place_of(pin)))

    def tails(self, life: str, dice: random.Random) -> None:
        """A plain start may be told that what it asks for was collected."""
        last = 0
        with suppress(Invalid):
            for change in Changes(self._table_env.context(life), ROWS, start="earliest"):
                assert last < change.position
                self._is_as_written(change)
                last = change.position

    # What must hold

    def catch_up(self) -> None:
        """Without faults now, and nothing in flight: every cursor is where it must be, and keeps what follows."""
        context = self._table_env.context("last", faulty=False)
        for name in sorted({*self.kept, *self.moves} - {SHARED}):
            found = self._record(name)
            if name in self.moves and found is not None and found.confirmed:
                assert any(self._place_of(found) in span for span in self._possible(name))
                self.kept[name] = _kept(self._place_of(found))
            kept = self.kept.get(name)
            if kept is None:
                continue  # it was never made
            self._stands(name, kept)
            self._takes(kept, Changes(context, ROWS, start={self._table_env.environment.id: kept.next}, cursor=name))
            assert kept.taken == self._due(kept.begins)
        for shared in self.shared.values():
            passed = self._due(shared.begins, max(shared.saved, default=0))
            assert set(passed) <= shared.read, f"{passed} of a shared cursor were passed, {shared.read} read"
        found = self._record(SHARED)
        if found is not None and found.confirmed:
            read = self._read(SHARED, Changes(context, ROWS, cursor=SHARED))
            assert read == self._due(self._place_of(found))

    def _stands(self, name: str, kept: Kept) -> None:
        found = self._record(name)
        assert found is not None, f"cursor {name} is gone"
        assert found.confirmed
        place = self._place_of(found)
        assert kept.saved <= place <= kept.next, f"{name} is at {place}, not in {kept.saved} .. {kept.next}"

    def _possible(self, name: str) -> list[range]:
        """Where a cursor may be, or may yet come."""
        kept = self.kept.get(name)
        old = range(kept.saved, kept.next + 1) if kept else range(1, self._ends()[1] + 1)
        return [old, *self.moves.get(name, [])]

    def _due(self, first: int, end: int | None = None) -> list[Position]:
        """The entries with rows in this part of the log."""
        log = sorted(self._table_env.environment.log.items())
        return [at for at, entry in log if entry.summary.rows and first <= at and (end is None or at < end)]

    def _record(self, name: str) -> Pin | None:
        """The cursor as it is recorded now, however it was made."""
        pins = pins_of(self._table_env.environment.registry.list(cursors(TABLE)))
        return next((pin for pin in pins if pin.name == name and pin.replaces is None), None)

    def _place_of(self, pin: Pin | None) -> Position:
        needs = pin and pin.of(self._table_env.environment.id)
        assert needs
        return needs.first_position

    def _ends(self) -> tuple[int, int]:
        head = self._table_env.environment.registry.read(head_key(TABLE, self._table_env.environment.id))
        assert head is not None
        return int(head["first_position"]), int(head["next_position"])


def _kept(place: Position) -> Kept:
    return Kept(begins=place, next=place, saved=place)
