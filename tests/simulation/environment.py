"""One region in memory, the processes that work on it, and an audit.

The registry of the environment checks each commit at the moment it happens, so a violation fails at once. The audit at
the end checks storage: registry and objects.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from lancelsm.common.clock import SeededIds
from lancelsm.common.layout import (
    Key,
    Nonce,
    Position,
    RegionValues,
    TableId,
    Version,
    head_key,
    published_manifest,
    region_id,
    round_list,
    table_key,
    version_hint,
    wal_entry,
    wal_position,
    wal_prefix,
)
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Ambiguous, Contended, Fenced, Invalid, LsmError, Unavailable
from lancelsm.objects import Body, ETag, PreconditionFailed, Written
from lancelsm.region import manifest as manifests
from lancelsm.region import manifest_invariants
from lancelsm.region.catalog import Region, TableContext
from lancelsm.region.compare_and_swap import CommittedManifest, commit, load
from lancelsm.region.head import Head
from lancelsm.region.manifest import Manifest
from lancelsm.registry import Fields, SwapApplied, SwapLost
from lancelsm.wal.append import append
from lancelsm.wal.claim import create_region
from lancelsm.wal.entry import Draft, Entry, decode, draft
from lancelsm.wal.slot import Appended
from tests.simulation.faults import Crash, FaultPlan, FaultyRegistry, FaultyStore, MemoryRegistry, MemoryStore
from tests.simulation.schedule import Schedule, ScheduledRegistry, ScheduledStore

TABLE = TableId("11111111-1111-4111-8111-111111111111")
VALUES: RegionValues = (("bucket", (3).to_bytes(4, "little")),)
OWNER = "default"
RIVAL = "rival"
NOT_IN_THE_LOG = (Fenced, Contended, Invalid, Unavailable)
PASSING = (Contended, Fenced, Ambiguous, Unavailable)  # errors that any operation may raise; not `Corrupt`, `Invalid`

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"lance:field_id": "0"}),
        pa.field("_tombstone", pa.bool_(), nullable=False),
    ]
)


@functools.cache
def row(number: int) -> Draft:
    """Draft an entry with one row that carries this number."""
    table = pa.table([[number], [False]], schema=SCHEMA)
    return draft(table, applied_sequences={"q": str(number)})


def numbers_in(entry: Entry) -> list[int]:
    """Return the numbers of the rows in an entry that `row` drafted."""
    return [] if entry.fence else [int(n) for n in entry.table().column("id").to_pylist()]


@dataclass(kw_only=True)
class Environment:
    """Storage of one region, a record of its commits, and the results that writers got."""

    schedule: Schedule = field(default_factory=Schedule)
    plan: FaultPlan = field(default_factory=FaultPlan)
    budget_seconds: float = 30.0
    with_region: bool = True  # the region exists from the start
    log: dict[Position, Entry] = field(default_factory=dict)  # each entry as it was when it was committed
    manifest_keys: dict[Version, str] = field(default_factory=dict)
    manifest_bodies: dict[Version, bytes] = field(default_factory=dict)
    writers: dict[int, str] = field(default_factory=dict)  # number -> owner
    # number -> highest position that was acknowledged before its write
    floors: dict[int, Position] = field(default_factory=dict)
    acknowledged: dict[int, Position] = field(default_factory=dict)
    raised: dict[int, BaseException] = field(default_factory=dict)
    # errors of manifest commits by their tag
    commits: dict[str, BaseException | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ids = SeededIds(repr(self.schedule))
        self.id = region_id(table=TABLE, spec_id=1, values=VALUES)
        self.store = WatchedStore(self)
        self.registry = WatchedRegistry(self)
        self.registry.swap(table_key(TABLE), expect=None, change={"format": 1})
        if self.with_region:
            self.create("creator", faulty=False)

    def create(self, process: str, *, faulty: bool = True) -> Region:
        """Create the region if it does not exist, and return it."""
        return create_region(self.context(process, faulty=faulty), spec_id=1, values=VALUES, owner=OWNER)

    def context(self, process: str, *, faulty: bool = True) -> TableContext:
        """Return the ports of one process. A crash in them ends this process only."""
        plan = self.plan if faulty else FaultPlan()
        return TableContext(
            uri="memory://t",
            table=TABLE,
            objects=FaultyStore(ScheduledStore(self.store, self.schedule), plan, process=process),
            registry=FaultyRegistry(ScheduledRegistry(self.registry, self.schedule), plan, process=process),
            clock=self.schedule.clock,
            ids=self.ids,
            budget_seconds=self.budget_seconds,
        )

    def region(self, process: str, *, faulty: bool = True) -> Region:
        return Region(context=self.context(process, faulty=faulty), id=self.id, spec_id=1, values=VALUES)

    def write(self, region: Region, number: int, *, owner: str = OWNER, held: Head | None = None) -> Appended:
        """Append a row and record the result."""
        assert number not in self.writers
        self.writers[number] = owner
        self.floors[number] = max(self.acknowledged.values(), default=Position(0))
        try:
            appended = append(region, row(number), owner=owner, held=held)
        except (LsmError, Crash) as error:
            self.raised[number] = error
            raise
        self.acknowledged[number] = appended.summary.position
        return appended

    def commit(self, region: Region) -> CommittedManifest:
        """Commit a manifest that carries the tag of this call, and record the result."""
        tag = round_list(region.id, 1, Nonce(f"{len(self.commits):032x}"))
        self.commits[tag] = Crash("no result yet")
        try:
            done = commit(region, lambda m: replace(m, collector_round=m.collector_round + 1, collector_key=tag))
        except (LsmError, Crash) as error:
            self.commits[tag] = error
            raise
        assert isinstance(done, CommittedManifest)
        self.commits[tag] = None
        return done

    # Checks of each commit

    def committed(self, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> None:
        """The head changed: check that the protocol allows this commit."""
        before = 1 if old is None else old["next_position"]
        for position in map(Position, range(before, new["next_position"])):
            found = self.store.get(wal_entry(self.id, position))
            assert found is not None, f"position {position} committed without an object"
            entry = decode(found.body, position=position, key="")
            assert entry.sound, f"an unsound entry was committed at {position}"
            assert entry.nonce not in {e.nonce for e in self.log.values()}, f"an entry was committed twice: {position}"
            assert old is not None
            assert entry.summary.epoch == old["epoch"] == new["epoch"], f"an entry of another epoch at {position}"
            for number in numbers_in(entry):
                assert self.writers.get(number) == old["owner"], f"row {number} at {position} under {old['owner']!r}"
                assert old["manifest_epoch"] == old["epoch"], f"row {number} at {position} before its claim ended"
            self.log[position] = entry
        if old is not None and new["epoch"] == old["epoch"]:
            assert (new["owner"], new["status"]) == (old["owner"], old["status"]), "two claims share an epoch"
        key, version = new["manifest_key"], Version(new["manifest_version"])
        if self.manifest_keys.get(version) != key:
            assert version not in self.manifest_keys, f"manifest {version} was committed twice"
            assert version == len(self.manifest_keys) + 1, f"manifest {version} skips"
            staged = self.store.get(key)
            assert staged is not None, f"manifest {version} was never staged"
            if version > 1:
                published = self.store.get(published_manifest(self.id, Version(version - 1)))
                assert published is not None, f"manifest {version - 1} is not published, {version} is committed"
                assert published.body == self.manifest_bodies[Version(version - 1)]
            self.manifest_keys[version], self.manifest_bodies[version] = key, staged.body

    # After the run

    def settle(self) -> Head:
        """Commit one more manifest with a healthy process. This finishes everything that a crash left unfinished."""
        self.plan.stop()
        return self.commit(self.region("settler", faulty=False)).head

    def audit(self) -> Head:
        """Compare storage with the results that writers got."""
        self.settle()
        self.plan.land()
        return self.audit_storage()

    def audit_storage(self) -> Head:
        region = self.region("auditor", faulty=False)
        head = region.head()
        assert sorted(self.log) == list(range(1, head.next_position))
        for position in map(Position, range(head.first_position, head.next_position)):
            found = self.store.get(wal_entry(self.id, position))
            assert found is not None, f"committed entry {position} is gone"
            assert found.body == self.log[position].body, f"committed entry {position} was overwritten"
        summaries = [entry.summary for _, entry in sorted(self.log.items())]
        assert sum((s.entry_setsum for s in summaries), start=Setsum()) == head.entry_setsum
        assert sum(s.rows for s in summaries) == head.wal_rows
        assert sum(s.bytes for s in summaries) == head.wal_bytes
        sources = [int(s.applied_sequences["q"]) for s in summaries if s.applied_sequences]
        assert head.applied("q") == max(sources, default=0)
        assert all(s.epoch <= t.epoch for s, t in itertools.pairwise(summaries))
        self._audit_writers()
        self._audit_manifests(head)
        return head

    def _audit_writers(self) -> None:
        positions: dict[int, list[Position]] = {}
        for position, entry in self.log.items():
            for number in numbers_in(entry):
                positions.setdefault(number, []).append(position)
        assert set(positions) <= set(self.writers), "the log has rows that were never written"
        for number, found in positions.items():
            assert len(found) == 1, f"row {number} is in the log {len(found)} times: {found}"
            assert found[0] > self.floors[number], (
                f"row {number} is below an entry that was acknowledged before its write began"
            )
        for number, position in self.acknowledged.items():
            found = positions.get(number)
            assert found == [position], f"row {number} was acknowledged at {position}, but is at {found}"
        for number, error in self.raised.items():
            assert isinstance(error, (*NOT_IN_THE_LOG, Ambiguous, Crash)), f"row {number}: {error!r}"
            if isinstance(error, NOT_IN_THE_LOG):
                assert number not in positions, f"row {number} is in the log, but its writer got {error!r}"

    def _audit_manifests(self, head: Head) -> None:
        region = self.region("auditor", faulty=False)
        assert head.manifest_version == len(self.manifest_keys)
        assert head.manifest_key == self.manifest_keys[head.manifest_version]
        older, tags = None, []
        for version in map(Version, range(1, head.manifest_version + 1)):
            published = load(region, published_manifest(self.id, version))
            assert published is not None, f"manifest {version} is not published, {head.manifest_version} is committed"
            assert published.body == self.manifest_bodies[version]
            assert manifest_invariants.violations(older, published.manifest) == []
            if older is None or published.manifest.collector_round > older.collector_round:
                tags.append(published.manifest.collector_key)
            older = published.manifest
        for tag, error in self.commits.items():
            if error is None:
                assert tags.count(tag) == 1, f"{tag} was committed {tags.count(tag)} times"
            elif isinstance(error, NOT_IN_THE_LOG):
                assert tag not in tags, f"{tag} is committed, but its committer got {error!r}"
            else:
                assert isinstance(error, (Ambiguous, Crash)), f"{tag}: {error!r}"
                assert tags.count(tag) <= 1
        assert older is not None
        assert self.store.get(published_manifest(self.id, Version(head.manifest_version + 1))) is None
        assert (older.epoch, older.first_position, older.current_generation, older.collector_round) == (
            head.manifest_epoch,
            head.first_position,
            head.current_generation,
            head.collector_round,
        )
        hint = self.store.get(version_hint(self.id))
        assert hint is not None
        assert hint.body == f'{{"version":{head.manifest_version}}}'.encode()


class WatchedStore(MemoryStore):
    """A store that fails the test when a committed or published object is overwritten, or when the hint falls."""

    def __init__(self, environment: Environment) -> None:
        super().__init__()
        self._environment = environment

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed:
        old = self.get(key)
        outcome = super().replace(key, body, expect=expect)
        if isinstance(outcome, Written):
            assert old is not None
            if key == version_hint(self._environment.id):
                assert json.loads(old.body).get("version", 0) < json.loads(bytes(body))["version"], "the hint falls"
            else:
                position = wal_position(key)
                assert position is not None, f"{key} was overwritten"
                committed = self._environment.log.get(position)
                assert committed is None or committed.body != old.body, f"committed entry {position} was overwritten"
        return outcome


class WatchedRegistry(MemoryRegistry):
    """Reports each change of the head to its environment."""

    def __init__(self, environment: Environment) -> None:
        super().__init__()
        self._environment = environment

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost:
        old = self.read(key)
        outcome = super().swap(key, expect=expect, change=change)
        if isinstance(outcome, SwapApplied) and key == head_key(TABLE, self._environment.id):
            self._environment.committed(old, outcome.record)
        return outcome


def collect(environment: Environment, region: Region, *, keep: int = 0) -> None:
    """Collect the log except its last `keep` entries: raise the floor in a manifest, then remove the entries below it.

    No generation is written: the sums of the entries are added to those of the collected ones. As in the protocol of
    the collector, the floor is committed before anything is removed.
    """
    head = region.head()
    through = Position(head.next_position - 1 - keep)
    entries = [environment.log[p] for p in sorted(environment.log) if p <= through]
    total = sum((e.summary.entry_setsum for e in entries), start=Setsum())

    def collected(manifest: Manifest) -> Manifest:
        if through <= manifest.replay_after:
            return manifest
        return replace(
            manifest,
            replay_after=through,
            first_position=Position(through + 1),
            entry_setsum=total,
            collected_entries=total,
            wal_rows=sum(e.summary.rows for e in entries),
            wal_bytes=sum(e.summary.bytes for e in entries),
            collector_round=manifest.collector_round + 1,
            collector_key="",
        )

    done = commit(region, collected)
    assert not isinstance(done, manifests.Superseded)
    for listed in region.context.objects.list(wal_prefix(region.id)):
        position = wal_position(listed.key)
        if position is not None and position < done.head.first_position:
            environment.schedule.switch()
            environment.store.remove(listed.key)


def raised(act: Callable[[], Any]) -> BaseException | None:
    """Run an operation and return its error; None if it succeeded."""
    try:
        act()
    except (LsmError, Crash) as error:
        return error
    return None


def a_nonce(number: int) -> Nonce:
    return Nonce(f"{number:032x}")
