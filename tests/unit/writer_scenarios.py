"""Exclusive writers that claim, release and lose their regions."""

from __future__ import annotations

from pathlib import Path

import pytest

import lancelsm
from lancelsm.errors import Fenced
from tests.unit.tables import create, row, rows_of


def exclusive_writer_releases_its_regions(directory: Path) -> None:
    """An exclusive writer fences others until its end, and then releases its regions."""
    table = create(directory, regions="identity(id)")
    table.upsert([row(1), row(2)])
    other = lancelsm.open(table.uri)
    with table.writer(exclusive=True) as writer:
        writer.upsert([row(1, "x"), row(3, "x")])
        (one, two) = [region.owner for region in table.status().regions if region.owner != "default"]
        assert one == two
        assert one.startswith("default-")
        for key in (1, 3):
            with pytest.raises(Fenced, match=f"held by '{one}'"):
                other.upsert([row(key, "y")])
        other.upsert([row(2, "y")])  # a region to which the exclusive writer has not written

    assert {region.owner for region in table.status().regions} == {"default"}
    other.upsert([row(1, "z"), row(3, "z")])
    table.upsert([row(4)])
    assert rows_of(table) == [row(1, "z"), row(2, "y"), row(3, "z"), row(4)]


def exclusive_writer_loses_its_region(directory: Path) -> None:
    """Another owner claims the region of an exclusive writer, which does not claim it again."""
    table = create(directory)
    (region,) = table.list_regions()

    def write() -> None:
        with table.writer(exclusive=True) as writer:
            writer.upsert([row(1)])
            table.claim(region, owner="another")
            writer.submit([row(2)])

    with pytest.raises(Fenced, match="'another'"):
        write()
    assert region.head().owner == "another"
    assert rows_of(table) == [row(1)]
