"""Split a table of rows by region.

This works for whole rows and for tables with only the key columns, since the key columns determine the region.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.layout import RegionValues
from lancelsm.routing import expression, transforms
from lancelsm.routing.spec import RegionField, RegionSpec
from lancelsm.routing.transforms import Transform
from lancelsm.routing.value import arrow_type, decoded, encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The rows of one region, in their original order."""

    values: RegionValues
    rows: pa.Table


def route(rows: pa.Table, spec: RegionSpec) -> list[Routed]:
    """Split rows by region. Return one element per region that has rows, in the order of their first rows.

    Args:
        rows: contains at least the source columns of the spec, with the types of the table.

    Raises:
        Invalid: a region expression fails on a row.
    """
    if rows.num_rows == 0:
        return []
    if (only := only_region(spec)) is not None:
        return [Routed(values=only, rows=rows)]
    codes, groups = _grouped([computed(field, rows) for field in spec.fields])
    names = [field.field_id for field in spec.fields]
    values = [tuple(zip(names, group, strict=True)) for group in groups]
    if len(values) == 1:
        return [Routed(values=values[0], rows=rows)]
    # A stable sort by region keeps the order within each region; each region is then a slice of one copy.
    sorted_rows = rows.take(pc.array_sort_indices(codes))
    counts = codes.value_counts().field("counts").to_pylist()
    starts = accumulate(counts, initial=0)
    return [
        Routed(values=one, rows=sorted_rows.slice(start, count))
        for one, start, count in zip(values, starts, counts, strict=False)
    ]


@cache
def only_region(spec: RegionSpec) -> RegionValues | None:
    """Return the values of the region that all rows go to; None if there may be several regions."""
    values = all_values(spec)
    return values[0] if values is not None and len(values) == 1 else None


def check_supported(spec: RegionSpec, columns: pa.Schema) -> None:
    """Check that this process can compute the region of rows with these columns.

    Raises:
        Invalid: DataFusion is not installed, or its version does not support the expression.
    """
    for field in spec.fields:
        if field.expression is not None:
            computed(field, columns.empty_table())


def all_values(spec: RegionSpec) -> list[RegionValues] | None:
    """Return the values of all possible regions if they are known in advance: for a single region and for buckets.

    Else return None: such regions are created when their values are first written.
    """
    if len(spec.fields) > 1:
        return None
    (field,) = spec.fields
    known = {Transform.UNSHARDED: 1, Transform.BUCKET: field.size, Transform.MULTI_BUCKET: field.size}
    count = known.get(field.transform) if field.transform else None
    if count is None:
        return None
    return [((field.field_id, value),) for value in encoded(pa.array(range(count), pa.int32()))]


def values_json(values: RegionValues, spec: RegionSpec) -> dict[str, bool | int | str | None]:
    """Return region values for display and JSON, by field id. Values of an earlier spec are left out: no known type."""
    types = {field.field_id: arrow_type(field.result_type) for field in spec.fields}
    return {name: decoded(value, types[name]) for name, value in values if name in types}


def computed(field: RegionField, rows: pa.Table) -> pa.Array:
    """Compute the value of one region field for each row."""
    columns = [rows.column(name).combine_chunks() for name in field.columns]
    if field.expression is not None:
        sources = list(zip(field.columns, columns, strict=True))
        return expression.evaluate(field.expression, sources, arrow_type(field.result_type))
    size = field.size or 0
    match field.transform:
        case Transform.UNSHARDED:
            return transforms.unsharded(rows.num_rows)
        case Transform.BUCKET:
            return transforms.bucket(columns[0], size)
        case Transform.MULTI_BUCKET:
            return transforms.multi_bucket(columns, size)
        case Transform.TRUNCATE:
            return transforms.truncate(columns[0], size)
        case Transform.YEAR | Transform.MONTH | Transform.DAY | Transform.HOUR:
            return transforms.calendar(field.transform, columns[0])
        case _:
            return columns[0]


def _grouped(columns: list[pa.Array]) -> tuple[pa.Array, list[tuple[bytes | None, ...]]]:
    """Return a group number per row, and the encoded values of each group. Groups are numbered by their first row."""
    first = columns[0].dictionary_encode("encode")
    codes = first.indices
    groups: list[tuple[bytes | None, ...]] = [(value,) for value in encoded(first.dictionary)]
    for column in columns[1:]:
        found = column.dictionary_encode("encode")
        values = encoded(found.dictionary)
        width = pa.scalar(len(values), pa.int64())
        pairs = pc.add(pc.multiply(codes.cast(pa.int64()), width), found.indices.cast(pa.int64())).dictionary_encode()
        codes = pairs.indices
        groups = [(*groups[pair // len(values)], values[pair % len(values)]) for pair in pairs.dictionary.to_pylist()]
    return codes, groups
