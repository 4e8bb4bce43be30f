"""Handles of a table that another process drops, or drops and creates again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.common.layout import SQLITE
from lancelsm.errors import Corrupt, Invalid
from lancelsm.objects.open import open_store
from lancelsm.table import Table

ROWS = [{"id": 0, "v": 0}]
REMEDY = "If there is a new table, open it again"

USES: dict[str, Callable[[Table], Any]] = {
    "scan": lambda table: table.scan().to_arrow(),
    "get": lambda table: table.get([0]),
    "upsert": lambda table: table.upsert([{"id": 1, "v": 1}]),
    "delete": lambda table: table.delete([0]),
    "flush": lambda table: table.flush(),
    "merge": lambda table: table.merge(),
    "run": lambda table: table.run(),
    "collect": lambda table: table.collect(yes=True),
    "scrub": lambda table: table.scrub(),
    "status": lambda table: table.status(),
    "changes": lambda table: list(table.changes()),
    "snapshot": lambda table: table.snapshot("monday", "never"),
    "region": lambda table: table.region("0"),
}


# Most uses do the same for a table without writes; the others read regions, or the log, only after a write.
CASES = [*((use, True) for use in USES), *((use, False) for use in ("get", "upsert", "delete"))]


def created(location: Path, *, written: bool, registry: str = "sqlite") -> Table:
    """A handle of a new table, through which a row was written or not."""
    lancelsm.create(location, ROWS, primary_key="id", registry=registry)
    table = lancelsm.open(location)
    if written:
        table.upsert(ROWS)
    return table


def objects(table: Table) -> list[str]:
    """All objects but registry records: a lease or an unconfirmed pin of the old table may stay there."""
    keys = [line.key for line in open_store(table.uri).list("")]
    return sorted(key for key in keys if not key.startswith("_lancelsm/registry"))


@pytest.mark.one_case
@pytest.mark.parametrize(("use", "written"), CASES)
def test_every_use_of_a_dropped_table_says_that_it_was_dropped(tmp_path: Path, use: str, written: bool) -> None:
    table = created(tmp_path / "t", written=written)
    lancelsm.drop(table.uri)

    with pytest.raises(Invalid) as raised:
        USES[use](table)

    assert (raised.value.message, raised.value.remedy) == ("the table was dropped", REMEDY)
    assert raised.value.where["table"] == table.uri


@pytest.mark.one_case
@pytest.mark.parametrize(("use", "written"), CASES)
def test_every_use_of_a_replaced_table_says_so_and_leaves_the_new_table_alone(
    tmp_path: Path, use: str, written: bool
) -> None:
    table = created(tmp_path / "t", written=written)
    lancelsm.drop(table.uri)
    other = lancelsm.create(table.uri, [{"id": 7, "v": 7}], primary_key="id")
    before = objects(other)

    with pytest.raises(Invalid) as raised:
        USES[use](table)

    assert (raised.value.message, raised.value.remedy) == (
        "the table was dropped and another one was created there",
        REMEDY,
    )
    if not (written and use in ("upsert", "delete")):  # a late write leaves an orphan entry
        assert objects(other) == before
    assert other.scan().to_arrow().to_pylist() == [{"id": 7, "v": 7}]


@pytest.mark.parametrize("depth", [1, 2])
def test_an_open_writer_of_a_dropped_table_fails_at_its_next_write(tmp_path: Path, depth: int) -> None:
    table = lancelsm.create(tmp_path / "t", ROWS, primary_key="id")

    with suppress(Invalid), table.writer(pipeline_depth=depth) as writer:  # closing the writer raises the same error
        writer.upsert(ROWS)
        lancelsm.drop(table.uri)
        with pytest.raises(Invalid, match="the table was dropped") as raised:
            writer.upsert(ROWS)
    assert raised.value.remedy == REMEDY


def test_a_region_of_a_dropped_table_says_that_it_was_dropped(tmp_path: Path) -> None:
    table = created(tmp_path / "t", written=True)
    (region,) = table.list_regions()
    lancelsm.drop(table.uri)

    with pytest.raises(Invalid, match="the table was dropped"):
        table.seal(region)


@pytest.mark.parametrize("use", ["scan", "upsert", "status"])
def test_a_lost_registry_is_not_mistaken_for_a_drop(tmp_path: Path, use: str) -> None:
    table = lancelsm.create(tmp_path / "t", ROWS, primary_key="id")
    table.upsert(ROWS)
    for path in Path(table.uri).glob(f"{SQLITE}*"):
        path.unlink()

    with pytest.raises(Corrupt, match="registry"):
        USES[use](lancelsm.open(table.uri))


@pytest.mark.parametrize("known", [True, False])
def test_a_handle_that_only_read_cannot_write_to_a_table_created_there_later(tmp_path: Path, known: bool) -> None:
    table = created(tmp_path / "t", written=False, registry="object")
    if known:
        table.get([0])
    lancelsm.drop(table.uri)
    other = lancelsm.create(table.uri, ROWS, primary_key="id", registry="object")

    with pytest.raises(Invalid, match="the table was dropped and another one was created there"):
        table.upsert([{"id": 1, "v": 1}])

    assert other.scan().to_arrow().to_pylist() == ROWS
