"""Parse JSON so that every text that is not JSON fails in one way."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any


def finite(text: str) -> float:
    """Return the number; raise `ValueError` if it is out of the range of a double, such as 1e400."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is out of the range of a double")
    return number


def parse_json(text: object, *, parse_float: Callable[[str], Any] = finite) -> Any:
    """Parse JSON. A byte-order mark before it is ignored.

    Raises:
        ValueError: it is not JSON in UTF-8, it is nested too deeply for Python, or `parse_float` refuses a number.
    """
    given = text.decode() if isinstance(text, bytes) else text
    if not isinstance(given, str):  # a record may have anything after damage
        raise ValueError(f"{type(text).__name__} is not text")
    try:
        return _decoder(parse_float).decode(given.removeprefix("\ufeff"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@lru_cache(maxsize=16)
def _decoder(parse_float: Callable[[str], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(parse_float=parse_float)
