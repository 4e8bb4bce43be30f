"""Arithmetic on columns of unsigned 64-bit words: with numpy if it is loaded, else with Arrow kernels.

For a few rows, lists of ints are faster than both, since each call of a kernel takes microseconds. All give the same
words, modulo 2**64. The functions that only use the log have no numpy, since it would make their start slow.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

Words = Any  # a numpy array of uint64, a pyarrow.UInt64Array without nulls, or a list of ints

WORD: Final = (1 << 64) - 1
_BYTES: Final = pa.large_binary()
_WORD_BYTES: Final = 8
_FEW: Final = 8
_MULTIPLIERS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """The operations of one library. The second operand is a column or a `constant`.

    `load` takes a uint64 array without nulls. `texts` takes large binaries and a number of words: it returns one column
    for each word, with zeros after the end of a value, and anything for null. `transposed` takes the words of all rows,
    row after row, and their number per row; it returns the columns. `gathered` returns the words at these indexes of
    two concatenated columns. `total` adds up a column whose sum is below 2**64.
    """

    load: Callable[[pa.UInt64Array], Words]
    texts: Callable[[pa.LargeBinaryArray, int], list[Words]]
    transposed: Callable[[pa.UInt64Array, int], list[Words]]
    gathered: Callable[[Words, Words, pa.Array], Words]
    constant: Callable[[int], Any]
    add: Callable[[Words, Any], Words]
    multiply: Callable[[Words, Any], Words]
    xor: Callable[[Words, Any], Words]
    both: Callable[[Words, Any], Words]
    shift_right: Callable[[Words, Any], Words]
    total: Callable[[Words], int]

    def mix(self, words: Words) -> Words:
        """Apply the finaliser of splitmix64 to each word: a bijection in which each bit changes half of the others."""
        if isinstance(words, list):
            return [mixed(word) for word in words]
        for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
            words = self.xor(words, self.shift_right(words, self.constant(shift)))
            words = self.multiply(words, self.constant(multiplier))
        return self.xor(words, self.shift_right(words, self.constant(31)))


def mixed(word: int) -> int:
    """Return `Arithmetic.mix` of one word."""
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        word = ((word ^ (word >> shift)) * multiplier) & WORD
    return word ^ (word >> 31)


def arithmetic(rows: int) -> Arithmetic:
    """Return the fastest operations for columns of this length."""
    if rows <= _FEW:
        return INTS
    return ARROW if (numpy := sys.modules.get("numpy")) is None else with_numpy(numpy)


@cache
def with_numpy(numpy: Any) -> Arithmetic:
    return Arithmetic(
        load=lambda words: words.to_numpy(),
        texts=lambda values, words: _numpy_texts(numpy, values, words),
        transposed=lambda words, columns: list(words.to_numpy().reshape(-1, columns).T),
        gathered=lambda one, two, indexes: numpy.concatenate((one, two))[indexes.to_numpy()],
        constant=lru_cache(maxsize=4096)(numpy.uint64),
        add=numpy.add,
        multiply=numpy.multiply,
        xor=numpy.bitwise_xor,
        both=numpy.bitwise_and,
        shift_right=numpy.right_shift,
        total=lambda words: int(words.sum()),
    )


def _numpy_texts(numpy: Any, values: pa.LargeBinaryArray, words: int) -> list[Words]:
    """Gather the words from where they are, without a copy of the values."""
    _, ends, data = values.buffers()
    ends = numpy.frombuffer(ends, numpy.int64)[values.offset : values.offset + len(values) + 1]
    if data is None or data.size < _WORD_BYTES:
        data = bytes(data or b"").ljust(_WORD_BYTES, b"\0")
    last = len(data) - _WORD_BYTES
    every = numpy.ndarray((last + 1,), "<u8", buffer=data, strides=(1,))  # the word that begins at each byte
    masks = numpy.array([(1 << 8 * size) - 1 for size in range(_WORD_BYTES + 1)], numpy.uint64)
    columns = []
    for word in range(words):
        begins = ends[:-1] + _WORD_BYTES * word
        found = numpy.minimum(begins, last)
        shifts = numpy.clip(8 * (begins - found), 0, 63).astype(numpy.uint64)  # what it shifts out is behind the value
        columns.append((every[found] >> shifts) & masks[numpy.clip(ends[1:] - begins, 0, _WORD_BYTES)])
    return columns


def _padded(values: pa.LargeBinaryArray, words: int) -> pa.UInt64Array:
    zeros = pa.scalar(bytes(_WORD_BYTES * words), _BYTES)
    joined = pc.binary_join_element_wise(values.fill_null(b""), zeros, pa.scalar(b"", _BYTES))
    padded = pc.binary_slice(joined, 0, _WORD_BYTES * words)
    return pa.Array.from_buffers(pa.uint64(), len(values) * words, [None, padded.buffers()[2]])


def _of_ints(act: Callable[[int, int], int]) -> Callable[[Words, Any], Words]:
    return lambda one, two: [act(a, b) & WORD for a, b in zip(one, two, strict=False)]  # `two` may be endless


def _int_columns(words: pa.UInt64Array, columns: int) -> list[Words]:
    return [words.to_pylist()[column::columns] for column in range(columns)]


INTS: Final = Arithmetic(
    load=lambda words: words.to_pylist(),
    texts=lambda values, words: _int_columns(_padded(values, words), words),
    transposed=_int_columns,
    gathered=lambda one, two, indexes: [(one + two)[index] for index in indexes.to_pylist()],
    constant=repeat,
    add=_of_ints(operator.add),
    multiply=_of_ints(operator.mul),
    xor=_of_ints(operator.xor),
    both=_of_ints(operator.and_),
    shift_right=_of_ints(operator.rshift),
    total=sum,
)


def _arrow_columns(words: pa.UInt64Array, columns: int) -> list[Words]:
    rows = pa.FixedSizeListArray.from_arrays(words, columns)
    return [pc.list_element(rows, column) for column in range(columns)]


ARROW: Final = Arithmetic(
    load=lambda words: words,
    texts=lambda values, words: _arrow_columns(_padded(values, words), words),
    transposed=_arrow_columns,
    gathered=lambda one, two, indexes: pa.concat_arrays([one, two]).take(indexes),
    constant=lambda word: pa.scalar(word, pa.uint64()),
    add=pc.add,
    multiply=pc.multiply,
    xor=pc.bit_wise_xor,
    both=pc.bit_wise_and,
    shift_right=pc.shift_right,
    total=lambda words: pc.sum(words, min_count=0).as_py(),
)
