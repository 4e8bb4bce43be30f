"""What everybody sees under stress is what the seed says; and who looks can tell."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.stress.run import PROCESSES, stress
from tests.stress.stream import Expected, Followed, check_rows, region_of, step, touched, written

SEED = 20_261_128


def test_everybody_works_at_once_in_processes_that_are_killed_and_sees_what_the_seed_says(tmp_path: Path) -> None:
    done = stress(tmp_path / "run", seed=SEED, seconds=60.0)

    everybody = {actor for process in PROCESSES.values() for actor in process}
    assert done.keys() == everybody
    assert all(done.values()), done


def table(numbers: int) -> pa.Table:
    """Stream 0 alone, after so many operations, as a scan of one region after the other shows it."""
    rows: dict[int, dict[str, object]] = {}
    for number in range(1, numbers + 1):
        for row in written(SEED, 0, number).to_pylist():
            rows.pop(row["id"], None)
            if not row.pop("_tombstone"):
                rows[row["id"]] = row
    return pa.Table.from_pylist(list(rows.values()))


def test_a_table_that_is_what_its_stream_says_passes() -> None:
    expected = Expected(SEED)
    expected.check(table(40))
    expected.check(table(90))
    check_rows(SEED, table(90), table(90).column("id").to_pylist())


@pytest.mark.parametrize("wrong", ["a row is missing", "a row is old", "a deleted row is back", "all goes back"])
def test_a_table_that_is_not_is_seen(wrong: str) -> None:
    expected, found = Expected(SEED), table(90)
    rows = found.to_pylist()
    at = next(index for index, row in enumerate(rows) if row["id"] < 1_000_000 and row["n"] > 1)
    match wrong:
        case "a row is missing":
            del rows[at]
        case "a row is old":
            rows[at]["n"] -= 1
        case "a deleted row is back":
            gone = next(row for row in table(20).to_pylist() if row["id"] not in {one["id"] for one in rows})
            rows.append(gone)
        case _:
            expected.check(found)
            rows = table(89).to_pylist()
    with pytest.raises(AssertionError):
        expected.check(pa.Table.from_pylist(rows))


def entries(numbers: range) -> list[pa.Table]:
    """What a change stream shows of stream 0 in one region."""
    found = []
    for number in numbers:
        rows = written(SEED, 0, number).to_pylist()
        here = [
            {**row, "_op": "delete" if row["_tombstone"] else "upsert"} for row in rows if region_of(row["id"]) == 0
        ]
        if here:
            found.append(pa.Table.from_pylist(here))
    return found


def test_a_consumer_takes_each_operation_in_order_and_its_repetition() -> None:
    followed, stream = Followed(SEED), entries(range(1, 30))
    for entry in [stream[0], stream[0], *stream[1:]]:
        followed.take(entry)

    newest = max(n for n in range(1, 30) if (0, 0) in touched(0, step(SEED, 0, n)))
    assert followed.at == {(0, 0): newest}


@pytest.mark.parametrize("wrong", ["left out", "again", "turned round", "half"])
def test_a_consumer_sees_what_is_wrong_with_a_stream(wrong: str) -> None:
    followed, stream = Followed(SEED), entries(range(1, 60))
    large = next(index for index, entry in enumerate(stream) if entry.num_rows > 4)
    match wrong:
        case "left out":
            del stream[3]
        case "again":
            stream.insert(7, stream[3])
        case "turned round":
            stream[3:5] = reversed(stream[3:5])
        case _:
            stream[large] = stream[large].slice(1)
    with pytest.raises(AssertionError):
        list(map(followed.take, stream))
