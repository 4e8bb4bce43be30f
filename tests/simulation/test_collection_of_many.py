"""Collections of a table with several regions: pins are read once for all, and no region blocks another one."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pytest

import lancelsm
from lancelsm.common.layout import Position, RegionId, region_prefix, snapshots, wal_entry
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError
from lancelsm.gc import base
from lancelsm.gc import collect as collection
from lancelsm.gc.collect import Collected
from lancelsm.gc.scopes import RegionScope, scopes_of
from lancelsm.region.catalog import regions
from lancelsm.region.handle import TableHandle, open_table
from lancelsm.stack import documents
from tests.simulation.faults import FaultPlan
from tests.unit.tables import faulty

pytestmark = pytest.mark.rest

FEW, MANY, MORE = 2, 4, 6


@pytest.fixture(scope="module")
def created(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Return a function that creates a table with so many regions. A snapshot keeps some merged generations of each."""
    known: dict[int, Path] = {}

    def create(regions: int) -> Path:
        if regions not in known:
            known[regions] = path = tmp_path_factory.mktemp("created") / str(regions)
            table = lancelsm.create(path, [{"id": 0, "v": 0}], primary_key="id", regions=f"bucket(id, {regions})")
            for number in range(3):
                table.upsert([{"id": key, "v": number} for key in range(20 * regions)])
                table.flush()
                if number == 0:
                    table.merge(engine="inprocess")
                    table.snapshot("held", "never")
            table.merge(engine="inprocess")
            table.upsert([{"id": key, "v": 9} for key in range(20 * regions)])
            (path / "data" / "0000.lance").write_bytes(b"a merge that crashed")
        return known[regions]

    return create


@pytest.fixture
def path(created: Callable[[int], Path], tmp_path: Path) -> Path:
    return shutil.copytree(created(MANY), tmp_path / "table")


def in_one_call(handle: TableHandle) -> None:
    assert collection.collect(handle, yes=True, interval_seconds=0).phase == "swept"


def in_steps(handle: TableHandle) -> None:
    marked = collection.mark(handle)
    for step in (collection.verify, collection.commit, collection.sweep):
        step(handle, marked.rounds)


def after_the_interval(handle: TableHandle) -> None:
    assert collection.collect(handle, yes=True, interval_seconds=60).phase == "committed"
    handle.context.clock.sleep(61)
    assert collection.collect(handle, yes=True, interval_seconds=60).deleted > 0


@pytest.mark.rest
@pytest.mark.parametrize("act", [in_one_call, in_steps, after_the_interval])
def test_pins_are_read_as_often_for_many_regions_as_for_few(
    act: Callable[[TableHandle], None], created: Callable[[int], Path], tmp_path: Path
) -> None:
    requests, opens = [], []
    for many in (FEW, MANY, MORE):
        plan = FaultPlan()
        handle = open_table(shutil.copytree(created(many), tmp_path / str(many)), ports=faulty(plan))
        plan.calls.clear()
        with mock.patch.object(base, "read_progress", wraps=base.read_progress) as progress:
            act(handle)
        requests.append(Counter(call.method for call in plan.calls if call.port == "registry"))
        opens.append(progress.call_count)

    few, some, more = requests
    assert few["list"] == some["list"] == more["list"]
    assert more["read"] - some["read"] == some["read"] - few["read"], (
        "reads do not grow by the same number for each region"
    )
    assert opens[0] == opens[1] == opens[2]


def test_every_round_is_confirmed_before_pins_are_read_and_pins_before_anything_is_deleted(path: Path) -> None:
    plan = FaultPlan()
    handle = open_table(path, ports=faulty(plan))
    marked = collection.mark(handle)
    assert len(marked.rounds) == MANY + 1
    collection.verify(handle, marked.rounds)
    collection.commit(handle, marked.rounds)
    plan.calls.clear()

    collection.sweep(handle, marked.rounds)

    pinned = [call.index for call in plan.calls if (call.method, call.key) == ("list", snapshots(handle.context.table))]
    deleted = [call.index for call in plan.calls if (call.port, call.method) == ("objects", "delete")]
    for region in regions(handle.context):
        confirmed = [call.index for call in plan.calls if call.key == f"H#{handle.context.table}#{region.id}/head"]
        assert confirmed
        assert max(confirmed) < pinned[0] < min(deleted)


