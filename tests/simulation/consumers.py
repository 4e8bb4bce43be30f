"""Consumers of the change stream: with a cursor of their own, with a shared cursor, or without a cursor.

The log decides what a consumer must see. With a cursor it sees every entry with rows, once and in order, from the
position where the cursor was created or set. If setting a cursor has no answer, the cursor is at its old or at its new
position and may still move. Until another call to set it has an answer, nothing that is read from it counts.
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
from lancelsm.history.pin_records import Pin, pins_of
from lancelsm.table import Table
from tests.simulation.environment import TABLE
from tests.simulation.faults import Crash
from tests.simulation.whole_table_env import ROWS, WholeTableEnv, rows_of_entry

SHARED = "shared"

Act = Callable[[str, random.Random], object]


@dataclass
class Consumer:
    """The state of a consumer: the entries that it has read, and the position from which it continues."""

    start: Position  # where its cursor was created or set
    next: Position
    saved: Position  # by the last save with an answer; the cursor is between it and `next`
    read: list[Position] = field(default_factory=list)


@dataclass
class Shared:
    """What the consumers of a shared cursor have read from it, until it is set or created again."""

    start: Position
    read: set[Position] = field(default_factory=set)
    saved: list[Position] = field(default_factory=list)  # read before a save with an answer, in the order of the saves


class Consumers:
    """All consumers of a table environment. `met` counts the circumstances that they met."""

    def __init__(self, table_env: WholeTableEnv, met: Counter[str]) -> None:
        self._table_env = table_env
        self._met = met
        self.by_cursor: dict[str, Consumer] = {}
        # By cursor: where calls to set it without an answer may have put it, or may still put it.
        self.moves: dict[str, list[range]] = {}
        self.dropping: set[str] = set()  # cursors whose drop had no answer: they may still disappear
        self.shared: dict[Nonce, Shared] = {}

    def consumer(self, name: str) -> Act:
        """Return a consumer that stores its position together with what it read, and saves the cursor when it can."""

        def act(process: str, dice: random.Random) -> None:
            moves = name in self.moves
            if name in self.dropping:
                self._drop(process, name)
            elif dice.random() < (0.5 if moves else 0.3):
                self._set_own(process, name, dice)
            elif moves:
                self._inspect(process, name)
            else:
                self._go_on(process, name, saves=dice.random() < 0.8)

        return act

    def _go_on(self, process: str, name: str, *, saves: bool) -> None:
        context, consumer = self._table_env.context(process), self.by_cursor.get(name)
        if consumer is not None:
            self._check_position(name, consumer)
            changes = Changes(context, ROWS, start={self._table_env.environment.id: consumer.next}, cursor=name)
        else:
            try:
                changes = Changes(context, ROWS, start="earliest", cursor=name)
            except Invalid:
                self._drop(process, name)
                return
            consumer = self.by_cursor[name] = _consumer_at(self._position_of(changes._pin))
        self._read_on(consumer, changes)
        if saves:
            changes.save()
            consumer.saved = consumer.next

    def _read_on(self, consumer: Consumer, changes: Changes) -> None:
        for change in changes:
            self._check_rows(change)
            assert not consumer.read or consumer.read[-1] < change.position, (
                f"{change.position} after {consumer.read[-1]}"
            )
            consumer.read.append(change.position)
            consumer.next = changes.positions[change.region]
            self._met["a cursor's consumer has read"] += 1
        # Like a cursor that is saved now, the position is past entries without rows.
        consumer.next = changes.positions[self._table_env.environment.id]

    def _check_rows(self, change: Change) -> None:
        read = [(row["k"], row["_op"] == "delete") for row in change.rows.to_pylist()]
        written = rows_of_entry(self._table_env.environment.log[change.position])
        assert read == [(key, dead) for key, _, dead in written], f"{change.position} is {written}, not {read}"

    def _drop(self, process: str, name: str) -> None:
        """Drop a cursor that is not confirmed: its creator has crashed or is still at work."""
        before = self._record(name)
        self.dropping.add(name)
        try:
            drop_cursor(self._table_env.context(process), name)
        except Invalid:
            self._met["a cursor to drop does not exist"] += 1  # it has expired, or another consumer dropped it
        else:
            dropped = before is not None and before.nonce in self.shared and self._record(name) is None
            self._met["a cursor is dropped that was read"] += dropped
        self.dropping.discard(name)

    # Setting

    def _set_own(self, process: str, name: str, dice: random.Random) -> None:
        pin = self._set(process, name, dice)
        if pin is not None:
            self.moves.pop(name, None)
            self.by_cursor[name] = _consumer_at(self._position_of(pin))

    def _set(self, process: str, name: str, dice: random.Random) -> Pin | None:
        """Set the cursor. Return None if the position was collected or another consumer is creating the cursor."""
        before, old = self._record(name), self._possible(name)
        floor, end = self._ends()
        start = dice.choice(["earliest", "latest", dice.randrange(1, end + 1), dice.randrange(floor, end + 1)])

        def targets() -> range:
            if isinstance(start, int):
                return range(start, start + 1)
            floor_now, end_now = self._ends()
            return range(floor, floor_now + 1) if start == "earliest" else range(end, end_now + 1)

        try:
            pin = Table(self._table_env.handle(process)).set_cursor(name, start=start)
        except Invalid as error:
            now = self._record(name)
            if before is not None and before.confirmed and now is not None and now.nonce == before.nonce:
                self._met["a set is refused"] += 1
                if not isinstance(start, int) or start >= min(self._ends()[0], max(span[-1] for span in old)):
                    raise AssertionError(f"{name} can be set to {start}, but: {error}") from error
            return None
        except (LsmError, Crash):
            self._met["a set without an answer"] += 1
            self.moves.setdefault(name, []).append(targets())
            raise
        self._met["a cursor is set"] += before is not None and before.confirmed
        assert self._position_of(pin) in targets(), (
            f"{name} is set to {start}, {targets()}, but is at {self._position_of(pin)}"
        )
        return pin

    def _inspect(self, process: str, name: str) -> None:
        """Read from a cursor that may still move."""
        possible = self._possible(name)
        try:
            changes = Changes(self._table_env.context(process), ROWS, cursor=name)
        except Invalid:
            assert name not in self.by_cursor, f"cursor {name} is missing"
            self._drop(process, name)
            return
        position = self._position_of(changes._pin)
        assert any(position in span for span in possible), f"{name} is at {position}, not in {possible}"
        read = self._read(name, changes)
        if read is not None:
            assert read == self._due(position, changes.positions[self._table_env.environment.id])

    def _read(self, name: str, changes: Changes) -> list[Position] | None:
        """Return the positions that a stream shows; None if its cursor was moved or dropped meanwhile."""
        read: list[Position] = []
        try:
            for change in changes:
                self._check_rows(change)
                read.append(change.position)
        except Invalid as error:
            now, following = self._record(name), changes.positions[self._table_env.environment.id]
            assert changes._pin is not None
            if now is not None and now.nonce == changes._pin.nonce and self._position_of(now) <= following:
                raise AssertionError(f"{name} keeps the entries after {read}, but: {error}") from error
            return None
        return read

    # Sharing

    def share(self, process: str, dice: random.Random) -> None:
        """Read from the shared cursor beside other consumers, or set it."""
        if dice.random() >= 0.25:
            self.read_share(process, limit=dice.choice([1, 2, 100]))
            return
        pin = self._set(process, SHARED, dice)
        if pin is not None:
            self._sharers_of(pin)

    def read_share(self, process: str, *, limit: int) -> None:
        """Read a batch and save. A batch counts once its save has an answer; then no other consumer has any of it."""
        try:
            changes = Changes(self._table_env.context(process), ROWS, cursor=SHARED, limit=limit)
        except Invalid:
            self._drop(process, SHARED)
            return
        shared = self._sharers_of(changes._pin)
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

    def _sharers_of(self, pin: Pin | None) -> Shared:
        assert pin is not None
        return self.shared.setdefault(pin.nonce, Shared(self._position_of(pin)))

    def tail(self, process: str, dice: random.Random) -> None:
        """Read without a cursor. The entries may be collected meanwhile."""
        last = 0
        with suppress(Invalid):
            for change in Changes(self._table_env.context(process), ROWS, start="earliest"):
                assert last < change.position
                self._check_rows(change)
                last = change.position

    # What must hold

    def catch_up(self) -> None:
        """Without faults and with nothing in flight, every cursor is where it must be and keeps all later entries."""
        context = self._table_env.context("last", faulty=False)
        for name in sorted({*self.by_cursor, *self.moves} - {SHARED}):
            found = self._record(name)
            if name in self.moves and found is not None and found.confirmed:
                assert any(self._position_of(found) in span for span in self._possible(name))
                self.by_cursor[name] = _consumer_at(self._position_of(found))
            consumer = self.by_cursor.get(name)
            if consumer is None:
                continue  # it was never created
            self._check_position(name, consumer)
            self._read_on(
                consumer, Changes(context, ROWS, start={self._table_env.environment.id: consumer.next}, cursor=name)
            )
            assert consumer.read == self._due(consumer.start)
        for shared in self.shared.values():
            passed = self._due(shared.start, max(shared.saved, default=0))
            assert set(passed) <= shared.read, f"a shared cursor has passed {passed}, but only {shared.read} were read"
        found = self._record(SHARED)
        if found is not None and found.confirmed:
            read = self._read(SHARED, Changes(context, ROWS, cursor=SHARED))
            assert read == self._due(self._position_of(found))

    def _check_position(self, name: str, consumer: Consumer) -> None:
        found = self._record(name)
        assert found is not None, f"cursor {name} is missing"
        assert found.confirmed
        position = self._position_of(found)
        assert consumer.saved <= position <= consumer.next, (
            f"{name} is at {position}, not in {consumer.saved} .. {consumer.next}"
        )

    def _possible(self, name: str) -> list[range]:
        """Return where a cursor may be now or later."""
        consumer = self.by_cursor.get(name)
        old = range(consumer.saved, consumer.next + 1) if consumer else range(1, self._ends()[1] + 1)
        return [old, *self.moves.get(name, [])]

    def _due(self, first: int, end: int | None = None) -> list[Position]:
        """Return the positions of entries with rows in this part of the log."""
        log = sorted(self._table_env.environment.log.items())
        return [at for at, entry in log if entry.summary.rows and first <= at and (end is None or at < end)]

    def _record(self, name: str) -> Pin | None:
        """Return the recorded cursor, confirmed or not."""
        pins = pins_of(self._table_env.environment.registry.list(cursors(TABLE)))
        return next((pin for pin in pins if pin.name == name and pin.replaces is None), None)

    def _position_of(self, pin: Pin | None) -> Position:
        needs = pin and pin.of(self._table_env.environment.id)
        assert needs
        return needs.first_position

    def _ends(self) -> tuple[int, int]:
        head = self._table_env.environment.registry.read(head_key(TABLE, self._table_env.environment.id))
        assert head is not None
        return int(head["first_position"]), int(head["next_position"])


def _consumer_at(position: Position) -> Consumer:
    return Consumer(start=position, next=position, saved=position)
