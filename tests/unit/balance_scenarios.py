"""Damage the log of a table, run an operation that reads it, and check which entry the error names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import lance
import pytest

import lancelsm
from lancelsm.admin.adopt import adopt
from lancelsm.admin.rebuild import rebuild
from lancelsm.common.layout import (
    Epoch,
    Nonce,
    Position,
    bitrev64,
    head_key,
    wal_entry,
)
from lancelsm.errors import Corrupt
from lancelsm.record.normalize import upserts
from lancelsm.record.schema import TableSchema, declare_primary_key, numbered
from lancelsm.region.handle import open_table
from lancelsm.table import Table
from lancelsm.wal.entry import draft, encode
from tests.unit.tables import COLUMNS, create, generation_paths, row, rows_of

ENTRIES = 3
SCHEMA = TableSchema(columns=numbered(declare_primary_key(COLUMNS, ("id",))), primary_key=("id",))


def table_with_tail(path: Path) -> tuple[Table, list[Path]]:
    """A table with three entries of equal size in its tail, and the files of these entries."""
    table = create(path)
    for number in range(ENTRIES):
        table.upsert([row(key, f"{number}") for key in range(5)])
    folder = next((path / "table" / "_mem_wal").glob("*/wal"))
    return table, [folder / f"{bitrev64(number + 1)}.arrow" for number in range(ENTRIES)]


def flip(entries: list[Path]) -> None:
    body = bytearray(entries[1].read_bytes())
    body[-40] ^= 1
    entries[1].write_bytes(body)


def lose(entries: list[Path]) -> None:
    entries[1].unlink()


def double(entries: list[Path]) -> None:
    entries[2].write_bytes(entries[1].read_bytes())


def swap(entries: list[Path]) -> None:
    second, third = (entry.read_bytes() for entry in entries[1:])
    entries[1].write_bytes(third)
    entries[2].write_bytes(second)


def replace(entries: list[Path]) -> None:
    """Put a sound entry of a stalled writer in place of a committed one."""
    rows = upserts([row(key, "never") for key in range(5)], schema=SCHEMA)
    late = encode(draft(rows), position=Position(2), epoch=Epoch(1), nonce=Nonce("e" * 32))
    entries[1].write_bytes(late.body)


Fault = Callable[[list[Path]], None]

FAULTS = [flip, lose, double, swap, replace]
FIRST_WRONG = {flip: 2, lose: 2, double: 3, swap: 2}
"""The first position that holds another object than the one that was written."""


LOCATION_FIELDS = ("table", "region", "position", "object")


def corrupt_location(act: Callable[[], object]) -> dict[str, object]:
    """The location that the raised `Corrupt` names."""
    with pytest.raises(Corrupt) as caught:
        act()
    return {name: value for name, value in caught.value.where.items() if name in LOCATION_FIELDS}


def location_of(table: Table, position: int) -> dict[str, object]:
    """The location that an error must name if the entry at this position is wrong."""
    (region,) = table.list_regions()
    found = Position(position)
    return {"table": table.uri, "region": region.id, "position": found, "object": wal_entry(region.id, found)}


def reopened(table: Table) -> Table:
    """The table, opened again as another process would."""
    return lancelsm.open(table.uri)


def claim_by_another(table: Table) -> object:
    (region,) = table.list_regions()
    return table.claim(region, owner="another")


def write_exclusively(table: Table) -> object:
    return lancelsm.open(table.uri, owner="loader").upsert([row(9)])


def adopt_again(table: Table) -> object:
    (region,) = table.list_regions()
    dataset = lance.dataset(table.uri)
    with suppress(OSError):  # Lance can't replay this log either, but first writes its manifest and fence
        dataset.mem_wal_writer(region.id)
    return adopt(table.uri)


LOG_READERS: dict[str, Callable[[Table], object]] = {
    "scan": lambda table: rows_of(reopened(table)),
    "get": lambda table: reopened(table).get([1]),
    "snapshot": lambda table: rows_of(lancelsm.open(table.uri, at="kept")),
    "change stream": lambda table: list(reopened(table).changes()),
    "flush": lambda table: reopened(table).flush(),
    "claim": lambda table: claim_by_another(reopened(table)),
    "claim by an exclusive writer": write_exclusively,
    "adopt again": adopt_again,
    "rebuild": lambda table: rebuild(open_table(table.uri)),
}


def first_wrong_entry_is_named(path: Path, *, fault: Fault, operation: str) -> None:
    """The operation fails with the location of the first wrong entry, and changes nothing."""
    table, entries = table_with_tail(path)
    table.snapshot("kept")
    fault(entries)
    (before,) = (region.head() for region in table.list_regions())

    where = corrupt_location(lambda: LOG_READERS[operation](table))

    assert where == location_of(table, FIRST_WRONG[fault])
    assert [region.head() for region in table.list_regions()] == [before]
    assert generation_paths(path) == []


def claim_compares_totals_with_the_head(path: Path, field: str) -> None:
    """A claim fails if the rows or bytes of manifest and tail differ from those of the head."""
    table, _ = table_with_tail(path)
    (region,) = table.list_regions()
    head = region.head()
    key = head_key(table.config.table, region.id)
    region.context.registry.swap(key, expect={}, change={field: getattr(head, field) + 1})

    where = corrupt_location(lambda: LOG_READERS["claim"](table))

    assert (where["region"], where["position"], where["object"]) == (region.id, ENTRIES, head.manifest_key)
