"""A table on an object store, with the registry beside it, behaves as in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lancelsm
from lancelsm.region.handle import open_configured
from lancelsm.stack.table_report.report_facts import RegionLevels, gather
from tests.conformance.ministack import create_bucket, ministack, options


@pytest.fixture(scope="module")
def storage_options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    directory: Path = tmp_path_factory.mktemp("ministack")
    with ministack(directory) as endpoint:
        create_bucket(endpoint, "lake")
        yield options(endpoint)


def _rows(table: lancelsm.Table) -> dict[int, str]:
    return {row["id"]: row["state"] for row in table.scan().to_arrow().to_pylist()}


def test_every_level_is_read_through_another_handle(storage_options: dict[str, str]) -> None:
    # Given a table in a bucket with rows in the base, in a generation and in the log
    uri = "s3://lake/orders"
    start = [{"id": i, "state": "new"} for i in range(8)]
    table = lancelsm.create(uri, start, primary_key="id", regions="bucket(id, 2)", storage_options=storage_options)
    expected = dict.fromkeys(range(8), "new")
    table.upsert([{"id": 1, "state": "paid"}, {"id": 100, "state": "new"}])
    table.delete([2])
    table.flush()
    table.upsert([{"id": 1, "state": "sent"}])
    expected |= {1: "sent", 100: "new"}
    del expected[2]

    # When another handle reads, and the first one merges
    other = lancelsm.open(uri, storage_options=storage_options)
    before = _rows(other)
    merged = table.merge(engine="inprocess")

    # Then both see every acknowledged row, before and after the merge
    assert before == expected
    assert merged.rows_deleted == 1
    assert _rows(other) == _rows(table) == expected
    assert other.get([1, 2, 100]).sort_by("id").to_pylist() == [
        {"id": 1, "state": "sent"},
        {"id": 100, "state": "new"},
    ]


@pytest.mark.rest
def test_a_report_of_a_table_in_a_bucket_knows_what_one_of_a_directory_knows(
    storage_options: dict[str, str], tmp_path: Path
) -> None:
    found = []
    for uri, stores in (("s3://lake/report", storage_options), (str(tmp_path / "report"), None)):
        rows = [{"id": i, "state": "new"} for i in range(8)]
        table = lancelsm.create(uri, rows, primary_key="id", regions="bucket(id, 2)", storage_options=stores)
        table.upsert(rows[:3])
        table.flush()
        table.merge(engine="inprocess")
        table.upsert(rows[:1])
        facts = gather(open_configured(uri, storage_options=stores))
        levels = [one.levels for one in facts.regions or ()]
        merges = [(one.version, one.rows, len(one.merged or {})) for one in facts.versions]
        assert facts.checked is not None
        assert facts.bytes is not None
        found.append((facts.findings, facts.rows, merges, facts.checked.checked, sorted(map(_counts, levels))))
        assert (facts.bytes["base: rows"] > 0, facts.bytes["log"] > 0) == (True, True)

    assert found[0] == found[1]
    assert (found[0][:2], len(found[0][4])) == (((), 8), 2)


def _counts(levels: RegionLevels | None) -> tuple[int, ...]:
    assert levels is not None
    return (levels.wal_rows, levels.generations, levels.merged, levels.newest)


def test_two_handles_write_in_turns_without_claiming(storage_options: dict[str, str]) -> None:
    # Given two handles of one table
    uri = "s3://lake/turns"
    first = lancelsm.create(uri, [{"id": 0, "state": "new"}], primary_key="id", storage_options=storage_options)
    second = lancelsm.open(uri, storage_options=storage_options)

    # When they overwrite each other's row in turns
    for turn in range(6):
        (first, second)[turn % 2].upsert([{"id": 0, "state": f"turn {turn}"}])

    # Then the newest row wins, each write has its own entry, and the epoch is still the first
    (region,) = first.status().regions
    assert _rows(first) == {0: "turn 5"}
    assert (region.next_position, region.epoch) == (7, 1)
