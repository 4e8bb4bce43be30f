"""Everybody at once on one table, in orders and with faults that seeds decide; and what breaks when a guard is gone."""

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
from tests.simulation.situations import noted
from tests.simulation.table_actors import table_actors
from tests.simulation.table_environment import TableEnvironment


def actor_runs(seeds: range, place: Path) -> None:
    for seed in seeds:
        with noted("seed", seed):
            table_actors(seed, place / str(seed))


@pytest.mark.parametrize("first", range(0, 12, 3))
def test_every_read_is_a_moment_and_every_acknowledged_row_stays(first: int, tmp_path: Path) -> None:
    actor_runs(range(first, first + 3), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 1_000, 50))
def test_every_read_of_many_crowds_is_a_moment_and_every_acknowledged_row_stays(first: int, tmp_path: Path) -> None:
    actor_runs(range(first, first + 50), tmp_path)


def test_the_same_seed_makes_the_same_calls_and_meets_the_same_faults(tmp_path: Path) -> None:
    first, second = (table_actors(7, tmp_path / name / "table") for name in ("first", "second"))

    assert first.schedule.choices == second.schedule.choices
    assert _by_our_names(first.plan.calls) == _by_our_names(second.plan.calls)
    assert [fault for _, fault in first.plan.injected] == [fault for _, fault in second.plan.injected]
    assert _by_our_names(call for call, _ in first.plan.injected) == _by_our_names(
        call for call, _ in second.plan.injected
    )
    assert _scenario(first) == _scenario(second)


def _by_our_names(calls: Iterable[Call]) -> list[Call]:
    """Calls without the names that Lance gives to files of rows: those are random."""
    return [replace(call, key=re.sub(r"/data/\w+\.lance$", "/data/*.lance", call.key)) for call in calls]


def _scenario(environment: TableEnvironment) -> list[Any]:
    return [environment.truth, *((write.number, write.process, repr(write.raised)) for write in environment.writes)]


def _any_ground_will_do() -> AbstractContextManager[Any]:
    """A merger that commits on a version whose counters moved."""
    return mock.patch.object(merging, "_is_same_ground", return_value=True)


def _hides_nothing() -> AbstractContextManager[Any]:
    """A merger that leaves the rows which it replaces."""
    return mock.patch.object(merging, "_hide", return_value=[])


def _without_precondition() -> AbstractContextManager[Any]:
    """A flush that joins whatever manifest is there."""
    join = manifests.flushed

    def joined(manifest: Manifest, *, after: Any, built: FlushedGeneration, at_end: Any) -> Any:
        if any(generation.path == built.path for generation in manifest.generations):
            return manifest
        renumbered = replace(built, generation=manifest.current_generation)
        return join(manifest, after=manifest.replay_after, built=renumbered, at_end=at_end)

    return mock.patch.object(manifests, "flushed", joined)


@pytest.mark.parametrize("broken", [_any_ground_will_do, _hides_nothing, _without_precondition])
def test_without_this_guard_a_crowd_breaks_the_table(broken: Any, tmp_path: Path) -> None:
    with broken(), pytest.raises((AssertionError, ValueError)):
        actor_runs(range(100), tmp_path)  # ends at the first seed that breaks it
