"""Interrupt a piece of work at one of its calls."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def interrupted(work: Callable[[], Any], at: int) -> int:
    """Interrupt work at its call of a Python function with this number. Return how many it called."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        if event == "call":
            calls += 1
            if calls == at:
                sys.setprofile(None)
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setprofile(count)
    try:
        work()
    except KeyboardInterrupt:
        assert calls >= at > 0
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, before)
    return calls
