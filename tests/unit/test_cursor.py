"""A cursor is set while its consumer saves it, or while another process creates it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.common.layout import Position
from lancelsm.errors import Invalid
from lancelsm.history import cursor as cursors
from lancelsm.history import pins
from lancelsm.history.cursor import create_cursor, find_cursor, set_cursor
from lancelsm.region.catalog import Region, regions
from lancelsm.region.handle import TableHandle, open_table
from lancelsm.region.head import Head
from tests.unit.cursor_scenarios import (
    SECOND,
    confirmed_cursor_stays_if_the_reply_was_lost,
    cursor_created_during_a_set_is_set_too,
    earliest,
    save_in_another_region_during_a_set_is_kept_or_refused,
)


def refused(region: Region, _: Head) -> Position:
    raise Invalid("no", **region.where)


@pytest.fixture
def handle(tmp_path: Path) -> TableHandle:
    table = lancelsm.create(tmp_path / "t", [{"id": 0, "v": 0}], primary_key="id", regions="bucket(id, 2)")
    for version in range(3):
        table.upsert([{"id": n, "v": version} for n in range(8)])
    return open_table(table.uri)


@pytest.mark.parametrize(("of", "step"), [(cursors, "start_move"), (pins, "pin_regions"), (cursors, "finish_move")])
def test_a_save_in_another_region_during_a_set_of_a_cursor_is_kept_or_refused(
    handle: TableHandle, monkeypatch: pytest.MonkeyPatch, of: Any, step: str
) -> None:
    save_in_another_region_during_a_set_is_kept_or_refused(handle, monkeypatch, of=of, step=step)


@pytest.mark.parametrize("start", [earliest, refused])
def test_a_cursor_created_during_a_set_is_set_too_or_stays_if_the_set_is_refused(
    handle: TableHandle, monkeypatch: pytest.MonkeyPatch, start: cursors.PositionAt
) -> None:
    find, created = cursors.find_cursor, []

    def created_after(*arguments: Any) -> Any:
        found = find(*arguments)
        if not created:
            created.append(create_cursor(handle.context, "sink", start=lambda *_: SECOND))
        return found

    monkeypatch.setattr(cursors, "find_cursor", created_after)
    if start is refused:
        with pytest.raises(Invalid, match="no"):
            set_cursor(handle.context, "sink", start=start)
        assert find(handle.context, "sink") == created[0]
    else:
        moved = set_cursor(handle.context, "sink", start=start)
        assert find(handle.context, "sink") == moved
        assert {needs.first_position for needs in moved.regions.values()} == {1}


def test_an_unconfirmed_cursor_of_a_crashed_process_can_be_set(handle: TableHandle) -> None:
    pins.begin(handle.context, "cursor", "sink")

    moved = set_cursor(handle.context, "sink", start=earliest)

    assert find_cursor(handle.context, "sink") == moved


def test_a_missing_cursor_cannot_be_set_in_one_region_only(handle: TableHandle) -> None:
    with pytest.raises(Invalid, match="cursor not found") as raised:
        set_cursor(handle.context, "sink", start=earliest, only=regions(handle.context)[0].id)

    assert f"lancelsm cursor set {handle.context.uri} --name sink" in raised.value.remedy


def test_a_cursor_can_be_set_in_one_region(handle: TableHandle) -> None:
    table = lancelsm.open(handle.context.uri)
    one, other = table.list_regions()
    table.set_cursor("sink", start=2)

    moved = table.set_cursor("sink", region=one.id[:13])

    assert {region: needs.first_position for region, needs in moved.regions.items()} == {one.id: 1, other.id: 2}
    with pytest.raises(Invalid, match="region not found"):
        table.set_cursor("sink", region="no")


def test_a_cursor_whose_confirmation_had_no_reply_stays_if_it_was_confirmed(
    handle: TableHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmed_cursor_stays_if_the_reply_was_lost(handle, monkeypatch)


def test_a_cursor_that_another_process_creates_during_a_set_is_set_too(
    handle: TableHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor_created_during_a_set_is_set_too(handle, monkeypatch)
