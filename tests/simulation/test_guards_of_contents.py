"""Each guard of what is read back, counted or kept for somebody carries weight: without it, a scenario ends badly."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from lancelsm import registry
from lancelsm.admin import adopt
from lancelsm.common.layout import Epoch, Key, Position, wal_entry
from lancelsm.compaction import merge as merging
from lancelsm.compaction import tasks
from lancelsm.dataset import adoption, generation
from lancelsm.errors import Corrupt, Invalid, LsmError
from lancelsm.gc import base, sweep
from lancelsm.gc.verify_base import verify_base
from lancelsm.history import changes, snapshot
from lancelsm.history.pins import Pin
from lancelsm.objects import PreconditionFailed, WriteUnknown, Written
from lancelsm.region import compare_and_swap as commit
from lancelsm.region.catalog import TableContext
from lancelsm.region.head import sealed
from lancelsm.wal import append, replay, slot
from lancelsm.wal.claim import seal
from lancelsm.wal.entry import draft, encode
from tests.interop import test_adopt as adopted_from_lance
from tests.simulation import test_commit, test_table_collection
from tests.simulation.environment import Environment, a_nonce, raised
from tests.simulation.faults import Call, FaultPlan, MemoryRegistry
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.removal import Edit, Scenario, anywhere, with_and_without
from tests.simulation.situations import half_claim
from tests.simulation.test_append import _bent
from tests.simulation.whole_table_env import QUEUE, ROWS, WholeTableEnv
from tests.unit import adopt_scenarios, generations, test_merge
from tests.unit.merge_environment import A


def delivered_twice(_: Path) -> None:
    """Another process has the same messages of a queue, and applies them before the swap of this one."""
    table_env = WholeTableEnv()
    messages = [(1, 10), (2, 20)]

    def other() -> None:
        with table_env.at("other"):
            table_env.deliver("other", messages)

    table_env.interrupt(lambda call: call.method == "swap" and not table_env.environment.log, other)
    with table_env.at("victim"):
        table_env.deliver("victim", messages)
    assert [entry.summary.applied_sequences for entry in table_env.environment.log.values()] == [{QUEUE: "2"}]


def sealed_in_another_epoch(_: Path) -> None:
    """A claim comes right before the swap of a seal: its epoch is not given twice."""
    environment = Environment()

    def claimed(call: Call) -> None:
        if call.index == 1:
            half_claim(environment.region("rival", faulty=False))

    environment.plan = FaultPlan(claimed)
    head = seal(environment.region("sealer"))
    assert head.epoch == 3


def going_back(_: Path) -> None:
    """A caller that is behind lowers no floor."""
    key, records = Key(partition="H#t#r", sort="head"), MemoryRegistry()
    records.swap(key, expect=None, change={"first_position": 5})
    with contextlib.suppress(LsmError):
        records.swap(key, expect={}, change={"first_position": 4})
    assert records.read(key) == {"first_position": 5}


class Damaging:
    """A store that damages what it writes, and loses the reply."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, key: str, body: Any) -> Written | PreconditionFailed | WriteUnknown:
        self._inner.create(key, _bent(bytes(body)))
        return WriteUnknown(cause="the reply was lost")


def damaged_on_its_way(_: Path) -> None:
    environment = Environment()
    region = environment.region("writer")
    region = replace(region, context=replace(region.context, objects=Damaging(region.context.objects)))
    raised(lambda: environment.write(region, 2))
    environment.raised.clear()
    environment.audit()


def shown_damaged(_: Path) -> None:
    table_env = WholeTableEnv()
    table_env.put("writer", {2: True})
    replaced(table_env, _bent(table_env.environment.log[Position(1)].body))
    with pytest.raises(Corrupt):
        list(changes.Changes(table_env.context("reader"), ROWS))


def held_and_replaced(_: Path) -> None:
    """A stalled writer's entry, sound in itself, lies where a snapshot's was."""
    table_env = WholeTableEnv()
    with in_place_of_lance(table_env.base):
        table_env.put("writer", {0: True})
        table_env.hold("holder", "held", ttl_seconds=6000.0)
        late = draft(pa.table([[7], [7], [False]], schema=ROWS.stored))
        replaced(table_env, encode(late, position=Position(1), epoch=Epoch(1), nonce=a_nonce(7)).body)
        with pytest.raises(Corrupt):
            table_env.read_held("holder", "held")


def replaced(table_env: WholeTableEnv, body: bytes) -> None:
    key = wal_entry(table_env.environment.id, Position(1))
    table_env.environment.store.remove(key)
    table_env.environment.store.create(key, body)


def swapped_generations(place: Path, *, summed: bool = True) -> None:
    """Two generations lie each in the other's place; if not `summed`, an earlier release has flushed them."""
    table = test_merge.environment(place)
    if not summed:
        table.sums = {of: {at: replace(one, files=None) for at, one in sums.items()} for of, sums in table.sums.items()}
    first, second = (place / "table" / path for _, path in table.pending[A][:2])
    away = place / "away"
    for here, there in ((first, away), (second, first), (away, second)):
        here.rename(there)
    with pytest.raises(Corrupt):
        table.merge()


