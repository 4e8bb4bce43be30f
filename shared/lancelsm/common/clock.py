"""Clock, ids and randomness: the only module that takes them from the machine.

All other code gets a `Clock` and an `Ids` as arguments, so a test can replay a run from its seed.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, Literal, Protocol

from lancelsm.common.layout import Nonce

_WAIT_SECONDS_FIRST = 0.01
_WAIT_SECONDS_MAX = 2.0
_YEAR_10000 = 253_402_300_800
SLOW_ATTEMPTS: Final = 8  # the least of work that may take longer than the retry budget


class Clock(Protocol):
    """Wall-clock time for records, monotonic time for budgets, and waiting."""

    def now(self) -> float:
        """Return the Unix time in seconds."""
        ...

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back."""
        ...

    def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    """Unique nonces, and random numbers for jitter."""

    def nonce(self) -> Nonce:
        """Return 128 random bits as 32 lower-case hex digits."""
        ...

    def uniform(self) -> float:
        """Return a random number from 0 (included) to 1 (excluded)."""
        ...


class SystemClock:
    """The clocks of the machine."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class SystemIds:
    """Randomness of the operating system, read at each call: a restored process snapshot must not repeat a nonce."""

    def nonce(self) -> Nonce:
        return Nonce(uuid.uuid4().hex)

    def uniform(self) -> float:
        return random.SystemRandom().random()


class SeededIds:
    """Reproducible nonces and random numbers, for simulations."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def nonce(self) -> Nonce:
        return Nonce(f"{self._random.getrandbits(128):032x}")

    def uniform(self) -> float:
        return self._random.random()


class Budget:
    """The retry budget of one operation, shared by all its retry loops."""

    def __init__(self, *, clock: Clock, ids: Ids, seconds: float) -> None:
        self._clock = clock
        self._ids = ids
        self._deadline = clock.monotonic() + seconds

    def attempts(self, *, least: int = 1) -> Iterator[int]:
        """Yield 0, 1, 2, ... and wait in between, exponentially with full jitter, until the budget is spent.

        No wait is longer than 2 seconds, or than the rest of the budget if there is a rest.

        Args:
            least: how many attempts there are even if they take longer than the budget.
        """
        number = 0
        while True:
            yield number
            left = self._deadline - self._clock.monotonic()
            if left <= 0 and number + 1 >= least:
                return
            ceiling = min(_WAIT_SECONDS_MAX, _WAIT_SECONDS_FIRST * 2 ** min(number, 16))
            wait = ceiling * self._ids.uniform()
            self._clock.sleep(min(left, wait) if left > 0 else wait)
            number += 1


def shown_time(time: float) -> float:
    """Return a time in Unix seconds; raise `ValueError` if it is not in the years 1970 to 9999, such as nan."""
    if not 0 <= time < _YEAR_10000:
        raise ValueError(f"{time} is no time")
    return time


def iso(time: float, *, digits: Literal["seconds", "milliseconds"] | None = None) -> str:
    """Return a time in Unix seconds in ISO 8601, in UTC; by default with milliseconds if it has any."""
    moment = datetime.fromtimestamp(time, UTC)
    shown = digits or ("milliseconds" if moment.microsecond else "seconds")
    return moment.isoformat(timespec=shown).replace("+00:00", "Z")
