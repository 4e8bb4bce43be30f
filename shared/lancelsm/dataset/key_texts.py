"""Hash and compare texts and bytes of a key column, eight bytes at a time, where they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_Integers = npt.NDArray[np.signedinteger[Any]]
_Flags = npt.NDArray[np.bool_]
_Words = npt.NDArray[np.uint64]

_WORD = 8
_LOOKED_AT = 256  # longer values with the same beginning and length have the same hash
_ALL = np.uint64((1 << 64) - 1)
_SPREAD, _LENGTH_SPREAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


class Texts:
    """Values of a column of texts or bytes without nulls.

    Args:
        body: at least eight bytes.
        starts, ends: of each value in the body.
        adjoin: each value begins where the one before it ends.
    """

    def __init__(
        self, values: pa.Array, body: npt.NDArray[np.uint8], *, starts: _Integers, ends: _Integers, adjoin: bool
    ) -> None:
        self._values, self._body, self._adjoin = values, body, adjoin
        self._starts, self._ends = starts, ends
        lengths = self._lengths
        self._shortest, self._longest = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)

    @classmethod
    def of(cls, values: pa.Array) -> Self:
        """Take the values as they are in memory."""
        _, bounds, body = values.buffers()
        kind: type[np.signedinteger[Any]] = np.int32
        if pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type):
            kind = np.int64
        ends: _Integers = np.zeros(1, kind)
        if len(values):
            ends = np.frombuffer(bounds, kind)[values.offset :][: len(values) + 1]
        if body is None or body.size < _WORD:
            body = bytes(body or b"").ljust(_WORD, b"\0")
        return cls(values, np.frombuffer(body, np.uint8), starts=ends[:-1], ends=ends[1:], adjoin=True)

    @property
    def nbytes(self) -> int:
        return int(self._values.nbytes)

    def __len__(self) -> int:
        return len(self._starts)

    def hashes(self) -> _Words:
        """Hash the length and the beginning of each value."""
        hashes = self._lengths.astype(np.uint64) * _LENGTH_SPREAD
        for rows, words in self._words():
            mixed = hashes if rows is None else hashes[rows]
            mixed ^= words
            mixed *= _SPREAD
            mixed ^= mixed >> np.uint64(32)
            if rows is not None:
                hashes[rows] = mixed
        return hashes

    def equal(self, at: _Integers, others: Texts, rows: _Integers) -> _Flags:
        """Compare the values at these indexes with these rows of others."""
        mine, theirs = self._taken(at), others._taken(rows)
        lengths = mine._lengths
        same: _Flags = lengths == theirs._lengths
        if not same.all():
            some = np.flatnonzero(same)
            same[some] = self.equal(at[some], others, rows[some])
            return same
        for (some_rows, words), (_, other_words) in zip(mine._words(), theirs._words(), strict=True):
            same[slice(None) if some_rows is None else some_rows] &= words == other_words
        if mine._longest > _LOOKED_AT:
            long = np.flatnonzero(lengths > _LOOKED_AT)
            ours, other = self._values.take(pa.array(at[long])), others._values.take(pa.array(rows[long]))
            same[long] = pc.equal(ours.cast(pa.large_binary()), other.cast(pa.large_binary()))
        return same

    def _taken(self, rows: _Integers) -> Texts:
        return Texts(self._values, self._body, starts=self._starts[rows], ends=self._ends[rows], adjoin=False)

    @property
    def _lengths(self) -> _Integers:
        return self._ends - self._starts

    def _words(self) -> Iterator[tuple[_Integers | None, _Words]]:
        """Yield the words of the beginning of each value, and in which rows they are; None for all."""
        for begin in range(0, min(self._longest, _LOOKED_AT), _WORD):
            if begin < self._shortest:
                yield None, self._words_at(begin)
            else:
                rows = np.flatnonzero(self._lengths > begin)
                yield rows, self._taken(rows)._words_at(begin)

    def _words_at(self, begin: int) -> _Words:
        """Return eight bytes of each value, from a byte that each has; the last eight if fewer follow.

        A value of less than eight bytes ends with zeros.
        """
        if self._adjoin and self._shortest == self._longest >= _WORD:
            first = int(self._starts[0]) + min(begin, self._shortest - _WORD)
            return np.ndarray((len(self),), "<u8", self._body.data, first, (self._shortest,))
        every: _Words = np.ndarray((len(self._body) - _WORD + 1,), "<u8", self._body.data, strides=(1,))
        begins = np.minimum(self._lengths - _WORD, begin) + self._starts.astype(np.int64, copy=False)
        if self._shortest >= _WORD:
            words: _Words = every[begins]
            return words
        np.maximum(begins, self._starts, out=begins)
        places = np.minimum(begins, len(every) - 1)
        before = (begins - places).astype(np.uint64)
        used = np.minimum(self._lengths, _WORD).astype(np.uint64)
        words = every[places] >> (before * np.uint64(8))
        words &= _ALL >> (np.uint64(64) - used * np.uint64(8))
        return words
