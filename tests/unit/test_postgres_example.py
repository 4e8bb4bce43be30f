"""The example that follows PostgreSQL: a real server, killed at each step, ends with the rows of the source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lancelsm

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "postgres_changes.py"
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("note", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us")),
        ("paid", pa.bool_()),
        ("Sold by", pa.string()),
        ("lsn", pa.int64()),
    ]
)
# The process kills itself before or after the call, or after PostgreSQL was told to forget the changes.
KILLED = """
import os, runpy, signal, subprocess, sys
from lancelsm.table import Table
where, seen = sys.argv.pop(1), []
real, run = Table.apply_changes, subprocess.run
def apply_changes(self, *args, **options):
    if where == "before": os.kill(os.getpid(), signal.SIGKILL)
    done = real(self, *args, **options)
    if where == "after": os.kill(os.getpid(), signal.SIGKILL)
    return done
def running(command, **options):
    done = run(command, **options)
    if where == "forgotten" and "advance" in command[-1]: os.kill(os.getpid(), signal.SIGKILL)
    return done
Table.apply_changes, subprocess.run = apply_changes, running
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

Sql = Callable[[str], str]


def find_binaries() -> Path | None:
    found = shutil.which("pg_ctl")
    return None if found is None else Path(found).resolve().parent


@pytest.fixture
def sql(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sql]:
    """Start a server; return a function that runs SQL on it."""
    binaries = find_binaries()
    if binaries is None or shutil.which("psql") is None:
        pytest.skip("PostgreSQL is not installed")
    user = "postgres" if os.geteuid() == 0 else None  # the server refuses to run as root
    directory = tmp_path_factory.mktemp("server")
    if user is not None:
        shutil.chown(directory, user)
        for parent in directory.parents:
            if parent.stat().st_uid == os.geteuid() and parent != Path("/") and not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)

    def server(*command: str) -> None:
        subprocess.run(
            [binaries / command[0], *command[1:]], check=True, user=user, cwd=directory, stdout=-3, stderr=-3
        )

    data, options = str(directory / "data"), f"-k {directory} -c listen_addresses= -c wal_level=logical -c fsync=off"
    server("initdb", "-D", data, "-A", "trust", "-U", "shop")
    server("pg_ctl", "-D", data, "-w", "-o", options, "-l", str(directory / "log"), "start")
    for name, value in {"PGHOST": str(directory), "PGUSER": "shop", "PGDATABASE": "postgres"}.items():
        monkeypatch.setenv(name, value)
    try:
        yield lambda query: subprocess.run(
            ["psql", "-XAtqc", query], check=True, capture_output=True, text=True
        ).stdout.strip()
    finally:
        server("pg_ctl", "-D", data, "-m", "immediate", "stop")


def follow(uri: str, *, killed: str = "") -> int:
    start = [sys.executable, "-c", KILLED, killed] if killed else [sys.executable]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*start, EXAMPLE, "public.orders", uri], env=environment, timeout=120, check=False)
    return done.returncode


@pytest.mark.rest
def test_the_table_has_the_rows_of_the_source_after_kills_at_each_step(sql: Sql, tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path / "orders", COLUMNS, primary_key="id", regions="bucket(id, 2)")
    sql("create table orders (id bigint primary key, note text, price numeric(10, 2), at timestamp, paid boolean)")
    sql('alter table orders add "Sold by" text')
    sql("alter table orders alter note set storage external")
    sql("select pg_create_logical_replication_slot('orders', 'test_decoding')")
    values = "n, repeat('it''s ü ' || n, 1000), n * 1.5, '2024-02-29 12:30:15.25', n % 2 = 0, null"
    again = "delete from orders where id = 6; insert into orders values (6, 'again', -1, null, null, null)"
    quoted = """update orders set "Sold by" = 'a new-tuple: id[bigint]:7 b' where id > 7"""
    changes = (
        f"insert into orders select {values} from generate_series(1, 20) n",
        f"begin; update orders set price = null where id < 5; {again}; commit",
        f"alter table orders replica identity full; update orders set id = 100 where id = 1; {quoted}",
        "delete from orders where id in (2, 3)",
    )
    for change, killed in zip(changes, ("before", "after", "forgotten", ""), strict=True):
        sql(change)
        code = follow(table.uri, killed=killed)
        assert code == (-9 if killed else 0), killed
        table.flush()

    found = [{**one, "lsn": None} for one in table.scan().to_arrow().sort_by("id").to_pylist()]
    texts = sql("select id, md5(note), price, at, paid from orders order by id").splitlines()
    assert [str(one["id"]) for one in found] == [line.split("|")[0] for line in texts]
    assert sql("select string_agg(note, '' order by id) from orders") == "".join(one["note"] for one in found)
    assert [str(one["price"] or "") for one in found] == [line.split("|")[2] for line in texts]
    assert {str(one["at"]) for one in found} == {"2024-02-29 12:30:15.250000", "None"}
    assert [one["Sold by"] for one in found if one["id"] > 7] == ["a new-tuple: id[bigint]:7 b"] * 14
    assert table.source_offset("orders")
