"""The demo, on a part of its data and without Spark."""

from __future__ import annotations

import datetime
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from rich.console import Console

import lancelsm
from lancelsm.common.write_result import Committed
from lancelsm.demo import embedded
from lancelsm.demo import flights as data
from lancelsm.errors import LsmError
from tests.unit.flights import flights_of_days

BOUNDARY_DAYS = ((1, 1), (1, 31), (2, 28), (3, 1), (12, 31))  # ends of a month, of a merge interval and of the year


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return data.read_flights()


@pytest.fixture(scope="module")
def some_flights(flights: pa.Table) -> pa.Table:
    """Some flights of the days in `BOUNDARY_DAYS`."""
    return flights_of_days(flights, days=BOUNDARY_DAYS, every=7)


def silent_console() -> Console:
    return Console(file=io.StringIO())


def by_key(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in data.KEY)


def keys(rows: pa.Table) -> set[tuple[object, ...]]:
    return {by_key(row) for row in rows.select(data.KEY).to_pylist()}


@pytest.mark.rest
def test_the_data_set_keeps_its_types_nulls_and_keys(flights: pa.Table) -> None:
    assert flights.schema.equals(data.COLUMNS)
    assert flights.num_rows == len(keys(flights)) == 336_776
    assert data.flown(flights).num_rows == 328_521
    assert data.cancelled(flights).num_rows == flights["dep_time"].null_count == 8_255
    assert (flights["tailnum"].null_count, flights["air_time"].null_count) == (2_512, 9_430)


def test_the_schedule_has_no_departures_or_arrivals(flights: pa.Table) -> None:
    planned = data.scheduled(flights)

    unknown = ["dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"]
    assert all(planned[name].null_count == planned.num_rows for name in unknown)
    assert planned.drop_columns(unknown).equals(flights.drop_columns(unknown))


def test_a_flight_departs_without_arrival_columns_and_lands_with_all_columns() -> None:
    # given a flight that leaves late on New Year's Eve and lands in the new year
    flight = dict.fromkeys(data.COLUMNS.names) | {
        "time_hour": "2013-12-31T22:00:00Z", "carrier": "UA", "flight": 1, "minute": 30,
        "dep_time": 1745, "dep_delay": 15, "arr_time": 1900, "arr_delay": 5, "air_time": 90,
    }  # fmt: skip

    first, second = data.days(pa.Table.from_pylist([flight], schema=data.COLUMNS))

    assert (first.date, second.date) == (datetime.date(2013, 12, 31), datetime.date(2014, 1, 1))
    assert first.upserts.to_pylist() == [flight | {"arr_time": None, "arr_delay": None, "air_time": None}]
    assert second.upserts.to_pylist() == [flight]


def test_the_last_upsert_of_a_flight_is_its_complete_row(flights: pa.Table) -> None:
    # given flights without a known air time, which the demo lands at their departure
    lost = flights.filter(pc.and_(pc.is_null(flights["air_time"]), pc.is_valid(flights["arr_time"])))

    last = {by_key(row): row for day in data.days(lost) for row in day.upserts.to_pylist()}

    assert lost.num_rows == 717
    assert last == {by_key(row): row for row in lost.to_pylist()}


def test_the_days_contain_every_event_once_and_in_order(flights: pa.Table) -> None:
    year = list(data.days(flights))

    assert sum(day.upserts.num_rows for day in year) == 2 * 328_521
    assert sum(day.deletes.num_rows for day in year) == 8_255
    dates = [day.date for day in year]
    assert dates == sorted(set(dates))
    assert dates[-1] > datetime.date(2013, 12, 31)


def test_no_flight_is_both_upserted_and_deleted(some_flights: pa.Table) -> None:
    year = list(data.days(some_flights))

    upserted = set().union(*(keys(day.upserts) for day in year))
    assert upserted.isdisjoint(set().union(*(keys(day.deletes) for day in year)))


@pytest.mark.rest
def test_the_demo_ends_with_the_flights_that_flew(some_flights: pa.Table, tmp_path: Path) -> None:
    console = silent_console()

    shown = embedded.run_demo(directory=tmp_path, console=console, flights=some_flights, engine="inprocess")

    table = lancelsm.open(shown.table)
    assert Path(shown.table) == tmp_path / "flights"
    assert keys(table.scan().to_arrow()) == keys(data.flown(some_flights))
    assert (shown.scheduled, shown.cancelled + shown.flown) == (some_flights.num_rows, some_flights.num_rows)
    assert shown.merges == 2
    assert shown.generations == sum(region.merged_generation for region in table.status().regions)
    assert shown.entries >= sum(region.next_position - 1 for region in table.status().regions) > 0
    assert f"{shown.flown:,} flown" in console.file.getvalue()


def test_without_a_terminal_there_is_no_progress_bar(some_flights: pa.Table, tmp_path: Path) -> None:
    console = silent_console()

    embedded.run_demo(directory=tmp_path, console=console, flights=some_flights.slice(0, 50), engine="inprocess")

    assert not set(console.file.getvalue()) & {"\x1b", "\r", "━"}


def test_a_table_that_loses_a_write_fails_the_demo(
    some_flights: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelsm.Table, "delete", lambda self, keys: Committed(rows=0, entries=()))

    with pytest.raises(LsmError, match="the demo failed") as caught:
        embedded.run_demo(directory=tmp_path, console=silent_console(), flights=some_flights, engine="inprocess")

    assert caught.value.exit_code == 1


def test_a_value_that_differs_fails_the_proof(
    some_flights: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert = lancelsm.Table.upsert
    monkeypatch.setattr(lancelsm.Table, "upsert", lambda self, rows: upsert(self, data.without(rows, ("tailnum",))))

    with pytest.raises(LsmError, match="rows that differ from the flights that flew"):
        embedded.run_demo(
            directory=tmp_path, console=silent_console(), flights=some_flights.slice(0, 50), engine="inprocess"
        )
