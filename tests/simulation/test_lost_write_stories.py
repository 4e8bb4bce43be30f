"""Stories of lost, doubled and revived writes that other systems had to tell, each by name against the whole table.

They are numbered as in the trackers of SlateDB (s), of Chroma's wal3 (c) and of Lance (l). What needs collections,
snapshots or clones is told in test_collection* and test_stories_of_time. Also told elsewhere: stalled writers beside a
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
from tests.simulation.crowd import RIVAL
from tests.simulation.faults import CRASH_AFTER, DENY, FAIL_AFTER, FAIL_BEFORE, Call, Crash, Fault, FaultPlan
from tests.simulation.situations import noted
from tests.simulation.table_log import keys
from tests.simulation.table_world import TableWorld, lease
from tests.simulation.world import OWNER, told

KEYS = keys(0)[:8]  # all of one region, the left one
Event = Fault | Callable[[], object]


@contextmanager
def world_at(place: Path, *, loaded: tuple[int, ...] = (), **settings: object) -> Iterator[TableWorld]:
    with TableWorld(place / "table", settings=settings) as world:
        world.create("creator", loaded=loaded)
        yield world
        world.recover("last")


@contextmanager
def when(world: TableWorld, wanted: Callable[[Call], bool], event: Event, *, times: int = 1) -> Iterator[FaultPlan]:
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

    world.plan = FaultPlan(decide, clock=world.schedule.clock)
    with world.at("victim"):
        yield world.plan
    assert met, "it never came to that"
    world.plan.stop()


def number(index: int) -> Callable[[Call], bool]:
    return lambda call: call.index == index


def puts_entry(call: Call) -> bool:
    return call.method == "create" and "/wal/" in call.key


def swaps_head(call: Call) -> bool:
    return call.method == "swap" and call.key.startswith("H#")


def calls(name: str) -> Callable[[Call], bool]:
    return lambda call: call.method == name


def region(world: TableWorld) -> Region:
    (left,) = (one for one in world.table("observer").regions() if world.sides[one.id] == 0)
    return left


def manifest(world: TableWorld) -> Manifest:
    """The left region's, as its head names it."""
    of = region(world)
    return newest(of, of.head())[1]


def ranges(world: TableWorld) -> list[tuple[int, int]]:
    """First and last position of each generation of the left region."""
    return [(g.folded.first, g.folded.last) for g in manifest(world).generations if g.folded]


def merges(world: TableWorld) -> int:
    """How many versions of the base moved a counter."""
    dataset = lance.dataset(world.place)
    versions = [open_base(uri=str(world.place), version=number).counters for number in range(1, dataset.version + 1)]
    return sum(before != after for before, after in pairwise(versions))


# Who writes


def test_s271_a_writer_that_still_holds_its_head_is_fenced_by_a_claim(tmp_path: Path) -> None:
    with world_at(tmp_path) as world:
        old = world.table("old")
        world.write_by(old, "old", upsert=KEYS[:2])
        claim(region(world), owner=RIVAL)

        with pytest.raises(Fenced, match=RIVAL):
            world.write_by(old, "old", upsert=KEYS[:1])

        assert [entry.fence for entry in world.logs[0].entries] == [False, True]


def test_s1682_a_claim_of_a_region_whose_log_is_all_merged_fences_above_the_replay_point(tmp_path: Path) -> None:
    with world_at(tmp_path) as world:
        old = world.table("old")
        world.write_by(old, "old", upsert=KEYS[:2])
        world.flush("flusher")
        world.merge("merger")

        with when(world, puts_entry, lambda: claim(region(world), owner=RIVAL)):
            heard = told(lambda: world.write("victim", upsert=KEYS[:1]))

        assert isinstance(heard, Fenced)
        assert manifest(world).replay_after == 1
        assert world.logs[0].entries[1].fence


