"""DataFrames and streams in a warm local session of Spark: part of the benchmark `spark`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

import lancelsm
import lancelsm.spark
from benchmarks import tables
from benchmarks.figures import Figure, best
from lancelsm.table import Table

ROWS = 1_000_000
_COLUMNS = ["id", "account", "amount", "at", "name"]
_DICTS = 10_000  # rows of one upsert of foreachPartition
_FILES = 4


def run(path: Path, session: Any, scale: float) -> Iterator[Figure]:
    count = int(ROWS * scale)
    session.conf.set("spark.sql.shuffle.partitions", "4")
    warm = _Frames(path / "warm", session, 2_000)
    for act in (warm.read, warm.collected, warm.write, warm.partitions, warm.stream, warm.changes):
        act()
    for size in (count // 4, count):
        frames = _Frames(path / "frames", session, size)
        ours, peer = frames.megabytes_in_driver()
        yield _figure(f"what the driver gets, read of {size:,} rows", ours, peer, "createDataFrame", unit="MB")
        if size < count:
            shutil.rmtree(path / "frames")
    what = f"{count:,} rows"
    read, collected, delta = best(frames.read, frames.collected, frames.collected_delta, rounds=4)
    yield _figure(f"read of {what}", read, collected, "createDataFrame")
    yield _figure(f"read of {what}", read, delta, "delta-rs")
    write, plain, partitions, delta = best(
        frames.write, frames.plain_write, frames.partitions, frames.append_delta, rounds=1
    )
    yield _figure(f"write of {what}", write, partitions, "foreachPartition")
    yield _figure(f"write of {what}", write, delta, "delta-rs")
    yield _figure(f"write of {what} as partitioned", plain, partitions, "foreachPartition")
    stream, partitions = best(frames.stream, frames.plain_stream, rounds=1)
    yield _figure(f"stream of {what} in {_FILES} batches", stream, partitions, "foreachPartition")
    changes, plain = best(frames.changes, frames.plain_changes, rounds=1)
    yield _figure(f"stream of {what} of changes", changes, plain, "Table.changes")


def _figure(what: str, ours: float, peer: float, name: str, *, unit: str = "s") -> Figure:
    # delta-rs appends without keys, and foreachPartition writes the rows of a repeated task again.
    limit = name in ("delta-rs", "Table.changes")
    return Figure(what=f"{what} on Spark", ours=ours, unit=unit, peer=peer, peer_name=name, limit=limit)


class _Frames:
    """A table of four regions with most rows in its base, a tenth in a generation each and in the log."""

    def __init__(self, path: Path, session: Any, count: int) -> None:
        self._session, self._path, self._runs = session, path, 0
        rows = tables.rows(np.arange(count)).select(_COLUMNS)
        self._table = self._created("read", rows)
        self._table.upsert(rows.slice(0, count // 10))
        self._table.flush()
        self._table.upsert(rows.slice(count // 10, count // 10))
        self._delta = str(path / "delta")
        write_deltalake(self._delta, rows)
        self._log = self._created("log", rows.slice(0, 0))
        self._log.upsert(rows)
        self._source = str(path / "files")
        for number in range(_FILES):
            part = rows.slice(number * count // _FILES, count // _FILES)
            (path / "files").mkdir(exist_ok=True)
            pq.write_table(part, f"{self._source}/{number}.parquet", coerce_timestamps="us")
        self._frame = session.read.parquet(self._source)

    def _created(self, name: str, rows: pa.Table) -> Table:
        settings = {"flush_rows": 1 << 30, "flush_bytes": 1 << 40}
        return lancelsm.create(self._path / name, rows, primary_key="id", regions="bucket(id, 4)", settings=settings)

    def _empty(self) -> Table:
        self._runs += 1
        return self._created(f"written-{self._runs}", tables.SCHEMA.empty_table().select(_COLUMNS))

    def read(self) -> None:
        _consume(self._session.read.format("lancelsm").load(self._table.uri))

    def megabytes_in_driver(self) -> tuple[float, float]:
        """Return the size of what tasks send to the driver in a read, and of the rows that `collected` has there."""
        before = self._results()
        self.read()
        return (self._results() - before) / 1e6, self._table.scan().to_arrow().nbytes / 1e6

    def _results(self) -> int:
        context = self._session.sparkContext
        none = context._gateway.new_array(context._jvm.double, 0)
        stages = context._jsc.sc().statusStore().stageList(None, False, False, none, context._jvm.java.util.ArrayList())
        return sum(stages.apply(number).resultSize() for number in range(stages.size()))

    def collected(self) -> None:
        _consume(self._session.createDataFrame(self._table.scan().to_arrow()))

    def collected_delta(self) -> None:
        _consume(self._session.createDataFrame(DeltaTable(self._delta).to_pyarrow_table()))

    def write(self) -> None:
        lancelsm.spark.write(self._frame, self._empty().uri)

    def plain_write(self) -> None:
        self._frame.write.format("lancelsm").mode("append").save(self._empty().uri)

    def partitions(self) -> None:
        self._frame.foreachPartition(_upserts(self._empty().uri))

    def append_delta(self) -> None:
        self._runs += 1
        write_deltalake(str(self._path / f"delta-{self._runs}"), self._frame.toArrow())

    def stream(self) -> None:
        self._ended(lancelsm.spark.write_stream(self._files(), self._empty().uri))

    def plain_stream(self) -> None:
        upserts = _upserts(self._empty().uri)
        self._ended(self._files().writeStream.foreachBatch(lambda batch, _: batch.foreachPartition(upserts)))

    def changes(self) -> None:
        self._runs += 1
        options = {"changes": "true", "cursor": f"run-{self._runs}"}
        frame = self._session.readStream.format("lancelsm").options(**options).load(self._log.uri)
        self._ended(frame.writeStream.format("noop"))

    def plain_changes(self) -> None:
        for _ in self._log.changes(start="earliest"):
            pass

    def _files(self) -> Any:
        stream = self._session.readStream.schema(self._frame.schema).option("maxFilesPerTrigger", 1)
        return stream.parquet(self._source)

    def _ended(self, writer: Any) -> None:
        self._runs += 1
        query = writer.option("checkpointLocation", str(self._path / f"checkpoint-{self._runs}"))
        query.trigger(availableNow=True).start().awaitTermination()


def _consume(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _upserts(uri: str) -> Callable[[Iterable[Any]], None]:
    def write(rows: Iterable[Any]) -> None:
        table, held = lancelsm.open(uri), []
        for row in rows:
            held.append(row.asDict())
            if len(held) == _DICTS:
                table.upsert(held)
                held = []
        if held:
            table.upsert(held)

    return write
