"""Errors as a script sees them: an exit code, and the reason in one place."""

from __future__ import annotations

import io
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.cli import main
from lancelsm.client import Client
from lancelsm.common import aws
from lancelsm.errors import Ambiguous, Contended, Corrupt, Fenced, Invalid, Unavailable
from tests.cli.console import Json, Run, lines


def test_an_error_is_one_line_on_stderr(tmp_path: Path, run: Run) -> None:
    done = run("status", tmp_path / "none")

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("Invalid: there is no table at this location [table ")
    assert done.err.count("\n") == 1

    row = {"id": 1, "a\tb\x1b[2J\x9b": 1}
    lancelsm.create(tmp_path / "odd", [row], primary_key="id").upsert([row])
    done = run("scan", tmp_path / "odd", "--columns", "a\nc")
    assert done.err.endswith("Its columns are: id, a\\tb\\x1b[2J\\x9b\n")
    assert (done.err.count("\n"), "field a\\nc]" in done.err) == (1, True)
    for command in ("scan", "tail"):
        assert "\ta\\tb\\x1b[2J\\x9b\n" in run(command, tmp_path / "odd").out


def test_with_json_output_an_error_is_the_only_document_on_stdout(tmp_path: Path, run: Run) -> None:
    done = run("status", tmp_path / "none", "--output", "json")

    assert (done.code, done.err) == (1, "")
    error = done.document["error"]
    assert (error["kind"], error["message"]) == ("Invalid", "there is no table at this location")
    assert error["table"] == str(tmp_path / "none")
    assert "lancelsm init" in error["remedy"]


