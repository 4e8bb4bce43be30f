"""Which rows of a message fit their table and region today. The sender checked them, but by its configuration."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.layout import RegionValues
from lancelsm.errors import Invalid
from lancelsm.record.schema import FIELD_ID, TOMBSTONE, TableSchema, conform
from lancelsm.region.handle import WriteTarget
from lancelsm.routing.route import ready, route


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRows:
    """Rows, as they came, that don't fit, and what is wrong with the first."""

    rows: pa.Table
    error: Invalid


def partition_valid(
    rows: pa.Table, *, target: WriteTarget, values: RegionValues
) -> tuple[pa.Table, RejectedRows | None]:
    """Part rows into those that fit, in the form of the table's stored schema, and those that don't. Both keep order.

    Args:
        rows: in some stored form, of this or an earlier schema of the table.
        values: of the region that they are said to belong to.

    Raises:
        Invalid: no row's region can be told here, whatever the row: that is not the rows' fault.
    """
    ready(target.regions, target.schema.stored)
    fitting: list[pa.Table] = []
    rejected: list[tuple[pa.Table, Invalid]] = []

    def sift(some: pa.Table) -> None:
        try:
            fitting.append(_fitting(some, target, values))
        except Invalid as error:
            if some.num_rows <= 1:
                rejected.append((some, error))
                return
            half = some.num_rows // 2
            sift(some.slice(0, half))
            sift(some.slice(half))

    try:
        _conforming(rows.slice(0, 0), target.schema)
    except Invalid as error:
        return target.schema.stored.empty_table(), RejectedRows(rows=rows, error=error)
    sift(rows)
    return (
        pa.concat_tables(fitting) if fitting else target.schema.stored.empty_table(),
        RejectedRows(rows=pa.concat_tables([some for some, _ in rejected]), error=rejected[0][1]) if rejected else None,
    )


def _fitting(rows: pa.Table, target: WriteTarget, values: RegionValues) -> pa.Table:
    """All rows in the form of the table's stored schema; raises `Invalid` if any doesn't fit."""
    found = _conforming(rows, target.schema)
    for routed in route(found, target.regions):
        if routed.values != values:
            raise Invalid("the row belongs to another region", table=target.context.uri)
    return found


def _conforming(rows: pa.Table, schema: TableSchema) -> pa.Table:
    ids = {field.metadata[FIELD_ID] for field in schema.columns}
    for field in rows.schema:
        if field.name != TOMBSTONE and (field.metadata or {}).get(FIELD_ID) not in ids:
            raise Invalid(f"{field.name!r} is no column of the table", field=field.name)
    try:
        found = conform(rows, schema)
        found.validate(full=True)
    except pa.ArrowException as error:
        reason = str(error).partition("\n")[0]
        raise Invalid(f"the row does not fit the table: {reason:.200}") from error
    live = pc.invert(found.column(TOMBSTONE))
    for field in schema.columns:
        nulls = found.column(field.name).is_null()
        if field.name in schema.primary_key:
            wrong = nulls
        elif not field.nullable:
            wrong = pc.and_(nulls, live)
        else:
            continue
        if pc.any(wrong).as_py():
            raise Invalid(f"column {field.name!r} is null", field=field.name)
    if found.column(TOMBSTONE).null_count:
        raise Invalid(f"column {TOMBSTONE!r} is null", field=TOMBSTONE)
    return found
