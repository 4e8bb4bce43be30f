"""Let a slow append get its turn among fast appends of the same owner.

An append that takes long, such as a large one, loses its position again and again to short ones. When it loses one for
the third time, its writer notes in the head for how long others should hold back. Another writer gets the note with
its own next append. Then it holds back once, at most that long, before its next append, and that append removes the
note. So a note of a dead writer costs each other writer at most one pause. The note decides nothing: a writer that
ignores it breaks no guarantee. Model: tests/model/waiting_note.py.
"""

from __future__ import annotations

from lancelsm.errors import Unavailable
from lancelsm.region import head as heads
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head

_PATIENCE = 2  # lost positions without a note; the next one leaves it
_AT_ONCE = 8  # notes before the writer backs off again
_LEAST_SECONDS = 0.02
_MOST_SECONDS = 10.0
_LOOK_SECONDS = 0.25


class Waiter:
    """One append that may have to wait for its turn."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._clock = region.context.clock
        self._lost = 0
        self._hold = 0.0
        self._began = self._clock.monotonic()

    @property
    def noted(self) -> bool:
        """Whether this append has left a note, which it must remove."""
        return self._lost > _PATIENCE

    def try_begins(self) -> None:
        self._began = self._clock.monotonic()

    def head_after_loss(self, head: Head) -> Head | None:
        """Count a lost position. Return the head to try again from at once; None: back off first."""
        self._lost += 1
        if not self.noted or self._lost % _AT_ONCE == 0:
            return None
        took = self._clock.monotonic() - self._began
        self._hold = min(_MOST_SECONDS, max(_LEAST_SECONDS, 2 * took, 2 * self._hold))
        try:
            outcome = self._region.swap(heads.noted(head, milliseconds=int(self._hold * 1000)))
            return outcome if isinstance(outcome, Head) else self._region.head_after(outcome)
        except Unavailable:  # the note is only a request
            return None


def hold_back(region: Region, head: Head) -> Head:
    """Give way to the writer that left a note in this head. Return the newest head.

    Raises: the same errors as `Region.head`.
    """
    clock = region.context.clock
    end = clock.monotonic() + min(head.waiting_milliseconds / 1000, _MOST_SECONDS)
    pause = _LEAST_SECONDS
    while head.waiting_milliseconds and (left := end - clock.monotonic()) > 0:
        clock.sleep(min(left, pause))
        pause = min(2 * pause, _LOOK_SECONDS)
        head = region.head()
    return head
