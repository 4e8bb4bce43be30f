"""The words and numbers of a report, for facts that a young table in a directory does not have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html import unescape
from typing import Any

import pytest

from lancelsm.common.layout import Generation, Nonce, Position, RegionId
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.versions import BaseVersion
from lancelsm.gc.base import Floor
from lancelsm.history.pin_records import Pin
from lancelsm.scrubbing.report import Report
from lancelsm.stack.table_report.charts import duration, money, nice, short, size
from lancelsm.stack.table_report.page import fragment, page
from lancelsm.stack.table_report.report_facts import RegionFacts, RegionLevels, ReportFacts

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()
DAY = 86_400.0


def levels(**values: Any) -> RegionLevels:
    usual = {
        "wal_rows": 0,
        "generations": 0,
        "generation_rows": 0,
        "merged": Generation(0),
        "newest": Generation(0),
        "waits_since": None,
        "first_position": Position(1),
        "rounds": 0,
        "collected": None,
    }
    return RegionLevels(**{**usual, **values})


def region(name: str = "0a", *, spec: int = 1, status: str = "open", **values: Any) -> RegionFacts:
    found = None if status == "damaged" else levels(**values)
    return RegionFacts(id=RegionId(name * 8), values={"bucket": 0}, spec=spec, status=status, levels=found)


def version(number: int, *, days_ago: float, rows: int, merged: bool | None = False) -> BaseVersion:
    return BaseVersion(
        version=number,
        time=datetime.fromtimestamp(NOW - days_ago * DAY, UTC),
        operation="Merge" if merged else "Append",
        rows=rows,
        merged=None if merged is None else {RegionId("0a" * 8): Generation(1)} if merged else {},
    )


def text_of(**facts: Any) -> str:
    usual = {"table": "s3://lake/orders", "time": NOW, "rows": 0, "version": 1, "regions": ()}
    shown = re.sub(r"<style>.*?</style>", "", fragment(ReportFacts(**{**usual, **facts})), flags=re.DOTALL)
    return " ".join(unescape(re.sub("<[^>]+>", " ", shown)).split())


def versions(*found: BaseVersion) -> dict[str, Sequence[BaseVersion]]:
    return {"versions": found}


def test_merges_and_collections_of_long_ago_are_not_denied() -> None:
    floor = Floor(version=40, round=3, key="", setsum=Setsum.ZERO, committed=int(NOW - 31 * DAY))
    done = region(merged=Generation(12), newest=Generation(12), rounds=2, collected=NOW - 40 * DAY)
    shown = text_of(regions=(done,), floor=floor, **versions(version(40, days_ago=31, rows=5, merged=None)))

    assert "0 merges among the only version of the base that is kept" in shown
    assert "version 40 of 2026-10-29 12:00:00 UTC is the oldest one" in shown
    assert "12 generations were flushed, and 12 of these merged" in shown
    assert "5 rounds of collections so far" in shown
    assert re.search(r"region 0a0a0a0a 2 2026-10-20 12:00:00 UTC, 40.0 d ago position 1", shown)
    assert re.search(r"the base 3 2026-10-29 12:00:00 UTC, 31.0 d ago version 40", shown)


def test_a_collection_of_an_earlier_release_has_no_time() -> None:
    assert "region 0a0a0a0a 7 not known position 1" in text_of(regions=(region(rounds=7),))


@pytest.mark.parametrize(
    ("days", "rows", "says"),
    [
        (10, 1000, "+1,000 rows in 10.0 d, +100 a day"),
        (0.5, -24, "-24 rows in 12.0 h, -2 a hour"),
        (0.001, 1, "+1 row in 1.4 min."),
        (3, 0, "no change in 3.0 d."),
    ],
)
def test_growth_has_a_rate_only_if_the_time_is_long_enough(days: float, rows: int, says: str) -> None:
    both = versions(version(1, days_ago=days, rows=500), version(2, days_ago=0, rows=500 + rows))
    assert says in text_of(**both)


def test_what_can_not_be_read_is_never_shown_as_zero() -> None:
    waits = region("0b", wal_rows=3, generations=1, generation_rows=None, waits_since=None)
    shown = text_of(rows=None, regions=(region(status="damaged"), waits))

    assert "? rows in the base at least 3 rows to flush at least 1 generation to merge ? since the oldest row" in shown
    assert "log at least 3 rows generations ? rows base ?" in shown
    assert "0a0a0a0a bucket=0 damaged ? ? ? ?" in shown
    assert "0b0b0b0b bucket=0 open 3 1 none flushed ?" in shown
    nothing = text_of(rows=None, version=None, regions=None)
    assert (
        "? rows in the base ? rows to flush ? generations to merge ? since the oldest row waits ? in storage" in nothing
    )
    assert nothing.count("This can't be read") == 7


def test_the_region_that_lags_the_most_comes_first() -> None:
    found = (region("0a", wal_rows=9), region("0b", wal_rows=1, waits_since=NOW - 7200), region("0c", status="damaged"))
    assert re.findall(r"0[abc](?=0[abc]{7}|0.0.0. bucket)", text_of(regions=found)) == ["0c", "0b", "0a"]


def test_an_expired_snapshot_is_marked() -> None:
    usual = {"kind": "snapshot", "nonce": Nonce("aa"), "version": 1, "created": NOW - DAY, "base_version": 1}
    pins = [
        Pin(**usual, name=name, confirmed=True, regions={}, expires=expires)  # type: ignore[arg-type]
        for name, expires in (("old", NOW - 1), ("new", NOW + 60), ("kept", None))
    ]
    shown = text_of(pins=tuple(pins))

    assert "old 2026-11-28 12:00:00 UTC 2026-11-29 11:59:59 UTC (has expired)" in shown
    assert "new 2026-11-28 12:00:00 UTC 2026-11-29 12:01:00 UTC snapshot kept 2026-11-28 12:00:00 UTC never" in shown


def test_storage_in_a_bucket_costs_and_storage_in_a_directory_would() -> None:
    assert "This costs $23.00 a month" in text_of(bytes={"log": 10**12})
    assert "In S3 this would cost $23.00 a month" in text_of(table="/lake/orders", bytes={"log": 10**12})


def test_a_partial_check_says_so() -> None:
    assert "It was not all" in text_of(checked=Report(checked=9, problems=(), orphans=0, complete=False))
    assert "It was not all" not in text_of(checked=Report(checked=9, problems=(), orphans=0, complete=True))


def test_a_fragment_has_the_theme_of_the_page_around_it() -> None:
    facts = ReportFacts(table="t", time=NOW)

    assert '<main class="lsm" data-theme="dark">' in fragment(facts, theme="dark")
    assert '<main class="lsm">' in page(facts)


def test_numbers_are_short_and_in_a_fitting_unit() -> None:
    assert [nice(value) for value in (0, 1, 2, 3, 9, 11, 39, 41, 12_345)] == [2, 2, 2, 4, 10, 20, 40, 100, 20_000]
    assert [short(value) for value in (0, 99_999, 100_000, 1_500_000, 2e9)] == ["0", "99,999", "100k", "1.5M", "2G"]
    assert [size(value) for value in (0, 1, 999, 1000, 999_999, 10**15)] == [
        "0 bytes", "1 byte", "999 bytes", "1.0 kB", "1.0 MB", "1.0 PB"
    ]  # fmt: skip
    assert [money(value) for value in (0, 0.001, 0.01, 1234.5)] == ["$0.00", "less than $0.01", "$0.01", "$1,234.50"]
    assert [duration(value) for value in (-1, 0.4, 59, 90, 7200, 90_000)] == [
        "less than 1 s", "less than 1 s", "59 s", "1.5 min", "2.0 h", "1.0 d"
    ]  # fmt: skip
