"""Each guard of checked, counted and kept data in this table is needed: without it, its scenario fails."""

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

from lancelsm.common.layout import Epoch, Key, Position, wal_entry
from lancelsm.errors import Corrupt, Invalid, LsmError
from lancelsm.gc import base, sweep
from lancelsm.history import changes, snapshot
from lancelsm.history.pin_records import Pin
from lancelsm.objects import PreconditionFailed, WriteUnknown, Written
from lancelsm.region.catalog import TableContext
from lancelsm.wal.claim import seal
from lancelsm.wal.entry import draft, encode
from tests.interop import adopt_scenarios as adopted_from_lance
from tests.simulation import collected_table, commit_scenarios
from tests.simulation.append_scenarios import damaged
from tests.simulation.environment import Environment, a_nonce, raised
from tests.simulation.faults import Call, FaultPlan, MemoryRegistry
from tests.simulation.marks import Edit, changed, moved, without
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.removal import Scenario, anywhere, with_and_without
from tests.simulation.situations import half_claim
from tests.simulation.whole_table_env import QUEUE, ROWS, WholeTableEnv
from tests.unit import adopt_scenarios, generations, merge_scenarios
from tests.unit.merge_environment import A


def delivered_twice(_: Path) -> None:
    """Another process has the same messages and applies them right before the swap of this one."""
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
    """A claim comes right before the swap of a seal. The seal must not get the same epoch."""
    environment = Environment()

    def claims(call: Call) -> None:
        if call.index == 1:
            half_claim(environment.region("rival", faulty=False))

    environment.plan = FaultPlan(claims)
    head = seal(environment.region("sealer"))
    assert head.epoch == 3


def lower_floor(_: Path) -> None:
    """A stale caller swaps a lower floor."""
    key, records = Key(partition="H#t#r", sort="head"), MemoryRegistry()
    records.swap(key, expect=None, change={"first_position": 5})
    with contextlib.suppress(LsmError):
        records.swap(key, expect={}, change={"first_position": 4})
    assert records.read(key) == {"first_position": 5}


