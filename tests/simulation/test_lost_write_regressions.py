"""Scenarios of lost, doubled and revived writes that other systems had to tell, each by name against the whole table.

They are numbered as in the trackers of SlateDB (s), of Chroma's wal3 (c) and of Lance (l). What needs collections,
snapshots or clones is told in test_collection* and test_time_regressions. Also told elsewhere: stalled writers beside a
collector (test_append), creators of one region (test_region_creation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from lancelsm.region.catalog import Region
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.handle import open_table
from lancelsm.region.lease import LEASE_SECONDS
from lancelsm.region.manifest import Manifest
from lancelsm.wal.claim import claim
from tests.simulation.actors import RIVAL
from tests.simulation.environment import OWNER, raised
from tests.simulation.faults import CRASH_AFTER, DENY, FAIL_AFTER, FAIL_BEFORE, Call, Crash, Fault, FaultPlan
from tests.simulation.situations import noted
from tests.simulation.table_environment import TableEnvironment, lease
from tests.simulation.table_log import keys

KEYS = keys(0)[:8]  # all of one region, the left one
Event = Fault | Callable[[], object]


@contextmanager
def environment_at(place: Path, *, loaded: tuple[int, ...] = (), **settings: object) -> Iterator[TableEnvironment]:
    with TableEnvironment(place / "table", settings=settings) as environment:
        environment.create("creator", loaded=loaded)
        yield environment
        environment.recover("last")


@contextmanager
def when(
    environment: TableEnvironment, wanted: Callable[[Call], bool], event: Event, *, times: int = 1
) -> Iterator[FaultPlan]:
    """What the victim does within meets a fault at such a call, or what somebody else does right before it."""
    met = []

    def decide(call: Call) -> Fault | None:
        if len(met) == times or call.process != "victim" or not wanted(call):
            return None
        met.append(call)
        if isinstance(event, Fault):
            return event
        event()
        return None

    environment.plan = FaultPlan(decide, clock=environment.schedule.clock)
    with environment.at("victim"):
        yield environment.plan
    assert met, "it never came to that"
    environment.plan.stop()


def number(index: int) -> Callable[[Call], bool]:
    return lambda call: call.index == index


def puts_entry(call: Call) -> bool:
    return call.method == "create" and "/wal/" in call.key


def swaps_head(call: Call) -> bool:
    return call.method == "swap" and call.key.startswith("H#")


def calls(name: str) -> Callable[[Call], bool]:
    return lambda call: call.method == name


def region(environment: TableEnvironment) -> Region:
    (left,) = (one for one in environment.table("observer").regions() if environment.sides[one.id] == 0)
    return left


def manifest(environment: TableEnvironment) -> Manifest:
    """The left region's, as its head names it."""
    of = region(environment)
    return newest(of, of.head())[1]


def ranges(environment: TableEnvironment) -> list[tuple[int, int]]:
    """First and last position of each generation of the left region."""
    return [(g.folded.first, g.folded.last) for g in manifest(environment).generations if g.folded]


def merges(environment: TableEnvironment) -> int:
    """How many versions of the base moved a counter."""
    dataset = lance.dataset(environment.place)
    versions = [
        open_base(uri=str(environment.place), version=number).counters for number in range(1, dataset.version + 1)
    ]
    return sum(before != after for before, after in pairwise(versions))


# Who writes


