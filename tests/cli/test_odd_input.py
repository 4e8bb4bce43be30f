"""Odd arguments, closed and full streams, and interrupts: a command ends with a result or one line of error."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lancelsm.cli import main
from lancelsm.common.layout import CONFIG
from tests.cli.console import COMMAND, Json, Run

EXIT_CODES = (0, 1, 2, 3, 4, 5, 6, 130, 141)
NOT_TEXT = b"\xff\xfe"

# Runs a command and sends SIGINT to itself at the call of a Python function with this number.
INTERRUPTED = """
import os, signal, sys
from lancelsm.cli import main
from lancelsm.common.layout import CONFIG
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for processes in the background
left = int(sys.argv.pop(1))
def count(frame, event, argument):
    global left
    if event == "call":
        left -= 1
        if left == 0:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)
sys.setprofile(count)
code = main()
sys.setprofile(None)
if left > 0:
    os.write(2, f"{left} left".encode())
sys.exit(code)
"""


def shell(redirection: str, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command in a shell, with redirections of its streams."""
    line = f"{shlex.join([*COMMAND, *map(str, arguments)])} {redirection}"
    return subprocess.run(["bash", "-c", line], capture_output=True, input=stdin, check=False)


def assert_one_line(done: subprocess.CompletedProcess[bytes], code: int, text: str) -> None:
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (code, b"", 1), done
    assert text in done.stderr.decode(), done
    assert b"This is a bug" not in done.stderr


@pytest.mark.rest
@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("command", ["status", "scan"])
def test_a_full_stdout_is_unavailable(orders: Path, command: str, output: str) -> None:
    done = shell("> /dev/full", command, orders, "--output", output)

    assert_one_line(done, 6, "Unavailable: stdout can't be written: No space left on device")


@pytest.mark.rest
def test_a_full_stderr_changes_no_result(orders: Path) -> None:
    assert shell("2> /dev/full", "status", orders, "--output", "json").returncode == 0
    assert shell("2> /dev/full", "status", orders / "none").returncode == 1
    assert shell("> /dev/full 2> /dev/full", "status", orders).returncode == 6


@pytest.mark.rest
@pytest.mark.parametrize("arguments", [("status",), ("scan", "--output", "json"), ("--help",), ("scan", "--help")])
def test_a_closed_stdout_ends_a_command_like_a_closed_pipe(orders: Path, arguments: tuple[str, ...]) -> None:
    command, *options = arguments
    done = shell(">&-", command, *(() if "--help" in arguments else (orders,)), *options)

    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.rest
def test_a_closed_stderr_changes_no_result(orders: Path) -> None:
    assert shell("2>&-", "status", orders).returncode == 0
    done = shell("2>&-", "status", orders / "none", "--output", "json")
    assert (done.returncode, json.loads(done.stdout)["error"]["kind"]) == (1, "Invalid")


@pytest.mark.rest
def test_files_of_a_table_never_take_the_number_of_a_closed_stream(orders: Path) -> None:
    row = b'{"id": 9, "state": "x", "price": null}\n'
    rows = orders.with_name("rows.ndjson")
    rows.write_bytes(row)

    assert shell("<&- >&- 2>&-", "write", orders, rows).returncode == 141

    done = shell("", "scrub", orders, "--output", "json")
    assert (done.returncode, json.loads(done.stdout)["problems"]) == (0, []), done


@pytest.mark.rest
@pytest.mark.parametrize("command", [("write", "-"), ("delete", "--keys", "-")])
def test_a_closed_stdin_is_invalid(orders: Path, command: tuple[str, ...]) -> None:
    name, *rest = command

    assert_one_line(shell("<&-", name, orders, *rest), 1, "Invalid: stdin can't be read")


@pytest.mark.rest
@pytest.mark.parametrize("arguments", [("status",), ("scan", "--where"), ("get", "--key"), ("scan", "--to")])
def test_an_argument_that_is_not_text_is_wrong_usage(orders: Path, arguments: tuple[str, ...]) -> None:
    command, *option = arguments
    given = [*COMMAND, command, *([str(orders), *option] if option else []), NOT_TEXT]
    done = subprocess.run(given, capture_output=True, check=False)

    assert (done.returncode, done.stdout) == (2, b"")
    assert b"argument" in done.stderr
    assert b"is not UTF-8" in done.stderr


