"""What is typed by mistake, or as another library has it, is answered with what to write instead."""

from __future__ import annotations

import ast
from pathlib import Path

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.record.files import read_ndjson
from lancelsm.record.shapes import reads_as_condition


@pytest.fixture
def table(tmp_path):
    return lancelsm.create(tmp_path / "orders", [{"id": "a", "state": "new"}], primary_key="id")


@pytest.mark.parametrize(
    "text",
    [
        "id = 3",
        "id='3'",
        "(id > 3)",
        "`id` != 3",
        "state IN ('a')",
        "state not in ('a')",
        "state is null",
        "id like 'a%'",
    ],
)
def test_a_delete_takes_no_condition_for_a_key(table, text):
    with pytest.raises(Invalid, match=r"reads as a condition .*Write delete\(where="):
        table.delete(text)

    assert table.delete([text]).rows == 1
    assert table.count() == 1


@pytest.mark.parametrize("text", ["3", "id", "state of Ohio", "total = 3", "a = b", "state in progress", "id-7", ""])
def test_other_text_is_a_key(text):
    assert not reads_as_condition(text, ["id", "state"])


@pytest.mark.parametrize("types", [{"id": "int64", "state": "string"}, {"id": pa.int64()}, {"id": int, "state": str}])
def test_a_dict_of_types_is_no_row(types, tmp_path):
    with pytest.raises(Invalid, match=r"are types, so it is no row .*Give pyarrow.schema\(columns\)"):
        lancelsm.create(tmp_path / "t", types, primary_key="id")

    assert lancelsm.create(tmp_path / "t", {"id": "int64", "state": "new"}, primary_key="id").count() == 1


@pytest.mark.parametrize(("uri", "better"), [("s3:/bucket/t", "s3://bucket/t"), ("file:/tmp/t", "file:///tmp/t")])
def test_a_url_with_one_slash_is_no_directory(uri, better, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid, match="is neither a path nor a URL") as refused:
        lancelsm.create(uri, [{"id": 1}], primary_key="id")

    assert better in refused.value.remedy
    assert not list(tmp_path.iterdir())


def test_a_location_tells_how_to_create_or_open_a_table(table):
    with pytest.raises(Invalid, match=r"lancelsm\.create or lancelsm init creates a table"):
        lancelsm.open(f"{table.uri}-none")
    with pytest.raises(Invalid, match="exist_ok=True"):
        lancelsm.create(table.uri, [{"id": "a", "state": "new"}], primary_key="id")


def test_a_default_that_does_not_fit_says_once_what_does(table):
    with pytest.raises(Invalid, match="the default 'x' does not fit") as refused:
        table.add_column("total", pa.int64(), default="x")

    assert str(refused.value).count("Give integers") == 1


def test_a_transform_without_its_number_is_completed(tmp_path):
    with pytest.raises(Invalid, match=r"Write for example bucket\(id, 16\)"):
        lancelsm.create(tmp_path / "t", [{"id": 1}], primary_key="id", regions="bucket(id)")


def test_an_array_on_one_line_is_answered_with_a_way_to_lines():
    with pytest.raises(Invalid, match=r"one object in each line; jq -c"):
        read_ndjson([b'[{"id": 1}]'], schema=None)


def test_indexes_without_kinds_are_answered_with_the_form(tmp_path):
    with pytest.raises(Invalid, match=r"indexes is \['title'\] .*Give a dict of columns and kinds"):
        lancelsm.create(tmp_path / "t", [{"id": 1, "title": "a"}], primary_key="id", indexes=["title"])


def test_each_error_that_the_input_causes_says_how_to_correct_it():
    """Those of the functions on AWS go back to a queue, and have a runbook. The others are about written files."""
    internal = (
        "dataset/",
        "stack/",
        "client/large_payloads.py",
        "record/rowsum.py",
        "record/schema.py",
        "routing/value.py",
    )
    package = Path(lancelsm.__file__).parent
    lacking = []
    for path in package.rglob("*.py"):
        name = path.relative_to(package).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            is_error = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Invalid"
            if is_error and not {"remedy", None} & {one.arg for one in node.keywords} and not name.startswith(internal):
                lacking.append(f"{name}:{node.lineno}")

    assert not lacking


def test_a_value_inside_of_an_argument_is_named(table):
    with pytest.raises(Invalid, match=r"set has the value 5 .*whose values are text, not int"):
        table.update(where="true", set={"state": 5})
