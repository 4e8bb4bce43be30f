"""Parse durations: `90s`, `15m`, `1h`, `7d`, or a number of seconds."""

from __future__ import annotations

import re

from lancelsm.common.error_text import shown
from lancelsm.errors import Invalid

NEVER = "never"

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|d|)")
_LONGEST_SECONDS = 100 * 365 * 86_400.0
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds_of(duration: str | float, *, field: str = "duration") -> float:
    """Parse a duration to seconds, from 0 to 100 years; raise `Invalid`, which names `field`, if it is not valid."""
    match = _DURATION.fullmatch(str(duration))
    if match is None:
        raise Invalid(
            f"{shown(duration)} is not a duration", remedy="Give seconds, or text like 90s, 15m, 1h or 7d", field=field
        )
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > _LONGEST_SECONDS:
        raise Invalid(f"{shown(duration)} is more than 100 years", remedy="Give a shorter duration", field=field)
    return seconds


def time_to_live(ttl: str | float) -> float | None:
    """Parse a time to live to seconds, more than 0; None for `never`. Raise `Invalid` if it is not valid."""
    if ttl == NEVER:
        return None
    try:
        seconds = seconds_of(ttl, field="ttl")
    except Invalid as error:
        error.remedy += ", or never"
        raise
    if seconds <= 0:
        raise Invalid("the time to live is 0", remedy="Give seconds, text like 15m or 1h, or never", field="ttl")
    return seconds
