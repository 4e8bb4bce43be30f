"""The options that every command takes, their values in the environment and in the configuration file."""

from __future__ import annotations

import csv
import os
import subprocess
from pathlib import Path

import pytest
from pyarrow import csv as arrow_csv

import lancelsm
from lancelsm.cli.text import document_csv
from tests.cli.console import COMMAND, ORDERS, Json, Run, lines

HEADER, *ROWS = ['"id","state","price"', '1,"new",1.5', '2,"paid",', '3,"żółć ✓",2.5']


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config.toml"
    monkeypatch.setenv("LANCELSM_CONFIG", str(file))
    return file


def test_rows_as_csv_are_what_write_reads(orders: Path, run: Run, as_json: Json) -> None:
    done = run("scan", orders, "--output", "csv")
    header, *rows = done.out.splitlines()
    assert (header, sorted(rows)) == (HEADER, ROWS)

    copy = orders.with_name("copy.csv")
    copy.write_text(done.out)
    assert sorted(arrow_csv.read_csv(copy).to_pylist(), key=str) == sorted(ORDERS.to_pylist(), key=str)
    assert as_json("write", orders, copy)["rows"] == 3


def test_bytes_that_csv_lacks_are_invalid(tmp_path: Path, run: Run) -> None:
    lancelsm.create(tmp_path / "t", [{"id": 1, "b": b"\xff"}], primary_key="id")
    done = run("scan", tmp_path / "t", "--output", "csv")

    assert (done.code, done.err.startswith("Invalid: the rows can't be written as CSV")) == (1, True)


def test_no_rows_as_csv_are_a_header(orders: Path, run: Run) -> None:
    assert run("scan", orders, "--where", "id > 99", "--output", "csv").out == f"{HEADER}\n"


def test_a_table_is_printed_in_a_pipe_too(orders: Path, run: Run) -> None:
    piped, table = run("scan", orders).out, run("scan", orders, "--output", "table").out

    assert "id\tstate\tprice" in piped
    assert "\t" not in table
    assert "3 rows" in table


@pytest.mark.parametrize(("output", "first"), [(None, HEADER), ("csv", HEADER), ("json", '{"id": ')])
def test_scan_to_stdout_prints_every_row(orders: Path, run: Run, output: str | None, first: str) -> None:
    done = run("scan", orders, "--to", "-", *(["--output", output] if output else []))

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(first)
    assert len(done.out.splitlines()) == (3 if output == "json" else 4)


def test_rows_are_printed_in_the_given_order(orders: Path, run: Run) -> None:
    done = run("scan", orders, "--order-by", "price desc, id", "--columns", "id", "--to", "-")
    assert done.out.splitlines() == ['"id"', "3", "1", "2"]
    assert run("scan", orders, "--order-by", "id", "--count").code == 2


@pytest.mark.rest
def test_a_document_as_csv_is_its_first_list_or_one_row(orders: Path, run: Run, as_json: Json) -> None:
    regions = list(csv.DictReader(run("status", orders, "--output", "csv").out.splitlines()))
    expected = as_json("status", orders)["regions"]
    assert [one["region"] for one in regions] == [one["region"] for one in expected]
    assert [int(one["wal_rows"]) for one in regions] == [one["wal_rows"] for one in expected]

    (count,) = csv.DictReader(run("scan", orders, "--count", "--output", "csv").out.splitlines())
    assert count == {"count": "3"}
    (described,) = csv.DictReader(run("describe", orders, "--output", "csv").out.splitlines())
    assert described["primary_key"] == '["id"]'
    assert run("snapshot", "list", orders, "--output", "csv").out == ""
    assert run("get", orders, "--key", "99", "--output", "csv").out == ""


def test_null_and_empty_text_stay_apart_in_csv(orders: Path, run: Run, tmp_path: Path) -> None:
    run("write", orders, "-", stdin=lines({"id": 7, "state": "", "price": None}, {"id": 8, "state": None, "price": 2}))
    for key in ("7", "8"):
        printed = run("get", orders, "--key", key, "--output", "csv").out
        file = tmp_path / "row.csv"
        file.write_text(printed)
        before = run("get", orders, "--key", key, "--output", "json").out
        assert run("write", orders, file).code == 0
        assert run("get", orders, "--key", key, "--output", "json").out == before
    assert document_csv([{"a": 'x,"y"\n', "b": None}, {"a": "", "b": True}]) == 'a,b\n"x,""y""\n",\n"",true\n'
    assert document_csv([{"a": None}]) == 'a\n""\n'


