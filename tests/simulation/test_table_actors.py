"""Many actors on one table, in orders and with faults that seeds decide; and what breaks without a guard."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from lancelsm.compaction import merge as merging
from lancelsm.region import manifest as manifests
from lancelsm.region.manifest import FlushedGeneration, Manifest
from tests.simulation.faults import Call
from tests.simulation.situations import note_on_failure
from tests.simulation.table_actors import run_table_actors
from tests.simulation.table_environment import TableEnvironment


def run_seeds(seeds: range, path: Path) -> None:
    for seed in seeds:
        with note_on_failure("seed", seed):
            run_table_actors(seed, path / str(seed))


@pytest.mark.one_case
@pytest.mark.parametrize("first", range(0, 12, 3))
def test_every_read_shows_one_moment_and_no_acknowledged_row_is_lost(first: int, tmp_path: Path) -> None:
    run_seeds(range(first, first + 3), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 1_000, 50))
def test_every_read_shows_one_moment_and_no_acknowledged_row_is_lost_in_many_more_seeds(
    first: int, tmp_path: Path
) -> None:
    run_seeds(range(first, first + 50), tmp_path)


@pytest.mark.rest
def test_the_same_seed_makes_the_same_calls_with_the_same_faults(tmp_path: Path) -> None:
    first, second = (run_table_actors(7, tmp_path / name / "table") for name in ("first", "second"))

    assert first.schedule.choices == second.schedule.choices
    assert _without_lance_names(first.plan.calls) == _without_lance_names(second.plan.calls)
    assert [fault for _, fault in first.plan.injected] == [fault for _, fault in second.plan.injected]
    assert _without_lance_names(call for call, _ in first.plan.injected) == _without_lance_names(
        call for call, _ in second.plan.injected
    )
    assert _results(first) == _results(second)


def _without_lance_names(calls: Iterable[Call]) -> list[Call]:
    """Remove the names that Lance gives to files, since they are random, and those of statements of such files."""
    name = r"\w{50}\.lance|\d+-\d+-\d+\.(arrow|bin)|(?<=files/)\d+-\w+\.binpb"
    return [replace(call, key=re.sub(name, "*", call.key)) for call in calls]


def _results(environment: TableEnvironment) -> list[Any]:
    return [environment.truth, *((write.number, write.process, repr(write.raised)) for write in environment.writes)]


def _ignores_moved_counters() -> AbstractContextManager[Any]:
    """A merger that commits on a version whose counters have moved."""
    return mock.patch.object(merging, "_rows_are_valid", return_value=True)


def _hides_nothing() -> AbstractContextManager[Any]:
    """A merger that does not hide the rows that it replaces."""
    return mock.patch.object(merging, "_hide", return_value=[])


def _without_precondition() -> AbstractContextManager[Any]:
    """A flush that adds its generation to any manifest."""
    flushed = manifests.flushed

    def added(manifest: Manifest, *, after: Any, built: FlushedGeneration, at_end: Any, index_number: int) -> Any:
        if any(generation.path == built.path for generation in manifest.generations):
            return manifest
        renumbered = replace(built, generation=manifest.current_generation)
        return flushed(
            manifest, after=manifest.replay_after, built=renumbered, at_end=at_end, index_number=index_number
        )

    return mock.patch.object(manifests, "flushed", added)


@pytest.mark.rest
@pytest.mark.parametrize(
    "broken",
    [pytest.param(_ignores_moved_counters, marks=pytest.mark.long), _hides_nothing, _without_precondition],
)
def test_concurrent_actors_break_the_table_without_the_guard(broken: Any, tmp_path: Path) -> None:
    with broken(), pytest.raises((AssertionError, ValueError)):
        run_seeds(range(100), tmp_path)  # ends at the first seed that breaks the table