def test_no_round_is_swept_if_one_of_them_is_not_committed(path: Path) -> None:
    handle = open_table(path, ports=faulty(FaultPlan()))
    marked = collection.mark(handle)
    collection.verify(handle, marked.rounds)
    collection.commit(handle, marked.rounds[1:])
    before = stored(path)

    with pytest.raises(Invalid, match="not committed"):
        collection.sweep(handle, marked.rounds)
    assert stored(path) == before


def stored(path: Path) -> set[str]:
    return {str(path.relative_to(path)) for path in path.rglob("*") if path.is_file()}


STEPS = ("waiting", "mark", "verify", "commit", "confirm", "sweep")


@contextmanager
def failing(step: str, region: RegionId, error: LsmError) -> Iterator[None]:
    """Within this context, a step of the collection of one region fails."""
    method = "confirm" if step == "sweep" else step
    real = getattr(RegionScope, method)

    def fails(self: RegionScope, *given: Any) -> Any:
        if self.region.id != region:
            return real(self, *given)
        if step != "sweep":
            raise error
        return sweeps

    def sweeps(_: object) -> None:
        raise error

    with mock.patch.object(RegionScope, method, fails):
        yield


@pytest.mark.parametrize("step", STEPS)
def test_an_error_in_one_region_is_raised_after_the_others_are_collected(step: str, path: Path) -> None:
    handle = open_table(path, ports=faulty(FaultPlan()))
    failed, *others = [region.id for region in regions(handle.context)]

    with failing(step, failed, Corrupt("a committed entry is gone")), pytest.raises(Corrupt, match="is gone"):
        collection.collect(handle, yes=True, interval_seconds=0)

    assert [region for region in others if swept(path, region)] == others
    assert not swept(path, failed)
    assert not (path / "data" / "0000.lance").exists()
    in_one_call(handle)
    assert swept(path, failed)


@pytest.mark.parametrize("step", STEPS)
def test_a_region_with_another_active_collector_is_kept_with_the_reason(step: str, path: Path) -> None:
    handle = open_table(path, ports=faulty(FaultPlan()))
    failed, *others = [region.id for region in regions(handle.context)]

    with failing(step, failed, Contended("another collector is at work")):
        done = collection.collect(handle, yes=True, interval_seconds=0)

    assert [(one.path, one.kind) for one in done.kept if one.why == "another collector is at work"] == [
        (region_prefix(failed), "round")
    ]
    assert [region for region in others if swept(path, region)] == others
    assert not swept(path, failed)


@pytest.mark.parametrize("error", [Corrupt("a committed entry is gone"), Contended("another collector is at work")])
@pytest.mark.parametrize("step", STEPS[:4])
def test_steps_go_on_without_a_region_that_fails(step: str, error: LsmError, path: Path) -> None:
    handle = open_table(path, ports=faulty(FaultPlan()))
    failed, *others = [region.id for region in regions(handle.context)]

    with failing(step, failed, error):
        marked = collection.mark(handle)
        verified = collection.verify(handle, marked.rounds)
        committed = collection.commit(handle, verified.rounds)
        collection.sweep(handle, committed.rounds)

    steps = (marked, verified, committed)
    assert [one.path for done in steps for one in done.kept if one.why == error.message] == [region_prefix(failed)]
    assert [one for done in steps for one in done.corrupt] == ([error] if isinstance(error, Corrupt) else [])
    assert len(committed.rounds) == len(others) + 1, "the round of the base is missing"
    assert [region for region in others if swept(path, region)] == others
    assert not swept(path, failed)
    in_one_call(handle)
    assert swept(path, failed)


