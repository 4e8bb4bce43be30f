"""The change stream as micro-batches, without Spark: offsets, limits, restarts, and the cursor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lancelsm.errors import Contended, Invalid
from lancelsm.spark.stream_read import ChangeSource, EntrySpan, StreamRequest, read_span, stream_schema
from lancelsm.table import Table
from tests.unit.resharded_streams import in_order
from tests.unit.tables import create, row

Seen = list[tuple[str, int, str]]


def changes_of(table: Table, **changes: Any) -> StreamRequest:
    return replace(StreamRequest(uri=table.uri, cursor="query"), **changes)


def read(request: StreamRequest, spans: Iterable[EntrySpan]) -> Seen:
    schema = stream_schema(request.uri, request.columns)
    rows = [one for span in spans for batch in read_span(request, span, schema) for one in batch.to_pylist()]
    return [(one["_op"], one["id"], one["v"]) for one in rows]


def test_batches_have_each_change_once_also_of_new_regions_and_after_a_restart(tmp_path: Path) -> None:
    table = create(tmp_path, regions="identity(id)")
    table.upsert([row(1, "a"), row(2, "b")])
    request = changes_of(table, entries_per_trigger=2)
    source = ChangeSource(request)
    start = source.initial_offset()
    table.delete([1])
    for value in "cd":
        table.upsert([row(1, value), row(3, value)])

    first = source.latest_offset()
    seen = read(request, source.spans(start, first))
    second = source.latest_offset()
    seen += read(request, source.spans(first, second))
    again = ChangeSource(request)  # Spark repeats the last batch, which it did not record
    assert read(request, again.spans(first, second)) == [("upsert", 1, "c"), ("upsert", 1, "d")]
    again.commit(second)
    table.upsert([row(1, "e")])
    third = again.latest_offset()
    seen += read(request, again.spans(second, third))

    upserts = {(1, "a"), (2, "b"), (1, "c"), (1, "d"), (3, "c"), (3, "d"), (1, "e")}
    assert sorted(seen) == [("delete", 1, None), *(("upsert", *one) for one in sorted(upserts))]
    assert ChangeSource(request).initial_offset() == second  # with a new checkpoint: at the cursor
    assert ChangeSource(request).latest_offset() == third  # a restarted query knows no start, so there is no limit


def test_the_cursor_keeps_what_is_not_committed_and_moves_forward_alone(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    request = changes_of(table, start="latest")
    source = ChangeSource(request)
    start = source.initial_offset()
    table.upsert([row(2)])
    table.run()
    for _ in range(2):
        table.collect(yes=True, interval_seconds=0)

    end = source.latest_offset()
    assert read(request, source.spans(start, end)) == [("upsert", 2, "a")]
    source.commit(end)
    source.commit(start)
    assert ChangeSource(request).initial_offset() == end
    other = ChangeSource(request)
    other.initial_offset()
    table.upsert([row(3)])
    other.commit(other.latest_offset())
    table.upsert([row(4)])
    with pytest.raises(Contended, match="Give each consumer its own cursor"):
        source.commit(source.latest_offset())


def test_a_stream_whose_cursor_was_dropped_fails(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    request = changes_of(table)
    source = ChangeSource(request)
    spans = source.spans(source.initial_offset(), source.latest_offset())
    table.drop_cursor("query")

    with pytest.raises(Invalid, match="the cursor of the stream was dropped"):
        read(request, spans)
    assert table.cursors() == []


def test_columns_of_changes_may_be_null(tmp_path: Path) -> None:
    table = create(tmp_path, pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("_op", pa.uint32())]))

    schema = stream_schema(table.uri, ("id",))
    assert schema.names == ["id", "_op", "_region", "_position"]
    assert schema.field("id").nullable
    with pytest.raises(Invalid, match="Leave it out with the option columns"):
        stream_schema(table.uri, None)


@pytest.mark.parametrize("restarts", [False, True])
def test_batches_have_the_rows_of_old_regions_before_those_of_new_ones(tmp_path: Path, restarts: bool) -> None:
    in_order(tmp_path, restarts=restarts)