def test_s766_a_put_that_landed_without_a_reply_is_recognised_and_not_repeated(tmp_path: Path) -> None:
    with world_at(tmp_path) as world:
        with when(world, puts_entry, FAIL_AFTER):
            world.write("victim", upsert=KEYS[:2])

        assert len(world.logs[0].entries) == 1


def test_l7547_a_write_that_was_refused_is_not_seen_by_its_own_handle(tmp_path: Path) -> None:
    with world_at(tmp_path, loaded=KEYS[:2]) as world:
        with when(world, puts_entry, DENY):
            own = world.table("victim")
            with pytest.raises(Unavailable):
                world.write_by(own, "victim", upsert=KEYS[:4])

        assert world.read(own) == {KEYS[0]: 0, KEYS[1]: 0}
        world.write_by(own, "victim", delete=KEYS[:1])
        assert world.read(own) == {KEYS[1]: 0}


def test_c4420_a_handle_whose_head_is_stale_writes_behind_what_others_wrote(tmp_path: Path) -> None:
    with world_at(tmp_path) as world:
        one, two = world.table("one"), world.table("two")
        world.write_by(one, "one", upsert=KEYS[:2])
        world.write_by(two, "two", delete=KEYS[:2])
        world.write_by(one, "one", upsert=KEYS[:1])
        world.flush("flusher")
        world.merge("merger")
        world.write_by(two, "two", upsert=KEYS[1:2])

        assert world.read(one) == world.read(two) == {KEYS[0]: 3, KEYS[1]: 4}


def test_c3141_a_log_whose_last_entry_is_merged_goes_on_counting(tmp_path: Path) -> None:
    with world_at(tmp_path) as world:
        for _ in range(3):
            world.write("writer", upsert=KEYS[:1])
            world.flush("flusher")
            world.merge("merger")

        assert [entry.summary.position for entry in world.logs[0].entries] == [1, 2, 3]
        assert ranges(world) == [(1, 1), (2, 2), (3, 3)]


# Flush


def test_s1694_s1706_a_flush_takes_what_it_planned_and_leaves_what_came_meanwhile(tmp_path: Path) -> None:
    with world_at(tmp_path) as world:
        world.write("writer", upsert=KEYS[:2])

        with when(world, calls("generation.write_generation"), lambda: world.write("other", delete=KEYS[:1])):
            world.flush("victim")

        assert ranges(world) == [(1, 1)]
        assert world.read(world.table("reader")) == {KEYS[1]: 1}


@pytest.mark.parametrize(
    "wanted", ["generation._write_dataset", "pk_index.write_pk_index", "generation.read_generation"]
)
def test_s1625_s1857_a_flush_that_fails_moves_no_replay_point_and_blocks_no_other(wanted: str, tmp_path: Path) -> None:
    with world_at(tmp_path) as world:
        world.write("writer", upsert=KEYS[:2])
        with when(world, calls(wanted), FAIL_BEFORE), pytest.raises(Unavailable):
            world.flush("victim")
        assert (manifest(world).replay_after, manifest(world).current_generation) == (0, 1)

        world.write("writer", upsert=KEYS[:1])
        world.flush("next")

        assert ranges(world) == [(1, 2)]


@pytest.mark.parametrize("rows", range(1, 8))
def test_s1607_c4772_a_generation_ends_where_an_entry_ends_whatever_its_size(rows: int, tmp_path: Path) -> None:
    with world_at(tmp_path, flush_rows=rows) as world:
        sizes = [1, 3, 2, 1, 4]
        for size in sizes:
            world.write("writer", upsert=KEYS[:size])
        world.flush("flusher")

        assert [first for first, _ in ranges(world)] == [1, *(last + 1 for _, last in ranges(world)[:-1])]
        assert ranges(world)[-1][1] == len(sizes)
        for first, last in ranges(world):
            assert first == last or sum(sizes[first - 1 : last]) <= rows


