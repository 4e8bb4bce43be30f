"""Setsum: a checksum of a multiset that does not depend on order and can be added and subtracted.

Lost, duplicated or changed data gives a sum that does not balance (wal3, "Setsum"). An item is hashed with xxh3_128.
The hash is four little-endian 32-bit columns; each column is added modulo its own prime. A setsum finds damage, not
forgery: xxh3 is not a cryptographic hash.
"""

from __future__ import annotations

import operator
import sys
from array import array
from collections.abc import Iterable
from typing import ClassVar, Final, final

from xxhash import xxh3_128, xxh3_128_digest

from lancelsm.errors import Corrupt

PRIMES: Final = (4294967291, 4294967279, 4294967231, 4294967197)
_BYTES: Final = 4 * len(PRIMES)
_HEX = frozenset("0123456789abcdef")


@final
class Setsum:
    """The sum of a multiset of byte strings; immutable, and an abelian group under `+` with `Setsum.ZERO`.

    Subtracting an item that was never added is allowed: adding it later cancels it.
    """

    __slots__ = ("_digest",)
    ZERO: ClassVar[Setsum]
    _digest: bytes

    def __init__(self) -> None:
        object.__setattr__(self, "_digest", bytes(_BYTES))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Setsum is immutable: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Setsum is immutable: {name}")

    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        return Setsum.from_digest, (self._digest,)

    @classmethod
    def of(cls, items: Iterable[bytes | memoryview]) -> Setsum:
        """Return the sum of these items; duplicates count."""
        columns = _columns(b"".join([xxh3_128_digest(item) for item in items]))
        return _reduced(sum(columns[column :: len(PRIMES)]) for column in range(len(PRIMES)))

    @classmethod
    def of_item(cls, *pieces: bytes | memoryview) -> Setsum:
        """Return the sum of one item, given in pieces that are concatenated without framing."""
        return cls.of_pieces(pieces)

    @classmethod
    def of_pieces(cls, pieces: Iterable[bytes | memoryview]) -> Setsum:
        """Like `of_item`, for pieces that are not in memory at once."""
        digest = xxh3_128()
        for piece in pieces:
            digest.update(piece)
        return _reduced(_columns(digest.digest()))

    @classmethod
    def of_columns(cls, totals: Iterable[int]) -> Setsum:
        """Return the sum of items whose hashes have these totals of each 32-bit column."""
        return _reduced(totals)

    @classmethod
    def from_digest(cls, digest: bytes) -> Setsum:
        """The inverse of `digest`; raise `Corrupt` if the length is wrong or a column is not below its prime."""
        if len(digest) != _BYTES:
            raise Corrupt(f"a setsum has {_BYTES} bytes, not {len(digest)}")
        columns = _columns(digest)
        if not all(map(operator.lt, columns, PRIMES)):
            column, prime = next(pair for pair in zip(columns, PRIMES, strict=True) if pair[0] >= pair[1])
            raise Corrupt(f"setsum {digest.hex()}: column {column} is not below {prime}")
        return _from_valid_digest(bytes(digest))

    @classmethod
    def from_hex(cls, text: str) -> Setsum:
        """The inverse of `hex`; raise `Corrupt` if the text is not the 32 lower-case hex digits of a digest."""
        if len(text) != 2 * _BYTES or not _HEX.issuperset(text):
            raise Corrupt(f"a setsum has {2 * _BYTES} lower-case hex digits, not {text[:80]!r}")
        return cls.from_digest(bytes.fromhex(text))

    def digest(self) -> bytes:
        """Return 16 bytes: four little-endian columns."""
        return self._digest

    def hex(self) -> str:
        """Return 32 lower-case hex digits."""
        return self._digest.hex()

    def __add__(self, other: Setsum) -> Setsum:
        if not isinstance(other, Setsum):
            return NotImplemented
        return _reduced(map(operator.add, _columns(self._digest), _columns(other._digest)))

    def __sub__(self, other: Setsum) -> Setsum:
        if not isinstance(other, Setsum):
            return NotImplemented
        return _reduced(map(operator.sub, _columns(self._digest), _columns(other._digest)))

    def __neg__(self) -> Setsum:
        return _reduced(-column for column in _columns(self._digest))

    def __bool__(self) -> bool:
        """Return False for the sum of no items."""
        return self != Setsum.ZERO

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setsum) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return f"Setsum({self.hex()})"


def _columns(digests: bytes) -> array[int]:
    """Split one or more concatenated digests into their 32-bit columns."""
    columns = array("I", digests)
    if sys.byteorder == "big":
        columns.byteswap()
    return columns


def _reduced(columns: Iterable[int]) -> Setsum:
    reduced = array("I", map(operator.mod, columns, PRIMES))
    if sys.byteorder == "big":
        reduced.byteswap()
    return _from_valid_digest(reduced.tobytes())


def _from_valid_digest(digest: bytes) -> Setsum:
    setsum = object.__new__(Setsum)
    object.__setattr__(setsum, "_digest", digest)
    return setsum


Setsum.ZERO = Setsum()
