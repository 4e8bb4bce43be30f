"""What a head remembers of producers: which one it forgets, its stored form, and how a user drops one."""

from __future__ import annotations

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.layout import Position
from lancelsm.errors import Invalid
from lancelsm.region import producers
from lancelsm.region.catalog import regions
from lancelsm.region.handle import open_table
from lancelsm.region.producers import IDLE_SECONDS, MOST, Producer, producer_id
from lancelsm.wal.append import append
from lancelsm.wal.entry import draft
from lancelsm.wal.forget import forget_producer
from lancelsm.wal.replay import read_entry

DAY = 86_400


def remembered(*appends):
    """What a head remembers after appends of (name, sequence, day)."""
    found = {}
    for name, sequence, day in appends:
        found = producers.after(found, {name: str(sequence)}, None if day is None else day * DAY)
    return found


FULL = tuple((f"p{number}", 100 - number, 10 + number) for number in range(MOST))


@pytest.mark.parametrize(
    ("appends", "forgotten"),
    [
        ((), "p0"),
        ((("p0", 101, 50),), "p1"),
        ((("p0", 1, 50),), "p1"),  # a lower sequence is an append too
        ((("p1", 101, 1),), "p0"),  # the clock of a writer was behind
        ((("p0", 101, None),), "p0"),
    ],
)
def test_the_producer_that_is_idle_for_longest_is_forgotten(appends, forgotten):
    before, after = remembered(*FULL, *appends), remembered(*FULL, *appends, ("new", 1, 90))
    assert before.keys() - after.keys() == {producer_id(forgotten)}
    assert after.keys() - before.keys() == {producer_id("new")}


@pytest.mark.parametrize(
    ("name", "at", "room"),
    [
        ("p3", 0, True),
        ("new", 10 * DAY + IDLE_SECONDS, False),
        ("new", 10 * DAY + IDLE_SECONDS + 1, True),
        ("new", None, False),
    ],
)
def test_a_new_producer_has_room_only_when_another_one_is_idle(name, at, room):
    assert producers.has_room(remembered(*FULL), name, at) is room
    assert producers.has_room(remembered(*FULL[1:]), name, at)


def test_a_producer_without_a_time_is_never_idle():
    unknown = remembered(*((name, sequence, None) for name, sequence, _ in FULL))
    assert not producers.has_room(unknown, "new", 10**9)


@pytest.mark.parametrize("sequence", [1, 10**20 - 1, 0xF0 * 2**64 - 1, 0xF0 * 2**64, 2**72, 2**128 - 1])
def test_producers_survive_encoding_with_sequences_of_any_size(sequence):
    found = {producer_id("a"): Producer(sequence, 20_000), producer_id("b"): Producer(7), producer_id("c"): Producer(1)}
    assert producers.from_value(producers.to_value(found)) == found


def test_every_part_of_a_stored_producer_is_needed():
    stored = producers.to_value({producer_id("a"): Producer(2**100, 20_000)})
    for length in range(1, len(stored)):
        with pytest.raises(ValueError, match="source is"):
            producers.from_value(stored[:length])


def test_a_head_of_an_earlier_release_keeps_its_sequences():
    assert producers.from_value('{"q": "10"}') == {producer_id("q"): Producer(10)}
    assert producers.from_value(producers.to_value({})) == {}


def test_a_producer_is_forgotten_on_request_and_the_rows_stay(tmp_path):
    table = lancelsm.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), primary_key="id")
    table.upsert([{"id": 1, "v": 1}])
    handle = open_table(table.uri)
    (region,) = regions(handle.context)
    rows = read_entry(region, Position(1)).table()
    append(region, draft(rows, applied_sequences={"job": "5"}, at=DAY), owner="default")
    assert region.head().applied("job") == 5

    with pytest.raises(Invalid, match=rf"the producer 'jobs'.*{producer_id('job')}, last append before 1970-01-02"):
        forget_producer([region], "jobs", handle.target())
    ((_, head),) = forget_producer([region], "job", handle.target())
    assert head == region.head()

    assert region.head().producers == {}
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "v": 1}]
    table.run()
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "v": 1}]
    assert table.scrub().problems == ()
