"""Scenarios of collections with another operation, a stalled flush, failing listings, an interval or a wrong list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lancelsm.common.settings import Settings
from lancelsm.errors import Ambiguous, Contended, Corrupt, Invalid, Unavailable
from lancelsm.gc import collect as collection
from lancelsm.region.compare_and_swap import commit
from lancelsm.wal.claim import claim, seal
from tests.simulation.collecting import TTL, TableEnv, filled
from tests.simulation.collection_faults import BrokenListings, calls_of_collection, finish, run, small
from tests.simulation.environment import OWNER, raised
from tests.simulation.faults import FAIL_AFTER, Call, Fault, FaultPlan, late
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.situations import note_on_failure
from tests.simulation.whole_table_env import WholeTableEnv

# Another operation

OTHERS: dict[str, Callable[[TableEnv], object]] = {
    "collects": lambda table_env: table_env.collect("other"),
    "commits a round": lambda table_env: table_env.collect("other", interval=TTL),
    "appends": lambda table_env: table_env.write(200),
    "appends, flushes": lambda table_env: (table_env.write(200, 201), table_env.flush()),
    "appends, flushes, merges": lambda table_env: (table_env.write(200, 201), table_env.flush(), table_env.merge()),
    "merges": lambda table_env: table_env.merge(),
    "creates a snapshot": lambda table_env: table_env.pin("other"),
    "merges, creates a snapshot": lambda table_env: (table_env.merge(), table_env.pin("other")),
    "begins a snapshot and crashes": lambda table_env: table_env.begin_pin("other"),
    "claims": lambda table_env: claim(table_env.region("other"), owner=OWNER),
    "seals": lambda table_env: seal(table_env.region("other")),
    "collects, merges, collects": lambda table_env: (
        table_env.collect("other"),
        table_env.merge(),
        table_env.collect("another"),
    ),
    "collects, appends, flushes, merges, collects": lambda table_env: (
        table_env.collect("other"),
        table_env.write(200, 201),
        table_env.flush(),
        table_env.merge(),
        table_env.collect("another"),
    ),
}


def another_operation_before_any_call(other: str) -> None:
    """Another operation comes before any call of a collection. The write before that call may meet a fault."""
    calls = calls_of_collection(small())
    for before, call in zip([None, *calls], calls, strict=False):
        for fault in (None, FAIL_AFTER, late(2)) if before is not None and before.writes else (None,):
            with note_on_failure(other, call, fault):
                table_env = small()

                def decide(
                    now: Call, table_env: TableEnv = table_env, call: Call = call, fault: Fault | None = fault
                ) -> Fault | None:
                    if now.index == call.index:
                        assert raised(lambda: OTHERS[other](table_env)) is None
                        table_env.audit()
                    return fault if now.index == call.index - 1 and now.writes else None

                error = run(table_env, FaultPlan(decide))
                assert error is None or isinstance(error, (Unavailable, Ambiguous, Contended)), error


def superseded_flush(at: str) -> None:
    """A flush stalls until another one took its generation number and its own files were swept. See slatedb 604."""
    table_env = filled(flushed=2, merged=0)
    seen = []

    def the_generation_is_taken(call: Call) -> Fault | None:
        if call.process != "stalled":
            return None
        inside = "_gen_3/" in call.key
        here = {
            "first write": inside and call.method == "create",
            "read back": inside and call.method == "get",
            "commit": call.method == "swap",
        }[at]
        if here and not seen:
            seen.append(call)
            assert table_env.flush(rows_max=100) is not None
            table_env.merge()
            table_env.collect()
        return None

    table_env.environment.plan = FaultPlan(the_generation_is_taken)
    assert table_env.flush(table_env.environment.region("stalled")) is None
    assert seen
    finish(table_env)
    assert [key for key in table_env.stored() if "_gen_" in key] == []


def failing_listings() -> None:
    """Every listing fails in the middle. The collections delete all leftovers all the same. See slatedb 1641."""
    table_env = filled()
    prefix = f"_mem_wal/{table_env.environment.id}/"
    leftovers = [f"{prefix}manifest/staged/1-{number:032x}.binpb" for number in range(1_300)]
    for key in leftovers:
        table_env.environment.store.create(key, b"never named")
    handle = table_env.handle("collector", faulty=False)
    handle.context = replace(handle.context, objects=BrokenListings(handle.context.objects, after=700))

    with table_env.collecting():
        for _ in range(4):
            collection.collect(handle, yes=True, interval_seconds=0)
            table_env.audit()

    left = set(leftovers) & {line.key for line in table_env.environment.store.list(prefix)}
    assert left == set()


# Only a committed round is swept


def round_that_is_not_committed() -> None:
    """A marked round is swept without its commit. Nothing is deleted. See chroma 4972."""
    table_env = filled()
    handle = table_env.handle("collector", faulty=False)
    with table_env.collecting():
        marked = collection.mark(handle)
        before = table_env.stored()
        with pytest.raises(Invalid, match="not committed"):
            collection.sweep(handle, marked.rounds)

    assert table_env.stored() == before


def changed_list() -> None:
    """The list of a committed round is replaced by another one. Nothing is deleted."""
    table_env = filled()
    key = table_env.collect(interval=TTL).rounds[0]
    context = table_env.region("x").context
    found = table_env.environment.store.get(key)
    table_env.environment.store.remove(key)
    table_env.environment.store.create(key, found.body + b"\0")

    with pytest.raises(Corrupt, match="not the one that was committed") as error:
        table_env.sweep(key)
    assert error.value.where["object"] == key
    assert context.objects.get(key) is not None


# The interval between commit and sweep


def round_within_its_interval() -> None:
    """A committed round waits within the interval. The next call after it sweeps."""
    table_env = filled()
    before = len(table_env.stored())
    committed = table_env.collect(interval=TTL)
    assert (committed.phase, committed.deleted) == ("committed", 0)
    assert len(table_env.stored()) == before + 3, "the list, the staged and the published manifest"

    waiting = table_env.collect(interval=TTL)
    assert (waiting.phase, waiting.rounds, waiting.deleted) == ("committed", committed.rounds, 0)
    table_env.environment.schedule.clock.advance(TTL + 1)
    swept = table_env.collect(interval=TTL)

    assert swept.deleted == len(committed.candidates)
    table_env.audit()


def late_commit() -> None:
    """A round is committed long after its mark. The interval starts at the commit."""
    table_env = filled()
    handle, clock = table_env.handle("collector", faulty=False), table_env.environment.schedule.clock
    with table_env.collecting():
        marked = collection.mark(handle)
        clock.advance(50 * 60)
        collection.verify(handle, marked.rounds)
        collection.commit(handle, marked.rounds)
    clock.advance(15 * 60)

    assert table_env.collect(interval=TTL).deleted == 0, "the commit was only 15 minutes ago"
    clock.advance(45 * 60)
    assert table_env.collect(interval=TTL).deleted == len(marked.candidates)


def commit_without_its_time() -> None:
    """An older release committed a round without the time of the commit. The interval starts at the mark."""
    table_env = filled()
    committed = table_env.collect(interval=TTL)
    commit(table_env.region("older"), lambda manifest: replace(manifest, collector_committed=0.0))
    table_env.environment.schedule.clock.advance(TTL - 1)

    assert table_env.collect(interval=TTL).deleted == 0
    table_env.environment.schedule.clock.advance(1)
    assert table_env.collect(interval=TTL).deleted == len(committed.candidates)


def late_commit_of_the_base() -> None:
    """A round of the base is committed long after its mark. The interval starts at the commit."""
    table_env = WholeTableEnv(settings=Settings(keep_versions_seconds=0))
    clock = table_env.environment.schedule.clock
    with in_place_of_lance(table_env.base), table_env.collecting():
        for _ in range(3):
            table_env.optimize(table_env.region("merger"))
        clock.advance(1)
        handle = table_env.handle("collector", faulty=False)
        marked = collection.mark(handle)
        clock.advance(50 * 60)
        collection.verify(handle, marked.rounds)
        collection.commit(handle, marked.rounds)
        before = len(table_env.base.versions)
        clock.advance(15 * 60)

        collection.collect(handle, yes=True, interval_seconds=TTL)
        assert len(table_env.base.versions) == before
        clock.advance(45 * 60)
        collection.collect(handle, yes=True, interval_seconds=TTL)
        assert len(table_env.base.versions) < before