@pytest.mark.parametrize("key", ["[" * 100_000, '{"id":' * 100_000, "9" * 5_000, "-0", "NaN", "1e999", "\ufeff1", ""])
def test_a_strange_key_is_a_result_or_invalid(orders: Path, run: Run, key: str) -> None:
    assert_ends_right(run("get", orders, "--key", key), codes=(0, 1))


@pytest.mark.parametrize(
    "line",
    [
        b'{"id":1,"state":' + b"[" * 100_000,
        b'{"id":1,"state":' + b'{"a":' * 100_000,
        b'{"id":1,"state":"x","price":' + b"9" * 5_000 + b"}",
        b'{"id":' + b"9" * 400 + b',"state":"x","price":1}',
        b'{"id":1,"state":"\\ud800","price":1}',
        b'{"id":1,"state":"a\\u0000","price":1e400}',
        b"\x00",
        b"\xff\xfe{\x00}\x00",
        b"[]",
        b'{"id":1,"id":2,"state":[],"price":{}}',
    ],
)
def test_a_strange_row_is_invalid(orders: Path, tmp_path: Path, run: Run, as_json: Json, line: bytes) -> None:
    file = tmp_path / "rows.ndjson"
    file.write_bytes(line + b"\n")

    for done in (
        run("write", orders, "-", stdin=line),
        run("write", orders, file),
        run("delete", orders, "--keys", file),
    ):
        assert_ends_right(done, codes=(1,))
    assert as_json("scan", orders, "--count") == {"count": 3}


@pytest.mark.parametrize("suffix", ["ndjson", "csv"])
def test_a_file_may_begin_with_a_byte_order_mark(
    orders: Path, tmp_path: Path, run: Run, as_json: Json, suffix: str
) -> None:
    rows = {"ndjson": '{"id": 7, "state": "x", "price": 1}\n', "csv": "id,state,price\n7,x,1\n"}
    file = tmp_path / f"rows.{suffix}"
    file.write_text(rows[suffix], encoding="utf-8-sig")

    assert as_json("write", orders, file)["rows"] == 1
    assert as_json("get", orders, "--key", "7") == {"id": 7, "state": "x", "price": 1.0}
    assert as_json("write", orders, "-", stdin=rows["ndjson"].encode("utf-8-sig"))["rows"] == 1


@pytest.mark.parametrize("number", [2**31, 2**63 - 1, 2**63, 2**64, 10**30])
@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.one_case
def test_a_huge_limit_is_no_limit_or_invalid(orders: Path, run: Run, as_json: Json, number: int, tail: bool) -> None:
    if tail:
        as_json("delete", orders, "--key", "1")
    for command in (("scan", "--count"), ("tail",), ("scrub",), ("history",), ("scan",)):
        name, *options = command
        done = run(name, orders, *options, "--limit", number)
        assert_ends_right(done, codes=(0,) if number < 2**63 else (0, 1, 2))


