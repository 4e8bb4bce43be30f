"""A stream of Spark that follows a table across a reshard."""

from __future__ import annotations

from pathlib import Path

from lancelsm.spark.stream_read import ChangeSource, StreamRequest, read_span, stream_schema
from tests.unit.tables import create, row


def in_order(path: Path, *, restarts: bool = False) -> None:
    """A stream takes two entries of a region at once. The reader of each batch sees the regions in any order."""
    table = create(path, regions="bucket(id, 2)")
    request = StreamRequest(uri=table.uri, cursor="query", entries_per_trigger=2)
    source = ChangeSource(request)
    start = source.initial_offset()
    for number in range(5):
        table.upsert([row(1, str(number))])
    table.reshard("bucket(id, 3)")
    for number in range(5, 8):
        table.upsert([row(1, str(number))])

    seen: list[str] = []
    schema = stream_schema(request.uri, request.columns)
    while (end := source.latest_offset()) != start:
        spans = source.spans(start, end)
        for span in sorted(spans, key=lambda one: one.region, reverse=True):
            seen += [one["v"] for batch in read_span(request, span, schema) for one in batch.to_pylist()]
        source.commit(end)
        start = end
        if restarts:
            source = ChangeSource(request)

    assert seen == [str(number) for number in range(8)]
