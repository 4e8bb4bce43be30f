"""Durable writes of rows of 1 KB: puts, single rows of a writer, messages of the queue, and commands as processes.

The peer of a put is pylance's `ShardWriter.put` of the same rows. Both write to the same disk, in turns. pylance syncs
no file there; ours syncs the object, its directory and the registry, and with the object what the peer left unsynced.
So a bare write with one sync of the same bytes is measured beside, as the limit of a durable put. The peer of a message
is to decode it; of a command, `import lance`.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest import mock

import lance
import pyarrow as pa

import lancelsm
from benchmarks.figures import Act, Figure, cpu_seconds, used
from lancelsm.record.normalize import upserts
from lancelsm.record.schema import declare_primary_key
from lancelsm.stack.delivery.apply import BatchPorts, apply
from lancelsm.stack.delivery.message import decode, unpacked
from lancelsm.stack.delivery.queue import Delivery
from lancelsm.table import Table
from tests.simulation import deployment
from tests.simulation.deployment import Deployment

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("amount", pa.float64()),
                    ("body", pa.string())])  # fmt: skip
DECLARED = declare_primary_key(SCHEMA, ("id",))
_SHARD = "5f0b2f3e-9a0a-4c4c-8f7e-000000000001"
_NEVER = {"flush_rows": 1 << 30, "flush_bytes": 1 << 40, "buffer_bytes": 1 << 30}
_REPEATED = [os.urandom(496).hex() for _ in range(256)]


def run(scale: float) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_DIRECTORY")) as directory:
        path = Path(directory)
        yield from _puts(path, scale)
        yield from _single_rows(path, count=max(5_000, int(100_000 * scale)))
        yield from _messages(rounds=max(10, int(100 * scale)))
        yield from _commands(path, rounds=max(3, int(15 * scale)))


def _rows(count: int, start: int, *, distinct: bool = True) -> pa.Table:
    numbers = range(start, start + count)
    body = [os.urandom(496).hex() for _ in numbers] if distinct else [_REPEATED[number % 256] for number in numbers]
    columns = [numbers, [f"name {number % 100}" for number in numbers], [number / 7 for number in numbers], body]
    return pa.table([pa.array(column) for column in columns], schema=SCHEMA)


@dataclass
class _Measured:
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, act: Act) -> None:
        with used() as load:
            act()
        self.wall.append(load.wall)
        self.cpu.append(load.cpu)


def _puts(path: Path, scale: float) -> Iterator[Figure]:
    table = lancelsm.create(path / "ours", SCHEMA, primary_key="id", settings=_NEVER)
    first = _rows(1, -1)
    dataset = lance.write_dataset(first.cast(DECLARED), str(path / "peer"), schema=DECLARED)
    dataset.initialize_mem_wal()
    with dataset.mem_wal_writer(_SHARD) as writer:
        table.upsert(first)
        writer.put(first.cast(DECLARED))
        for count, full in ((1, 100), (100, 100), (1_000, 60), (10_000, 20)):
            for distinct in (True, False) if count == 10_000 else (True,):
                rounds = max(6, int(full * scale))
                yield from _put(table, writer.put, path / "raw", count, rounds=rounds, distinct=distinct)


def _put(
    table: Table, peer: Callable[[pa.Table], object], raw: Path, count: int, *, rounds: int, distinct: bool
) -> Iterator[Figure]:
    ours, theirs, limit = _Measured(), _Measured(), _Measured()
    for number in range(rounds):
        rows = _rows(count, number * count, distinct=distinct)
        declared = rows.cast(DECLARED)
        ours.add(lambda rows=rows: table.upsert(rows))
        limit.add(lambda: _synced(raw, count * 1030))
        theirs.add(lambda declared=declared: peer(declared))
    what = f"put of {count:,} rows of 1 KB, {'distinct' if distinct else '256 distinct'} bodies"
    how = f"pylance ShardWriter.put; {rounds} rounds in turns"
    floor = (
        f"least {1000 * min(ours.wall):.1f} and {1000 * min(theirs.wall):.1f} ms; one write and fsync of these bytes "
        f"{1000 * statistics.median(limit.wall):.1f}, least {1000 * min(limit.wall):.1f} ms"
    )
    yield Figure(
        what=f"{what}, median",
        ours=1000 * statistics.median(ours.wall),
        unit="ms",
        peer=1000 * statistics.median(theirs.wall),
        how=f"{how}; {floor}",
    )
    yield Figure(what=f"{what}, CPU, least", ours=1000 * min(ours.cpu), unit="ms", peer=1000 * min(theirs.cpu), how=how)


def _synced(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(descriptor, bytes(size))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _single_rows(path: Path, *, count: int) -> Iterator[Figure]:
    dicts = _rows(count, 0, distinct=False).to_pylist()
    tables = [_rows(1, number, distinct=False) for number in range(count // 4)]
    for what, data in (("dicts", dicts), ("Arrow tables of one row", tables)):
        for regions in (None, "bucket(id, 4)"):
            for threads in (1, 8):
                name = f"{what.split()[0]} {regions} {threads}"
                table = lancelsm.create(path / name, SCHEMA, primary_key="id", regions=regions, settings=_NEVER)
                cpu, wall = _submitted(table, data, threads=threads)
                where = f"{threads} thread{'s' if threads > 1 else ''}, {'4 regions' if regions else '1 region'}"
                yield Figure(
                    what=f"submit of {what}, {where}, CPU of a row",
                    ours=1e6 * cpu / len(data),
                    unit="us",
                    how=f"{len(data):,} rows at {len(data) / wall:,.0f} rows/s, acknowledged",
                )


def _submitted(table: Table, data: list[object], *, threads: int) -> tuple[float, float]:
    """Return CPU and wall time from the first submit to the last acknowledgement."""
    with table.writer() as writer:
        writer.upsert(data[0])
        parts = [data[number::threads] for number in range(threads)]
        workers = [threading.Thread(target=lambda part=part: [writer.submit(row) for row in part]) for part in parts]
        wall, cpu = time.perf_counter(), time.process_time()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return time.process_time() - cpu, time.perf_counter() - wall


def _messages(*, rounds: int) -> Iterator[Figure]:
    """Apply messages of the queue, with store, registry and queue in memory."""
    with mock.patch.object(deployment, "COLUMNS", SCHEMA):
        for messages in (1, 10):
            stack = Deployment(buckets=1)
            ours, decoding = [], []
            for number in range(rounds):
                for part in range(messages):
                    rows = upserts(_rows(1000 // messages, part * 1000), schema=stack.config.schema)
                    stack.send_rows(rows, sequence=number * messages + part)
                deliveries = stack.queue.receive(messages)
                ports = BatchPorts(tables=stack.tables, inbox=stack.inbox, dead_letters=stack.dead_letters, source="q")
                ours.append(cpu_seconds(partial(apply, deliveries, ports=ports, seconds=30), rounds=1))
                decoding.append(cpu_seconds(partial(_decoded, deliveries), rounds=3))
                for one in deliveries:
                    stack.queue.delete(one.receipt)
            yield Figure(
                what=f"CPU of 1,000 rows from the queue, {messages} message{'s' if messages > 1 else ''}",
                ours=1000 * min(ours),
                unit="ms",
                peer=1000 * min(decoding),
                how="the peer is to parse, decompress and decode the messages, which is included in ours",
            )


def _decoded(deliveries: list[Delivery]) -> list[pa.Table]:
    return [unpacked(decode(one.body).rows or b"") for one in deliveries]


def _commands(path: Path, *, rounds: int) -> Iterator[Figure]:
    table = lancelsm.create(path / "cli", SCHEMA, primary_key="id")
    table.upsert(_rows(10, 0))
    file = path / "rows.ndjson"
    file.write_text('{"id": 7, "name": "a", "amount": 1.0, "body": "b"}\n')
    script = "import sys; from lancelsm.cli import main; sys.exit(main())"
    commands = {
        "lancelsm write": ["-c", script, "write", table.uri, str(file)],
        "lancelsm delete --key": ["-c", script, "delete", table.uri, "--key", "7"],
        "lancelsm get": ["-c", script, "get", table.uri, "--key", "8"],
        "lancelsm status": ["-c", script, "status", table.uri],
        "import lance": ["-c", "import lance"],
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, arguments in commands.items():
            taken[name].append(_process(arguments))
    imported = min(taken.pop("import lance")[1:])
    for name, seconds in taken.items():
        yield Figure(
            what=f"CPU of a process of {name}",
            ours=1000 * min(seconds[1:]),
            unit="ms",
            peer=1000 * imported,
            how="a process of `import lance` alone",
        )


def _process(arguments: list[str]) -> float:
    """Return the CPU time of a process that may write bytecode, as an installed package has it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