def test_s271_a_writer_that_still_holds_its_head_is_fenced_by_a_claim(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        old = environment.table("old")
        environment.write_by(old, "old", upsert=KEYS[:2])
        claim(region(environment), owner=RIVAL)

        with pytest.raises(Fenced, match=RIVAL):
            environment.write_by(old, "old", upsert=KEYS[:1])

        assert [entry.fence for entry in environment.logs[0].entries] == [False, True]


def test_s1682_a_claim_of_a_region_whose_log_is_all_merged_fences_above_the_replay_point(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        old = environment.table("old")
        environment.write_by(old, "old", upsert=KEYS[:2])
        environment.flush("flusher")
        environment.merge("merger")

        with when(environment, puts_entry, lambda: claim(region(environment), owner=RIVAL)):
            heard = raised(lambda: environment.write("victim", upsert=KEYS[:1]))

        assert isinstance(heard, Fenced)
        assert manifest(environment).replay_after == 1
        assert environment.logs[0].entries[1].fence


def test_s766_a_put_that_landed_without_a_reply_is_recognised_and_not_repeated(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        with when(environment, puts_entry, FAIL_AFTER):
            environment.write("victim", upsert=KEYS[:2])

        assert len(environment.logs[0].entries) == 1


def test_l7547_a_write_that_was_refused_is_not_seen_by_its_own_handle(tmp_path: Path) -> None:
    with environment_at(tmp_path, loaded=KEYS[:2]) as environment:
        with when(environment, puts_entry, DENY):
            own = environment.table("victim")
            with pytest.raises(Unavailable):
                environment.write_by(own, "victim", upsert=KEYS[:4])

        assert environment.read(own) == {KEYS[0]: 0, KEYS[1]: 0}
        environment.write_by(own, "victim", delete=KEYS[:1])
        assert environment.read(own) == {KEYS[1]: 0}


def test_c4420_a_handle_whose_head_is_stale_writes_behind_what_others_wrote(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        one, two = environment.table("one"), environment.table("two")
        environment.write_by(one, "one", upsert=KEYS[:2])
        environment.write_by(two, "two", delete=KEYS[:2])
        environment.write_by(one, "one", upsert=KEYS[:1])
        environment.flush("flusher")
        environment.merge("merger")
        environment.write_by(two, "two", upsert=KEYS[1:2])

        assert environment.read(one) == environment.read(two) == {KEYS[0]: 3, KEYS[1]: 4}


def test_c3141_a_log_whose_last_entry_is_merged_goes_on_counting(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        for _ in range(3):
            environment.write("writer", upsert=KEYS[:1])
            environment.flush("flusher")
            environment.merge("merger")

        assert [entry.summary.position for entry in environment.logs[0].entries] == [1, 2, 3]
        assert ranges(environment) == [(1, 1), (2, 2), (3, 3)]


# Flush


def test_s1694_s1706_a_flush_takes_what_it_planned_and_leaves_what_came_meanwhile(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])

        with when(
            environment, calls("generation.write_generation"), lambda: environment.write("other", delete=KEYS[:1])
        ):
            environment.flush("victim")

        assert ranges(environment) == [(1, 1)]
        assert environment.read(environment.table("reader")) == {KEYS[1]: 1}


@pytest.mark.parametrize(
    "wanted", ["generation._write_dataset", "pk_index.write_pk_index", "generation.read_generation"]
)
def test_s1625_s1857_a_flush_that_fails_moves_no_replay_point_and_blocks_no_other(wanted: str, tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])
        with when(environment, calls(wanted), FAIL_BEFORE), pytest.raises(Unavailable):
            environment.flush("victim")
        assert (manifest(environment).replay_after, manifest(environment).current_generation) == (0, 1)

        environment.write("writer", upsert=KEYS[:1])
        environment.flush("next")

        assert ranges(environment) == [(1, 2)]


@pytest.mark.parametrize("rows", range(1, 8))
def test_s1607_c4772_a_generation_ends_where_an_entry_ends_whatever_its_size(rows: int, tmp_path: Path) -> None:
    with environment_at(tmp_path, flush_rows=rows) as environment:
        sizes = [1, 3, 2, 1, 4]
        for size in sizes:
            environment.write("writer", upsert=KEYS[:size])
        environment.flush("flusher")

        assert [first for first, _ in ranges(environment)] == [1, *(last + 1 for _, last in ranges(environment)[:-1])]
        assert ranges(environment)[-1][1] == len(sizes)
        for first, last in ranges(environment):
            assert first == last or sum(sizes[first - 1 : last]) <= rows


def test_c5191_c5207_a_flush_that_was_committed_without_a_reply_is_not_repeated(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])

        with when(environment, swaps_head, FAIL_AFTER):
            environment.flush("victim")
        environment.flush("next")

        assert ranges(environment) == [(1, 1)]


def test_c6701_c5916_a_flush_that_lost_its_race_is_no_failure_and_leaves_no_gap(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])

        with when(environment, calls("generation.write_generation"), lambda: environment.flush("other")):
            environment.flush("victim")
        environment.write("writer", upsert=KEYS[:1])
        environment.flush("next")

        assert ranges(environment) == [(1, 1), (2, 2)]
        assert len(list((environment.place / "_mem_wal" / region(environment).id).glob("*_gen_1"))) == 2


def test_a_flush_whose_first_entries_another_took_goes_on_with_the_rest(tmp_path: Path) -> None:
    with environment_at(tmp_path, flush_rows=1) as environment:
        for _ in range(3):
            environment.write("writer", upsert=KEYS[:1])

        def take_the_first() -> None:
            with environment.at("other"):
                flush_region(open_table(environment.place, ports=environment.ports("other")), region(environment))

        with when(environment, calls("generation.write_generation"), take_the_first):
            environment.flush("victim")

        assert ranges(environment) == [(1, 1), (2, 2), (3, 3)]


def test_a_manifest_whose_committer_died_is_published_before_the_next_so_that_no_hole_stays(tmp_path: Path) -> None:
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


def test_s1192_the_lease_of_a_dead_merger_blocks_others_for_a_minute_at_most(tmp_path: Path) -> None:
    with environment_at(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])
        environment.flush("flusher")
        with when(environment, calls("base_rows.commit"), CRASH_AFTER), pytest.raises(Crash):
            environment.merge("victim")

        with pytest.raises(Contended, match="lease"):
            environment.merge("next")
        environment.schedule.clock.advance(LEASE_SECONDS)
        environment.merge("next")

        assert merges(environment) == 1


