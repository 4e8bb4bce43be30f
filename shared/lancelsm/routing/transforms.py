"""The transforms of a region spec: pure functions from key columns to one region value per row.

They follow the table in lance-memwal, "Region Transform", which defines them by DataFusion expressions. `bucket` and
`multi_bucket` follow Lance's own code where it differs from the specification (null goes to bucket 0; the sign bit is
cleared instead of `abs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from lancelsm.errors import Invalid
from lancelsm.routing.murmur import hashed


class Transform(StrEnum):
    """The names of transforms, as in Lance's region specs."""

    UNSHARDED = "unsharded"
    IDENTITY = "identity"
    BUCKET = "bucket"
    MULTI_BUCKET = "multi_bucket"
    TRUNCATE = "truncate"
    YEAR = "year"
    MONTH = "month"
    DAY = "day"
    HOUR = "hour"


_PARTS = {Transform.YEAR: pc.year, Transform.MONTH: pc.month, Transform.DAY: pc.day, Transform.HOUR: pc.hour}


def unsharded(rows: int) -> pa.Array:
    """Return the region value of a table with a single region: int32 0 in every row."""
    return pa.repeat(pa.scalar(0, pa.int32()), rows)


def bucket(column: pa.Array, buckets: int) -> pa.Array:
    """Return the bucket of each value as int32 in [0, buckets); null goes to bucket 0."""
    return _modulo(hashed(column), buckets).fill_null(0)


def multi_bucket(columns: Sequence[pa.Array], buckets: int) -> pa.Array:
    """Return the bucket over several columns as int32 in [0, buckets). Nulls are skipped; only nulls give null.

    Each column is hashed with the result of the previous column as its seed, in this order.
    """
    total: pa.Array | None = None
    for column in columns:
        seed = None if total is None else total.fill_null(0)
        found = hashed(column, seed=seed)
        total = found if total is None else pc.coalesce(found, total)
    if total is None:
        raise Invalid("multi_bucket needs a column", remedy="Write for example multi_bucket(a, b, 8)")
    return _modulo(total, buckets)


def truncate(column: pa.Array, width: int) -> pa.Array:
    """Round a number towards zero to a multiple of `width`; cut text to `width` characters and binary to bytes.

    The type stays the same. With a width of 10 both 7 and -7 give 0, as `col0 - (col0 % W)` does in DataFusion.
    """
    kind = column.type
    if pt.is_integer(kind):
        # 64 bits, since every width fits there.
        wide = pa.uint64() if pt.is_uint64(kind) else pa.int64()
        step = pa.scalar(width, wide)
        return pc.multiply(pc.divide(column.cast(wide), step), step).cast(kind)
    width = min(width, (1 << 31) - 1)
    if pt.is_string(kind) or pt.is_large_string(kind):
        return pc.utf8_slice_codeunits(column, 0, width)
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return pc.binary_slice(column, 0, width)
    raise Invalid(
        f"truncate supports integers, text and binary, not {kind}",
        remedy="Choose another column of the key, or identity(column)",
    )


def calendar(part: Transform, column: pa.Array) -> pa.Array:
    """Return the year, the month (from 1), the day of the month or the hour, as int32.

    Timestamps with a time zone are read in that zone. The hour of a date is 0.
    """
    kind = column.type
    if part == Transform.HOUR and pt.is_date32(kind):
        column = column.cast(pa.timestamp("s"))
    elif not (pt.is_date32(kind) or pt.is_timestamp(kind)):
        raise Invalid(
            f"{part} supports dates and timestamps, not {kind}",
            remedy="Choose another column of the key, or identity(column)",
        )
    try:
        return _PARTS[part](column).cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise Invalid(
            f"no calendar for {kind}: {error}", remedy="Install the time zone database, or use a zone that it contains"
        ) from error


def _modulo(hashes: pa.Array, buckets: int) -> pa.Array:
    positive = pc.bit_wise_and(hashes, pa.scalar(0x7FFFFFFF, pa.uint32())).cast(pa.int32())
    count = pa.scalar(buckets, pa.int32())
    return pc.subtract(positive, pc.multiply(pc.divide(positive, count), count))
