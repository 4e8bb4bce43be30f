"""The simulation of a deployed table: its calls, what binds it, and that it loses no row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulated import Load, Times, growing, highest_rate, simulate

FAST = Times(append=5e-6, flush=8e-6, compact=8e-6, merge=7e-6, merge_base=0.0)
QUIET = Load(rows_per_second=10, regions=1, base_rows=1e6)


def test_the_calls_of_a_quiet_table_are_those_of_its_schedule() -> None:
    done = simulate(QUIET, FAST, seconds=7599)

    # A flush each period from the second run on; a merge once the base lags by 15 minutes, which is every fourth run.
    assert {name: done.calls[name] for name in ("dispatch", "compaction, flush", "generations")} == {
        "dispatch": 25, "compaction, flush": 25, "generations": 25,
    }  # fmt: skip
    assert (done.calls["merges in Lambda"], done.calls["merges on Spark"]) == (6, 0)
    assert done.calls["compaction, compact"] == 0


@pytest.mark.parametrize("regions", [1, 8])
@pytest.mark.parametrize("rate", [10, 5_000])
def test_no_row_is_lost(regions: int, rate: int) -> None:
    done = simulate(replace(QUIET, rows_per_second=rate, regions=regions), FAST, seconds=7200)

    last = done.levels[-1]
    assert done.in_base + last.queue + last.log + last.unmerged == pytest.approx(rate * 7200, rel=0.05)


def test_small_regions_share_a_flush_and_large_ones_have_their_own() -> None:
    few, many = (simulate(replace(QUIET, rows_per_second=rate, regions=8), FAST, seconds=1500) for rate in (8, 8_000))
    assert few.calls["compaction, flush"] == few.calls["dispatch"]
    assert many.calls["compaction, flush"] == 8 * many.calls["dispatch"]


@pytest.mark.parametrize(
    ("times", "queued", "binds"),
    [
        (replace(FAST, append=1e-3), True, "queue"),
        (replace(FAST, request=1.0), True, "queue"),
        (replace(FAST, flush=1e-3), False, "log"),
        (replace(FAST, merge=5e-3), False, "unmerged"),
    ],
)
def test_the_first_queue_that_grows_names_what_binds(times: Times, queued: bool, binds: str) -> None:
    load = replace(QUIET, rows_per_second=100, queued=queued)
    rate, name = highest_rate(load, times, precision=1.1)

    assert name == binds
    below = replace(load, rows_per_second=rate / 2)
    assert growing(simulate(below, times), below) is None


def test_a_merge_that_is_too_large_for_a_function_is_a_job_and_the_generations_become_fewer_meanwhile() -> None:
    busy = replace(QUIET, rows_per_second=20_000, queued=False)
    done = simulate(busy, FAST)
    assert done.calls["merges on Spark"] > 10
    assert done.calls["generations compacted"] > 0
    assert max(one.generations for one in done.levels) < busy.settings.pending_generations_stop
