"""Split a table of rows by region.

The same for whole rows and for tables of keys alone: a region follows from the key columns.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """The rows of one region, in the order in which they came."""

    values: RegionValues
    rows: pa.Table


def route(rows: pa.Table, spec: RegionSpec) -> list[Routed]:
    """The rows by region: one element per region that has any, in the order of first rows.

    Args:
        rows: at least the spec's source columns, cast to the table's types.

    Raises:
        Invalid: a region expression fails on a row.
    """
    if rows.num_rows == 0:
        return []
    codes, groups = _grouped([_computed(field, rows) for field in spec.fields])
    names = [field.field_id for field in spec.fields]
    values = [tuple(zip(names, group, strict=True)) for group in groups]
    if len(values) == 1:
        return [Routed(values=values[0], rows=rows)]
    # A stable sort by region keeps the order within each; every region is then a slice of one copy.
    sorted_rows = rows.take(pc.array_sort_indices(codes))
    counts = codes.value_counts().field("counts").to_pylist()
    starts = accumulate(counts, initial=0)
    return [
        Routed(values=one, rows=sorted_rows.slice(start, count))
        for one, start, count in zip(values, starts, counts, strict=False)
    ]


def ready(spec: RegionSpec, columns: pa.Schema) -> None:
    """Whether this process can tell the region of rows with these columns at all.

    Raises:
        Invalid: DataFusion is not installed, or its release doesn't know the expression.
    """
    for field in spec.fields:
        if field.expression is not None:
            _computed(field, columns.empty_table())


def all_values(spec: RegionSpec) -> list[RegionValues] | None:
    """The values of every region that a table can have, if they are known before its rows: of a single region, or of N
    buckets. Else None: such regions are created when their values are first seen."""
    if len(spec.fields) > 1:
        return None
    (field,) = spec.fields
    known = {Transform.UNSHARDED: 1, Transform.BUCKET: field.size, Transform.MULTI_BUCKET: field.size}
    count = known.get(field.transform) if field.transform else None
    if count is None:
        return None
    return [((field.field_id, value),) for value in encoded(pa.array(range(count), pa.int32()))]


def values_json(values: RegionValues, spec: RegionSpec) -> dict[str, bool | int | str | None]:
    """Region values for people and JSON, by field id, without those of an earlier spec, whose type isn't known."""
    types = {field.field_id: arrow_type(field.result_type) for field in spec.fields}
    return {name: decoded(value, types[name]) for name, value in values if name in types}


def _computed(field: RegionField, rows: pa.Table) -> pa.Array:
    """One region value per row."""
    columns = [rows.column(name).combine_chunks() for name in field.columns]
    if field.expression is not None:
        sources = list(zip(field.columns, columns, strict=True))
        return expression.evaluated(field.expression, sources, arrow_type(field.result_type))
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
    """A number per row, and the encoded values that each number stands for; numbers count up by first row."""
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
