"""Write dates and timestamps as text in ISO 8601, and read it back: every value that Arrow has, with nanoseconds.

Arrow itself writes and reads the years 0 to 9999. Other years have a sign here, as in +12024-05-01 and -0044-03-15.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_SIGNED: Final = re.compile(r"([+-]\d{4,})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z?))?")
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS: Final = 86_400  # of a day
_SHORT_DAYS: Final = (-719_528, 2_932_897)  # days from 1970-01-01 to 0000-01-01, and to 10000-01-01
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # after these the calendar repeats
_MOST: Final = (1 << 63) - 1
_EPOCH: Final = dt.date(1970, 1, 1).toordinal()


def texts(values: pa.Array) -> pa.Array:
    """Return the text of each date or timestamp. A timestamp with a time zone is written in UTC, with Z at the end."""
    is_short = short_years(values)
    if pc.all(is_short, min_count=0).as_py():
        return _short_texts(values)
    signed = [
        None if short is not False else _signed_text(count, values.type)
        for count, short in zip(_counts(values).to_pylist(), is_short.to_pylist(), strict=True)
    ]
    short = _short_texts(pc.if_else(is_short, values, pa.scalar(None, values.type)))
    return pc.coalesce(short, pa.array(signed, pa.string()))


def short_years(values: pa.Array) -> pa.Array:
    """Return whether Arrow itself writes and reads the text of each date or timestamp; null for null."""
    per_day = _per_day(values.type)
    first, after_last = (day * per_day for day in _SHORT_DAYS)
    # Arrow reads whole seconds first, so not the time before the first whole second that 64 bits of nanoseconds have.
    first = max(first, -(_MOST // 10**9) * 10**9)
    counts = _counts(values)
    return pc.and_(pc.greater_equal(counts, first), pc.less_equal(counts, min(after_last - 1, _MOST)))


def parsed(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the dates or timestamps that text says, or raise an error of Arrow."""
    is_signed = pc.match_substring_regex(text, "^[+-]")
    if not pc.any(is_signed).as_py():
        return text.cast(kind)
    short = pc.if_else(is_signed, pa.scalar(None, text.type), text).cast(kind)
    counts = [
        _signed_count(one, kind) if one is not None and signed else None
        for one, signed in zip(text.to_pylist(), is_signed.to_pylist(), strict=True)
    ]
    return pc.coalesce(short, pa.array(counts, _counts(short).type).view(kind))


def _short_texts(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_date(kind):
        return values.cast(pa.string())
    if kind.tz is None:
        return pc.strftime(values, format="%Y-%m-%dT%H:%M:%S")
    return pc.strftime(values.cast(pa.timestamp(kind.unit, "UTC")), format="%Y-%m-%dT%H:%M:%SZ")


def _counts(values: pa.Array) -> pa.Array:
    return values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())


def _per_day(kind: pa.DataType) -> int:
    if pa.types.is_date(kind):
        return 1 if kind.bit_width == 32 else _SECONDS * 1_000
    return _SECONDS * _PER_SECOND[kind.unit]


def _signed_text(count: int, kind: pa.DataType) -> str:
    day, rest = divmod(count, _per_day(kind))
    cycle, ordinal = divmod(day + _EPOCH - 1, _CYCLE_DAYS)
    date = dt.date.fromordinal(ordinal + 1)
    text = f"{date.year + cycle * _CYCLE_YEARS:+05}-{date:%m-%d}"
    if pa.types.is_date(kind):
        return text
    per_second = _PER_SECOND[kind.unit]
    second, fraction = divmod(rest, per_second)
    time = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    digits = len(str(per_second)) - 1
    return f"{text}T{time}{f'.{fraction:0{digits}}' if digits else ''}{'' if kind.tz is None else 'Z'}"


def _signed_count(text: str, kind: pa.DataType) -> int:
    found = _SIGNED.fullmatch(text)
    is_time, is_zoned = (False, False) if found is None else (found[4] is not None, bool(found[8]))
    if found is None or is_time == pa.types.is_date(kind) or is_zoned != (getattr(kind, "tz", None) is not None):
        raise pa.ArrowInvalid(f"{text!r} is not a value of {kind}")
    year, month, day = (int(found[part]) for part in (1, 2, 3))
    cycle, within = divmod(year - 1, _CYCLE_YEARS)
    try:
        date = dt.date(within + 1, month, day)
        hour, minute, second = (int(found[part] or 0) for part in (4, 5, 6))
        time = dt.time(hour, minute, second)
    except ValueError as error:
        raise pa.ArrowInvalid(f"{text!r} is not a value of {kind}: {error}") from error
    count = (date.toordinal() - _EPOCH + cycle * _CYCLE_DAYS) * _per_day(kind)
    if not is_time:
        return count
    per_second = _PER_SECOND[kind.unit]
    fraction, lost = divmod(int((found[7] or "").ljust(9, "0")) * per_second, 10**9)
    if lost:
        raise pa.ArrowInvalid(f"{text!r} has more digits than {kind}")
    return count + ((time.hour * 60 + time.minute) * 60 + time.second) * per_second + fraction
