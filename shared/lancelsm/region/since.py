"""Notes in a head that say since when rows wait for the next step. Advisory: only metrics use them.

`log_since` starts with the first entry of a log whose entries are all in generations, and a flush moves it on.
`merge_since` starts with the first generation after all were merged, and a merge moves it on. So both follow the oldest
row that waits, also if rows are written all the time. A time may be up to a minute too early, if a writer kept its head
during a pause (`PAUSE_SECONDS`). It is never later than the time of the append of
that row by the clock of its writer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PAUSE_SECONDS = 60.0  # after which a writer reads the head again that it kept

_TEXT = re.compile(r"([0-9]{1,19}) ([0-9]{1,12})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """Rows from the position (or generation) `first` on wait; they were written at `at`, in Unix seconds, or later."""

    first: int
    at: int

    @property
    def text(self) -> str:
        return f"{self.first} {self.at}"

    @staticmethod
    def parse(text: str) -> Since | None:
        """Decode `text`; None if it is empty, or has another form because another release wrote it."""
        found = _TEXT.fullmatch(text)
        return None if found is None else Since(first=int(found[1]), at=int(found[2]))
