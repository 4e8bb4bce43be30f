"""A run of benchmarks keeps every result, whatever fails, and shows it in tables and charts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import page, runs
from benchmarks.__main__ import BENCHMARKS
from benchmarks.charts import draw
from benchmarks.figures import Curve, Figure, attempt, peak_megabytes
from benchmarks.report import line, pages
from benchmarks.runs import Run, measure

_GROWTH = Curve(what="scan", over="rows", sizes=(10, 20, 40), seconds=(0.1, 0.4, 1.6))
_PUT = Figure(what="put of 1 row", ours=4.0, unit="ms", peer=40.0, peer_name="ShardWriter", drawn=True)
_FAILED = Figure(what="put of 1 row", ours=4.0, unit="ms", peer_name="LanceDB", how="failed: OSError: disk full")


def _run(**results: object) -> Run:
    return Run(date="today", commit="abc", machine="2 cores", packages={"python": "3.11"}, scale=0.004, **results)  # type: ignore[arg-type]


def test_the_slope_is_the_exponent_of_the_growth() -> None:
    assert math.isclose(_GROWTH.slope, 2)
    assert "slope  2.00" in line(_GROWTH)


def test_a_failed_peer_is_part_of_the_result() -> None:
    def fail() -> float:
        raise OSError("disk full")

    assert attempt(lambda: 3.0).value == 3.0
    assert attempt(fail).failure == _FAILED.how


def test_the_table_has_a_column_for_each_peer_and_names_the_failed_one() -> None:
    lines = pages(_run(figures={"puts": [_PUT, _FAILED]}, curves={"growth": [_GROWTH]})).splitlines()
    assert "| what | ours | ShardWriter | LanceDB |" in lines
    assert "| put of 1 row | 4 ms | 40 ms (10x) | failed |" in lines
    assert "| scan | rows | 10: 100 ms | 40: 1.6 s | 2.00 |" in lines


def test_a_run_is_the_same_after_json() -> None:
    run = _run(figures={"puts": [_PUT, _FAILED]}, curves={"growth": [_GROWTH]}, failures={"reads": "late"})
    assert Run.of_json(run.to_json()) == run


def test_the_page_gets_the_tables_of_its_benchmarks_and_keeps_the_rest() -> None:
    text = "a\n<!-- begin puts -->\nold\n<!-- end -->\nb\n<!-- begin merge -->\nkept\n<!-- end -->\n"
    filled = page.filled(text, _run(figures={"puts": [_PUT]}))
    assert "old" not in filled
    assert "| put of 1 row | 4 ms | 40 ms (10x) |" in filled
    assert filled.endswith("b\n<!-- begin merge -->\nkept\n<!-- end -->\n")
    assert set(page.PARTS.findall(page.PAGE.read_text())) == {"run", *BENCHMARKS}


def test_the_peak_of_memory_is_above_what_is_resident_before() -> None:
    assert 50 < peak_megabytes(lambda: bytearray(64 << 20)) < 90


def test_a_benchmark_that_fails_or_takes_too_long_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "BENCHMARK_SECONDS", 0.1)
    run = _run()
    for name, ends in (("hot_path", math.inf), ("unknown", math.inf), ("puts", 0.0)):
        measure(run, name, ends=ends, report=lambda _: None)
    assert run.failures.keys() == {"hot_path", "unknown", "puts"}
    assert run.failures["hot_path"] == "stopped after 0 s"
    assert run.failures["puts"].startswith("not started")
    assert run.seconds.keys() == {"hot_path", "unknown"}


@pytest.mark.rest
def test_all_charts_are_small_files(tmp_path: Path) -> None:
    many = [replace(_PUT, what=f"put of {number} rows", peer=1.5**number) for number in range(40)]
    charts = draw(_run(figures={"puts": many, "reads": [_PUT, _FAILED]}, curves={"growth": [_GROWTH]}), tmp_path)
    assert [chart.name for chart in charts] == ["writes.png", "reads.png", "growth.png"]
    assert all(chart.stat().st_size < 100_000 for chart in charts)


@pytest.mark.rest
@pytest.mark.parametrize("name", ["puts", "bulk", "merge", "reads", "regions", "growth", "throughput"])
def test_each_benchmark_yields_its_figures_and_no_peer_fails(name: str) -> None:
    run = _run()
    measure(run, name, ends=math.inf, report=lambda _: None)
    assert run.failures == {}
    if name == "growth":
        assert {one.over for one in run.curves[name]} == {"rows", "regions", "generations", "columns"}
        assert {one.what for one in run.curves[name]} == {"put", "flush", "scan", "get", "merge"}
        return
    figures = run.figures[name]
    assert all(one.ours > 0 and (not one.peer_name or (one.peer or 0) > 0) for one in figures), figures
    peers = {
        "puts": {"pylance ShardWriter", "LanceDB LSM", "delta-rs append", "delta-rs merge", "slatedb"},
        "bulk": {"pylance ShardWriter", "LanceDB LSM", "delta-rs append"},
        "merge": {"pylance merge_insert", "delta-rs merge"},
        "reads": {"pylance lookups", "not compacted"},
        "regions": {"pylance, 8 writers", "pylance LsmScanner"},
        "throughput": set(),
    }
    assert {one.peer_name for one in figures if one.peer_name and not one.limit} == peers[name]
