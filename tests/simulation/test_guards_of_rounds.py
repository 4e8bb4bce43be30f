"""Each guard of mark, commit, sweep and the creation of pins is needed: without it, a check or a scenario fails.

If one guard stands behind another one, a test removes both. Guards of the verifier are in tests/unit.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from lancelsm.common.layout import Position, generation_path, published_manifest, wal_entry
from lancelsm.common.setsum import Setsum
from lancelsm.common.settings import Settings
from lancelsm.errors import Contended
from lancelsm.gc import base, lists, mark, survey, sweep
from lancelsm.gc import collect as collection
from lancelsm.gc import commit as committing
from lancelsm.gc.commit import commit_round
from lancelsm.gc.lists import GarbageItem, GarbageKind, Round, read_list, write_list
from lancelsm.history import pins, snapshot
from lancelsm.history.pins import RegionPin
from lancelsm.region import manifest as manifests
from lancelsm.region.compare_and_swap import newest
from tests.simulation import collection_scenarios, pin_scenarios
from tests.simulation.collecting import TableEnv, filled
from tests.simulation.environment import raised
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.removal import Check, Edit, check_is_needed, fails
from tests.simulation.whole_table_env import WholeTableEnv, at_each_call

NONCE = "0" * 32

# Checks of the sweep


def swept(item: Callable[[TableEnv], GarbageItem], needs: RegionPin | None = None) -> Callable[[], None]:
    """Sweep a committed list with an item that is needed."""
    table_env = filled()
    table_env.collect()
    region = table_env.region("sweeper")
    head, manifest = newest(region, region.head())
    pin = table_env.pin("held")
    held = [] if needs is None else [replace(pin, regions={region.id: needs})]
    found = item(table_env)

    def judged() -> None:
        doomed, _ = sweep._split(region, [found], head, manifest, held)
        if not doomed:
            raise Contended("a pin keeps it")

    return judged


def item(kind: GarbageKind, path: Callable[[TableEnv], str], number: int) -> Callable[[TableEnv], GarbageItem]:
    return lambda table_env: GarbageItem(kind=kind, path=path(table_env), number=number, bytes=0, why="a bug")


def below(name: str) -> Callable[[TableEnv], str]:
    return lambda table_env: f"_mem_wal/{table_env.environment.id}/{name}"


def named_generation(table_env: TableEnv) -> str:
    region = table_env.region("x")
    _, manifest = newest(region, region.head())
    return generation_path(region.id, manifest.generations[0].path)


def named_manifest(table_env: TableEnv) -> str:
    return table_env.region("x").head().manifest_key


def named_list(table_env: TableEnv) -> str:
    region = table_env.region("x")
    return newest(region, region.head())[1].collector_key


def entry(position: int) -> Callable[[TableEnv], str]:
    return lambda table_env: wal_entry(table_env.environment.id, Position(position))


def published(version: int) -> Callable[[TableEnv], str]:
    return lambda table_env: published_manifest(table_env.environment.id, version)  # type: ignore[arg-type]


NEEDED, HELD = sweep._is_needed, sweep._holds
GENERATION = 'return item.path.rpartition("/")[2] in named or item.number >= manifest.current_generation'
STAGED = "return item.path == head.manifest_key or item.number > head.manifest_version"
STALE = RegionPin(first_position=Position(3), after=0, through=2, manifest_key="old", manifest_version=3)  # type: ignore[arg-type]

SWEEPS: dict[str, Check] = {
    "a generation that the manifest names is kept": Check(
        edits=((NEEDED, GENERATION, "return item.number >= manifest.current_generation"),),
        forged=partial(swept, item(GarbageKind.GENERATION, named_generation, 3)),
    ),
    "a generation that a flush may be writing is kept": Check(
        edits=((NEEDED, GENERATION, 'return item.path.rpartition("/")[2] in named'),),
        forged=partial(swept, item(GarbageKind.GENERATION, below("00000000_gen_5"), 5)),
    ),
    "entries from the floor on are kept": Check(
        edits=((NEEDED, "return item.number >= manifest.first_position", "return False"),),
        forged=partial(swept, item(GarbageKind.ENTRY, entry(9), 9)),
    ),
    "the manifest that the head names is kept": Check(
        edits=((NEEDED, STAGED, "return item.number > head.manifest_version"),),
        forged=partial(swept, item(GarbageKind.STAGED, named_manifest, 6)),
    ),
    "a manifest that may be committed is kept": Check(
        edits=((NEEDED, STAGED, "return item.path == head.manifest_key"),),
        forged=partial(swept, item(GarbageKind.STAGED, below(f"manifest/staged/7-{NONCE}.binpb"), 7)),
    ),
    "the newest published manifest is kept": Check(
        edits=((NEEDED, "return item.number >= head.manifest_version", "return False"),),
        forged=partial(swept, item(GarbageKind.PUBLISHED, published(6), 6)),
    ),
    "the list that the manifest names is kept": Check(
        edits=((NEEDED, "return item.path == manifest.collector_key", "return False"),),
        forged=partial(swept, item(GarbageKind.LIST, named_list, 1)),
    ),
    "the sweep of a region leaves items of the base alone": Check(
        edits=((NEEDED, "return True  # items of the base don't belong in the list of a region", "return False"),),
        forged=partial(swept, item(GarbageKind.BASE_FILE, below("data/x.lance"), 0)),
    ),
    "the generations of a pin are kept": Check(
        edits=((HELD, "return needs.needs(Generation(item.number))", "return False"),),
        forged=partial(swept, item(GarbageKind.GENERATION, below("00000000_gen_2"), 2), STALE),
    ),
    "the entries of a pin are kept": Check(
        edits=((HELD, "return item.number >= needs.first_position", "return False"),),
        forged=partial(swept, item(GarbageKind.ENTRY, entry(3), 3), STALE),
    ),
    "the manifest of a pin is kept": Check(
        edits=((HELD, "return item.path == needs.manifest_key", "return False"),),
        forged=partial(swept, item(GarbageKind.STAGED, lambda _: "old", 3), STALE),
    ),
    "the published manifest of a pin is kept": Check(
        edits=((HELD, "return item.number == needs.manifest_version", "return False"),),
        forged=partial(swept, item(GarbageKind.PUBLISHED, published(3), 3), STALE),
    ),
}


@pytest.mark.parametrize("guard", SWEEPS)
def test_the_sweep_deletes_a_needed_item_without_the_guard(guard: str) -> None:
    check_is_needed(SWEEPS[guard])


# Scenarios


def second_of_two_rounds() -> None:
    """Two collectors mark and verify a round each, with the same number. The second one deletes less of the log."""
    table_env = filled()
    with table_env.collecting():
        (first,) = collection.mark(table_env.handle("first", faulty=False)).rounds
        context = table_env.region("second").context
        sums = [table_env.environment.log[Position(at)].summary.entry_setsum for at in (1, 2)]
        less = replace(read_list(context, first).round, floor=3, items=(), discarded=sum(sums, start=Setsum.ZERO))
        second = write_list(context, less).key
        for key in (first, second):
            collection.verify(table_env.handle("verifier", faulty=False), [key])
    for key in (first, second):
        raised(lambda key=key: commit_round(table_env.region("committer"), key))  # type: ignore[misc]
    table_env.audit()


def list_of_another_region() -> None:
    """The list of another region is committed."""
    table_env = filled()
    stranger = Round(
        region="00000000-0000-4000-8000-000000000000",  # type: ignore[arg-type]
        number=1,
        floor=9,
        items=(),
        marked=0.0,
    )
    key = write_list(table_env.region("marker").context, stranger).key
    raised(lambda: commit_round(table_env.region("committer"), key))
    table_env.audit()


def confirmed_after_the_sweep() -> None:
    """A creator of a pin reads the floors before a round is committed, and confirms the pin after its sweep."""
    table_env = filled()
    with table_env.collecting():
        keys = collection.mark(table_env.handle("collector", faulty=False)).rounds
        collection.verify(table_env.handle("collector", faulty=False), keys)
        stale = replace(table_env.needs(table_env.region("slow")), after=0, first_position=Position(1))  # type: ignore[arg-type]
        pin = table_env.begin_pin("slow", stale)
        context = table_env.region("slow").context
        assert not pins.overtaken(context, pin)
        collection.commit(table_env.handle("collector", faulty=False), keys)
        collection.sweep(table_env.handle("collector", faulty=False), keys)
        with contextlib.suppress(Contended):
            table_env.audit_pin(pins.confirm(context, pin, ttl_seconds=None))


def base_swept_before_any_call() -> None:
    """The version of the base of a snapshot becomes old and is collected before any call of its creation."""
    at_each_call(_base_swept_at)


def _base_swept_at(at: int) -> FaultPlan:
    table_env = WholeTableEnv(settings=Settings(keep_versions_seconds=0))
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
        table_env.put("writer", {0: True})
        table_env.flush()
        table_env.merge()
        table_env.collect("other")

        def becomes_old() -> None:
            table_env.optimize(table_env.region("merger"))
            table_env.environment.schedule.clock.advance(1.0)
            table_env.collect("other")

        plan = table_env.interrupt(lambda call: call.index == at, becomes_old)
        table_env.hold("victim", "held", ttl_seconds=3600.0)
        table_env.environment.plan = FaultPlan()
        table_env.read_held("victim", "held")
        assert table_env.held["held"].content == table_env.truth
    return plan


def second_of_two_rounds_of_the_base() -> None:
    """Two rounds of the base have the same number. The second one is not committed, and the floor never falls."""
    table_env = WholeTableEnv()
    with in_place_of_lance(table_env.base):
        for _ in range(2):
            table_env.optimize(table_env.region("merger"))
        handle = table_env.handle("collector", faulty=False)
        keys = [
            write_list(handle.context, Round(region=None, number=1, floor=floor, items=(), marked=0.0, fence=1)).key
            for floor in (3, 2)
        ]
        assert [base.commit_base(handle, key) for key in keys] == [True, False]
        assert base.read_floor(handle).version == 3


def two_committers_of_the_base() -> None:
    """Another round of the base is committed right before the swap of ours."""
    table_env = WholeTableEnv()
    with in_place_of_lance(table_env.base):
        for _ in range(2):
            table_env.optimize(table_env.region("merger"))
        context = table_env.context("marker", faulty=False)
        mine, other = (
            write_list(context, Round(region=None, number=1, floor=floor, items=(), marked=0.0, fence=1)).key
            for floor in (2, 3)
        )
        committed: list[bool] = []

        def rival(call: Call) -> None:
            if call.method == "swap" and call.key.startswith("T/") and not committed:
                committed.append(base.commit_base(table_env.handle("other", faulty=False), other))

        table_env.environment.plan = FaultPlan(rival)
        raised(lambda: base.commit_base(table_env.handle("victim"), mine))
        assert committed == [True]
        assert base.read_floor(table_env.handle("reader", faulty=False)).key == other


def pinned(first_position: int = 9) -> None:
    """A round deletes everything that a pin does not need."""
    table_env = filled()
    needs = replace(table_env.needs(table_env.region("held")), first_position=Position(first_position))
    assert table_env.confirm_pin(table_env.begin_pin("held", needs))
    table_env.write(100, 101)
    table_env.flush()
    table_env.merge()
    table_env.collect()
    assert table_env.audit().collector_round == 1


YOUNG = "if interval > max(0.0, now - one.since)"
SINCE = "max(manifest.collector_committed, listed.round.marked)"

SCENARIOS: dict[str, tuple[list[Edit], Callable[[], None]]] = {
    "the second of two rounds with the same number is superseded": (
        [(manifests.collected, "manifest.collector_round != round_number - 1 or ", "")],
        second_of_two_rounds,
    ),
    "a round is committed only in its own region": (
        [(committing.commit_round, "if listed.round.region != region.id:", "if False:")],
        list_of_another_region,
    ),
    "a round that was just committed waits": (
        [
            (
                collection.collect,
                "swept = _sweep_all(handle, runner, committed) if interval <= 0 else {}",
                "swept = _sweep_all(handle, runner, committed)",
            )
        ],
        collection_scenarios.round_within_its_interval,
    ),
    "a round waits until its interval has passed": (
        [(collection.collect, YOUNG, "if False")],
        collection_scenarios.commit_without_its_time,
    ),
    "the interval starts at the commit": (
        [(sweep.waiting_region, SINCE, "listed.round.marked")],
        collection_scenarios.late_commit,
    ),
    "the interval of a round of the base starts at the commit": (
        [(base.waiting_base, "max(floor.committed, listed.round.marked)", "listed.round.marked")],
        collection_scenarios.late_commit_of_the_base,
    ),
    "the interval starts at the mark if no commit time is recorded": (
        [(sweep.waiting_region, SINCE, "manifest.collector_committed")],
        collection_scenarios.commit_without_its_time,
    ),
    "a pin that is not confirmed counts": (
        [
            (
                sweep.expire_pins,
                "for pin in read_pins(context):",
                "for pin in (one for one in read_pins(context) if one.confirmed):",
            )
        ],
        confirmed_after_the_sweep,
    ),
    "a pin is confirmed against the floor of the base": (
        [
            (pins.overtaken, 'int(record.get("base_floor", 0)) > pin.base_version', "False"),
            (snapshot._record_needs, "tag_version(", "dict("),
        ],
        base_swept_before_any_call,
    ),
    "the second of two rounds of the base with the same number is superseded": (
        [(base.commit_base, "if floor.round != number - 1:", "if False:")],
        second_of_two_rounds_of_the_base,
    ),
    "a round of the base is committed only as the successor of the round before its mark": (
        [(base.commit_base, '{"base_round": record.get("base_round")}', "{}")],
        two_committers_of_the_base,
    ),
    "mark keeps the generations of a pin": (
        [(mark._Marking._generation_pin, "if needs is not None and needs.needs(number):", "if False:")],
        pinned,
    ),
    "mark keeps the log of a pin": (
        [
            (
                mark.log_end,
                "if (needs := pin.of(manifest.region)) is not None]",
                "if (needs := pin.of(manifest.region)) is None]",
            )
        ],
        partial(pinned, 3),
    ),
    "mark keeps the manifests of a pin": (
        [
            (mark._Marking._manifests, "if found.key in keys:", "if False:"),
            (mark._Marking._manifests, "if published in versions:", "if False:"),
        ],
        pinned,
    ),
    "only a committed round is swept": (
        [(sweep.confirm_region, "if done.manifest.collector_key != key:", "if False:")],
        collection_scenarios.round_that_is_not_committed,
    ),
    "a list must be the one that was committed": (
        [(lists.read_list, "if setsum is not None and read != setsum:", "if False:")],
        collection_scenarios.changed_list,
    ),
    "a missing list of an older round is not reported": (
        [(lists.find_list, "if newest() > (round_number(key) or 0):", "if False:")],
        partial(
            collection_scenarios.another_operation_before_any_call,
            "collects, merges, collects",
        ),
    ),
    "the objects of a failed listing still count": (
        [(survey.list_objects, "if not found:", "if True:")],
        collection_scenarios.failing_listings,
    ),
    "the record of a pin is read again before its leftovers are removed": (
        [(sweep._sweep_leftover, "if not is_of(own, key):", "if True:")],
        pin_scenarios.begun_while_leftovers_are_listed,
    ),
}


OWN = (
    base_swept_before_any_call,
    confirmed_after_the_sweep,
    list_of_another_region,
    pinned,
    partial(pinned, 3),
    second_of_two_rounds,
    second_of_two_rounds_of_the_base,
    two_committers_of_the_base,
)


@pytest.mark.parametrize("scenario", OWN)
def test_a_scenario_passes_with_all_guards(scenario: Callable[[], None]) -> None:
    scenario()


@pytest.mark.parametrize("guard", SCENARIOS)
def test_the_scenario_fails_without_its_guard(guard: str) -> None:
    edits, scenario = SCENARIOS[guard]

    assert fails(edits, scenario)