@pytest.mark.parametrize(
    ("error", "code"), [(Invalid, 1), (Contended, 3), (Fenced, 3), (Corrupt, 4), (Ambiguous, 5), (Unavailable, 6)]
)
def test_each_kind_of_error_has_its_exit_code(
    orders: Path, run: Run, monkeypatch: pytest.MonkeyPatch, error: type[lancelsm.LsmError], code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("it went wrong", remedy="Do this", region="7f3a")

    monkeypatch.setattr("lancelsm.compaction.maintenance.flush_table", fail)

    done = run("flush", orders, "--output=json")

    assert done.code == code
    kind = error.__name__
    assert done.document == {"error": {"kind": kind, "message": "it went wrong", "remedy": "Do this", "region": "7f3a"}}
    assert run("flush", orders).err == f"{kind}: it went wrong [region 7f3a]. Do this\n"


def test_a_write_to_a_region_of_another_owner_is_fenced_and_a_damaged_log_is_corrupt(
    orders: Path, run: Run, as_json: Json
) -> None:
    as_json("region", "claim", orders, "--owner", "loader")
    (region, *_) = (r["region"] for r in as_json("region", "list", orders)["regions"])
    row = lines(*({"id": i, "state": None, "price": None} for i in range(10)))

    fenced = run("write", orders, "-", "--output", "json", stdin=row)
    assert (fenced.code, fenced.document["error"]["kind"]) == (3, "Fenced")

    (orders / "_mem_wal" / region / "wal" / f"{format(1, '064b')[::-1]}.arrow").unlink()
    corrupt = run("scan", orders, "--output", "json")
    assert (corrupt.code, corrupt.document["error"]["kind"]) == (4, "Corrupt")
    assert corrupt.document["error"]["region"] == region


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("scan",),
        ("scan", "t", "--nonsense"),
        ("scan", "t", "--limit", "many"),
        ("merge", "t", "--engine", "steam"),
        ("get", "t"),
        ("delete", "t"),
        ("delete", "t", "--key", "1", "--where", "true"),
        ("write", "t"),
        ("scan", "t", "--count", "--to", "x.csv"),
        ("scan", "t", "--explain", "--to", "x.csv"),
        ("scan", "t", "--storage-option", "region"),
        ("init", "t", "--schema", "x.csv", "--primary-key", "a", "--set", "flush_rows"),
        ("update", "t", "--where", "true", "--set", "a=1", "--set", "a=2"),
    ],
)
def test_wrong_usage_exits_with_2_in_both_output_formats(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err

    document = run("--output", "json", *arguments).document["error"]
    assert (document["kind"], bool(document["message"])) == ("Usage", True)


@pytest.mark.parametrize(("arguments", "panel"), [((), "Maintenance"), (("region",), "Commands")])
def test_a_call_without_a_command_prints_help(run: Run, arguments: tuple[str, ...], panel: str) -> None:
    done = run(*arguments)

    assert done.code == 2
    assert panel in done.out
    assert done.err == ""


def test_an_unknown_output_format_is_wrong_usage(run: Run) -> None:
    assert run("status", "t", "--output", "yaml").code == 2


def test_a_bug_prints_a_traceback_only_on_request(orders: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("lancelsm.compaction.maintenance.flush_table", fail)
    quiet = run("flush", orders)
    assert (quiet.code, quiet.err.count("\n")) == (1, 1)
    assert "LANCELSM_TRACEBACK=1" in quiet.err
    assert run("flush", orders, "--output", "json").document["error"]["kind"] == "Internal"

    monkeypatch.setenv("LANCELSM_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in run("flush", orders).err


def test_an_interrupt_prints_nothing(orders: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lancelsm.compaction.maintenance.flush_table", interrupt)

    done = run("flush", orders, "--output", "json")

    assert (done.code, done.out, done.err) == (130, "", "")


@pytest.mark.parametrize(
    ("name", "content", "message_part"),
    [
        ("empty.csv", b"", "empty"),
        ("empty.parquet", b"", "empty"),
        ("cut.parquet", b"PAR1\x15\x04", "can't be read"),
        ("cut.ndjson", b'{"id": 8, "state": "a", "price": 1}\n{"id": 9, "sta', "line 2"),
        ("cut.csv", b"id,state,price\n8,a,1\n9,b", "can't be read"),
        ("unknown.txt", b"8", "suffix"),
        ("type.ndjson", b'{"id": "x", "state": "a", "price": 1}', "id"),
        ("column.csv", b"id,state\n8,a", "price"),
        ("more.csv", b"id,state,price,colour\n8,a,1,red", "colour"),
        ("null.csv", b"id,state,price\n,a,1", "id"),
        ("overflow.csv", b"id,state,price\n99999999999999999999,a,1", "id"),
        ("latin.csv", b"id,state,price\n8,\xe4,1", "invalid UTF8"),
    ],
)
def test_an_invalid_file_is_refused_as_a_whole(
    orders: Path, tmp_path: Path, run: Run, as_json: Json, name: str, content: bytes, message_part: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)

    done = run("write", orders, file, "--output", "json")

    assert (done.code, done.document["error"]["kind"]) == (1, "Invalid")
    assert message_part in done.document["error"]["message"]
    assert done.document["error"]["file"] == str(file)
    assert as_json("scan", orders, "--count") == {"count": 3}


def test_a_missing_file_is_refused(orders: Path, run: Run) -> None:
    assert run("write", orders, "nowhere.csv").code == 1
    assert run("delete", orders, "--keys", "nowhere.csv").code == 1


def test_an_error_reports_the_rows_written_before_it(orders: Path, tmp_path: Path, run: Run, as_json: Json) -> None:
    good, bad = tmp_path / "good.ndjson", tmp_path / "bad.ndjson"
    good.write_text(lines({"id": 9, "state": None, "price": None}))
    bad.write_text("{")

    done = run("write", orders, good, bad, "--output", "json")

    assert (done.code, done.document["error"]["rows_written"]) == (1, 1)
    assert as_json("scan", orders, "--count") == {"count": 4}


def test_an_error_on_stdin_reports_the_number_of_lines_before_it(orders: Path, run: Run, as_json: Json) -> None:
    as_json("config", "set", orders, "group_commit_bytes=40")
    row: dict[str, Any] = {"id": 9, "state": "x" * 40, "price": None}

    done = run("write", orders, "-", "--output", "json", stdin=lines(row, row) + "{\n")

    error = done.document["error"]
    assert (done.code, error["file"], error["lines_before"], error["rows_written"]) == (1, "stdin", 2, 2)


@pytest.mark.parametrize("key", ["null", "1.5", '"one"', '{"id": 1, "state": "new"}', "{}", "[1]"])
def test_an_invalid_key_is_refused(orders: Path, run: Run, key: str) -> None:
    done = run("get", orders, "--key", key, "--output", "json")

    assert (done.code, done.document["error"]["kind"]) == (1, "Invalid")


@pytest.mark.parametrize(
    "arguments",
    [
        ("scan", "--columns", "nonsense"),
        ("scan", "--where", "nonsense ="),
        ("delete", "--where", "nonsense = 1"),
        ("scan", "--to", "rows.txt"),
        ("scan", "--to", "no/such/place.csv"),
        ("inspect", "entries", "--region", "zzz"),
        ("region", "seal", "--region", ""),
        ("config", "set", "flush_rows=none"),
    ],
)
def test_invalid_arguments_are_refused(orders: Path, run: Run, arguments: tuple[str, ...]) -> None:
    group = 2 if arguments[0] in ("inspect", "region", "config") else 1
    done = run(*arguments[:group], orders, *arguments[group:], "--output", "json")

    assert (done.code, done.document["error"]["kind"]) == (1, "Invalid"), done


def test_init_refuses_invalid_arguments_and_creates_nothing(orders: Path, tmp_path: Path, run: Run) -> None:
    def init_error(*arguments: object) -> str:
        done = run("init", *arguments, "--output", "json")
        assert (done.code, done.document["error"]["kind"]) == (1, "Invalid"), done
        return str(done.document["error"]["message"])

    file, untyped = tmp_path / "orders.parquet", tmp_path / "untyped.csv"
    untyped.write_text("id,name\n1,\n")

    assert "exists" in init_error(orders, "--schema", file, "--primary-key", "id")
    assert "primary key" in init_error(tmp_path / "t", "--schema", file, "--primary-key", "nr")
    assert "price" in init_error(tmp_path / "t", "--schema", file, "--primary-key", "price")
    assert "regions" in init_error(
        tmp_path / "t", "--schema", file, "--primary-key", "id", "--regions", "bucket(state, 2)"
    )
    assert "'name'" in init_error(tmp_path / "t", "--schema", untyped, "--primary-key", "id")
    assert "unknown setting" in init_error(tmp_path / "t", "--schema", file, "--primary-key", "id", "--set", "a=1")
    assert not (tmp_path / "t").exists()


def test_a_warning_is_one_line_on_stderr(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "days.csv"
    file.write_text("day,n\n2024-01-01,1\n")

    done = run("init", tmp_path / "t", "--schema", file, "--primary-key", "day", "--output", "json")

    assert (done.code, done.document["rows"]) == (0, 0)
    assert done.err.startswith("Warning: Lance's own writer can't")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(("answer", "status", "code"), [("n", "open", 130), ("", "open", 130), ("y", "sealed", 0)])
def test_sealing_all_regions_asks_for_confirmation_on_a_terminal(
    orders: Path, as_json: Json, monkeypatch: pytest.MonkeyPatch, answer: str, status: str, code: int
) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(f"{answer}\n".encode() if answer else b""))
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", terminal)

    assert main(["region", "seal", str(orders)]) == code

    assert {region["status"] for region in as_json("region", "list", orders)["regions"]} == {status}


def test_a_script_needs_the_option_yes_to_seal_all_regions(orders: Path, run: Run, as_json: Json) -> None:
    done = run("region", "seal", orders)

    assert done.code == 2
    assert "--yes" in done.err
    assert {region["status"] for region in as_json("region", "list", orders)["regions"]} == {"open"}


def test_the_error_for_an_invalid_row_names_table_column_and_row(orders: Path, run: Run) -> None:
    done = run("write", orders, "-", "--output", "json", stdin='{"id": null, "state": "new", "price": 1}\n')

    error = done.document["error"]
    assert (error["kind"], error["field"], error["row"]) == ("Invalid", "id", 0)
    assert error["table"] == str(orders)
    assert error["remedy"]


def test_the_option_version_prints_the_version(run: Run) -> None:
    done = run("--version")

    assert (done.code, done.out) == (0, f"lancelsm {metadata.version('lancelsm')}\n")


@pytest.mark.parametrize("arguments", [("redrive", "--stage", "dev"), ("doctor", "--aws"), ()], ids=str)
def test_without_boto3_a_command_and_the_client_name_the_extra_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    loaded = [name for name in sys.modules if name.partition(".")[0] in {"boto3", "botocore"}]
    for name in {"boto3", "botocore", "botocore.exceptions", *loaded}:
        monkeypatch.setitem(sys.modules, name, None)
    aws.client.cache_clear()
    aws.session.cache_clear()

    if arguments:
        found = run(*arguments).err
    else:
        with pytest.raises(Invalid) as raised:
            Client(stage="dev").write("orders", [{"id": 1}])
        found = f"Invalid: {raised.value}\n"

    assert found == "Invalid: boto3 is not installed. pip install 'lancelsm[aws]'\n"