def test_s2002_a_merger_that_stalled_past_its_lease_brings_nothing_back(tmp_path: Path) -> None:
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

        with when(environment, calls("base_rows.commit"), overtake):
            environment.merge("victim")

        assert environment.read(environment.table("reader")) == {KEYS[2]: 1}
        assert merges(environment) == 2


def test_two_mergers_of_one_plan_merge_it_once(tmp_path: Path) -> None:
    with environment_at(tmp_path, loaded=KEYS[:4]) as environment, lease(held=False):
        environment.write("writer", upsert=KEYS[:3])
        environment.flush("flusher")

        def overtake() -> None:
            with environment.at("other"):
                environment.merge("other")

        with when(environment, calls("base_rows.commit"), overtake):
            environment.merge("victim")

        assert merges(environment) == 1
        assert lance.dataset(environment.place).count_rows() == 4


def test_a_merge_that_was_committed_without_a_reply_is_recognised_by_its_counters(tmp_path: Path) -> None:
    with environment_at(tmp_path, loaded=KEYS[:4]) as environment:
        environment.write("writer", upsert=KEYS[:3])
        environment.flush("flusher")

        with when(environment, calls("base_rows.commit"), FAIL_AFTER) as plan:
            merged = environment.merge("victim")

        assert merged.generations == 1
        assert merges(environment) == 1
        assert sum(call.method == "base_rows.commit" for call in plan.calls) == 1


def test_c4888_c6701_a_merge_that_others_keep_preempting_is_contended_and_one_without_answers_is_ambiguous(
    tmp_path: Path,
) -> None:
    with environment_at(tmp_path) as environment, mock.patch.object(merging, "ATTEMPTS", 2):
        environment.write("writer", upsert=KEYS[:3])
        environment.flush("flusher")

        def append() -> None:
            environment.foreign_commit(lance.dataset(environment.place), "append")

        with when(environment, calls("base_rows.commit"), append, times=9), pytest.raises(Contended):
            environment.merge("victim")
        assert merges(environment) == 0

        silent = []

        def no_answer(call: Call) -> bool:
            silent.extend([call] if call.method == "base_rows.commit" else [])
            return bool(silent) and call.port == "lance"

        with when(environment, no_answer, FAIL_AFTER, times=9), pytest.raises(Ambiguous):
            environment.merge("victim")
        assert merges(environment) == 1


# Reading and making


def test_c5781_a_read_that_a_flush_and_a_merge_overtake_is_of_one_moment(tmp_path: Path) -> None:
    read_beside_a_merge(tmp_path)


def test_c5781_without_a_look_at_the_counters_such_a_read_mixes_two_moments(tmp_path: Path) -> None:
    with mock.patch.object(view, "_problem", return_value=""), pytest.raises(AssertionError, match="was read as"):
        read_beside_a_merge(tmp_path)


def read_beside_a_merge(place: Path) -> None:
    """A read, at each of its calls in turn overtaken by a write that is flushed and merged at once."""
    start = TableEnvironment(place / "start")
    with start:
        start.create("creator", loaded=KEYS[:3])
        start.write("writer", upsert=KEYS[1:4])
        start.flush("flusher")
        start.write("writer", upsert=KEYS[2:5])
        start.plan = FaultPlan()
        with start.at("victim"):
            start.read(start.table("victim"))
    for call in start.plan.calls:
        with noted(call), start.fork(place / str(call.index)) as environment:

            def overtake(environment: TableEnvironment = environment) -> None:
                with environment.at("other"):
                    environment.write("other", upsert=[KEYS[2], KEYS[6]])
                    environment.write("other", delete=[KEYS[0], KEYS[1]])
                    environment.flush("other")
                    environment.merge("other")

            with when(environment, number(call.index), overtake):
                environment.read(environment.table("victim"))


def test_c6344_c6733_initialisers_that_race_make_one_table(tmp_path: Path) -> None:
    with TableEnvironment(tmp_path / "alone") as alone:
        alone.create("creator", loaded=KEYS[:3])
    for call in alone.plan.calls:
        with noted(call), TableEnvironment(tmp_path / str(call.index)) as environment:

            def create(environment: TableEnvironment = environment) -> None:
                raised(lambda: environment.create("other", loaded=KEYS[:3]))

            with when(environment, number(call.index), create):
                heard = raised(lambda: environment.create("victim", loaded=KEYS[:3]))
            if isinstance(heard, Contended):
                heard = raised(lambda: environment.create("victim", loaded=KEYS[:3]))

            assert heard is None or isinstance(heard, Invalid), heard
            facts = open_base(uri=str(environment.place)).facts
            assert facts is not None
            assert facts.table == environment.table("reader").config.table
            environment.write("writer", upsert=KEYS[:1])
            claim(region(environment), owner=OWNER)
            environment.recover("last")
