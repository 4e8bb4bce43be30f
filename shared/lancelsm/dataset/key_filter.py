"""The key filter of a generation excludes keys that the generation lacks. Less than 1 % of absent keys pass it.

Lance's own filter has a fixed size (`dataset.bloom`), so it lets most keys through once a generation has 100,000 rows.
The key filter grows with the rows, 12 bits a key, and is read by pages, so the lookup of one key reads one page.

It is a split-block filter with Parquet's salts: blocks of eight 32-bit words. The high half of a key's hash chooses the
block, the low half one bit in each word. The hash is that of the key columns in `record.rowsum`. A page is at most 128
blocks, and then the xxh3_128 of the name of the generation, the number of the page, and its blocks. So a page that is
damaged, or belongs elsewhere, is `Corrupt`; it could say that an existing key is absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import pack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.file import LanceFileSession
from xxhash import xxh3_128_digest

from lancelsm.common.bounded_cache import NOTHING_KEPT, BoundedCache
from lancelsm.common.layout import KEY_FILTER
from lancelsm.common.read_trace import NO_TRACE, Trace
from lancelsm.dataset.bloom import bit_positions
from lancelsm.errors import Corrupt
from lancelsm.record.rowsum import row_hashes

_BITS_PER_KEY = 12
_BLOCK = 32  # bytes
_PAGE_BLOCKS = 128
_DIGEST = 16
_PAGE = _PAGE_BLOCKS * _BLOCK + _DIGEST


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """The content of a filter over `blocks` blocks."""

    body: bytes
    blocks: int


def build_key_filter(keys: pa.Table, *, name: str) -> KeyFilter:
    """Build the filter over these keys.

    Args:
        keys: the key columns in key order, with field ids, without nulls; at least one row.
        name: the name of the directory of the generation.
    """
    blocks = max(1, -(-keys.num_rows * _BITS_PER_KEY // (8 * _BLOCK)))
    bits = np.zeros(blocks * _BLOCK * 8, np.bool_)
    for hashes in row_hashes(keys):
        bits[bit_positions(hashes, blocks)] = True
    body = np.packbits(bits, bitorder="little").tobytes()
    size = _PAGE_BLOCKS * _BLOCK
    pages = [body[at : at + size] for at in range(0, len(body), size)]
    return KeyFilter(b"".join(page + _digest(page, number, name) for number, page in enumerate(pages)), blocks)


def may_have(
    files: LanceFileSession,
    keys: pa.Table,
    *,
    blocks: int,
    uri: str,
    kept: BoundedCache = NOTHING_KEPT,
    trace: Trace = NO_TRACE,
) -> npt.NDArray[np.bool_]:
    """Return one flag per key: False means that the generation certainly does not have the key.

    Makes at most one request, for the pages from the first to the last one that the keys need and that are not kept.

    Args:
        files: of the generation.
        keys: see `build_key_filter`; at least one row.
        blocks: number of blocks of the filter.
        uri: of the generation.
        kept: keeps pages; a generation never changes, and its URI is used once.

    Raises:
        Corrupt: a page is not the one that was flushed.
        OSError: the filter can't be read.
    """
    positions = np.concatenate([bit_positions(hashes, blocks) for hashes in row_hashes(keys)])
    needed = np.unique(positions[:, 0] // (8 * _BLOCK * _PAGE_BLOCKS)).tolist()
    pages = {number: page for number in needed if (page := kept.get(("key filter", uri, number))) is not None}
    try:
        pages |= _read(files, [number for number in needed if number not in pages], blocks, uri, trace)
    except OSError as cause:
        if "not found" in str(cause).lower():  # deleted: reads use the key index for every key
            return np.ones(keys.num_rows, np.bool_)
        raise
    first = needed[0]
    bits = np.zeros((needed[-1] + 1 - first) * _PAGE_BLOCKS * _BLOCK * 8, np.bool_)
    for number, page in pages.items():
        kept.put(("key filter", uri, number), page, size=len(page))
        from_bit = (number - first) * _PAGE_BLOCKS * _BLOCK * 8
        page_bits = np.unpackbits(np.frombuffer(page, np.uint8), bitorder="little")
        bits[from_bit : from_bit + len(page_bits)] = page_bits
    found: npt.NDArray[np.bool_] = bits[positions - first * _PAGE_BLOCKS * _BLOCK * 8].all(axis=1)
    return found


def _read(files: LanceFileSession, numbers: list[int], blocks: int, uri: str, trace: Trace) -> dict[int, bytes]:
    """Read and check these pages, in ascending order, by one request."""
    if not numbers:
        return {}
    size = blocks * _BLOCK + -(-blocks // _PAGE_BLOCKS) * _DIGEST
    start, end = numbers[0] * _PAGE, min((numbers[-1] + 1) * _PAGE, size)
    trace.request("key_filter.read", end - start)
    body = bytes(files.read_range(KEY_FILTER, start, end - start))
    pages = {}
    for number in numbers:
        at = number * _PAGE - start
        page, digest = body[at : at + _PAGE][:-_DIGEST], body[at : at + _PAGE][-_DIGEST:]
        if _digest(page, number, uri.rpartition("/")[2]) != digest:  # guard: page of a key filter is as flushed
            raise Corrupt(
                f"page {number} of the key filter of a generation is not the one that was flushed",
                remedy="Delete the filter: without it reads use the key index for every key",
                object=f"{uri}/{KEY_FILTER}",
            )
        pages[number] = page
    return pages


def _digest(page: bytes, number: int, name: str) -> bytes:
    return xxh3_128_digest(name.encode() + pack("<xQ", number) + page)
