"""A panic of Lance's Rust code is no `Exception`. It ends each public call as one of the six kinds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest

import lancelsm
from lancelsm.cli import process
from lancelsm.dataset import newest_base
from lancelsm.errors import Corrupt, Invalid
from lancelsm.region.handle import TableHandle
from lancelsm.stack.function import function
from lancelsm.table import Table
from tests.handlers.conftest import Context


class PanicException(BaseException):
    """As `pyo3_runtime.PanicException`, which can't be imported."""


def panic(*_arguments: Any, **_options: Any) -> Any:
    raise PanicException("called `Option::unwrap()` on a `None` value")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return lancelsm.create(tmp_path / "table", [{"id": 1}], primary_key="id")


CALLS: dict[str, Callable[[Table], Any]] = {
    "open": lambda table: lancelsm.open(table.uri).scan().to_arrow(),
    "scan": lambda table: table.scan().to_arrow(),
    "get": lambda table: table.get(1),
    "delete": lambda table: table.delete(where="id = 1"),
    "flush": lambda table: table.flush(),
    "run": lambda table: table.run(engine="inprocess"),
    "status": lambda table: table.status(),
    "indexes": lambda table: table.list_indices(),
    "snapshot": lambda table: table.snapshot("n"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_panic_outside_of_what_names_a_file_is_corrupt(
    table: Table, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    table.upsert({"id": 2})
    monkeypatch.setattr(TableHandle, "read_base", panic)
    monkeypatch.setattr(newest_base, "read_newest_base", lambda **_: None)  # as if only Lance could decode the base

    with pytest.raises(Corrupt, match=r"native code failed: called `Option::unwrap\(\)`") as raised:
        CALLS[name](table)

    assert isinstance(raised.value.__cause__, PanicException)


def test_a_condition_on_which_lance_panics_is_invalid(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance.LanceDataset, "scanner", panic)

    with pytest.raises(Invalid, match="the condition 'id = 1' can't be applied: called `Option::unwrap"):
        table.scan(where="id = 1").to_arrow()


def test_the_command_line_reports_a_panic_as_corrupt(
    table: Table, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lancelsm.region.handle.open_table", panic)

    assert process.run(["status", table.uri]) == Corrupt.exit_code

    assert "Corrupt: native code failed" in capfd.readouterr().err


def test_a_function_reports_a_panic_as_corrupt() -> None:
    with pytest.raises(Corrupt, match="native code failed"):
        function(panic)({}, Context())
