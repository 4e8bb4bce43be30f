"""Damaged files raise `Corrupt` and bad conditions raise `Invalid`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import lancelsm
from lancelsm.errors import Corrupt, Invalid
from tests.unit.tables import create, generation_paths, levels, row, rows_of


def test_a_truncated_deletion_file_is_corrupt(tmp_path: Path) -> None:
    table = create(tmp_path)
    for value in ("a", "b"):
        table.upsert([row(key, value) for key in range(2 if value == "b" else 5)])
        table.flush()
        table.merge(engine="inprocess")
    (file,) = (tmp_path / "table" / "_deletions").iterdir()
    file.write_bytes(file.read_bytes()[:-20])

    with pytest.raises(Corrupt, match="the base can't be read"):
        rows_of(lancelsm.open(table.uri))


def test_a_damaged_schema_in_the_configuration_is_corrupt(tmp_path: Path) -> None:
    table = create(tmp_path)
    path = Path(table.uri) / "_lancelsm" / "config.json"
    document = json.loads(path.read_bytes())
    arrow = document["schema"]["arrow"]
    document["schema"]["arrow"] = arrow[:8] + "/+8/" + arrow[12:]
    path.write_text(json.dumps(document))

    with pytest.raises(Corrupt, match="configuration is unreadable"):
        lancelsm.open(table.uri)


def test_a_registry_record_that_is_not_json_is_corrupt(tmp_path: Path) -> None:
    table = create(tmp_path)
    with closing(sqlite3.connect(Path(table.uri) / "_lancelsm" / "registry.sqlite")) as connection, connection:
        connection.execute("UPDATE records SET fields = '{'")

    with pytest.raises(Corrupt, match="unreadable record"):
        rows_of(lancelsm.open(table.uri))


def test_a_key_index_with_the_contents_of_another_file_is_corrupt(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    table.flush()
    (generation,) = generation_paths(tmp_path)
    index = generation / "_pk_index"
    (index / "page_lookup.lance").write_bytes((index / "page_data.lance").read_bytes())

    with pytest.raises(Corrupt, match="key index"):
        lancelsm.open(table.uri).get([1])


def test_a_condition_that_fails_on_a_row_is_invalid_at_every_level(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1, "a")])
    for _ in levels(table):
        for condition in ("id / 0 = 1", "cast(v as int) = 1"):
            with pytest.raises(Invalid):
                table.scan(where=condition).to_arrow()
