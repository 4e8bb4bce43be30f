"""Under stress, all actors read what the seed says. The checks of the actors themselves find wrong rows."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.table import Table
from tests.stress import actors
from tests.stress.actors import ActorContext
from tests.stress.run import PROCESSES, stress
from tests.stress.stream import (
    COLUMNS,
    REGIONS,
    Expected,
    Followed,
    is_progress,
    region_of,
    rows_of,
    slices_of,
    step,
    with_progress,
)

SEED = 20_261_128


@pytest.mark.rest
def test_all_actors_read_correct_rows_while_processes_are_killed(tmp_path: Path) -> None:
    done = stress(tmp_path / "run", seed=SEED, seconds=30.0)

    all_actors = {actor for process in PROCESSES.values() for actor in process}
    assert done.keys() == all_actors
    assert all(done.values()), done


def table(numbers: int) -> pa.Table:
    """Return what a scan shows if only stream 0 has written, after so many operations."""
    rows: dict[int, dict[str, object]] = {}
    for number in range(1, numbers + 1):
        for row in rows_of(SEED, 0, number).to_pylist():
            rows.pop(row["id"], None)
            if not row.pop("_tombstone"):
                rows[row["id"]] = row
    return pa.Table.from_pylist(list(rows.values()))


def test_the_check_of_a_table_accepts_correct_rows() -> None:
    expected = Expected(SEED)
    expected.check(table(40))
    expected.check(table(90))


def got(numbers: int, keys: list[int]) -> list[dict[str, object]]:
    """Return what a get of these keys and their progress rows shows after so many operations."""
    wanted = with_progress(keys)
    return [row for row in table(numbers).to_pylist() if row["id"] in wanted]


def test_the_check_of_some_keys_accepts_correct_rows() -> None:
    expected, keys = Expected(SEED), [0, 3, 6, 9, 12, 1, 2]
    for numbers in (0, 40, 90):
        expected.check_some(pa.Table.from_pylist(got(numbers, keys), schema=COLUMNS), with_progress(keys))


@pytest.mark.parametrize(
    "wrong", ["a row is missing", "a row is old", "a deleted row is back", "a row of another key", "all goes back"]
)
def test_the_check_of_some_keys_finds_wrong_rows(wrong: str) -> None:
    expected, stream = Expected(SEED), range(0, 60, 3)
    alive = [row["id"] for row in got(90, list(stream)) if not is_progress(row["id"])]
    rows = got(90, alive)
    match wrong:
        case "a row is missing":
            rows = [row for row in rows if row["id"] != alive[0]]
        case "a row is old":
            (row,) = [row for row in rows if row["id"] == alive[0]]
            row["n"] -= 1
        case "a deleted row is back":
            old = [row for row in got(20, list(stream)) if not is_progress(row["id"])]
            deleted = next(row for row in old if row["id"] not in alive)
            alive.append(deleted["id"])
            rows = [*got(90, alive), deleted]
        case "a row of another key":
            rows.append(next(row for row in table(90).to_pylist() if row["id"] not in with_progress(alive)))
        case _:
            expected.check_some(pa.Table.from_pylist(rows), with_progress(alive))
            rows = got(20, alive)
    with pytest.raises(AssertionError):
        expected.check_some(pa.Table.from_pylist(rows), with_progress(alive))


class LosingTable:
    """A table whose reads omit some rows, but never progress rows."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __getattr__(self, name: str) -> object:
        return getattr(self._table, name)

    def get(self, keys: list[int]) -> pa.Table:
        return _without(self._table.get(keys))

    def scan(self) -> object:
        return SimpleNamespace(to_arrow=lambda: _without(self._table.scan().to_arrow()))


def _without(found: pa.Table) -> pa.Table:
    rows = [row for row in found.to_pylist() if is_progress(row["id"]) or row["id"] % 2]
    return pa.Table.from_pylist(rows, schema=COLUMNS)


ACTORS = {
    "writer": partial(actors.write, stream=0),
    "rival": actors.rival,
    "merger": actors.maintain,
    "collector": actors.collect,
    "reader": actors.read,
}


@pytest.mark.rest
@pytest.mark.parametrize("loses_rows", [False, True], ids=["complete table", "table that loses rows"])
@pytest.mark.parametrize("actor", ACTORS)
def test_every_actor_notices_lost_rows(actor: str, loses_rows: bool, tmp_path: Path) -> None:
    created = lancelsm.create(tmp_path / "table", COLUMNS.empty_table(), primary_key="id", regions=REGIONS)
    for number in range(1, 40):
        created._append(rows_of(SEED, 0, number))
    (tmp_path / "counts").mkdir()
    (tmp_path / "counts" / f"{actor}.json").write_text("40")
    context = ActorContext(created.uri, SEED, actor, time.monotonic() + 2.0, tmp_path / "counts")
    with (
        mock.patch.object(lancelsm, "open", return_value=LosingTable(created) if loses_rows else created),
        pytest.raises(AssertionError) if loses_rows else contextlib.nullcontext(),
    ):
        ACTORS[actor](context)
    assert loses_rows or context.done > 0


@pytest.mark.parametrize("wrong", ["a row is missing", "a row is old", "a deleted row is back", "all goes back"])
def test_the_check_of_a_table_finds_wrong_rows(wrong: str) -> None:
    expected, found = Expected(SEED), table(90)
    rows = found.to_pylist()
    at = next(index for index, row in enumerate(rows) if row["id"] < 1_000_000 and row["n"] > 1)
    match wrong:
        case "a row is missing":
            del rows[at]
        case "a row is old":
            rows[at]["n"] -= 1
        case "a deleted row is back":
            deleted = next(row for row in table(20).to_pylist() if row["id"] not in {one["id"] for one in rows})
            rows.append(deleted)
        case _:
            expected.check(found)
            rows = table(89).to_pylist()
    with pytest.raises(AssertionError):
        expected.check(pa.Table.from_pylist(rows))


def entries(numbers: range) -> list[pa.Table]:
    """Return the entries of stream 0 in one region, as a change stream shows them."""
    found = []
    for number in numbers:
        rows = rows_of(SEED, 0, number).to_pylist()
        here = [
            {**row, "_op": "delete" if row["_tombstone"] else "upsert"} for row in rows if region_of(row["id"]) == 0
        ]
        if here:
            found.append(pa.Table.from_pylist(here))
    return found


def test_a_consumer_accepts_operations_in_order_and_a_repeated_one() -> None:
    followed, stream = Followed(SEED), entries(range(1, 30))
    for entry in [stream[0], stream[0], *stream[1:]]:
        followed.take(entry)

    newest = max(n for n in range(1, 30) if (0, 0) in slices_of(step(SEED, 0, n)))
    assert followed.at == {(0, 0): newest}


@pytest.mark.parametrize("wrong", ["missing", "repeated", "swapped", "incomplete"])
def test_a_consumer_finds_errors_in_a_change_stream(wrong: str) -> None:
    followed, stream = Followed(SEED), entries(range(1, 60))
    large = next(index for index, entry in enumerate(stream) if entry.num_rows > 4)
    match wrong:
        case "missing":
            del stream[3]
        case "repeated":
            stream.insert(7, stream[3])
        case "swapped":
            stream[3:5] = reversed(stream[3:5])
        case _:
            stream[large] = stream[large].slice(1)
    with pytest.raises(AssertionError):
        list(map(followed.take, stream))
