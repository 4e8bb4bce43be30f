"""Races between a set of a cursor and its consumers, on a table with two regions of three entries each."""

from __future__ import annotations

from typing import Any

import pytest

from lancelsm.common.layout import Position
from lancelsm.errors import Contended, Unavailable
from lancelsm.history import pins
from lancelsm.history.cursor import create_cursor, find_cursor, save_cursor, set_cursor
from lancelsm.region.catalog import Region, regions
from lancelsm.region.handle import TableHandle
from lancelsm.region.head import Head

SECOND = Position(2)


def earliest(_: Region, head: Head) -> Position:
    return head.first_position


def save_in_another_region_during_a_set_is_kept_or_refused(
    handle: TableHandle, monkeypatch: pytest.MonkeyPatch, *, of: Any, step: str
) -> None:
    """A consumer saves in one region right before a step of a set in the other: the save is kept, or is refused."""
    one, other = (region.id for region in regions(handle.context))
    pin, act = create_cursor(handle.context, "sink", start=lambda *_: SECOND), getattr(of, step)
    errors = []

    def saved_before(*arguments: Any, **options: Any) -> Any:
        if not errors:
            errors.append(None)
            try:
                save_cursor(handle.context, pin, {other: Position(3)})
            except Contended as error:
                errors[0] = error
        return act(*arguments, **options)

    monkeypatch.setattr(of, step, saved_before)
    moved = set_cursor(handle.context, "sink", start=earliest, only=one)

    assert find_cursor(handle.context, "sink") == moved
    assert moved.regions[one].first_position == 1
    assert moved.regions[other].first_position == (2 if errors[0] else 3)


def confirmed_cursor_stays_if_the_reply_was_lost(handle: TableHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer may have read from the cursor and saved it, so a lost reply must not remove it."""
    confirm = pins.confirm

    def unanswered(*arguments: Any, **options: Any) -> Any:
        confirm(*arguments, **options)
        raise Unavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(pins, "confirm", unanswered)
        with pytest.raises(Unavailable, match="no answer"):
            create_cursor(handle.context, "sink", start=earliest)

    assert find_cursor(handle.context, "sink") is not None


def cursor_created_during_a_set_is_set_too(handle: TableHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process creates the cursor right before a set would; the set replaces it at the new start."""
    begin, created = pins.begin, []

    def begin_after_another(*arguments: Any) -> Any:
        if not created:
            created.append(None)
            created[0] = create_cursor(handle.context, "sink", start=lambda *_: SECOND)
        return begin(*arguments)

    monkeypatch.setattr(pins, "begin", begin_after_another)
    moved = set_cursor(handle.context, "sink", start=earliest)

    assert find_cursor(handle.context, "sink") == moved
    assert moved.nonce != created[0].nonce
    assert {needs.first_position for needs in moved.regions.values()} == {1}
