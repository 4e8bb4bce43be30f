"""Compare the transforms with the expressions of the specification, which DataFusion evaluates."""

from __future__ import annotations

import datetime as dt

import datafusion
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lancelsm.errors import Invalid
from lancelsm.routing.transforms import Transform, calendar, truncate, unsharded

PARTS = [Transform.YEAR, Transform.MONTH, Transform.DAY, Transform.HOUR]
ZONES = [None, "UTC", "+05:30", "-11:00", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"]
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


# Each example starts a query, so there are few examples with many values.
few = settings(max_examples=settings().max_examples // 5)

CONTEXT = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(1))


def by_datafusion(column, *expressions):
    frame = CONTEXT.from_arrow(pa.table({"col0": column}))
    parsed = [frame.parse_sql_expr(text).alias(f"v{number}") for number, text in enumerate(expressions)]
    return [values.to_pylist() for values in frame.select(*parsed).to_arrow_table().columns]


def assert_parts_match_datafusion(column):
    found = [calendar(part, column) for part in PARTS]

    assert {values.type for values in found} == {pa.int32()}
    assert [values.to_pylist() for values in found] == by_datafusion(
        column, *(f"date_part('{part}', col0)" for part in PARTS)
    )


@pytest.mark.parametrize("zone", ZONES)
# All editions of the time zone database agree on the years from 1970 to 2024.
@few
@given(
    unit=st.sampled_from(sorted(PER_SECOND)),
    seconds=st.lists(st.none() | st.integers(0, 1_735_689_599), min_size=1, max_size=60),
    fraction=st.integers(0, 999),
)
def test_calendar_parts_of_timestamps_match_datafusion(zone, unit, seconds, fraction):
    scale = PER_SECOND[unit]
    ticks = [None if s is None else s * scale + fraction * scale // 1000 for s in seconds]

    assert_parts_match_datafusion(pa.array(ticks, pa.int64()).view(pa.timestamp(unit, zone)))


@few
@given(days=st.lists(st.none() | st.integers(-700_000, 700_000), min_size=1, max_size=60))
def test_calendar_parts_of_dates_and_of_times_before_1970_match_datafusion(days):
    ends = [None if day is None else day * 86_400_000_000 - 1 for day in days]

    assert_parts_match_datafusion(pa.array(days, pa.int32()).view(pa.date32()))
    assert_parts_match_datafusion(pa.array(ends, pa.int64()).view(pa.timestamp("us")))


def test_day_is_the_day_of_the_month_in_the_zone_of_the_column():
    last_second = dt.datetime(2024, 2, 29, 23, 59, 59, tzinfo=dt.UTC)

    assert calendar(Transform.DAY, pa.array([last_second], pa.timestamp("s", "UTC"))).to_pylist() == [29]
    assert calendar(Transform.DAY, pa.array([last_second], pa.timestamp("s", "Asia/Tokyo"))).to_pylist() == [1]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()])
@few
@given(data=st.data())
def test_truncated_integers_match_datafusion(kind, data):
    low = 0 if pa.types.is_unsigned_integer(kind) else -(1 << (kind.bit_width - 1))
    high = (1 << (kind.bit_width - (low < 0))) - 1
    values = data.draw(st.lists(st.none() | st.integers(low, high), min_size=1, max_size=60))
    width = data.draw(st.integers(1, 300) | st.integers(1, (1 << 63) - 1))
    column = pa.array(values, kind)

    found = truncate(column, width)

    assert found.type == kind
    assert [found.to_pylist()] == by_datafusion(column, f"col0 - (col0 % {width})")


@pytest.mark.parametrize(("value", "to"), [(7, 0), (-7, 0), (10, 10), (-10, -10), (-11, -10), (None, None)])
def test_truncate_rounds_towards_zero(value, to):
    assert truncate(pa.array([value], pa.int64()), 10).to_pylist() == [to]


def test_truncate_of_uint64_keeps_all_its_bits():
    assert truncate(pa.array([(1 << 64) - 1], pa.uint64()), 1 << 62).to_pylist() == [3 << 62]


@pytest.mark.parametrize("kind", [pa.utf8(), pa.large_utf8()])
@few
@given(values=st.lists(st.none() | st.text(max_size=6), min_size=1, max_size=60), width=st.integers(1, 7))
def test_truncated_text_matches_datafusion(kind, values, width):
    column = pa.array(values, kind)

    found = truncate(column, width)

    assert found.type == kind
    assert [found.to_pylist()] == by_datafusion(column, f"left(col0, {width})")


def test_truncate_counts_characters_of_text_and_bytes_of_binary():
    assert truncate(pa.array(["é🙂z"]), 2).to_pylist() == ["é🙂"]
    assert truncate(pa.array(["é🙂z".encode()]), 3).to_pylist() == ["é🙂".encode()[:3]]


def test_unsharded_is_zero_in_every_row():
    assert unsharded(3) == pa.array([0, 0, 0], pa.int32())


def test_the_error_for_an_unknown_time_zone_names_it():
    column = pa.array([0], pa.int64()).view(pa.timestamp("s", "Atlantis/Capital"))

    with pytest.raises(Invalid, match="Atlantis/Capital"):
        calendar(Transform.DAY, column)


@pytest.mark.parametrize("column", [pa.array([True]), pa.array([1], pa.timestamp("s"))])
def test_truncate_refuses_other_types(column):
    with pytest.raises(Invalid, match="truncate"):
        truncate(column, 10)
