"""What fails while a caller's rows are read is raised as it is, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.client.encoding import encode_rows
from lancelsm.errors import Unavailable
from lancelsm.read.result import Rows
from lancelsm.table import Table

ROWS = pa.table({"id": [1, 2]})


def submit(table: Table, data: Any) -> None:
    with table.writer() as writer:
        writer.submit(data)


USES: dict[str, Callable[[Table, Any], object]] = {
    "upsert": lambda table, data: table.upsert(data),
    "delete": lambda table, data: table.delete(data),
    "apply_changes": lambda table, data: table.apply_changes(data, sequence_by="id"),
    "writer": submit,
    "create": lambda table, data: lancelsm.create(f"{table.uri}-2", data, primary_key="id"),
    "client": lambda table, data: list(encode_rows(data, op="upsert", limit=1000)),
}
ERRORS = [KeyboardInterrupt(), RuntimeError("boom"), Unavailable("the store did not answer")]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("form", [lambda reader: reader, Rows], ids=["reader", "rows of a read"])
def test_an_error_of_a_stream_of_rows_is_raised_as_it_is(
    tmp_path: Path, use: str, error: BaseException, form: Callable[[pa.RecordBatchReader], Any]
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches()
        raise error

    table = lancelsm.create(tmp_path / "table", ROWS.schema, primary_key="id")

    with pytest.raises(type(error)) as raised:
        USES[use](table, form(pa.RecordBatchReader.from_batches(ROWS.schema, batches())))

    assert raised.value is error
    assert table.count() == 0
    USES[use](table, form(pa.RecordBatchReader.from_batches(ROWS.schema, ROWS.to_batches())))