class Damaging:
    """A store that damages what it writes and loses the reply."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, key: str, body: Any) -> Written | PreconditionFailed | WriteUnknown:
        self._inner.create(key, damaged(bytes(body)))
        return WriteUnknown(cause="the reply was lost")


def damaged_put(_: Path) -> None:
    """An entry is damaged on its way to the store, and its put gets no answer."""
    environment = Environment()
    region = environment.region("writer")
    region = replace(region, context=replace(region.context, objects=Damaging(region.context.objects)))
    raised(lambda: environment.write(region, 2))
    environment.raised.clear()
    environment.audit()


def damaged_change(_: Path) -> None:
    """A change stream reads a damaged entry."""
    table_env = WholeTableEnv()
    table_env.put("writer", {2: True})
    replace_entry(table_env, damaged(table_env.environment.log[Position(1)].body))
    with pytest.raises(Corrupt):
        list(changes.Changes(table_env.context("reader"), ROWS))


def replaced_entry_of_a_snapshot(_: Path) -> None:
    """An intact entry of a stalled writer replaces an entry of a snapshot."""
    table_env = WholeTableEnv()
    with in_place_of_lance(table_env.base):
        table_env.put("writer", {0: True})
        table_env.hold("holder", "held", ttl_seconds=6000.0)
        late = draft(pa.table([[7], [7], [False]], schema=ROWS.stored))
        replace_entry(table_env, encode(late, position=Position(1), epoch=Epoch(1), nonce=a_nonce(7)).body)
        with pytest.raises(Corrupt):
            table_env.read_held("holder", "held")


def replace_entry(table_env: WholeTableEnv, body: bytes) -> None:
    key = wal_entry(table_env.environment.id, Position(1))
    table_env.environment.store.remove(key)
    table_env.environment.store.create(key, body)


def swapped_generations(path: Path, *, summed: bool = True) -> None:
    """The directories of two generations are swapped. If not `summed`, an older release flushed them."""
    table = merge_scenarios.table_with_generations(path)
    if not summed:
        table.sums = {of: {at: replace(one, files=None) for at, one in sums.items()} for of, sums in table.sums.items()}
    first, second = (path / "table" / name for _, name in table.pending[A][:2])
    away = path / "away"
    for here, there in ((first, away), (second, first), (away, second)):
        here.rename(there)
    with pytest.raises(Corrupt):
        table.merge()


# Snapshots


def name_taken_again(act: Callable[[WholeTableEnv], object], _: Path) -> None:
    """A snapshot has expired and is removed, and another one takes its name. The first holder gets `Invalid`."""
    table_env = WholeTableEnv()
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
        table_env.put("writer", {0: True})
        table_env.hold("holder", "held", ttl_seconds=60.0)
        first = table_env.held["held"]
        table_env.environment.schedule.clock.advance(3600.0)
        table_env.collect("collector")
        table_env.hold("other", "held", ttl_seconds=6000.0)
        table_env.held["held"] = first
        with pytest.raises(Invalid, match="dropped or have expired"):
            act(table_env)


def renew(table_env: WholeTableEnv) -> None:
    snapshot.ensure_kept(table_env.handle("holder"), table_env.held["held"].pin)


def check(table_env: WholeTableEnv) -> None:
    snapshot.check_readable(table_env.context("holder"), table_env.held["held"].pin)


def expired_snapshot(_: Path) -> None:
    """A snapshot is read after it has expired. A collector may be removing it."""
    table_env = WholeTableEnv()
    with in_place_of_lance(table_env.base):
        table_env.put("writer", {0: True})
        table_env.hold("holder", "held", ttl_seconds=60.0)
        table_env.environment.schedule.clock.advance(61.0)
        with pytest.raises(Invalid, match="has expired"):
            table_env.read_held("holder", "held")


def kept_before_its_removal(_: Path) -> None:
    """A collector reads an expired snapshot. Before it removes the snapshot, a clone keeps it."""
    table_env = WholeTableEnv()
    with in_place_of_lance(table_env.base):
        table_env.put("writer", {0: True})
        table_env.hold("holder", "held", ttl_seconds=60.0)
        table_env.environment.schedule.clock.advance(3600.0)
        read = sweep.read_pins

        def read_then_kept(context: TableContext) -> list[Pin]:
            found = read(context)
            snapshot.ensure_kept(table_env.handle("holder"), table_env.held["held"].pin)
            return found

        with mock.patch.object(sweep, "read_pins", read_then_kept):
            counting = sweep.expire_pins(table_env.context("collector"), skew_seconds=300.0)
        assert [pin.name for pin in counting] == ["held"]


def incomplete_snapshot(_: Path) -> None:
    """A snapshot lacks the record of a region. It would miss entries that are not merged."""
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


def fence_raised_during_a_survey(_: Path) -> None:
    """Another collector raises the fence and crashes. A merge writes its rows after that and commits them last."""
    table_env = WholeTableEnv()
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
        for key in range(2):
            table_env.put("writer", {key: True})
            table_env.flush()
            table_env.merge() if not key else None
        commits: list[Callable[[], None]] = []
        listing = base.list_objects

        def seen(context: object, prefix: str) -> object:
            if not commits:
                base._raise_fence(table_env.handle("dead", faulty=False), 1)
                commit = table_env.prepare_merge(table_env.region("merger"))
                assert commit is not None
                commits.append(commit)
            return listing(context, prefix)  # type: ignore[arg-type]

        with mock.patch.object(base, "list_objects", seen):
            table_env.collect("collector")
        commits[0]()
        assert table_env.scan("reader") == table_env.truth


# Adoption


def adopted(scenario: Callable[..., None], *arguments: object) -> Scenario:
    """Run a scenario on a table that Lance wrote."""

    def run_on_table(path: Path) -> None:
        written = path / "written"
        adopt_scenarios.lance_wrote(written, unsharded=True)
        scenario(path, written, *arguments)

    return run_on_table


READ = "generation.read_generation"

GUARDS: dict[str, tuple[list[Edit], Scenario]] = {
    "messages that are applied by now are dropped for every new head": (
        [moved("draft is made for every new head", out=2, by=-1)],
        delivered_twice,
    ),
    "a seal never gets an epoch that is taken": (
        [without("seal swaps on the epoch")],
        sealed_in_another_epoch,
    ),
    "a floor never decreases": (
        [without("floor never decreases")],
        lower_floor,
    ),
    "an entry with our nonce must have our sum": (
        [without("own entry has its sum")],
        damaged_put,
    ),
    "a change stream checks the sum of each entry": (
        [without("change stream checks entries")],
        damaged_change,
    ),
    "the sum of a tail is checked": (
        [without("sum of a tail is checked")],
        replaced_entry_of_a_snapshot,
    ),
    "a flush checks the number of rows of its generation": (
        [without("flush checks the number of rows")],
        generations.check_notices_lost_and_changed_rows,
    ),
    "a flush checks the sum of the rows of its generation": (
        [without("flush checks the sum of rows")],
        generations.check_notices_lost_and_changed_rows,
    ),
    "a merge checks the sum of the files of a generation": (
        [without("merge checks the sum of files")],
        swapped_generations,
    ),
    "a merge checks the sum of the rows of a generation": (
        [without("merge checks the sum of rows")],
        partial(swapped_generations, summed=False),
    ),
    "a merge checks that a generation has each key once": (
        [without("generation has each key once")],
        merge_scenarios.generation_holds_a_key_twice,
    ),
    "a snapshot is renewed only by its own holder": (
        [without("snapshot is renewed by its holder")],
        partial(name_taken_again, renew),
    ),
    "a snapshot is read only by its own holder": (
        [without("snapshot is read by its holder")],
        partial(name_taken_again, check),
    ),
    "a snapshot that has expired is not read": (
        [without("expired snapshot is not read")],
        expired_snapshot,
    ),
    "files of the base are listed before the fence is read": (
        [moved("files are listed before the fence is read", by=-1), without("verified fence is the next one")],
        fence_raised_during_a_survey,
    ),
    "a snapshot without the records of all regions is not opened": (
        [without("incomplete snapshot is not opened", instead=True)],
        incomplete_snapshot,
    ),
    "a snapshot is kept by a swap and not only by a read": (
        [changed("snapshot is kept by a swap", "found")],
        kept_before_its_removal,
    ),
    "a manifest is published once it is committed": (
        [moved("manifest is published after its commit", out=1, by=-2)],
        anywhere(commit_scenarios.lost_swap),
    ),
    "no manifest breaks an invariant": (
        [without("manifest breaks no invariant")],
        anywhere(commit_scenarios.broken_invariant),
    ),
    "a version that is published outside the registry stops a commit": (
        [without("foreign manifest stops a commit")],
        anywhere(commit_scenarios.foreign_published_manifest),
    ),
    "a merge whose inputs were collected is planned again": (
        [  # after a collection, the generations are not listed either
            without("failed merge is replanned", instead=True),
            without("merge of compacted generations is replanned", instead=True),
        ],
        partial(collected_table.overtaken_merge, READ),
    ),
    "Lance's writer is fenced before its entries are counted": (
        [without("writer of Lance is fenced")],
        adopted_from_lance.lance_is_fenced_before_its_entries_count,
    ),
    "Lance's cleanup is switched off": (
        [without("automatic cleanup is switched off")],
        adopted_from_lance.adoption_turns_automatic_cleanup_off,
    ),
    "counters come from Lance's marker": (
        [without("counters come from the marker of Lance", instead={})],
        adopted(adopt_scenarios.counters_come_from_lances_marker),
    ),
}


OWN = (
    damaged_put,
    damaged_change,
    replaced_entry_of_a_snapshot,
    swapped_generations,
    partial(swapped_generations, summed=False),
    delivered_twice,
    expired_snapshot,
    fence_raised_during_a_survey,
    lower_floor,
    incomplete_snapshot,
    kept_before_its_removal,
    partial(name_taken_again, renew),
    partial(name_taken_again, check),
    sealed_in_another_epoch,
)


test_a_scenario_passes_with_all_guards, test_the_scenario_fails_without_its_guard = with_and_without(GUARDS, own=OWN)