def test_c5191_c5207_a_flush_that_was_committed_without_a_reply_is_not_repeated(tmp_path: Path) -> None:
    with world_at(tmp_path) as world:
        world.write("writer", upsert=KEYS[:2])

        with when(world, swaps_head, FAIL_AFTER):
            world.flush("victim")
        world.flush("next")

        assert ranges(world) == [(1, 1)]


def test_c6701_c5916_a_flush_that_lost_its_race_is_no_failure_and_leaves_no_gap(tmp_path: Path) -> None:
    with world_at(tmp_path) as world:
        world.write("writer", upsert=KEYS[:2])

        with when(world, calls("generation.write_generation"), lambda: world.flush("other")):
            world.flush("victim")
        world.write("writer", upsert=KEYS[:1])
        world.flush("next")

        assert ranges(world) == [(1, 1), (2, 2)]
        assert len(list((world.place / "_mem_wal" / region(world).id).glob("*_gen_1"))) == 2


def test_a_flush_whose_first_entries_another_took_goes_on_with_the_rest(tmp_path: Path) -> None:
    with world_at(tmp_path, flush_rows=1) as world:
        for _ in range(3):
            world.write("writer", upsert=KEYS[:1])

        def take_the_first() -> None:
            with world.at("other"):
                flush_region(open_table(world.place, ports=world.ports("other")), region(world))

        with when(world, calls("generation.write_generation"), take_the_first):
            world.flush("victim")

        assert ranges(world) == [(1, 1), (2, 2), (3, 3)]


def test_a_manifest_whose_committer_died_is_published_before_the_next_so_that_no_hole_stays(tmp_path: Path) -> None:
    with world_at(tmp_path) as world:
        world.write("writer", upsert=KEYS[:2])
        with when(world, swaps_head, CRASH_AFTER), pytest.raises(Crash):
            world.flush("victim")
        of = region(world)
        committed = of.head().manifest_version
        assert world.store.get(published_manifest(of.id, committed)) is None

        world.write("writer", upsert=KEYS[:1])
        world.flush("next")

        assert of.head().manifest_version == committed + 1
        assert all(world.store.get(published_manifest(of.id, Version(version))) for version in range(1, committed + 2))


# Merge


def test_s1192_the_lease_of_a_dead_merger_blocks_others_for_a_minute_at_most(tmp_path: Path) -> None:
    with world_at(tmp_path) as world:
        world.write("writer", upsert=KEYS[:2])
        world.flush("flusher")
        with when(world, calls("base_rows.commit"), CRASH_AFTER), pytest.raises(Crash):
            world.merge("victim")

        with pytest.raises(Contended, match="lease"):
            world.merge("next")
        world.schedule.clock.advance(LEASE_SECONDS)
        world.merge("next")

        assert merges(world) == 1


def test_s2002_a_merger_that_stalled_past_its_lease_brings_nothing_back(tmp_path: Path) -> None:
    with world_at(tmp_path) as world:
        world.write("writer", upsert=KEYS[:3])
        world.flush("flusher")

        def overtake() -> None:
            world.schedule.clock.advance(LEASE_SECONDS + 1)
            with world.at("other"):
                world.merge("other")
                world.write("other", delete=KEYS[:2])
                world.flush("other")
                world.merge("other")

        with when(world, calls("base_rows.commit"), overtake):
            world.merge("victim")

        assert world.read(world.table("reader")) == {KEYS[2]: 1}
        assert merges(world) == 2


def test_two_mergers_of_one_plan_merge_it_once(tmp_path: Path) -> None:
    with world_at(tmp_path, loaded=KEYS[:4]) as world, lease(held=False):
        world.write("writer", upsert=KEYS[:3])
        world.flush("flusher")

        def overtake() -> None:
            with world.at("other"):
                world.merge("other")

        with when(world, calls("base_rows.commit"), overtake):
            world.merge("victim")

        assert merges(world) == 1
        assert lance.dataset(world.place).count_rows() == 4