@pytest.mark.parametrize(
    "path", ["missing/../x", "a\nb", "a\tb", "a?b", "a#b", "a%0Ab", "ä b", "x" * 300, "\u202e", ""]
)
def test_a_strange_path_is_a_table_or_invalid(
    orders: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    made = run("init", path, "--schema", orders.with_name("orders.parquet"), "--primary-key", "id", "--load")
    assert_ends_right(made, codes=(0, 1))
    for command in (("scan",), ("delete", "--key", "1"), ("run",), ("scan", "--count"), ("drop", "--yes")):
        name, *options = command
        assert_ends_right(run(name, path, *options), codes=(made.code,))


@pytest.mark.parametrize("path", ["x" * 300, "orders.parquet/x"])
def test_a_file_at_a_strange_path_is_wrong(orders: Path, run: Run, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(orders.parent)
    for command in (("apply", orders, path, "--format", "debezium"), ("scan", orders, "--to", f"{path}.csv")):
        assert run(*command).err.startswith("Invalid: ")


@pytest.mark.parametrize(
    "url", ["file://host/x", "file:///x?version=2", "file:///x#y", "s3://", "nope://x", "://", "s3://[", "file://["]
)
def test_a_strange_url_is_invalid(orders: Path, run: Run, url: str) -> None:
    for command in ("status", "drop"):
        assert_ends_right(run(command, url, *(["--yes"] if command == "drop" else [])), codes=(1,))


def test_a_dangling_link_is_invalid(orders: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "deep")

    done = run("init", tmp_path / "link", "--schema", orders.with_name("orders.parquet"), "--primary-key", "id")

    assert_ends_right(done, codes=(1,))
    assert "Invalid" in done.err


def assert_ends_right(done: Any, *, codes: tuple[int, ...] = EXIT_CODES) -> None:
    assert done.code in codes, done
    assert "Traceback" not in done.err, done
    assert "This is a bug" not in done.err, done
    assert "panicked" not in done.err, done


def interrupt(at: int, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", INTERRUPTED, str(at), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False)


def calls_of(*arguments: object) -> int:
    """Return how many Python functions a command calls."""
    done = interrupt(1 << 30, *arguments)
    assert done.returncode == 0, done
    return (1 << 30) - int(done.stderr.split()[0])


@pytest.mark.rest
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.95, 0.999])
def test_an_interrupt_at_any_time_prints_nothing(orders: Path, share: float) -> None:
    total = calls_of("status", orders)

    done = interrupt(max(2, int(total * share)), "status", orders)

    assert (done.returncode, done.stderr) in [(130, b""), (-2, b"")], done


# Every command that opens a table, with arguments: TABLE is the table, NEW a location beside it, ROWS a file of rows.
COMMANDS = [
    "status TABLE",
    "describe TABLE",
    "history TABLE",
    "config set TABLE flush_rows=50000",
    "init NEW --schema ROWS --primary-key id --load",
    "write TABLE ROWS",
    "delete TABLE --key 1",
    "delete TABLE --where state='new'",
    "get TABLE --key 1",
    "scan TABLE --output json",
    "scan TABLE --to NEW.parquet",
    "tail TABLE --cursor c",
    "cursor list TABLE",
    "cursor set TABLE --name d",
    "cursor drop TABLE --name c",
    "flush TABLE",
    "merge TABLE",
    "optimize TABLE",
    "run TABLE",
    "gc TABLE --yes --interval 0s",
    "scrub TABLE",
    "inspect manifest TABLE",
    "inspect entries TABLE",
    "inspect generations TABLE",
    "region list TABLE",
    "region claim TABLE",
    "registry rebuild TABLE",
    "snapshot create TABLE --name new",
    "snapshot list TABLE",
    "snapshot refresh TABLE --name s",
    "snapshot clone TABLE NEW --name s",
    "snapshot drop TABLE --name s",
    "backup TABLE NEW",
    "drop TABLE --yes",
    "doctor TABLE",
]


@pytest.mark.long
@pytest.mark.parametrize("line", COMMANDS)
def test_an_interrupt_at_each_of_some_times_prints_nothing(orders: Path, tmp_path: Path, line: str) -> None:
    for arguments in (("snapshot", "create", orders, "--name", "s"), ("cursor", "set", orders, "--name", "c")):
        assert main([*map(str, arguments)]) == 0
    copy = tmp_path / "copy"

    def arguments() -> list[str]:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(orders.parent, copy, ignore=shutil.ignore_patterns(copy.name))
        words = {"TABLE": copy / orders.name, "NEW": copy / "new", "NEW.parquet": copy / "new.parquet"}
        words["ROWS"] = copy / "orders.parquet"
        return [str(words.get(word, word)) for word in line.split()]

    total = calls_of(*arguments())
    for step in range(12):
        done = interrupt(2 + total * step // 12, *arguments())
        ended = (done.returncode, done.stderr) in [(130, b""), (-2, b"")]
        # The number of calls varies, and a library can drop an interrupt: then the command has its result.
        assert ended or (done.returncode == 0 and not done.stderr.removesuffix(b" left").strip(b"0123456789")), done
        if (copy / orders.name / CONFIG).exists():
            assert main(["scrub", str(copy / orders.name)]) == 0
