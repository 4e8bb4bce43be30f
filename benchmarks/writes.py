"""Other writes of rows of 1 KB: single rows of a writer, messages of the queue, and commands as processes.

The peer of a message is to decode it; of a command, `import lance`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import pyarrow as pa

import lancelsm
from benchmarks.contenders import NEVER
from benchmarks.figures import Figure, cpu_seconds
from benchmarks.tables import KILOBYTE, kilobyte_rows
from lancelsm.record.normalize import upserts
from lancelsm.stack.delivery.apply import BatchPorts, apply
from lancelsm.stack.delivery.message import decode, unpacked
from lancelsm.stack.delivery.queue import Delivery
from lancelsm.table import Table
from tests.simulation import deployment
from tests.simulation.deployment import Deployment


def run(scale: float) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        yield from _single_rows(path, count=max(5_000, int(100_000 * scale)))
        yield from _messages(rounds=max(10, int(100 * scale)))
        yield from _commands(path, rounds=max(1, int(15 * scale)))


def _single_rows(path: Path, *, count: int) -> Iterator[Figure]:
    dicts = kilobyte_rows(count, 0, distinct=False).to_pylist()
    tables = [kilobyte_rows(1, number, distinct=False) for number in range(count // 4)]
    for what, data in (("dicts", dicts), ("Arrow tables of one row", tables)):
        for regions in (None, "bucket(id, 4)"):
            for threads in (1, 8):
                name = f"{what.split()[0]} {regions} {threads}"
                table = lancelsm.create(path / name, KILOBYTE, primary_key="id", regions=regions, settings=NEVER)
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
    with mock.patch.object(deployment, "COLUMNS", KILOBYTE):
        for messages in (1, 10):
            stack = Deployment(buckets=1)
            ours, decoding = [], []
            for number in range(rounds):
                for part in range(messages):
                    rows = upserts(kilobyte_rows(1000 // messages, part * 1000), schema=stack.config.schema)
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
                peer_name="decoding alone",
                limit=True,
                how="the peer is to parse, decompress and decode the messages, which is included in ours",
            )


def _decoded(deliveries: list[Delivery]) -> list[pa.Table]:
    return [unpacked(decode(one.body).rows or b"") for one in deliveries]


def _commands(path: Path, *, rounds: int) -> Iterator[Figure]:
    table = lancelsm.create(path / "cli", KILOBYTE, primary_key="id")
    table.upsert(kilobyte_rows(10, 0))
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
            peer_name="`import lance`",
            limit=True,
        )


def _process(arguments: list[str]) -> float:
    """Return the CPU time of a process that may write bytecode, as an installed package has it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