def test_a_merge_that_was_committed_without_a_reply_is_recognised_by_its_counters(tmp_path: Path) -> None:
    with world_at(tmp_path, loaded=KEYS[:4]) as world:
        world.write("writer", upsert=KEYS[:3])
        world.flush("flusher")

        with when(world, calls("base_rows.commit"), FAIL_AFTER) as plan:
            merged = world.merge("victim")

        assert merged.generations == 1
        assert merges(world) == 1
        assert sum(call.method == "base_rows.commit" for call in plan.calls) == 1


def test_c4888_c6701_a_merge_that_others_keep_preempting_is_contended_and_one_without_answers_is_ambiguous(
    tmp_path: Path,
) -> None:
    with world_at(tmp_path) as world, mock.patch.object(merging, "ATTEMPTS", 2):
        world.write("writer", upsert=KEYS[:3])
        world.flush("flusher")

        def append() -> None:
            world.foreign_commit(lance.dataset(world.place), "append")

        with when(world, calls("base_rows.commit"), append, times=9), pytest.raises(Contended):
            world.merge("victim")
        assert merges(world) == 0

        silent = []

        def no_answer(call: Call) -> bool:
            silent.extend([call] if call.method == "base_rows.commit" else [])
            return bool(silent) and call.port == "lance"

        with when(world, no_answer, FAIL_AFTER, times=9), pytest.raises(Ambiguous):
            world.merge("victim")
        assert merges(world) == 1


# Reading and making


def test_c5781_a_read_that_a_flush_and_a_merge_overtake_is_of_one_moment(tmp_path: Path) -> None:
    read_beside_a_merge(tmp_path)


def test_c5781_without_a_look_at_the_counters_such_a_read_mixes_two_moments(tmp_path: Path) -> None:
    with mock.patch.object(view, "_problem", return_value=""), pytest.raises(AssertionError, match="was read as"):
        read_beside_a_merge(tmp_path)


def read_beside_a_merge(place: Path) -> None:
    """A read, at each of its calls in turn overtaken by a write that is flushed and merged at once."""
    start = TableWorld(place / "start")
    with start:
        start.create("creator", loaded=KEYS[:3])
        start.write("writer", upsert=KEYS[1:4])
        start.flush("flusher")
        start.write("writer", upsert=KEYS[2:5])
        start.plan = FaultPlan()
        with start.at("victim"):
            start.read(start.table("victim"))
    for call in start.plan.calls:
        with noted(call), start.fork(place / str(call.index)) as world:

            def overtake(world: TableWorld = world) -> None:
                with world.at("other"):
                    world.write("other", upsert=[KEYS[2], KEYS[6]])
                    world.write("other", delete=[KEYS[0], KEYS[1]])
                    world.flush("other")
                    world.merge("other")

            with when(world, number(call.index), overtake):
                world.read(world.table("victim"))


def test_c6344_c6733_initialisers_that_race_make_one_table(tmp_path: Path) -> None:
    with TableWorld(tmp_path / "alone") as alone:
        alone.create("creator", loaded=KEYS[:3])
    for call in alone.plan.calls:
        with noted(call), TableWorld(tmp_path / str(call.index)) as world:

            def create(world: TableWorld = world) -> None:
                told(lambda: world.create("other", loaded=KEYS[:3]))

            with when(world, number(call.index), create):
                heard = told(lambda: world.create("victim", loaded=KEYS[:3]))
            if isinstance(heard, Contended):
                heard = told(lambda: world.create("victim", loaded=KEYS[:3]))

            assert heard is None or isinstance(heard, Invalid), heard
            facts = open_base(uri=str(world.place)).facts
            assert facts is not None
            assert facts.table == world.table("reader").config.table
            world.write("writer", upsert=KEYS[:1])
            claim(region(world), owner=OWNER)
            world.recover("last")