def test_changes_as_csv_have_one_header(orders: Path, run: Run) -> None:
    for number in (7, 8):
        run("delete", orders, "--key", str(number))
    printed = run("tail", orders, "--output", "csv").out.splitlines()

    assert [line.count("_region") for line in printed] == [1, 0, 0]


def test_the_environment_has_the_default_of_output(orders: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCELSM_OUTPUT", "json")
    assert run("scan", orders, "--count").document == {"count": 3}
    assert run("scan", orders, "--count", "--output", "text").out == "3\n"
    assert run("scan", orders.with_name("none")).document["error"]["kind"] == "Invalid"

    monkeypatch.setenv("LANCELSM_OUTPUT", "yaml")
    wrong = run("scan", orders)
    assert wrong.code == 2
    assert "LANCELSM_OUTPUT" in wrong.err


@pytest.mark.rest
def test_a_profile_has_values_for_the_shared_options(
    orders: Path, run: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(
        '[profiles.default]\noutput = "json"\n'
        "[profiles.prod]\nstorage_options = { virtual_hosted_style_request = true }\nsettings = { flush_rows = 7 }\n"
    )
    assert run("scan", orders, "--count").document == {"count": 3}
    assert run("scan", orders.with_name("none")).document["error"]["kind"] == "Invalid"
    assert run("--profile", "prod", "scan", orders, "--count").out == "3\n"

    def flush_rows(*arguments: str) -> dict[str, object]:
        (found,) = run("config", "get", orders, "flush_rows", "--output", "json", *arguments).document["settings"]
        return dict(found)

    assert flush_rows() == {"name": "flush_rows", "value": 100_000, "source": "default"}
    run("config", "set", orders, "flush_rows=5")
    assert flush_rows() == {"name": "flush_rows", "value": 5, "source": "table"}
    assert flush_rows("--profile", "prod") == {"name": "flush_rows", "value": 7, "source": "profile"}
    monkeypatch.setenv("LANCELSM_PROFILE", "")
    assert flush_rows()["source"] == "table"
    monkeypatch.setenv("LANCELSM_PROFILE", "prod")
    assert flush_rows()["source"] == "profile"
    monkeypatch.setenv("LANCELSM_FLUSH_ROWS", "9")
    assert flush_rows() == {"name": "flush_rows", "value": 9, "source": "environment"}


@pytest.mark.parametrize(
    ("text", "profile", "message"),
    [
        ("profiles = 1", None, "profiles is not a table"),
        ("[profiles.prod]", "prd", "Did you mean 'prod'"),
        ("[profiles.prod]\noutputs = 'json'", "prod", "Did you mean 'output'"),
        ("[profiles.prod]\noutput = 'xml'", "prod", "text, table, csv, json"),
        ("[profiles.prod]\nsettings = 7", "prod", "settings is not a table"),
        ("[profiles.prod]\nsettings = {flush_row = 7}", "prod", "Did you mean 'flush_rows'"),
        ("[profile.prod]", None, "Did you mean 'profiles'"),
        ("profiles = [", None, "not TOML"),
        (f"a = {'[' * 5000}", None, "not TOML"),
        ("[profiles.prod]\nstorage_options = {region = ['eu']}", "prod", "option 'region' is no text"),
        ("", "prod", "there is no profile 'prod'"),
        (None, None, "can't be read"),
    ],
)
def test_a_wrong_configuration_file_is_invalid(
    orders: Path, run: Run, config: Path, text: str | None, profile: str | None, message: str
) -> None:
    if text is not None:
        config.write_text(text)
    done = run("status", orders, *(["--profile", profile] if profile else []))

    assert (done.code, done.out) == (1, "")
    assert message in done.err


def test_empty_variables_are_as_absent_ones(orders: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANCELSM_PROFILE", "LANCELSM_CONFIG", "LANCELSM_OUTPUT"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(orders.parent))
    assert run("scan", orders, "--count").out == "3\n"


def test_an_unknown_setting_is_not_shown(orders: Path, run: Run) -> None:
    done = run("config", "get", orders, "flush_row")

    assert done.code == 1
    assert "Did you mean 'flush_rows'" in done.err


@pytest.mark.rest
def test_a_shell_completes_commands_and_options() -> None:
    words = {"_LANCELSM_COMPLETE": "complete_bash", "COMP_WORDS": "lancelsm sca", "COMP_CWORD": "1"}
    done = subprocess.run(COMMAND, env={**os.environ, **words}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["scan"])

    named = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # else it is the shell that runs tests
    shown = subprocess.run(
        [*COMMAND, "--show-completion", "bash"], env=named, capture_output=True, text=True, check=False
    )
    assert (shown.returncode, "complete_bash" in shown.stdout) == (0, True)