# Snapshots


def held_twice(act: Callable[[WholeTableEnv], object], _: Path) -> None:
    """A snapshot has expired and is removed; then another one takes its name. Its holder is told."""
    table_env = WholeTableEnv()
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
        table_env.put("writer", {0: True})
        table_env.hold("holder", "held", ttl_seconds=60.0)
        first = table_env.held["held"]
        table_env.environment.schedule.clock.advance(3600.0)
        table_env.collect("collector")
        table_env.hold("other", "held", ttl_seconds=6000.0)
        table_env.held["held"] = first
        with pytest.raises(Invalid, match="dropped or has expired"):
            act(table_env)


def renewed(table_env: WholeTableEnv) -> None:
    snapshot.keep_standing(table_env.handle("holder"), table_env.held["held"].pin)


def viewed(table_env: WholeTableEnv) -> None:
    snapshot.check_standing(table_env.context("holder"), table_env.held["held"].pin)


def expired(_: Path) -> None:
    """Nobody relies on a snapshot that a collector may be removing."""
    table_env = WholeTableEnv()
    with in_place_of_lance(table_env.base):
        table_env.put("writer", {0: True})
        table_env.hold("holder", "held", ttl_seconds=60.0)
        table_env.environment.schedule.clock.advance(61.0)
        with pytest.raises(Invalid, match="has expired"):
            table_env.read_held("holder", "held")


def kept_while_it_is_judged(_: Path) -> None:
    """A collector has read an expired snapshot; before it removes it, somebody makes sure that the snapshot stands."""
    table_env = WholeTableEnv()
    with in_place_of_lance(table_env.base):
        table_env.put("writer", {0: True})
        table_env.hold("holder", "held", ttl_seconds=60.0)
        table_env.environment.schedule.clock.advance(3600.0)
        read = sweep.read_pins

        def read_then_kept(context: TableContext) -> list[Pin]:
            found = read(context)
            snapshot.keep_standing(table_env.handle("holder"), table_env.held["held"].pin)
            return found

        with mock.patch.object(sweep, "read_pins", read_then_kept):
            counting = sweep.expire_pins(table_env.context("collector"), skew_seconds=300.0)
        assert [pin.name for pin in counting] == ["held"]


def half_recorded(_: Path) -> None:
    """A snapshot without the record of a region is no view of the table: it would miss what is not merged."""
    table_env = WholeTableEnv()
    with in_place_of_lance(table_env.base):
        table_env.put("writer", {0: True})
        table_env.hold("holder", "held", ttl_seconds=6000.0)
        records = table_env.environment.registry._records
        for key in [key for key in records if key.sort.startswith("held#")]:
            records.pop(key)
        with pytest.raises(Corrupt, match="records of the snapshot are missing"):
            snapshot.find_snapshot(table_env.context("holder"), "held")


# The base


def fenced_while_it_is_looked_at(_: Path) -> None:
    """Another collector raises the fence and dies; a merge writes its rows behind that fence, and commits them last."""
    table_env = WholeTableEnv()
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
        for key in range(2):
            table_env.put("writer", {key: True})
            table_env.flush()
            table_env.merge() if not key else None
        commits: list[Callable[[], None]] = []
        listing = base.seen

        def seen(context: object, prefix: str) -> object:
            if not commits:
                base._raise_fence(table_env.handle("dead", faulty=False), 1)
                commit = table_env.prepare_merge(table_env.region("merger"))
                assert commit is not None
                commits.append(commit)
            return listing(context, prefix)  # type: ignore[arg-type]

        with mock.patch.object(base, "seen", seen):
            table_env.collect("collector")
        commits[0]()
        assert table_env.scan("reader") == table_env.truth


# Adoption


def adopted(scenario: Callable[..., None], *arguments: object) -> Scenario:
    """A scenario of a table that Lance wrote."""

    def raised_by(place: Path) -> None:
        written = place / "written"
        adopt_scenarios.lance_wrote(written, unsharded=True)
        scenario(place, written, *arguments)

    return raised_by


READ = "generation.read_generation"

