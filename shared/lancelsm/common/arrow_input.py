"""Read what callers give as Arrow data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def read_whole(data: Any) -> pa.Table:
    """Read Arrow data into a table.

    Through a C stream, an error of the producer comes as text: a KeyboardInterrupt while a generator makes the next
    batch, or `Unavailable` of a read. So a reader, and the rows of a read, are read directly, and their errors raised.
    """
    import pyarrow as pa  # noqa: PLC0415 - an app without pyarrow sends dicts

    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if type(data).__module__.partition(".")[0] == "lancelsm":
        return data.to_arrow()
    return pa.table(data)
