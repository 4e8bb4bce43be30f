"""A table is resharded several times while writers of all kinds, readers and a change stream go on."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.table import Table
from lancelsm.wal.log_writer import open_log

SPECS = ("bucket(id, 7)", "multi_bucket(id, 3)", "identity(id)", "bucket(id, 5)")
KEYS = 6  # of each writer
Row = dict[str, Any]


class Worker(threading.Thread):
    """Writes keys of its own, and compares each read with what it has written."""

    def __init__(self, location: str, number: int, stop: threading.Event) -> None:
        super().__init__()
        self.expected: dict[int, int | None] = {}
        self.written: dict[int, list[int]] = {}
        self.failure: BaseException | None = None
        self._table, self._log = lancelsm.open(location), open_log(location)
        self._random, self._number, self._ends = random.Random(number), number, stop

    def run(self) -> None:
        try:
            with self._table.writer() as group:
                value = 0
                while not self._ends.is_set():
                    value += 1
                    self._write(self._number * KEYS + self._random.randrange(KEYS), value, group)
        except BaseException as error:  # noqa: BLE001 - raised by the test
            self.failure = error

    def _write(self, key: int, value: int, group: Any) -> None:
        row: Row = {"id": key, "v": value}
        match self._random.randrange(6):
            case 0:
                self._table.upsert([row])
            case 1:
                group.upsert([row])
            case 2:
                self._log.upsert([row])
            case 3:
                self._table.transact([key], lambda _: [row])
            case 4 if self.expected.get(key) is not None:
                assert self._table.update(where=f"id = {key}", set={"v": f"{value}"}).rows == 1
            case _:
                self._table.delete([key])
                self.expected[key] = None
                return
        self.expected[key] = value
        self.written.setdefault(key, []).append(value)
        if self._random.random() < 0.2:
            assert self._table.get([key])["v"].to_pylist() == [value], "a read is stale"


@pytest.mark.rest
def test_writers_and_readers_notice_nothing_but_a_pause(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
    table = lancelsm.create(tmp_path / "table", columns, primary_key="id", regions="bucket(id, 4)")
    stop = threading.Event()
    workers = [Worker(table.uri, number, stop) for number in range(3)]
    for worker in workers:
        worker.start()
    try:
        for spec in SPECS:
            threading.Event().wait(0.4)
            table.reshard(spec)
    finally:
        stop.set()
        for worker in workers:
            worker.join()

    for worker in workers:
        if worker.failure is not None:
            raise worker.failure
    expected = {key: value for worker in workers for key, value in worker.expected.items() if value is not None}
    for read in (table, lancelsm.open(table.uri), workers[0]._table):
        assert _values(read) == expected
        assert str(read.config.regions) == SPECS[-1]
    seen: dict[int, list[int]] = {}
    for change in table.changes():
        for row in change.rows.filter(pa.compute.equal(change.rows["_op"], "upsert")).to_pylist():
            seen.setdefault(row["id"], []).append(row["v"])
    assert seen == {key: values for worker in workers for key, values in worker.written.items()}
    table.merge()
    assert _values(lancelsm.open(table.uri)) == expected
    assert table.scrub().ok


def _values(table: Table) -> dict[int, int]:
    found = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a key is there twice"
    return {row["id"]: row["v"] for row in found}
