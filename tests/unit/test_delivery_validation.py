"""Which delivered rows are refused because of a null, when each row is checked by itself."""

from __future__ import annotations

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.routing.route import only_region
from lancelsm.stack.delivery.validation import partition_valid

COLUMNS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("must", pa.int8(), nullable=False), ("may", pa.int8())]
)
GOOD = (1, 1, None, False)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ((None, 1, 1, False), "id"),
        ((None, 1, 1, True), "id"),
        ((2, None, 1, False), "must"),
        ((2, 1, 1, None), "_tombstone"),
        ((2, None, None, True), None),
        ((2, 1, None, False), None),
    ],
)
@pytest.mark.parametrize("regions", [None, "bucket(id, 1)"])
def test_a_row_with_a_null_where_none_may_be_is_refused_and_the_others_are_kept(tmp_path, row, column, regions):
    target = lancelsm.create(tmp_path / "t", COLUMNS, primary_key="id", regions=regions)._target
    columns = [list(values) for values in zip(GOOD, row, GOOD, strict=True)]
    rows = pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, target.schema.stored, strict=True)], target.schema.stored
    )
    valid, rejected = partition_valid(rows, target=target, values=only_region(target.regions))
    assert valid.num_rows == (3 if column is None else 2)
    assert (None if rejected is None else (rejected.error.where["field"], rejected.rows.num_rows)) == (
        None if column is None else (column, 1)
    )