GUARDS: dict[str, tuple[list[Edit], Scenario]] = {
    "what is applied by now is dropped at every restart": (
        [
            (append.append_after, "    for _ in budget", "    first = next_draft(head)\n    for _ in budget"),
            (append.append_after, "        draft = next_draft(head)\n", "        draft = first\n"),
        ],
        delivered_twice,
    ),
    "an epoch is given once, a seal's too": (
        [(sealed, '{"epoch": head.epoch, "status": RegionState.OPEN.value}', '{"status": Status.OPEN.value}')],
        sealed_in_another_epoch,
    ),
    "no floor goes back": (
        [(registry.apply_swap, "if isinstance(old, int) and (not isinstance(new, int) or new < old):", "if False:")],
        going_back,
    ),
    "an entry stands as it was sent": (
        [(slot._check_ours, "if found.summary.entry_setsum != entry.summary.entry_setsum:", "if False:")],
        damaged_on_its_way,
    ),
    "a stream shows sound entries": (
        [(changes._sound, "if not (entry.sound or entry.nonce is None):", "if False:")],
        shown_damaged,
    ),
    "a tail adds up": (
        [(replay.tail, "if total != end.entry_setsum - manifest.entry_setsum:", "if False:")],
        held_and_replaced,
    ),
    "a generation is read back, by number": (
        [(generation.check_generation, "if found != rows:", "if False:")],
        generations.check_notices_lost_and_changed_rows,
    ),
    "a generation is read back, by sum": (
        [(generation.check_generation, "if total != setsum:", "if False:")],
        generations.check_notices_lost_and_changed_rows,
    ),
    "a merge takes the files that were flushed": (
        [(tasks._check_files, "if source.sums is not None and source.sums.files is not None:", "if False:")],
        swapped_generations,
    ),
    "a merge takes the rows that were flushed": (
        [(tasks._check_rows, "if source.sums is not None and found != source.sums.rows:", "if False:")],
        partial(swapped_generations, summed=False),
    ),
    "a merge takes each key of a generation once": (
        [(tasks._folded, "if ((firsts >= start) & ~wins).any():", "if False:")],
        test_merge.test_a_generation_that_holds_a_key_twice_is_corrupt,
    ),
    "a snapshot is renewed by its own holder": (
        [(snapshot._renewed, "if found.nonce != pin.nonce:", "if False:")],
        partial(held_twice, renewed),
    ),
    "a snapshot is read by its own holder": (
        [(snapshot.check_standing, 'if record is None or record["nonce"] != pin.nonce:', "if record is None:")],
        partial(held_twice, viewed),
    ),
    "a snapshot that has expired is not relied on": (
        [
            (
                snapshot.check_standing,
                'if record["expires"] != pins.NEVER and float(record["expires"]) <= context.clock.now():',
                "if False:",
            )
        ],
        expired,
    ),
    "files of the base are listed before the fence is read": (
        [
            (base.survey_base, "    listed = [", "    base = handle.read_base()\n    listed = ["),
            (base.survey_base, "    base = handle.read_base()\n    versions", "    versions"),
            (verify_base, "if found.fence != newest.fence + 1:", "if False:"),
        ],
        fenced_while_it_is_looked_at,
    ),
    "a snapshot has the records of all its regions": (
        [(snapshot.find_snapshot, "if pin.complete:", "if True:")],
        half_recorded,
    ),
    "a snapshot that is to stand is swapped, not only read": (
        [
            (
                snapshot._renewed,
                "return pins.step(context, replace(found, expires=expires() if expires else found.expires))",
                "return found",
            )
        ],
        kept_while_it_is_judged,
    ),
    "a manifest is published once it is committed": (
        [(commit.commit, "swapped = _swap(", "publish(region, staged, budget=budget); swapped = _swap(")],
        anywhere(test_commit.test_a_manifest_whose_swap_lost_is_never_published),
    ),
    "no manifest breaks an invariant": (
        [(commit.stage, "if broken:", "if False:")],
        anywhere(test_commit.test_a_transition_that_breaks_an_invariant_is_not_staged),
    ),
    "a version that was published outside the registry is nobody's": (
        [(commit.commit, "if _is_taken(region, head, version):", "if False:")],
        anywhere(test_commit.test_a_published_manifest_that_is_not_the_registry_s_stops_the_committers),
    ),
    "a merge whose inputs were collected is planned anew": (
        [
            (
                merging._attempt,
                "if (newest.counters, newest.fence) == (planned.counters, planned.fence):",
                "if True:",
            )
        ],
        partial(test_table_collection.test_a_merge_that_a_merge_and_a_collection_overtook_plans_anew, READ),
    ),
    "Lance's writer is fenced before its entries count": (
        [(adopt._fence_lance, "epoch=Epoch(manifest.epoch + 1)", "epoch=manifest.epoch")],
        adopted_from_lance.test_lance_is_fenced_before_its_entries_count,
    ),
    "Lance's cleanup is switched off": (
        [(adoption.take_over, "if automatic:", "if False:")],
        adopted_from_lance.test_automatic_cleanup_is_taken_out_of_an_adopted_table,
    ),
    "counters come from Lance's marker": (
        [(adoption.take_over, "{**counters, **facts.metadata()}", "facts.metadata()")],
        adopted(adopt_scenarios.counters_come_from_lances_marker),
    ),
}


OWN = (
    damaged_on_its_way,
    shown_damaged,
    held_and_replaced,
    swapped_generations,
    partial(swapped_generations, summed=False),
    delivered_twice,
    expired,
    fenced_while_it_is_looked_at,
    going_back,
    half_recorded,
    kept_while_it_is_judged,
    partial(held_twice, renewed),
    partial(held_twice, viewed),
    sealed_in_another_epoch,
)


test_with_all_guards_a_story_ends_well, test_without_the_guard_a_story_ends_badly = with_and_without(GUARDS, own=OWN)
