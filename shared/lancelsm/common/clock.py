"""Time, identity and chance: the only module that asks the machine for them.

Everything else gets a `Clock` and an `Ids` passed in, so that a seed replays a run.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from typing import Protocol

from lancelsm.common.layout import Nonce

_WAIT_SECONDS_FIRST = 0.01
_WAIT_SECONDS_MAX = 2.0


class Clock(Protocol):
    """Wall time for records, monotonic time for budgets, and the right to wait."""

    def now(self) -> float:
        """Seconds since 1970 in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        ...

    def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    """Names that nobody else will ever mint, and chance for jitter."""

    def nonce(self) -> Nonce:
        """128 bits as 32 lower-case hex digits."""
        ...

    def uniform(self) -> float:
        """A number from 0 (included) to 1 (excluded)."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class SystemIds:
    """The operating system's randomness. Asked at each call, since a restored process image must not repeat a nonce."""

    def nonce(self) -> Nonce:
        return Nonce(uuid.uuid4().hex)

    def uniform(self) -> float:
        return random.SystemRandom().random()


class SeededIds:
    """Reproducible names and chance, for simulations."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def nonce(self) -> Nonce:
        return Nonce(f"{self._random.getrandbits(128):032x}")

    def uniform(self) -> float:
        return self._random.random()


class Budget:
    """How long one operation may go on trying, all its loops together."""

    def __init__(self, *, clock: Clock, ids: Ids, seconds: float) -> None:
        self._clock = clock
        self._ids = ids
        self._deadline = clock.monotonic() + seconds

    def attempts(self) -> Iterator[int]:
        """Yield 0, 1, 2, ... and wait in between, exponentially with full jitter, until the budget is spent.

        The first attempt is always yielded; no wait is longer than 2 seconds or than what is left.
        """
        number = 0
        while True:
            yield number
            left = self._deadline - self._clock.monotonic()
            if left <= 0:
                return
            ceiling = min(_WAIT_SECONDS_MAX, _WAIT_SECONDS_FIRST * 2 ** min(number, 16))
            self._clock.sleep(min(left, ceiling * self._ids.uniform()))
            number += 1