@pytest.mark.parametrize(
    ("kind", "steps"),
    [(Corrupt, ("waiting", "mark", "verify", "commit")), (Contended, ("verify", "commit"))],
)
def test_a_step_without_any_remaining_round_raises_the_error(
    kind: type[LsmError], steps: tuple[str, ...], path: Path
) -> None:
    handle = open_table(path, ports=faulty(FaultPlan()))
    failed = regions(handle.context)[0].id
    only = [key for key in collection.mark(handle).rounds if key.startswith(region_prefix(failed))]
    only_this_region = mock.patch.object(collection, "all_scopes", lambda handle: scopes_of(handle, only))
    acts: dict[str, Callable[[], Collected]] = {
        "waiting": lambda: collection.mark(handle),
        "mark": lambda: collection.mark(handle),
        "verify": lambda: collection.verify(handle, only),
        "commit": lambda: collection.commit(handle, only),
    }
    for step in steps:
        with (
            only_this_region,
            failing(step, failed, kind("this step fails")),
            pytest.raises(kind, match="this step fails"),
        ):
            acts[step]()


def test_a_step_returns_an_error_in_the_format_of_failures_of_state_machines() -> None:
    error = Corrupt("a committed entry is gone", table="s3://lake/orders", position=3)

    assert collection.step_document(Collected())["failure"] == {}
    failure = collection.step_document(Collected(corrupt=(error, Corrupt("another one"))))["failure"]
    assert failure["Error"] == "Corrupt"
    assert json.loads(json.loads(failure["Cause"])["errorMessage"]) == error.document()


def swept(path: Path, region: RegionId) -> bool:
    """Return whether the first entry is deleted, which was merged before the snapshot was created."""
    return not (path / wal_entry(region, Position(1))).exists()


@pytest.mark.parametrize("start", [collection.mark, partial(collection.collect, yes=False)])
def test_a_mark_and_a_dry_run_leave_out_a_region_with_another_active_collector(
    start: Callable[[TableHandle], Collected], path: Path
) -> None:
    handle = open_table(path, ports=faulty(FaultPlan()))
    failed, *others = [region.id for region in regions(handle.context)]

    with failing("look", failed, Contended("another collector is at work")):
        found = start(handle)

    assert [one.path for one in found.kept if one.why == "another collector is at work"] == [region_prefix(failed)]
    paths = [one.path for one in found.candidates]
    assert [region for region in others if wal_entry(region, Position(1)) in paths] == others
    assert not [path for path in paths if path.startswith(region_prefix(failed))]


def test_a_mark_and_a_dry_run_return_the_committed_rounds_that_wait_for_their_sweep(path: Path) -> None:
    handle = open_table(path, ports=faulty(FaultPlan()))
    committed = collection.collect(handle, yes=True)
    before = stored(path)

    shown, marked = collection.collect(handle, yes=False), collection.mark(handle)

    assert stored(path) == before
    for found in (shown, marked):
        assert (found.rounds, found.phase, found.deleted) == (committed.rounds, "committed", 0)
        assert [one.path for one in found.candidates] == [one.path for one in committed.candidates]
        assert all("waits for its sweep" in one.why for one in found.candidates)
    document = documents.collected(shown)
    assert set(document) == {"round", "phase", "candidates", "kept", "deleted"}
    for step in (collection.verify, collection.commit):
        assert step(handle, marked.rounds).rounds == marked.rounds
    assert collection.sweep(handle, marked.rounds).deleted == len(committed.candidates)
    assert collection.mark(handle).phase == "idle"


def test_a_committed_round_does_not_block_a_base_that_was_restored_to_before_its_fence(path: Path) -> None:
    version = lance.dataset(path).version
    handle = open_table(path, ports=faulty(FaultPlan()))
    (old,) = [key for key in collection.collect(handle, yes=True).rounds if key.startswith("_lancelsm/")]
    lance.dataset(path, version=version).restore()

    (new,) = [key for key in collection.mark(handle).rounds if key.startswith("_lancelsm/")]

    assert new != old
    collection.verify(handle, [new])
    collection.commit(handle, [new])
    collection.sweep(handle, [new])
    assert not (path / "data" / "0000.lance").exists()
