"""The command line in its own process: streams, signals, terminals, and imports."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import pytest

from lancelsm.cli import main
from tests.cli.console import COMMAND, Json, Run

HEAVY = ("lance", "numpy", "pandas", "pyarrow", "pyspark")


def start(*arguments: object, **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*COMMAND, *map(str, arguments)], **streams)


def many_rows(orders: Path, as_json: Json) -> int:
    """Write more rows than a pipe holds. Return their number."""
    file = orders.with_name("many.csv")
    file.write_text("id,state,price\n" + "".join(f"{i},{'x' * 100},\n" for i in range(5000)))
    as_json("write", orders, file)
    return 5000


def test_help_imports_neither_arrow_nor_lance() -> None:
    script = (
        "import sys; from lancelsm.cli import main; codes = [main(['--help']), main(['region', 'list', '--help'])];"
        f"print(codes, [name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "[0, 0] []\n")
    assert "Usage: lancelsm region list" in done.stdout


SLOW_TO_LOAD = ("lance", "numpy", "pandas", "rich", "google.protobuf", "lancelsm.table", "boto3", "pyspark")


@pytest.mark.parametrize("command", ["write", "delete --key", "delete --keys"])
@pytest.mark.rest
def test_a_command_that_touches_only_the_log_loads_little(command: str, orders: Path, as_json: Json) -> None:
    file = orders.with_name("one.csv")
    file.write_text("id,state,price\n7,new,\n" if command == "write" else "id\n7\n")
    arguments = {
        "write": ["write", orders, file],
        "delete --key": ["delete", orders, "--key", "7"],
        "delete --keys": ["delete", orders, "--keys", file],
    }[command]
    script = (
        "import sys; from lancelsm.cli import main; code = main();"
        f"print(code, [name for name in {SLOW_TO_LOAD} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "0 []\n")
    assert (as_json("get", orders, "--key", "7") is not None) == (command == "write")


@pytest.mark.rest
def test_a_status_loads_lance_only_for_a_base_with_indexes_or_rows_of_other_tools(orders: Path, as_json: Json) -> None:
    script = (
        "import sys; from lancelsm.cli import main; code = main();"
        f"print(code, [name for name in {SLOW_TO_LOAD} if name in sys.modules], file=sys.stderr)"
    )

    def status() -> tuple[str, Any]:
        arguments = [sys.executable, "-c", script, "status", str(orders), "--output", "json"]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        return done.stderr, json.loads(done.stdout)

    assert status() == ("0 ['google.protobuf']\n", as_json("status", orders))

    lance.dataset(str(orders)).create_scalar_index("state", "BTREE")
    assert status() == ("0 ['lance', 'numpy', 'google.protobuf']\n", shown := as_json("status", orders))
    assert [one["kind"] for one in shown["indexes"]] == ["BTREE"]

    base = lance.dataset(str(orders))
    lance.write_dataset(base.to_table(limit=2), str(orders), mode="append")
    assert status() == ("0 ['lance', 'numpy', 'google.protobuf']\n", shown := as_json("status", orders))
    assert "duplicate_keys" in {one["kind"] for one in shown["problems"]}


@pytest.mark.rest
def test_a_lookup_does_not_load_what_it_does_not_use(orders: Path) -> None:
    unused = ("admin", "compaction.maintenance", "gc", "scrub", "read.search", "stack")
    script = (
        "import sys; from lancelsm.cli import main; code = main();"
        f"print(code, [name for name in {unused} if f'lancelsm.{{name}}' in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "get", str(orders), "--key", "1"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "0 []\n")


@pytest.mark.parametrize("suffix", ["parquet", "csv", "ndjson", "arrow"])
@pytest.mark.rest
def test_every_format_is_written_without_numpy(suffix: str, orders: Path, as_json: Json) -> None:
    file = orders.with_name(f"copy.{suffix}")
    as_json("scan", orders, "--to", file)
    done = subprocess.run([*COMMAND, "write", str(orders), str(file)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Wrote" in done.stdout


@pytest.mark.parametrize(
    ("command", "text"),
    [(("gc",), '{"round": [keys of its lists], '), (("snapshot", "list"), '{"snapshots": [like `snapshot create`]}')],
)
def test_brackets_in_help_are_not_read_as_markup(command: tuple[str, ...], text: str, run: Run) -> None:
    assert text in run(*command, "--help").out


@pytest.mark.rest
def test_one_table_is_piped_into_another(orders: Path, as_json: Json) -> None:
    other = orders.with_name("other")
    as_json("init", other, "--schema", orders.with_name("orders.parquet"), "--primary-key", "id")

    scan = start("scan", orders, "--output", "json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    write = start("write", other, "-", "--output", "json", stdin=scan.stdout, stdout=subprocess.PIPE)
    assert scan.stdout is not None
    scan.stdout.close()
    written, _ = write.communicate()
    scan.wait()
    assert scan.stderr is not None
    errors = scan.stderr.read()
    scan.stderr.close()

    assert (scan.returncode, write.returncode, errors) == (0, 0, b"")
    assert json.loads(written)["rows"] == as_json("scan", other, "--count")["count"] == 3


@pytest.mark.rest
def test_a_reader_that_closes_the_pipe_early_causes_no_error(orders: Path, as_json: Json) -> None:
    many_rows(orders, as_json)

    scan = start("scan", orders, "--output", "json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert scan.stdout is not None
    assert scan.stderr is not None
    json.loads(scan.stdout.readline())
    scan.stdout.close()
    errors = scan.stderr.read()
    scan.stderr.close()

    assert (scan.wait(), errors) == (141, b"")


@pytest.mark.rest
def test_an_interrupted_command_prints_no_error(orders: Path, as_json: Json) -> None:
    many_rows(orders, as_json)

    scan = start("scan", orders, "--output", "json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert scan.stdout is not None
    scan.stdout.readline()  # the command now waits until somebody reads the pipe
    scan.send_signal(signal.SIGINT)
    _, errors = scan.communicate()

    assert (scan.returncode, errors) == (130, b"")


@pytest.mark.rest
def test_a_terminal_shows_the_first_rows_and_the_number_of_all_rows(orders: Path, as_json: Json) -> None:
    rows = many_rows(orders, as_json)

    shown = on_terminal("scan", orders, "--columns", "id")

    assert shown[0].strip() == "id"
    assert len([line for line in shown if line.strip().isdigit()]) == 50
    assert shown[-1] == f"{rows:,} rows, {rows - 50:,} of them not shown: use --limit, --to, or a pipe"


def test_a_terminal_shows_as_many_rows_as_the_limit_allows(
    orders: Path, as_json: Json, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    many_rows(orders, as_json)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    main(["scan", str(orders), "--columns", "id", "--limit", "60"])

    shown = capsys.readouterr().out.splitlines()
    assert len([line for line in shown if line.strip().isdigit()]) == 60
    assert shown[-1] == "60 rows"


@pytest.mark.rest
def test_a_merge_prints_nothing_on_stderr(orders: Path, run: Run) -> None:
    run("write", orders, orders.with_name("orders.parquet"))
    run("flush", orders)

    merge = start(
        "merge", orders, "--engine", "inprocess", "--output", "json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, errors = merge.communicate()

    assert (merge.returncode, errors) == (0, b"")
    assert json.loads(out)["rows_upserted"] == 3


def on_terminal(*arguments: object) -> list[str]:
    """Run a command on a terminal. Return the lines that the terminal shows."""
    reader, terminal = pty.openpty()
    process = start(*arguments, stdout=terminal)
    os.close(terminal)
    shown = b""
    try:
        while part := os.read(reader, 1 << 16):
            shown += part
    except OSError:  # Linux raises this when the other side of a terminal is closed
        pass
    finally:
        os.close(reader)
    assert process.wait() == 0
    return shown.decode().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
