"""Show values in texts: in errors also what the caller could have meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_MOST_NAMES = 30


def shown(value: object, *, most: int = 80) -> str:
    """Return a short text for any value. It never fails: some values have no text, such as deeply nested lists."""
    if isinstance(value, int) and value.bit_length() > 4 * most:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the text comes from the caller's class
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def did_you_mean(name: object, known: Sequence[str], *, what: str) -> str:
    """Return a remedy for an unknown name: the most similar known one, if any, then all known ones."""
    lower = {one.lower(): one for one in known}
    given = name.lower() if isinstance(name, str) and len(name) < 100 else ""
    begun = [one for one in lower if given and one.startswith(given)]
    similar = begun if len(begun) == 1 else difflib.get_close_matches(given, lower, n=1)
    more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    listed = f"{what}: {', '.join(known[:_MOST_NAMES])}{more}"
    return f"Did you mean {lower[similar[0]]!r}? {listed}" if similar else listed


def counted(number: int, what: str) -> str:
    """Return a number with its noun: `1 row`, `2 rows`, `3 entries`."""
    return f"{number:,} {noun(number, what)}"


def noun(number: int | None, what: str) -> str:
    """Return the noun for a number, without the number; the plural if the number is not known."""
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return what if number == 1 else plural
