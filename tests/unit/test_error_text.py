"""Values and names of a caller in errors."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

import lancelsm
from lancelsm.common.error_text import did_you_mean, shown
from lancelsm.errors import Invalid


class NoText:
    def __repr__(self) -> str:
        raise OSError


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        ("a", "'a'"),
        (10**20, "100000000000000000000"),
        (10**5_000, "a number of 16610 bits"),
        (-(10**5_000), "a number of 16610 bits"),
        ("x" * 100, f"'{'x' * 76}..."),
        (nested(100_000), "a value of type list"),
        (NoText(), "a value of type NoText"),
    ],
    ids=count(),
)
def test_every_value_has_a_short_text(value: object, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("stat", "Did you mean 'state'? Columns: id, state, Total"),
        ("TOTAL", "Did you mean 'Total'? Columns: id, state, Total"),
        ("To", "Did you mean 'Total'? Columns: id, state, Total"),
        ("", "Columns: id, state, Total"),
        ("nothing", "Columns: id, state, Total"),
        ("x" * 10_000, "Columns: id, state, Total"),
        (7, "Columns: id, state, Total"),
    ],
)
def test_a_remedy_names_what_is_similar(name: object, expected: str) -> None:
    assert did_you_mean(name, ["id", "state", "Total"], what="Columns") == expected


def test_a_remedy_lists_at_most_thirty_names() -> None:
    text = did_you_mean("x", [f"column_{i}" for i in range(100)], what="Columns")

    assert text.endswith(", column_29 and 70 more")


def test_an_unknown_column_is_answered_with_the_columns(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path / "t", [{"id": 1, "state": "a"}], primary_key="id")
    rows = {"id": 1, "stat": "a"}

    for call in (
        lambda: table.scan(columns=["stat"]),
        lambda: table.get(1, columns=["stat"]),
        lambda: table.upsert(rows),
        lambda: table.delete(rows),
    ):
        with pytest.raises(Invalid) as raised:
            call()

        assert raised.value.message == "the table has no column 'stat'"
        assert raised.value.remedy == "Did you mean 'state'? Its columns are: id, state"
        assert raised.value.where["field"] == "stat"


def test_the_text_of_a_table_names_location_key_and_regions(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": "x"}]
    table = lancelsm.create(tmp_path / "t", rows, primary_key=["a", "b"], regions="bucket(a, 4)")
    table.snapshot("monday")

    assert repr(table) == f"<lancelsm.Table '{tmp_path}/t', primary_key='a, b', regions='bucket(a, 4)'>"
    assert str(table.at("monday")).endswith("regions='bucket(a, 4)', at='monday'>")
