"""What puts rows durably, behind one interface: ours, its peers, and the limits of the disk.

Each is opened at a directory with the schema and key of the rows. `prepare` converts rows to what the contender takes,
and returns the call to be timed. A call returns when the contender calls the rows durable. Ours and the two limits sync
files. pylance, LanceDB, delta-rs and slatedb hand them to the file system, which may lose them in a power failure.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import lance
import lancedb
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import lancelsm
from benchmarks.figures import Act
from lancelsm.record.schema import declare_primary_key

NEVER = {"flush_rows": 1 << 30, "flush_bytes": 1 << 40, "buffer_bytes": 1 << 30}
SHARD = "5f0b2f3e-9a0a-4c4c-8f7e-000000000001"


class Contender(Protocol):
    """A table, database or file that takes rows."""

    def prepare(self, rows: pa.Table) -> Act: ...

    def close(self) -> None: ...


Opened = Callable[[Path, pa.Table, Sequence[str]], Contender]


class Ours:
    def __init__(self, path: Path, first: pa.Table, key: Sequence[str]) -> None:
        self.table = lancelsm.create(path, first.schema, primary_key=list(key), settings=NEVER)
        self.table.upsert(first)

    def prepare(self, rows: pa.Table) -> Act:
        return lambda: self.table.upsert(rows)

    def close(self) -> None:
        self.table.flush()


class ShardWriter:
    """pylance's own writer of the log."""

    def __init__(self, path: Path, first: pa.Table, key: Sequence[str]) -> None:
        self._schema = declare_primary_key(first.schema, tuple(key))
        dataset = lance.write_dataset(first.cast(self._schema), str(path), schema=self._schema)
        dataset.initialize_mem_wal()
        self._writer = dataset.mem_wal_writer(SHARD)
        self._writer.put(first.cast(self._schema))

    def prepare(self, rows: pa.Table) -> Act:
        declared = rows.cast(self._schema)
        return lambda: self._writer.put(declared)

    def close(self) -> None:
        self._writer.close()


class LanceDb:
    """LanceDB's `merge_insert` into a table with an LSM write spec: it appends to the log of Lance."""

    def __init__(self, path: Path, first: pa.Table, key: Sequence[str]) -> None:
        self._schema = declare_primary_key(first.schema, tuple(key))
        self._key = list(key)
        self._table = lancedb.connect(path).create_table("docs", first.cast(self._schema))
        self._table.set_lsm_write_spec(lancedb.LsmWriteSpec.unsharded())
        self.prepare(first)()

    def prepare(self, rows: pa.Table) -> Act:
        declared = rows.cast(self._schema)
        return lambda: (
            self._table.merge_insert(self._key)
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute(declared)
        )

    def close(self) -> None:
        self._table.close_lsm_writers()


class DeltaAppend:
    """delta-rs appends a file and a commit. It compares no keys."""

    def __init__(self, path: Path, first: pa.Table, key: Sequence[str]) -> None:  # noqa: ARG002 - a form for all
        self._path = str(path)
        write_deltalake(self._path, first)

    def prepare(self, rows: pa.Table) -> Act:
        return lambda: write_deltalake(self._path, rows, mode="append")

    def close(self) -> None:
        pass


class DeltaMerge:
    """delta-rs merges by key: it reads the table, and writes the files that change again."""

    def __init__(self, path: Path, first: pa.Table, key: Sequence[str]) -> None:
        self._condition = " and ".join(f"t.{name} = s.{name}" for name in key)
        write_deltalake(str(path), first)
        self._table = DeltaTable(str(path))

    def prepare(self, rows: pa.Table) -> Act:
        return lambda: (
            self._table.merge(rows, self._condition, source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )

    def close(self) -> None:
        pass


class SlateDb:
    """slatedb writes one batch of keys and JSON values, and flushes its log."""

    def __init__(self, path: Path, first: pa.Table, key: Sequence[str]) -> None:
        from slatedb import uniffi

        self._key, self._uniffi = list(key), uniffi
        self._loop = asyncio.new_event_loop()
        builder = uniffi.DbBuilder(str(path.absolute()).lstrip("/"), uniffi.ObjectStore.resolve("file:///"))
        self._database: Any = self._loop.run_until_complete(builder.build())
        self.prepare(first)()

    def prepare(self, rows: pa.Table) -> Act:
        batch = self._uniffi.WriteBatch()
        for row in rows.to_pylist():
            batch.put(json.dumps([row.pop(name) for name in self._key]).encode(), json.dumps(row).encode())

        async def written() -> None:
            await self._database.write(batch)
            await self._database.flush()

        return lambda: self._loop.run_until_complete(written())

    def close(self) -> None:
        self._loop.run_until_complete(self._database.shutdown())
        self._loop.close()


class Sqlite:
    """One transaction of SQLite, with a write-ahead log that is synced at each commit."""

    def __init__(self, path: Path, first: pa.Table, key: Sequence[str]) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        names = ", ".join(first.column_names)
        self._connection.execute(f"CREATE TABLE docs ({names}, PRIMARY KEY ({', '.join(key)}))")
        marks = ", ".join("?" * first.num_columns)
        self._statement = f"INSERT OR REPLACE INTO docs VALUES ({marks})"

    def prepare(self, rows: pa.Table) -> Act:
        values = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))

        def commit() -> None:
            self._connection.execute("BEGIN")
            self._connection.executemany(self._statement, values)
            self._connection.execute("COMMIT")

        return commit

    def close(self) -> None:
        self._connection.close()


class Fsync:
    """Write as many bytes to a new file, in parts as large as ours, and sync once: no durable put is faster here."""

    def __init__(self, path: Path, first: pa.Table, key: Sequence[str]) -> None:  # noqa: ARG002 - a form for all
        self._directory = path
        self._directory.mkdir()

    def prepare(self, rows: pa.Table) -> Act:
        body = memoryview(bytes(rows.nbytes))
        return lambda: self._synced(body)

    def _synced(self, body: memoryview) -> None:
        descriptor, _ = tempfile.mkstemp(dir=self._directory)  # a log keeps its files, so the next one needs new memory
        try:
            while body:
                body = body[os.write(descriptor, body[: 1 << 20]) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        pass


PEERS: dict[str, Opened] = {
    "pylance ShardWriter": ShardWriter,
    "LanceDB LSM": LanceDb,
    "delta-rs append": DeltaAppend,
    "delta-rs merge": DeltaMerge,
    "slatedb": SlateDb,
}
LIMITS: dict[str, Opened] = {"SQLite, synced": Sqlite, "write + fsync": Fsync}
