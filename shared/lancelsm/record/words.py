"""The arithmetic of `record.rowsum` on unsigned 64-bit words: with numpy if it is loaded, else with Arrow kernels.

For a few rows, lists of ints are faster than both, since each call of a kernel takes microseconds. All give the same
words. The functions that only use the log have no numpy, since it would make their start slow.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from struct import Struct
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

WORD: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15
SHORT: Final = 32
_FEW: Final = 8
_WORD_BYTES: Final = 8
_BYTES: Final = pa.large_binary()
_WORDS: Final = Struct(f"<{SHORT // _WORD_BYTES}Q")
_MULTIPLIERS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)

TEXTS: Final = frozenset((pa.binary(), pa.string(), pa.large_binary(), pa.large_string()))
LARGE: Final = frozenset((pa.large_binary(), pa.large_string()))  # with offsets of 8 bytes

Words = Any  # a first and a second word for each row: an array of numpy with two lines, two of Arrow, or two lists
Rows = Any  # numbers of rows, as an array of numpy or Arrow, or as a list; None: all rows


def mixed(word: int) -> int:
    """Apply the finaliser of splitmix64 to a word: a bijection in which each bit changes half of the others."""
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        word = ((word ^ (word >> shift)) * multiplier) & WORD
    return word ^ (word >> 31)


FACTORS: Final = tuple(
    (mixed((9 + index) * GOLDEN & WORD) | 1, mixed((17 + index) * GOLDEN & WORD) | 1)
    for index in range(SHORT // _WORD_BYTES)
)


class Arithmetic(Protocol):
    """The operations of one library."""

    def bits(self, column: pa.Array) -> Words:
        """Return each value of an array of unsigned numbers as both words; anything for null."""

    def split(self, column: pa.Array) -> tuple[Rows, Rows]:
        """Return the rows of an array of text or bytes with at most `SHORT` bytes or null, and the others."""

    def texts(self, column: pa.Array, rows: Rows) -> Words:
        """Return the words of values of at most `SHORT` bytes in an array of text or bytes; anything for null."""

    def digests(self, digests: bytes) -> Words:
        """Return the words of 16 bytes for each row."""

    def merged(self, parts: Sequence[tuple[Rows, Words]]) -> Words:
        """Return the words of all rows, from those of some rows each."""

    def seeded(self, words: Words, seeds: tuple[int, int]) -> Words:
        """Return the hashes of values."""

    def where(self, words: Words, flags: pa.BooleanArray) -> Words:
        """Return 0 instead of the words of other rows."""

    def finished(self, hashes: Iterable[Words], seeds: tuple[int, int], rows: int) -> Words:
        """Return the hashes of rows from those of their values."""

    def totals(self, words: Words, start: int = 0, end: int | None = None) -> list[int]:
        """Add up the low and the high halves of the first words, and of the second words, of at most 2**32 rows."""


def arithmetic(rows: int) -> Arithmetic:
    """Return the fastest operations for this number of rows."""
    if rows <= _FEW:
        return INTS
    return ARROW if (numpy := sys.modules.get("numpy")) is None else with_numpy(numpy)


@cache
def with_numpy(numpy: Any) -> Arithmetic:
    return _Numpy(numpy)


class _Numpy:
    """Each call takes a microsecond, so both words of all rows are in one array, which is changed in place."""

    def __init__(self, numpy: Any) -> None:
        self._numpy = numpy
        self._constant = lru_cache(maxsize=4096)(lambda words: numpy.array(words, numpy.uint64).reshape(2, 1))
        self._multipliers = [numpy.uint64(word) for word in _MULTIPLIERS]
        masks = [[(1 << 8 * min(8, max(0, size - at))) - 1 for size in range(SHORT + 1)] for at in range(0, SHORT, 8)]
        self._masks = numpy.array(masks, numpy.uint64)

    def bits(self, column: pa.Array) -> Words:
        width = column.type.bit_width // 8
        found = self._numpy.frombuffer(column.buffers()[1], f"u{width}", len(column), column.offset * width)
        return found.astype(self._numpy.uint64, copy=False)

    def split(self, column: pa.Array) -> tuple[Rows, Rows]:
        is_long = self._spans(column)[1] > SHORT
        longs = self._numpy.count_nonzero(is_long)
        if longs in (0, len(column)):
            return ([], None) if longs else (None, [])
        return self._numpy.flatnonzero(~is_long), self._numpy.flatnonzero(is_long)

    def texts(self, column: pa.Array, rows: Rows) -> Words:
        """Gather the words from where they are, without a copy of the values."""
        numpy = self._numpy
        begins, lengths = self._spans(column)
        if rows is not None:
            begins, lengths = begins[rows], lengths[rows]
        data = column.buffers()[2]
        if data is None or data.size < _WORD_BYTES:
            data = bytes(data or b"").ljust(_WORD_BYTES, b"\0")
        last = len(data) - _WORD_BYTES
        every = numpy.ndarray((last + 1,), "<u8", buffer=data, strides=(1,))  # the word that begins at each byte
        words = lengths.astype(numpy.uint64)
        for index in range(-(-int(lengths.max()) // _WORD_BYTES)):  # words of zeros add nothing
            found = numpy.minimum(begins, last)
            shifts = (begins - found).astype(numpy.uint64) * numpy.uint64(8)  # what it shifts out is behind the value
            word = (every[found] >> shifts) & self._masks[index][lengths]
            words = words + self._mix(word * self._constant(FACTORS[index]))
            begins = begins + _WORD_BYTES
        return words

    def _spans(self, column: pa.Array) -> tuple[Any, Any]:
        """Return where each value begins, and its length; 0 for null."""
        width = 8 if column.type in LARGE else 4
        ends = self._numpy.frombuffer(column.buffers()[1], f"i{width}", len(column) + 1, column.offset * width)
        ends = ends.astype(self._numpy.int64, copy=False)
        lengths = ends[1:] - ends[:-1]
        if column.null_count:
            lengths *= column.is_valid().to_numpy(zero_copy_only=False)
        return ends[:-1], lengths

    def digests(self, digests: bytes) -> Words:
        return self._numpy.frombuffer(digests, self._numpy.uint64).reshape(-1, 2).T

    def merged(self, parts: Sequence[tuple[Rows, Words]]) -> Words:
        words = self._numpy.empty((2, sum(len(rows) for rows, _ in parts)), self._numpy.uint64)
        for rows, some in parts:
            words[:, rows] = some
        return words

    def seeded(self, words: Words, seeds: tuple[int, int]) -> Words:
        words = words ^ self._constant(seeds)
        words[1] *= self._numpy.uint64(GOLDEN)
        words[1] += self._numpy.uint64(1)
        return self._mix(words)

    def where(self, words: Words, flags: pa.BooleanArray) -> Words:
        return words * self.bits(flags.cast(pa.uint8()))

    def finished(self, hashes: Iterable[Words], seeds: tuple[int, int], rows: int) -> Words:
        sums = self._numpy.repeat(self._constant(seeds), rows, axis=1)
        for words in hashes:
            sums += words
        sums[1] ^= sums[0] << self._numpy.uint64(1)
        return self._mix(sums)

    def totals(self, words: Words, start: int = 0, end: int | None = None) -> list[int]:
        some = words[:, start:end]
        low, high = some & self._numpy.uint64(0xFFFFFFFF), some >> self._numpy.uint64(32)
        return [int(total) for pair in zip(low.sum(axis=1), high.sum(axis=1), strict=True) for total in pair]

    def _mix(self, words: Words) -> Words:
        for shift, multiplier in zip((30, 27), self._multipliers, strict=True):
            words ^= words >> self._numpy.uint64(shift)
            words *= multiplier
        words ^= words >> self._numpy.uint64(31)
        return words


class _Ints:
    def bits(self, column: pa.Array) -> Words:
        words = [word or 0 for word in column.to_pylist()]
        return words, words

    def split(self, column: pa.Array) -> tuple[Rows, Rows]:
        longs = [row for row, value in enumerate(column) if value.is_valid and value.as_buffer().size > SHORT]
        if len(longs) in (0, len(column)):
            return ([], None) if longs else (None, [])
        return [row for row in range(len(column)) if row not in longs], longs

    def texts(self, column: pa.Array, rows: Rows) -> Words:
        values = [bytes(column[row].as_buffer() or b"") for row in (range(len(column)) if rows is None else rows)]
        padded = [_WORDS.unpack(value.ljust(SHORT, b"\0")) for value in values]
        return [
            [
                len(value) + sum(mixed(word * by[lane] & WORD) for word, by in zip(words, FACTORS, strict=True) if word)
                for value, words in zip(values, padded, strict=True)
            ]
            for lane in (0, 1)
        ]

    def digests(self, digests: bytes) -> Words:
        words = memoryview(digests).cast("Q").tolist()
        return words[::2], words[1::2]

    def merged(self, parts: Sequence[tuple[Rows, Words]]) -> Words:
        order = [row for rows, _ in parts for row in rows]
        lanes = ([word for _, words in parts for word in words[lane]] for lane in (0, 1))
        return [[word for _, word in sorted(zip(order, lane, strict=True))] for lane in lanes]

    def seeded(self, words: Words, seeds: tuple[int, int]) -> Words:
        first, second = seeds
        return [mixed((word & WORD) ^ first) for word in words[0]], [
            mixed((((word & WORD) ^ second) * GOLDEN + 1) & WORD) for word in words[1]
        ]

    def where(self, words: Words, flags: pa.BooleanArray) -> Words:
        chosen = flags.to_pylist()
        return [[word * flag for word, flag in zip(lane, chosen, strict=True)] for lane in words]

    def finished(self, hashes: Iterable[Words], seeds: tuple[int, int], rows: int) -> Words:
        sums = [[seed] * rows for seed in seeds]
        for words in hashes:
            sums = [list(map(operator.add, *lanes)) for lanes in zip(sums, words, strict=True)]
        first, second = sums
        return [mixed(one & WORD) for one in first], [
            mixed((two ^ 2 * one) & WORD) for one, two in zip(first, second, strict=True)
        ]

    def totals(self, words: Words, start: int = 0, end: int | None = None) -> list[int]:
        some = [lane[start:end] for lane in words]
        return [
            sum(half) for lane in some for half in ([word & 0xFFFFFFFF for word in lane], [word >> 32 for word in lane])
        ]


class _Arrow:
    def bits(self, column: pa.Array) -> Words:
        words = column.cast(pa.uint64())
        words = pa.Array.from_buffers(pa.uint64(), len(words), [None, words.buffers()[1]], offset=words.offset)
        return words, words

    def split(self, column: pa.Array) -> tuple[Rows, Rows]:
        is_long = pc.greater(pc.binary_length(column).fill_null(0), SHORT)
        if is_long.true_count in (0, len(column)):
            return ([], None) if is_long.true_count else (None, [])
        return pc.indices_nonzero(pc.invert(is_long)), pc.indices_nonzero(is_long)

    def texts(self, column: pa.Array, rows: Rows) -> Words:
        values = (column if rows is None else column.take(rows)).cast(_BYTES).fill_null(b"")
        lengths = pc.binary_length(values)
        count = -(-pc.max(lengths).as_py() // _WORD_BYTES)  # words of zeros add nothing
        sums = self.bits(lengths)
        if count:
            zeros = pa.scalar(bytes(_WORD_BYTES * count), _BYTES)
            joined = pc.binary_join_element_wise(values, zeros, pa.scalar(b"", _BYTES))
            padded = pc.binary_slice(joined, 0, _WORD_BYTES * count)
            for word, factors in zip(_columns(padded.buffers()[2], count, len(values)), FACTORS, strict=False):
                mixed_words = _mixed_both(*(pc.multiply(word, _constant(factor)) for factor in factors))
                sums = tuple(map(pc.add, sums, mixed_words))
        return sums

    def digests(self, digests: bytes) -> Words:
        return _columns(pa.py_buffer(digests), 2, len(digests) // (2 * _WORD_BYTES))

    def merged(self, parts: Sequence[tuple[Rows, Words]]) -> Words:
        order = pc.array_sort_indices(pa.concat_arrays([rows for rows, _ in parts]))
        return [pa.concat_arrays(some).take(order) for some in zip(*(words for _, words in parts), strict=True)]

    def seeded(self, words: Words, seeds: tuple[int, int]) -> Words:
        first, second = (pc.bit_wise_xor(word, _constant(seed)) for word, seed in zip(words, seeds, strict=True))
        return _mixed_both(first, pc.add(pc.multiply(second, _constant(GOLDEN)), _constant(1)))

    def where(self, words: Words, flags: pa.BooleanArray) -> Words:
        return tuple(map(pc.multiply, words, self.bits(flags)))

    def finished(self, hashes: Iterable[Words], seeds: tuple[int, int], rows: int) -> Words:
        sums = [pa.repeat(_constant(seed), rows) for seed in seeds]
        for words in hashes:
            sums = list(map(pc.add, sums, words))
        first, second = sums
        return _mixed_both(first, pc.bit_wise_xor(second, pc.multiply(first, _constant(2))))

    def totals(self, words: Words, start: int = 0, end: int | None = None) -> list[int]:
        some = [word[start:end] for word in words]
        halves = [(pc.bit_wise_and(word, _constant(0xFFFFFFFF)), pc.shift_right(word, _constant(32))) for word in some]
        return [pc.sum(half, min_count=0).as_py() for pair in halves for half in pair]


@lru_cache(maxsize=4096)
def _constant(word: int) -> pa.UInt64Scalar:
    return pa.scalar(word, pa.uint64())


def _columns(words: pa.Buffer, columns: int, rows: int) -> list[pa.UInt64Array]:
    """Return the columns of words that are stored row after row."""
    lists = pa.FixedSizeListArray.from_arrays(
        pa.Array.from_buffers(pa.uint64(), columns * rows, [None, words]), columns
    )
    return [pc.list_element(lists, column) for column in range(columns)]


def _mixed_both(first: pa.UInt64Array, second: pa.UInt64Array) -> Words:
    words = pa.concat_arrays([first, second])
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        words = pc.bit_wise_xor(words, pc.shift_right(words, _constant(shift)))
        words = pc.multiply(words, _constant(multiplier))
    words = pc.bit_wise_xor(words, pc.shift_right(words, _constant(31)))
    return words.slice(0, len(first)), words.slice(len(first))


INTS: Final[Arithmetic] = _Ints()
ARROW: Final[Arithmetic] = _Arrow()
