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

from lancelsm.common.layout import (
    Nonce,
    Position,
    Version,
    generation_path,
    published_manifest,
    region_id,
    staged_manifest,
    wal_entry,
)
from lancelsm.common.setsum import Setsum
from lancelsm.common.settings import Settings
from lancelsm.errors import Contended
from lancelsm.gc import base, sweep
from lancelsm.gc import collect as collection
from lancelsm.gc.commit import commit_round
from lancelsm.gc.lists import GarbageItem, GarbageKind, Round, read_list, write_list
from lancelsm.history import pins
from lancelsm.history.pin_records import RegionPin
from lancelsm.region.compare_and_swap import newest
from tests.simulation import collection_scenarios, pin_scenarios
from tests.simulation.collecting import TableEnv, filled
from tests.simulation.environment import TABLE, VALUES, raised
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.marks import Edit, changed, without
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.removal import Check, check_is_needed, fails
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


ID = region_id(table=TABLE, spec_id=1, values=VALUES)
OLD = staged_manifest(ID, Version(3), Nonce(NONCE))
STALE = RegionPin(first_position=Position(3), after=0, through=2, manifest_key=OLD, manifest_version=3)  # type: ignore[arg-type]

SWEEPS: dict[str, Check] = {
    "a generation that the manifest names stays": Check(
        edits=(without("sweep keeps generations of the manifest"),),
        forged=partial(swept, item(GarbageKind.GENERATION, named_generation, 3)),
    ),
    "a generation that a flush may be writing stays": Check(
        edits=(without("sweep keeps generations in flight"),),
        forged=partial(swept, item(GarbageKind.GENERATION, below("00000000_gen_5"), 5)),
    ),
    "entries from the floor on stay": Check(
        edits=(without("sweep keeps the log", instead=False),),
        forged=partial(swept, item(GarbageKind.ENTRY, entry(9), 9)),
    ),
    "the manifest that the head names stays": Check(
        edits=(without("sweep keeps the manifest of the head"),),
        forged=partial(swept, item(GarbageKind.STAGED, named_manifest, 6)),
    ),
    "a manifest that may be committed stays": Check(
        edits=(without("sweep keeps manifests in flight"),),
        forged=partial(swept, item(GarbageKind.STAGED, below(f"manifest/staged/7-{NONCE}.binpb"), 7)),
    ),
    "the newest published manifest stays": Check(
        edits=(without("sweep keeps the newest published manifest", instead=False),),
        forged=partial(swept, item(GarbageKind.PUBLISHED, published(6), 6)),
    ),
    "the list that the manifest names stays": Check(
        edits=(without("sweep keeps the list of the manifest", instead=False),),
        forged=partial(swept, item(GarbageKind.LIST, named_list, 1)),
    ),
    "the sweep of a region leaves items of the base alone": Check(
        edits=(without("sweep of a region keeps the base", instead=False),),
        forged=partial(swept, item(GarbageKind.BASE_FILE, below("data/x.lance"), 0)),
    ),
    "a pin's generations stay": Check(
        edits=(without("sweep keeps pinned generations", instead=False),),
        forged=partial(swept, item(GarbageKind.GENERATION, below("00000000_gen_2"), 2), STALE),
    ),
    "a pin's entries stay": Check(
        edits=(without("sweep keeps pinned entries", instead=False),),
        forged=partial(swept, item(GarbageKind.ENTRY, entry(3), 3), STALE),
    ),
    "a pin's manifest stays": Check(
        edits=(without("sweep keeps pinned staged manifests", instead=False),),
        forged=partial(swept, item(GarbageKind.STAGED, lambda _: OLD, 3), STALE),
    ),
    "a pin's published manifest stays": Check(
        edits=(without("sweep keeps pinned published manifests", instead=False),),
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


SCENARIOS: dict[str, tuple[list[Edit], Callable[[], None]]] = {
    "the second of two rounds with the same number is superseded": (
        [without("committed round is the next one")],
        second_of_two_rounds,
    ),
    "a round is committed only in its own region": (
        [without("round is committed in its region")],
        list_of_another_region,
    ),
    "a round that was just committed waits": (
        [without("round waits after its commit", instead=True)],
        collection_scenarios.round_within_its_interval,
    ),
    "a round waits until its interval has passed": (
        [without("round waits until its interval has passed", instead={})],
        collection_scenarios.commit_without_its_time,
    ),
    "the interval starts at the commit": (
        [without("interval starts at the commit")],
        collection_scenarios.late_commit,
    ),
    "the interval of a round of the base starts at the commit": (
        [without("interval of a base round starts at its commit")],
        collection_scenarios.late_commit_of_the_base,
    ),
    "the interval starts at the mark if no commit time is recorded": (
        [without("interval starts at the mark without a commit time")],
        collection_scenarios.commit_without_its_time,
    ),
    "a pin that is not confirmed counts": (
        [changed("unconfirmed pin counts", "(pin for pin in read_pins(context) if pin.confirmed)")],
        confirmed_after_the_sweep,
    ),
    "a pin is confirmed against the floor of the base": (
        [without("pin is confirmed against the floor of the base"), without("version of a snapshot is tagged")],
        base_swept_before_any_call,
    ),
    "the second of two rounds of the base with the same number is superseded": (
        [without("base round follows the last one")],
        second_of_two_rounds_of_the_base,
    ),
    "a round of the base is committed only as the successor of the round before its mark": (
        [without("base round swaps on the last one", instead={})],
        two_committers_of_the_base,
    ),
    "mark keeps the generations of a pin": (
        [without("mark keeps the generations of a pin")],
        pinned,
    ),
    "mark keeps the log of a pin": (
        [without("mark keeps the log of a pin", instead=[])],
        partial(pinned, 3),
    ),
    "mark keeps the manifests of a pin": (
        [
            without("mark keeps the staged manifest of a pin"),
            without("mark keeps the published manifest of a pin"),
        ],
        pinned,
    ),
    "only a committed round is swept": (
        [without("only a committed round is swept")],
        collection_scenarios.round_that_is_not_committed,
    ),
    "a list must be the one that was committed": (
        [without("list is the committed one")],
        collection_scenarios.changed_list,
    ),
    "a missing list of an older round is not reported": (
        [without("list of an older round may be gone")],
        partial(
            collection_scenarios.another_operation_before_any_call,
            "collects, merges, collects",
        ),
    ),
    "the objects of a failed listing still count": (
        [without("objects of a failed listing count", instead=True)],
        collection_scenarios.failing_listings,
    ),
    "the record of a pin is read again before its leftovers are removed": (
        [without("leftover has no pin", instead=True)],
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


@pytest.mark.one_case
@pytest.mark.parametrize("guard", SCENARIOS)
def test_the_scenario_fails_without_its_guard(guard: str) -> None:
    edits, scenario = SCENARIOS[guard]

    assert fails(edits, scenario)
