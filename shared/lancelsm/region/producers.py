"""What a head remembers of producers: the names under which rows are appended exactly once.

A producer numbers its appends, and a head remembers the highest number of each, so that a repeated append is found. No
rule compares the numbers of different producers. A head remembers 16 producers. A new one takes the place of one that
appended nothing for `IDLE_SECONDS`: no queue or job repeats an append after that time. If there is none, the append of
the new one is refused, before anything is written: a producer that is forgotten too early could append twice.

All of this follows from the entries alone, so that a rebuild derives the same from manifest and log. Model:
tests/model/producers.py.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from lancelsm.common.json_text import parse_json

MOST = 16
IDLE_DAYS = 30  # above the 14 days for which a queue keeps a message
_DAY = 86_400
_SKEW_SECONDS = 300  # between the clocks of two writers
IDLE_SECONDS = IDLE_DAYS * _DAY + _SKEW_SECONDS
UNKNOWN = 0  # the day of a producer without a time: an earlier release appended for it
FORGET = "0"  # the sequence of an entry that makes a head forget a producer, whose id it names

_NONE = "{}"
_ID_BYTES, _DAY_BYTES, _SEQUENCE_BYTES = 8, 2, 9  # 19 bytes for sequences of 20 digits, as those of a queue
_LONGER = 0xF0  # a first byte from this one on says how many bytes follow the nine of a longer sequence
_LAST_DAY = 256**_DAY_BYTES - 1


@dataclass(frozen=True, slots=True)
class Producer:
    """The highest sequence of a producer, and the day of its last append since 1970, rounded up."""

    sequence: int
    day: int = UNKNOWN


Producers = Mapping[str, Producer]
"""By id."""


def producer_id(name: str) -> str:
    """Return the id of a producer: eight bytes of a hash of its name, as eleven characters."""
    digest = hashlib.blake2b(name.encode(), digest_size=_ID_BYTES).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def day_of(at: float | None) -> int:
    """Return the day of a time in Unix seconds, rounded up."""
    return UNKNOWN if at is None else min(max(1, math.ceil(at / _DAY)), _LAST_DAY)


def after(producers: Producers, applied_sequences: Mapping[str, str], at: float | None) -> Producers:
    """Return the producers after an entry with these applied sequences, which was drafted at this time."""
    if not applied_sequences:
        return producers
    known = dict(producers)
    for name, text in applied_sequences.items():
        if text == FORGET:
            known.pop(name, None)
            continue
        one, sequence = producer_id(name), int(text)
        before = known.get(one, Producer(sequence))
        if one not in known and len(known) >= MOST:
            del known[longest_idle(known)]
        known[one] = Producer(
            max(before.sequence, sequence),  # guard: applied sequence never decreases
            max(before.day, day_of(at)),
        )
    return known


def longest_idle(producers: Producers) -> str:
    """Return the id of the producer whose last append is the oldest. An unknown time counts as the newest."""
    return min(producers, key=lambda one: (producers[one].day == UNKNOWN, producers[one].day, one))


def has_room(producers: Producers, name: str, at: float | None) -> bool:
    """Return whether a producer may append at this time: it is known, or there is room, or another one is idle."""
    if len(producers) < MOST or producer_id(name) in producers:
        return True
    last = producers[longest_idle(producers)].day
    return last != UNKNOWN and at is not None and at - last * _DAY > IDLE_SECONDS


def described(producers: Producers, one: str) -> str:
    """Describe a producer by its id and the time of its last append."""
    day = producers[one].day
    return f"{one}, last append " + ("unknown" if day == UNKNOWN else f"before {_time(day)}")


def _time(day: int) -> str:
    return datetime.fromtimestamp(day * _DAY, tz=UTC).strftime("%Y-%m-%dT%H:%MZ")


def to_value(producers: Producers) -> bytes | str:
    """Encode producers for the record of a head. None are "{}", as in a head of an earlier release."""
    return b"".join(sorted(_packed(one, producer) for one, producer in producers.items())) if producers else _NONE


def from_value(value: object) -> Producers:
    """Decode the producers of a head. An earlier release wrote a JSON object of names and sequences.

    Raises:
        ValueError: the value is neither.
    """
    if isinstance(value, bytes):
        return _unpacked(value)
    if value == _NONE:
        return {}
    sequences = parse_json(value) if isinstance(value, str) else None
    if not isinstance(sequences, dict):
        raise ValueError(f"source is {value!r}")
    return from_sequences(sequences)


def from_sequences(sequences: Mapping[str, object]) -> Producers:
    """Return producers for the names and sequences that an earlier release stored; raise `ValueError` for others."""
    if not all(isinstance(one, str) and one.isdecimal() for one in sequences.values()):
        raise ValueError(f"source is {dict(sequences)!r}")
    return {producer_id(name): Producer(int(str(sequence))) for name, sequence in sequences.items()}


def _packed(one: str, producer: Producer) -> bytes:
    more = max(0, (producer.sequence.bit_length() + 7) // 8 - _SEQUENCE_BYTES)
    sequence = producer.sequence.to_bytes(_SEQUENCE_BYTES + more, "big")
    if more or sequence[0] >= _LONGER:
        if more >= 256 - _LONGER:
            raise ValueError(f"the sequence {producer.sequence} of a producer is too large")
        sequence = bytes([_LONGER + more]) + sequence
    return base64.urlsafe_b64decode(one + "=") + producer.day.to_bytes(_DAY_BYTES, "big") + sequence


def _unpacked(value: bytes) -> Producers:
    found: dict[str, Producer] = {}
    begin = 0
    while begin < len(value):
        middle = begin + _ID_BYTES
        first = middle + _DAY_BYTES
        longer = max(0, value[first] - _LONGER + 1) if first < len(value) else 0
        end = first + _SEQUENCE_BYTES + longer
        if end > len(value):
            raise ValueError(f"source is {value!r}")
        one = base64.urlsafe_b64encode(value[begin:middle]).decode().rstrip("=")
        sequence = int.from_bytes(value[first + bool(longer) : end], "big")
        found[one] = Producer(sequence, int.from_bytes(value[middle:first], "big"))
        begin = end
    return found
