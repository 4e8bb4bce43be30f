"""Print what SlateDB does with small upserts: docs/comparison.md quotes it."""

import asyncio
import importlib.metadata
import sys
import tempfile
from collections.abc import Awaitable
from pathlib import Path

from slatedb import uniffi as slatedb

STORE = slatedb.ObjectStore.resolve("file:///")


async def put(database: slatedb.Db, key: bytes, value: bytes) -> None:
    """A put returns before it is durable: wait for that too."""
    await (await database.put(key, value)).await_durable()


async def refused(call: Awaitable[object]) -> str:
    """The kind of the error that a call ends with."""
    try:
        await call
    except slatedb.Error as error:
        return type(error).__name__
    return "no error"


async def in_another_process(path: str, key: bytes) -> None:
    """Run this file once more: it opens a reader, and prints what that sees."""
    sys.stdout.flush()
    done = await asyncio.create_subprocess_exec(sys.executable, __file__, path, key.decode())
    assert await done.wait() == 0


async def main() -> None:
    print("version: slatedb", importlib.metadata.version("slatedb"))
    place = Path(tempfile.mkdtemp())
    path = str(place / "orders").lstrip("/")
    database = await slatedb.DbBuilder(path, STORE).build()
    await put(database, b"1", b"new")
    held = await slatedb.DbReaderBuilder(path, STORE).build()

    before = set(place.glob("orders/wal/*.sst"))
    await put(database, b"1", b"paid")
    print("durable put of 1 row: log objects written:", len(set(place.glob("orders/wal/*.sst")) - before))
    await in_another_process(path, b"1")
    print("a reader that was open before sees", await held.get(b"1"), "until it polls")

    await (await database.delete(b"1")).await_durable()
    print("after the delete of a fresh row the writer sees", await database.get(b"1"))
    await in_another_process(path, b"1")

    log = slatedb.SlateDbWalReader(path, STORE)
    iterator, last, changes, at = await log.iterator(1), await log.last_wal_file_id(0), [], 0
    while at < last:
        found = await iterator.next()  # waits for the next object if there is none
        changes += [(row.kind.name, row.key, row.value) for row in found.rows]
        at = found.last_consumed_wal_file_id
    print("changes from the log:", changes)

    for number in range(10, 15):
        await put(database, str(number).encode(), b"new")
    between = slatedb.KeyRange(start=b"11", start_inclusive=True, end=b"14", end_inclusive=False)
    rows = await (await database.scan(between)).next_batch(10)
    print("keys from 11 to 14:", [row.key for row in rows])

    first, second = [await database.begin(slatedb.IsolationLevel.SERIALIZABLE_SNAPSHOT) for _ in range(2)]
    for transaction in (first, second):
        await transaction.get(b"2")
        await transaction.put(b"2", b"new")
    await (await first.commit()).await_durable()
    print("a concurrent transaction on the same key:", await refused(second.commit()))

    await database.flush_with_options(slatedb.FlushOptions(flush_type=slatedb.FlushType.MEM_TABLE))
    admin = slatedb.AdminBuilder(path, STORE).build()
    options = slatedb.CheckpointOptions(lifetime_ms=None, source=None, name="monday")
    kept = await admin.create_detached_checkpoint(options)
    await put(database, b"2", b"paid")
    monday = slatedb.DbReaderBuilder(path, STORE)
    monday.with_reader_mode(slatedb.ReaderMode.CHECKPOINT(kept.id))
    print("key 2 now:", await database.get(b"2"), "at the checkpoint:", await (await monday.build()).get(b"2"))

    await put(await slatedb.DbBuilder(path, STORE).build(), b"3", b"theirs")
    print("our next put, after a second writer opened:", await refused(put(database, b"4", b"ours")))


async def read(path: str, key: str) -> None:
    reader = await slatedb.DbReaderBuilder(path, STORE).build()
    print("another process sees", await reader.get(key.encode()))


asyncio.run(read(*sys.argv[1:]) if sys.argv[1:] else main())
