"""Where settings come from, and which values are valid."""

from __future__ import annotations

from pathlib import Path

import pytest

import lancelsm
from lancelsm.common.settings import Settings, resolve
from lancelsm.errors import Invalid
from tests.unit.tables import create


def test_arguments_override_the_environment_then_the_table_then_the_defaults() -> None:
    levels = {
        "arguments": {"flush_rows": 1},
        "environment": {"LANCELSM_FLUSH_ROWS": "2", "LANCELSM_FLUSH_BYTES": "2"},
        "table": {"flush_rows": "3", "flush_bytes": "3", "flush_age_seconds": "3.5"},
    }

    found = resolve(**levels)  # type: ignore[arg-type]

    assert (found.flush_rows, found.flush_bytes, found.flush_age_seconds) == (1, 2, 3.5)
    assert found.merge_generations == Settings().merge_generations


def test_a_table_keeps_its_settings_and_the_environment_overrides_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path, settings={"flush_rows": 5, "group_commit_bytes": "7"})
    assert (table.settings.flush_rows, table.settings.group_commit_bytes) == (5, 7)

    monkeypatch.setenv("LANCELSM_FLUSH_ROWS", "6")

    assert lancelsm.open(table.uri).settings.flush_rows == 6
    assert lancelsm.open(table.uri).settings.group_commit_bytes == 7
    assert lancelsm.open(table.uri, settings={"flush_rows": 8}).settings.flush_rows == 8


def test_a_setting_of_a_table_that_only_a_newer_release_knows_is_ignored() -> None:
    assert resolve(table={"flush_rows": "5", "of_tomorrow": "x"}, environment={}) == Settings(flush_rows=5)


def test_environment_variables_that_are_not_settings_are_ignored() -> None:
    assert resolve(table={}, environment={"LANCELSM_HOME": "x", "FLUSH_ROWS": "x"}) == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nobody", 1),
        ("flush_rows", 0),
        ("flush_rows", -1),
        ("flush_rows", "many"),
        ("flush_rows", "1.5"),
        ("flush_rows", None),
        ("flush_rows", 1.5),
        ("flush_rows", float("inf")),
        ("flush_age_seconds", "nan"),
    ],
)
def test_an_unknown_setting_or_a_value_that_is_not_a_positive_number_is_refused(
    tmp_path: Path, name: str, value: object
) -> None:
    with pytest.raises(Invalid) as raised:
        create(tmp_path, settings={name: value})

    assert raised.value.where["field"] == name
    assert not (tmp_path / "table").exists()


def test_the_error_names_an_invalid_environment_variable() -> None:
    environment = {"LANCELSM_FLUSH_ROWS": "x"}
    with pytest.raises(Invalid) as raised:
        resolve(table={}, environment=environment)
    assert raised.value.where["variable"] == "LANCELSM_FLUSH_ROWS"

    assert resolve(table={}, environment=environment, arguments={"flush_rows": 7}) == Settings(flush_rows=7)
