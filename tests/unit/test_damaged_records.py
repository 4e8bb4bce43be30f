"""Damaged registry records: reads raise `Corrupt` or ignore them, and the documented repair works."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.rebuild import rebuild
from lancelsm.common.layout import SQLITE, Key, cursors, head_key, lease_key, pin_key, region_key, snapshots
from lancelsm.errors import Corrupt, LsmError
from lancelsm.region.catalog import TableContext
from lancelsm.region.handle import open_table
from lancelsm.region.lease import lease
from lancelsm.registry.object import object_key
from lancelsm.table import Table
from tests.unit.tables import NEWEST, by_key, three_levels

NOT_RECORDS = ["[]", "{", '{"version": null}']
# How a field is decoded does not depend on the registry; how a record is read does.
in_both_registries = pytest.mark.parametrize("table", ["sqlite", "object"], indirect=True)


@pytest.fixture
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    return three_levels(tmp_path / "table", registry=getattr(request, "param", "sqlite"))


def context_of(table: Table) -> TableContext:
    return open_table(table.uri).context


def rows_of(table: Table) -> dict[int, object]:
    return by_key(lancelsm.open(table.uri).scan().to_arrow())


def write(table: Table, key: Key, fields: str) -> None:
    """Overwrite the fields of a stored record."""
    if (Path(table.uri) / SQLITE).exists():
        with contextlib.closing(sqlite3.connect(Path(table.uri) / SQLITE, isolation_level=None)) as file:
            found = (fields, key.partition, key.sort)
            assert file.execute("UPDATE records SET fields = ? WHERE partition = ? AND sort = ?", found).rowcount == 1
    else:
        path = Path(table.uri) / object_key(key)
        document = json.loads(path.read_bytes())
        try:
            path.write_text(json.dumps({**document, "fields": json.loads(fields)}))
        except ValueError:
            path.write_text(fields)


def change(table: Table, key: Key, **fields: object) -> None:
    """Change fields of a record; the value `...` removes the field."""
    record = {**(context_of(table).registry.read(key) or {}), **fields}
    write(table, key, json.dumps({name: value for name, value in record.items() if value is not ...}))


def region_record_of(table: Table, partition: str) -> Key:
    """The key of a record of what a pin needs of one region."""
    return next(key for key, _ in context_of(table).registry.list(partition) if "#" in key.sort)


@pytest.mark.parametrize(
    ("of", "field", "value"),
    [(head_key, "epoch", "x"), (region_key, "spec_id", "x"), (region_key, "values", "{"), (region_key, "values", ...)],
)
def test_a_record_of_a_region_with_a_wrong_field_is_corrupt_and_can_be_rebuilt(
    table: Table, of: Callable[..., Key], field: str, value: object
) -> None:
    change(table, of(context_of(table).table, table.list_regions()[0].id), **{field: value})

    with pytest.raises(Corrupt, match="registry rebuild"):
        rows_of(table)
    assert not table.scrub().ok
    rebuild(open_table(table.uri))
    assert rows_of(table) == NEWEST


@pytest.mark.one_case
@in_both_registries
@pytest.mark.parametrize("of", [head_key, region_key])
def test_an_unreadable_record_of_a_region_is_corrupt_and_can_be_rebuilt(table: Table, of: Callable[..., Key]) -> None:
    write(table, of(context_of(table).table, table.list_regions()[0].id), "[]")

    with pytest.raises(Corrupt, match="registry rebuild"):
        rows_of(table)
    assert not table.scrub().ok
    rebuild(open_table(table.uri))
    assert rows_of(table) == NEWEST


@in_both_registries
@pytest.mark.parametrize("fields", [*NOT_RECORDS, '{"holder": "a", "expires": "5", "version": "1"}'])
def test_an_unreadable_lease_can_be_taken(table: Table, fields: str) -> None:
    context = context_of(table)
    with lease(context, "base"):
        pass
    write(table, lease_key(context.table, "base"), fields)

    with lease(context, "base"):
        pass
    assert table.scrub().ok


@pytest.mark.one_case
@pytest.mark.parametrize("field", ["nonce", "version", "confirmed", "clone", "created"])
@pytest.mark.parametrize("value", [..., -1], ids=["missing", "another type"])
def test_a_snapshot_with_a_wrong_field_is_corrupt_and_can_be_dropped(table: Table, field: str, value: object) -> None:
    table.snapshot("monday", "never")
    change(table, pin_key(snapshots(context_of(table).table), "monday"), **{field: value})

    with pytest.raises(Corrupt):
        table.snapshots()
    assert not table.scrub().ok
    table.drop_snapshot("monday")
    table.collect(yes=True, interval_seconds=0)
    assert table.scrub().ok
    assert not context_of(table).registry.list(snapshots(context_of(table).table))
    assert rows_of(table) == NEWEST


def test_a_snapshot_that_pins_no_version_of_the_base_is_corrupt_where_it_is_read(table: Table, tmp_path: Path) -> None:
    table.snapshot("monday", "never")
    change(table, pin_key(snapshots(context_of(table).table), "monday"), base_version=0)

    with pytest.raises(Corrupt, match="pins no version of the base"):
        table.at("monday").scan()
    with pytest.raises(Corrupt, match="pins no version of the base"):
        clone_snapshot(open_table(table.uri), "monday", tmp_path / "clone")
    assert not table.scrub().ok
    table.drop_snapshot("monday")
    assert table.scrub().ok


@pytest.mark.parametrize("part", [False, True], ids=["pin record", "region record"])
@pytest.mark.parametrize("kind", ["snapshot", "cursor"])
def test_a_pin_with_an_unreadable_record_can_be_dropped(table: Table, kind: str, part: bool) -> None:
    partition = (snapshots if kind == "snapshot" else cursors)(context_of(table).table)
    make = {"snapshot": table.snapshot, "cursor": table.set_cursor}[kind]
    make("broken")
    key = region_record_of(table, partition) if part else pin_key(partition, "broken")
    make("intact")
    write(table, key, "[]")

    with pytest.raises(Corrupt, match=r"Drop the snapshot or cursor"):
        table.collect(yes=True)
    {"snapshot": table.drop_snapshot, "cursor": table.drop_cursor}[kind]("broken")
    table.collect(yes=True, interval_seconds=0)
    assert [pin.name for pin in {"snapshot": table.snapshots, "cursor": table.cursors}[kind]()] == ["intact"]
    assert not [key for key, _ in context_of(table).registry.list(partition) if key.sort.startswith("broken")]


def test_a_cursor_at_an_impossible_position_is_corrupt(table: Table) -> None:
    table.set_cursor("reader")
    change(table, region_record_of(table, cursors(context_of(table).table)), first_position=-1)

    with pytest.raises(Corrupt):
        list(table.changes(cursor="reader"))
    assert not table.scrub().ok


@pytest.mark.parametrize("nonce", ["0" * 32, ...], ids=["another nonce", "missing"])
def test_the_key_of_a_region_record_decides_which_pin_it_belongs_to(table: Table, nonce: object) -> None:
    table.snapshot("monday", "never")
    expected = by_key(table.at("monday").scan().to_arrow())
    change(table, region_record_of(table, snapshots(context_of(table).table)), nonce=nonce)

    table.collect(yes=True, interval_seconds=0)
    assert by_key(table.at("monday").scan().to_arrow()) == expected
    assert table.scrub().ok


@pytest.mark.parametrize("of", ["head", "lease"])
def test_a_table_with_a_damaged_record_can_be_dropped(table: Table, of: str) -> None:
    context = context_of(table)
    with lease(context, "merge"):
        pass
    key = {"head": head_key(context.table, table.list_regions()[0].id), "lease": lease_key(context.table, "base")}[of]
    if of == "lease":
        with lease(context, "base"):
            pass
    write(table, key, "[]")

    lancelsm.drop(table.uri)
    with pytest.raises(LsmError):
        lancelsm.open(table.uri)
