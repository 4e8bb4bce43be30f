"""A cursor that is put elsewhere while its consumer saves, or while somebody makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.common.layout import Position
from lancelsm.errors import Contended, Invalid, Unavailable
from lancelsm.history import cursor as cursors
from lancelsm.history import pins
from lancelsm.history.cursor import find_cursor, make_cursor, save_cursor, set_cursor
from lancelsm.region.catalog import Region, regions
from lancelsm.region.handle import TableHandle, open_table
from lancelsm.region.head import Head

SECOND = Position(2)


def earliest(_: Region, head: Head) -> Position:
    return head.first_position


def refused(region: Region, _: Head) -> Position:
    raise Invalid("no", **region.where)


@pytest.fixture
def handle(tmp_path: Path) -> TableHandle:
    table = lancelsm.create(tmp_path / "t", [{"id": 0, "v": 0}], primary_key="id", regions="bucket(id, 2)")
    for version in range(3):
        table.upsert([{"id": n, "v": version} for n in range(8)])
    return open_table(table.uri)


@pytest.mark.parametrize(("of", "step"), [(cursors, "announce"), (pins, "pin_regions"), (cursors, "arrive")])
def test_a_save_in_one_region_while_the_cursor_is_put_elsewhere_in_another_is_kept_or_refused(
    handle: TableHandle, monkeypatch: pytest.MonkeyPatch, of: Any, step: str
) -> None:
    one, other = (region.id for region in regions(handle.context))
    pin, act = make_cursor(handle.context, "sink", start=lambda *_: SECOND), getattr(of, step)
    raised = []

    def saved_before(*given: Any, **how: Any) -> Any:
        if not raised:
            raised.append(None)
            try:
                save_cursor(handle.context, pin, {other: Position(3)})
            except Contended as error:
                raised[0] = error
        return act(*given, **how)

    monkeypatch.setattr(of, step, saved_before)
    moved = set_cursor(handle.context, "sink", start=earliest, only=one)

    assert find_cursor(handle.context, "sink") == moved
    assert moved.regions[one].first_position == 1
    assert moved.regions[other].first_position == (2 if raised[0] else 3)


@pytest.mark.parametrize("start", [earliest, refused])
def test_a_cursor_that_is_made_while_it_is_set_is_put_there_and_stays_if_that_is_refused(
    handle: TableHandle, monkeypatch: pytest.MonkeyPatch, start: cursors.Start
) -> None:
    find, made = cursors.find_cursor, []

    def made_after(*given: Any) -> Any:
        found = find(*given)
        if not made:
            made.append(make_cursor(handle.context, "sink", start=lambda *_: SECOND))
        return found

    monkeypatch.setattr(cursors, "find_cursor", made_after)
    if start is refused:
        with pytest.raises(Invalid, match="no"):
            set_cursor(handle.context, "sink", start=start)
        assert find(handle.context, "sink") == made[0]
    else:
        moved = set_cursor(handle.context, "sink", start=start)
        assert find(handle.context, "sink") == moved
        assert {needs.first_position for needs in moved.regions.values()} == {1}


def test_what_a_maker_that_crashed_has_left_of_a_cursor_keeps_nobody_from_setting_it(handle: TableHandle) -> None:
    pins.begin(handle.context, "cursor", "sink")

    moved = set_cursor(handle.context, "sink", start=earliest)

    assert find_cursor(handle.context, "sink") == moved


def test_a_cursor_that_is_not_there_is_set_in_all_regions_or_not_at_all(handle: TableHandle) -> None:
    with pytest.raises(Invalid, match="there is no such cursor") as raised:
        set_cursor(handle.context, "sink", start=earliest, only=regions(handle.context)[0].id)

    assert f"lancelsm cursor set {handle.context.uri} --name sink" in raised.value.remedy


def test_a_table_puts_a_cursor_elsewhere_in_one_region(handle: TableHandle) -> None:
    table = lancelsm.open(handle.context.uri)
    one, other = table.regions()
    table.set_cursor("sink", start=2)

    moved = table.set_cursor("sink", region=one.id[:13])

    assert {region: needs.first_position for region, needs in moved.regions.items()} == {one.id: 1, other.id: 2}
    with pytest.raises(Invalid, match="there is no such region"):
        table.set_cursor("sink", region="no")


def test_a_cursor_whose_confirmation_had_no_answer_and_is_there_stays(
    handle: TableHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may have read from it and saved it since."""
    confirm = pins.confirm

    def unanswered(*given: Any, **how: Any) -> Any:
        confirm(*given, **how)
        raise Unavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(pins, "confirm", unanswered)
        with pytest.raises(Unavailable, match="no answer"):
            make_cursor(handle.context, "sink", start=earliest)

    assert find_cursor(handle.context, "sink") is not None


def test_a_cursor_that_another_makes_at_any_moment_of_a_set_is_put_there(
    handle: TableHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, made = pins.begin, []

    def begun(*given: Any) -> Any:
        if not made:
            made.append(None)
            made[0] = make_cursor(handle.context, "sink", start=lambda *_: SECOND)
        return begin(*given)

    monkeypatch.setattr(pins, "begin", begun)
    moved = set_cursor(handle.context, "sink", start=earliest)

    assert find_cursor(handle.context, "sink") == moved
    assert moved.nonce != made[0].nonce
    assert {needs.first_position for needs in moved.regions.values()} == {1}
