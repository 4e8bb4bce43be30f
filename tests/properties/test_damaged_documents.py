"""A damaged configuration or record is `Corrupt` or another kind of error, never an error of Python."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.common.layout import CONFIG, SQLITE
from lancelsm.errors import LsmError

DEEP = "[" * 50_000
ODD = [None, True, -1, 0, 2**70, 1.5, "", "x", "\x00", [], [1], {}, {"a": 1}, float("nan")]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "t"
    table = lancelsm.create(
        path, [{"id": 1}], primary_key="id", regions="bucket(id, 2)", settings={"retry_budget_seconds": 0.1}
    )
    table.upsert([{"id": 2}, {"id": 3}])
    table.flush()
    table.merge()
    table.upsert([{"id": 4}, {"id": 5}])
    table.flush()
    table.snapshot("s")
    table.set_cursor("c")
    table.upsert([{"id": 6}])
    return path


def damaged(document: Any) -> Iterator[Any]:
    """Every document that differs in one value, or lacks one."""
    if isinstance(document, dict):
        for name, value in document.items():
            yield {other: document[other] for other in document if other != name}
            for one in [*ODD, *damaged(value)]:
                yield {**document, name: one}
    elif isinstance(document, list):
        for at, value in enumerate(document):
            for one in damaged(value):
                yield [*document[:at], one, *document[at + 1 :]]
    elif isinstance(document, str) and document[:1] in ("{", "["):  # a document as the text of a field
        yield from map(json.dumps, [*ODD, *damaged(json.loads(document))])


def use(path: Path) -> None:
    """Call everything that reads a table; each call ends in a result or in one of the kinds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            table = lancelsm.open(path)
        except LsmError:
            return
        for call in (
            table.status,
            lambda: table.scan().to_arrow(),
            lambda: table.get(2),
            lambda: table.upsert({"id": 5}),
            lambda: list(table.changes()),
            lambda: list(table.changes(cursor="c")),
            lambda: table.at("s").scan().to_arrow(),
            table.snapshots,
            table.cursors,
            table.collect,
            table.scrub,
            table.flush,
            table.merge,
        ):
            with suppress(LsmError):
                call()


@pytest.mark.rest
def test_a_damaged_configuration_is_an_error_of_a_kind(template: Path, tmp_path: Path) -> None:
    document = json.loads((template / CONFIG).read_bytes())
    bodies = [json.dumps(one) for one in [*damaged(document), *ODD]]
    for body in [*bodies, DEEP, f'{{"format": {DEEP}', "", "\ufeff", "\xff"]:
        path = tmp_path / "t"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(template, path)
        (path / CONFIG).write_bytes(body.encode("latin-1" if body == "\xff" else "utf-8"))
        use(path)


# The kinds of records, by partition and sort key.
KINDS = {
    "table": r"T [^#]+",
    "region": r"T#.* [^#]+",
    "head": r"H#.*",
    "lease": r"L#.*",
    "snapshot": r"S#.* [^#]+",
    "region of a snapshot": r"S#.* .*#.*",
    "cursor": r"C#.* [^#]+",
    "region of a cursor": r"C#.* .*#.*",
}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_record_is_an_error_of_a_kind(template: Path, tmp_path: Path, kind: str) -> None:
    with closing(sqlite3.connect(template / SQLITE)) as connection:
        rows = connection.execute("select partition, sort, fields from records").fetchall()
    partition, sort, text = next(row for row in rows if re.fullmatch(KINDS[kind], f"{row[0]} {row[1]}"))
    for body in [*map(json.dumps, damaged(json.loads(text))), DEEP, "", "7", b"\xff", 5]:
        path = tmp_path / "t"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(template, path)
        with closing(sqlite3.connect(path / SQLITE)) as connection, connection:
            connection.execute(
                "update records set fields = ? where partition = ? and sort = ?", (body, partition, sort)
            )
        use(path)
