"""Fixtures for tests of the command line."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from lancelsm.cli import main
from tests.cli.console import ORDERS, Done, Json, Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command. `stdin` is its standard input."""

    def run(*arguments: object, stdin: str | bytes = b"") -> Done:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Done(code=code, out=out, err=err)

    return run


@pytest.fixture
def as_json(run: Run) -> Json:
    """Run a command that must succeed with an empty stderr. Return its document."""

    def as_json(*arguments: object, stdin: str | bytes = b"") -> Any:
        done = run(*arguments, "--output", "json", stdin=stdin)
        assert (done.code, done.err) == (0, ""), done
        return done.document

    return as_json


@pytest.fixture(scope="session")
def orders_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of which `orders` is a copy."""
    folder = tmp_path_factory.mktemp("template")
    parquet.write_table(ORDERS, folder / "orders.parquet")
    arguments = ["--schema", str(folder / "orders.parquet"), "--primary-key", "id", "--regions", "bucket(id, 2)"]
    assert main(["init", str(folder / "orders"), *arguments, "--load"]) == 0
    return folder


@pytest.fixture
def orders(tmp_path: Path, orders_template: Path) -> Path:
    """A table of two regions with three rows in its base. The file of these rows is next to it."""
    shutil.copytree(orders_template, tmp_path, dirs_exist_ok=True)
    return tmp_path / "orders"
