"""Check which rows of a message fit their table and region now.

The sender checked them against an older configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.layout import RegionValues
from lancelsm.errors import Invalid
from lancelsm.record.schema import TOMBSTONE, TableSchema, check_known, conform
from lancelsm.record.schema_history import FIELD_ID, version_of
from lancelsm.region.handle import WriteTarget
from lancelsm.routing.route import check_supported, route


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRows:
    """Rows that don't fit, unchanged, and what is wrong with the first of them."""

    rows: pa.Table
    error: Invalid


def partition_valid(
    rows: pa.Table, *, target: WriteTarget, values: RegionValues
) -> tuple[pa.Table, RejectedRows | None]:
    """Split rows into those that fit, in the table's stored form, and those that don't. Both keep their order.

    Args:
        rows: in stored form of the current or an earlier schema of the table.
        values: the values of the region that they should belong to.

    Raises:
        Invalid: routing does not work here at all, whatever the row; the rows are not the cause.
        NewerSchema: the rows have newer columns than the target.
    """
    check_supported(target.regions, target.schema.stored)
    valid: list[pa.Table] = []
    rejected: list[tuple[pa.Table, Invalid]] = []

    def bisect(some: pa.Table) -> None:
        try:
            valid.append(_validated(some, target, values))
        except Invalid as error:
            if some.num_rows <= 1:
                rejected.append((some, error))
                return
            half = some.num_rows // 2
            bisect(some.slice(0, half))
            bisect(some.slice(half))

    try:
        return _validated(rows, target, values), None
    except Invalid:  # find out which rows are wrong
        pass
    try:
        _conform(rows.slice(0, 0), target.schema)
    except Invalid as error:
        return target.schema.stored.empty_table(), RejectedRows(rows=rows, error=error)
    bisect(rows)
    return (
        pa.concat_tables(valid) if valid else target.schema.stored.empty_table(),
        RejectedRows(rows=pa.concat_tables([some for some, _ in rejected]), error=rejected[0][1]) if rejected else None,
    )


def _validated(rows: pa.Table, target: WriteTarget, values: RegionValues) -> pa.Table:
    """Return all rows in the table's stored form. Raises `Invalid` if any row does not fit."""
    found = _conform(rows, target.schema)
    for routed in route(found, target.regions):
        if routed.values != values:
            raise Invalid("the row belongs to another region", table=target.context.uri)
    return found


def _conform(rows: pa.Table, schema: TableSchema) -> pa.Table:
    ids = {field.metadata[FIELD_ID] for field in schema.columns}
    ids |= {str(number).encode() for number in schema.history.ids}  # of columns that were dropped or widened since
    check_known(schema, version_of(rows.schema))
    for field in rows.schema:
        if field.name != TOMBSTONE and (field.metadata or {}).get(FIELD_ID) not in ids:
            raise Invalid(f"{field.name!r} is not a column of the table", field=field.name)
    try:
        found = conform(rows, schema)
        found.validate(full=True)
    except pa.ArrowException as error:
        reason = str(error).partition("\n")[0]
        raise Invalid(f"the row does not fit the table: {reason:.200}") from error
    for field in schema.columns:
        column, is_key = found.column(field.name), field.name in schema.primary_key
        if column.null_count == 0 or (field.nullable and not is_key):
            continue
        if is_key or pc.any(pc.and_not(column.is_null(), found.column(TOMBSTONE))).as_py():
            raise Invalid(f"column {field.name!r} is null", field=field.name)
    if found.column(TOMBSTONE).null_count:
        raise Invalid(f"column {TOMBSTONE!r} is null", field=TOMBSTONE)
    return found
