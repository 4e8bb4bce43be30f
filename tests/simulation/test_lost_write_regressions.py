"""Bugs of other projects that lost, duplicated or revived writes, tried on a whole table.

Names have the numbers of issues of SlateDB, of Chroma's wal3 and of Lance. Bugs with collections, snapshots or clones
are in test_collection* and test_time_regressions, stalled writers beside a collector in test_append, and racing
creators of a region in test_region_creation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from unittest import mock

import lance
import pytest

from lancelsm.common.layout import Version, published_manifest
from lancelsm.compaction import merge as merging
from lancelsm.compaction.maintenance import flush_region
from lancelsm.dataset.base_table import open_base
from lancelsm.errors import Ambiguous, Contended, Fenced, Invalid, Unavailable
from lancelsm.read import view
from lancelsm.region.handle import open_table
from lancelsm.region.lease import LEASE_SECONDS
from lancelsm.wal.claim import claim
from tests.simulation.actors import RIVAL
from tests.simulation.environment import OWNER, raised
from tests.simulation.faults import CRASH_AFTER, DENY, FAIL_AFTER, FAIL_BEFORE, Call, Crash, FaultPlan
from tests.simulation.situations import note_on_failure
from tests.simulation.table_environment import TableEnvironment, lease
from tests.simulation.table_events import (
    KEYS,
    call_number,
    calls_method,
    manifest,
    puts_entry,
    ranges,
    region,
    swaps_head,
    when,
)

pytestmark = pytest.mark.rest


@contextmanager
def environment_at(path: Path, *, loaded: tuple[int, ...] = (), **settings: object) -> Iterator[TableEnvironment]:
    """Create a table, and recover and audit it at the end."""
    with TableEnvironment(path / "table", settings=settings) as environment:
        environment.create("creator", loaded=loaded)
        yield environment
        environment.recover("last")


def merges(environment: TableEnvironment) -> int:
    """Return how many versions of the base changed a counter."""
    dataset = lance.dataset(environment.path)
    versions = [
        open_base(uri=str(environment.path), version=number).counters for number in range(1, dataset.version + 1)
    ]
    return sum(before != after for before, after in pairwise(versions))


# Writers


def test_slatedb_271_a_writer_with_a_held_head_is_fenced_by_a_claim(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        old = environment.table("old")
        environment.write_by(old, "old", upsert=KEYS[:2])
        claim(region(environment), owner=RIVAL)

        with pytest.raises(Fenced, match=RIVAL):
            environment.write_by(old, "old", upsert=KEYS[:1])

        assert [entry.fence for entry in environment.logs[0].entries] == [False, True]


def test_slatedb_1682_a_claim_of_a_region_with_a_merged_log_puts_its_fence_above_the_replay_point(
    tmp_path: Path,
) -> None:
    with environment_at(tmp_path) as environment:
        old = environment.table("old")
        environment.write_by(old, "old", upsert=KEYS[:2])
        environment.flush("flusher")
        environment.merge("merger")

        with when(environment, puts_entry, lambda: claim(region(environment), owner=RIVAL)):
            error = raised(lambda: environment.write("victim", upsert=KEYS[:1]))

        assert isinstance(error, Fenced)
        assert manifest(environment).replay_after == 1
        assert environment.logs[0].entries[1].fence


def test_slatedb_766_a_put_with_a_lost_reply_is_recognised_and_not_repeated(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        with when(environment, puts_entry, FAIL_AFTER):
            environment.write("victim", upsert=KEYS[:2])

        assert len(environment.logs[0].entries) == 1


def test_lance_7547_a_refused_write_is_not_visible_to_its_own_handle(tmp_path: Path) -> None:
    with environment_at(tmp_path, loaded=KEYS[:2]) as environment:
        with when(environment, puts_entry, DENY):
            own = environment.table("victim")
            with pytest.raises(Unavailable):
                environment.write_by(own, "victim", upsert=KEYS[:4])

        assert environment.read(own) == {KEYS[0]: 0, KEYS[1]: 0}
        environment.write_by(own, "victim", delete=KEYS[:1])
        assert environment.read(own) == {KEYS[1]: 0}


def test_chroma_4420_a_handle_with_a_stale_head_appends_after_the_writes_of_others(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        one, two = environment.table("one"), environment.table("two")
        environment.write_by(one, "one", upsert=KEYS[:2])
        environment.write_by(two, "two", delete=KEYS[:2])
        environment.write_by(one, "one", upsert=KEYS[:1])
        environment.flush("flusher")
        environment.merge("merger")
        environment.write_by(two, "two", upsert=KEYS[1:2])

        assert environment.read(one) == environment.read(two) == {KEYS[0]: 3, KEYS[1]: 4}


def test_chroma_3141_positions_go_on_after_the_last_entry_was_merged(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        for _ in range(3):
            environment.write("writer", upsert=KEYS[:1])
            environment.flush("flusher")
            environment.merge("merger")

        assert [entry.summary.position for entry in environment.logs[0].entries] == [1, 2, 3]
        assert ranges(environment) == [(1, 1), (2, 2), (3, 3)]


# Flush


def test_slatedb_1694_and_1706_a_flush_takes_only_the_entries_of_its_plan(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])

        with when(
            environment,
            calls_method("generation_writer.write_generation"),
            lambda: environment.write("other", delete=KEYS[:1]),
        ):
            environment.flush("victim")

        assert ranges(environment) == [(1, 1)]
        assert environment.read(environment.table("reader")) == {KEYS[1]: 1}


@pytest.mark.parametrize(
    "wanted", ["generation_writer._write_dataset", "pk_index.write_pk_index", "generation.read_generation"]
)
def test_slatedb_1625_and_1857_a_failed_flush_moves_no_replay_point_and_blocks_no_other_flush(
    wanted: str, tmp_path: Path
) -> None:
    with environment_at(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])
        with when(environment, calls_method(wanted), FAIL_BEFORE), pytest.raises(Unavailable):
            environment.flush("victim")
        assert (manifest(environment).replay_after, manifest(environment).current_generation) == (0, 1)

        environment.write("writer", upsert=KEYS[:1])
        environment.flush("next")

        assert ranges(environment) == [(1, 2)]


@pytest.mark.one_case
@pytest.mark.parametrize("rows", range(1, 8))
def test_slatedb_1607_and_chroma_4772_a_generation_of_any_size_ends_at_the_end_of_an_entry(
    rows: int, tmp_path: Path
) -> None:
    with environment_at(tmp_path, flush_rows=rows) as environment:
        sizes = [1, 3, 2, 1, 4]
        for size in sizes:
            environment.write("writer", upsert=KEYS[:size])
        environment.flush("flusher")

        assert [first for first, _ in ranges(environment)] == [1, *(last + 1 for _, last in ranges(environment)[:-1])]
        assert ranges(environment)[-1][1] == len(sizes)
        for first, last in ranges(environment):
            assert first == last or sum(sizes[first - 1 : last]) <= rows


def test_chroma_5191_and_5207_a_committed_flush_with_a_lost_reply_is_not_repeated(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])

        with when(environment, swaps_head, FAIL_AFTER):
            environment.flush("victim")
        environment.flush("next")

        assert ranges(environment) == [(1, 1)]


def test_chroma_6701_and_5916_a_flush_that_lost_its_race_succeeds_and_leaves_no_gap(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])

        with when(environment, calls_method("generation_writer.write_generation"), lambda: environment.flush("other")):
            environment.flush("victim")
        environment.write("writer", upsert=KEYS[:1])
        environment.flush("next")

        assert ranges(environment) == [(1, 1), (2, 2)]
        assert len(list((environment.path / "_mem_wal" / region(environment).id).glob("*_gen_1"))) == 2


def test_a_flush_whose_first_entries_another_flush_took_goes_on_with_the_rest(tmp_path: Path) -> None:
    with environment_at(tmp_path, flush_rows=1) as environment:
        for _ in range(3):
            environment.write("writer", upsert=KEYS[:1])

        def flush_the_first() -> None:
            with environment.at("other"):
                flush_region(open_table(environment.path, ports=environment.ports("other")), region(environment))

        with when(environment, calls_method("generation_writer.write_generation"), flush_the_first):
            environment.flush("victim")

        assert ranges(environment) == [(1, 1), (2, 2), (3, 3)]


def test_a_manifest_whose_committer_crashed_is_published_before_the_next_one(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])
        with when(environment, swaps_head, CRASH_AFTER), pytest.raises(Crash):
            environment.flush("victim")
        of = region(environment)
        committed = of.head().manifest_version
        assert environment.store.get(published_manifest(of.id, committed)) is None

        environment.write("writer", upsert=KEYS[:1])
        environment.flush("next")

        assert of.head().manifest_version == committed + 1
        assert all(
            environment.store.get(published_manifest(of.id, Version(version))) for version in range(1, committed + 2)
        )


# Merge


def test_slatedb_1192_the_lease_of_a_crashed_merger_blocks_others_for_a_minute_at_most(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])
        environment.flush("flusher")
        with when(environment, calls_method("base_rows.commit"), CRASH_AFTER), pytest.raises(Crash):
            environment.merge("victim")

        with pytest.raises(Contended, match="lease"):
            environment.merge("next")
        environment.schedule.clock.advance(LEASE_SECONDS)
        environment.merge("next")

        assert merges(environment) == 1


def test_slatedb_2002_a_merger_that_stalled_past_its_lease_brings_no_deleted_row_back(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:3])
        environment.flush("flusher")

        def overtake() -> None:
            environment.schedule.clock.advance(LEASE_SECONDS + 1)
            with environment.at("other"):
                environment.merge("other")
                environment.write("other", delete=KEYS[:2])
                environment.flush("other")
                environment.merge("other")

        with when(environment, calls_method("base_rows.commit"), overtake):
            environment.merge("victim")

        assert environment.read(environment.table("reader")) == {KEYS[2]: 1}
        assert merges(environment) == 2


def test_two_mergers_with_the_same_plan_merge_it_once(tmp_path: Path) -> None:
    with environment_at(tmp_path, loaded=KEYS[:4]) as environment, lease(held=False):
        environment.write("writer", upsert=KEYS[:3])
        environment.flush("flusher")

        def overtake() -> None:
            with environment.at("other"):
                environment.merge("other")

        with when(environment, calls_method("base_rows.commit"), overtake):
            environment.merge("victim")

        assert merges(environment) == 1
        assert lance.dataset(environment.path).count_rows() == 4


def test_a_committed_merge_with_a_lost_reply_is_recognised_by_its_counters(tmp_path: Path) -> None:
    with environment_at(tmp_path, loaded=KEYS[:4]) as environment:
        environment.write("writer", upsert=KEYS[:3])
        environment.flush("flusher")

        with when(environment, calls_method("base_rows.commit"), FAIL_AFTER) as plan:
            merged = environment.merge("victim")

        assert merged.generations == 1
        assert merges(environment) == 1
        assert sum(call.method == "base_rows.commit" for call in plan.calls) == 1


def test_chroma_4888_and_6701_a_merge_that_always_loses_is_contended_and_one_without_answers_is_ambiguous(
    tmp_path: Path,
) -> None:
    with environment_at(tmp_path) as environment, mock.patch.object(merging, "ATTEMPTS", 2):
        environment.write("writer", upsert=KEYS[:3])
        environment.flush("flusher")

        def append() -> None:
            environment.foreign_commit(lance.dataset(environment.path), "append")

        with when(environment, calls_method("base_rows.commit"), append, times=9), pytest.raises(Contended):
            environment.merge("victim")
        assert merges(environment) == 0

        commits = []

        def from_the_commit_on(call: Call) -> bool:
            commits.extend([call] if call.method == "base_rows.commit" else [])
            return bool(commits) and call.port == "lance" and call.method != "statement.sum_file"  # within the commit

        with when(environment, from_the_commit_on, FAIL_AFTER, times=9), pytest.raises(Ambiguous):
            environment.merge("victim")
        assert merges(environment) == 1


# Reads and creation


@pytest.mark.rest
def test_chroma_5781_a_read_beside_a_flush_and_a_merge_shows_one_moment(tmp_path: Path) -> None:
    read_beside_a_merge(tmp_path)


def test_chroma_5781_a_read_that_ignores_the_counters_mixes_two_moments(tmp_path: Path) -> None:
    with mock.patch.object(view, "_problem", return_value=""), pytest.raises(AssertionError, match="was read as"):
        read_beside_a_merge(tmp_path)


def read_beside_a_merge(path: Path) -> None:
    """Before any call of a read, others write, flush and merge."""
    start = TableEnvironment(path / "start")
    with start:
        start.create("creator", loaded=KEYS[:3])
        start.write("writer", upsert=KEYS[1:4])
        start.flush("flusher")
        start.write("writer", upsert=KEYS[2:5])
        start.plan = FaultPlan()
        with start.at("victim"):
            start.read(start.table("victim"))
    for call in start.plan.calls:
        with note_on_failure(call), start.fork(path / str(call.index)) as environment:

            def overtake(environment: TableEnvironment = environment) -> None:
                with environment.at("other"):
                    environment.write("other", upsert=[KEYS[2], KEYS[6]])
                    environment.write("other", delete=[KEYS[0], KEYS[1]])
                    environment.flush("other")
                    environment.merge("other")

            with when(environment, call_number(call.index), overtake):
                environment.read(environment.table("victim"))


@pytest.mark.rest
def test_chroma_6344_and_6733_racing_creators_create_one_table(tmp_path: Path) -> None:
    with TableEnvironment(tmp_path / "alone") as alone:
        alone.create("creator", loaded=KEYS[:3])
    for call in alone.plan.calls:
        with note_on_failure(call), TableEnvironment(tmp_path / str(call.index)) as environment:

            def create(environment: TableEnvironment = environment) -> None:
                raised(lambda: environment.create("other", loaded=KEYS[:3]))

            with when(environment, call_number(call.index), create):
                error = raised(lambda: environment.create("victim", loaded=KEYS[:3]))
            if isinstance(error, Contended):
                error = raised(lambda: environment.create("victim", loaded=KEYS[:3]))

            assert error is None or isinstance(error, Invalid), error
            facts = open_base(uri=str(environment.path)).facts
            assert facts is not None
            assert facts.table == environment.table("reader").config.table
            environment.write("writer", upsert=KEYS[:1])
            claim(region(environment), owner=OWNER)
            environment.recover("last")
