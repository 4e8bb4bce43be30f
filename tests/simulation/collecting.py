"""A region with generations, pins, real collections and a base that is only a counter; and checks of what must hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import pyarrow as pa

from lancelsm.common.layout import (
    NO_GENERATION,
    Generation,
    Position,
    Version,
    generation_path,
    published_manifest,
    wal_entry,
)
from lancelsm.common.setsum import Setsum
from lancelsm.common.settings import Settings
from lancelsm.compaction.flush import Stored, Write, flush
from lancelsm.compaction.fold import FoldedRows
from lancelsm.errors import Contended, Corrupt, Unavailable
from lancelsm.gc import base, base_check, collect, verify_base_check
from lancelsm.gc.collect import Collected
from lancelsm.gc.lists import read_list
from lancelsm.gc.mark import Progress
from lancelsm.gc.scopes import BaseScope, CollectionScope, all_scopes
from lancelsm.history import pins
from lancelsm.history.pin_records import Pin, RegionPin
from lancelsm.objects import Written
from lancelsm.record.schema import TableSchema
from lancelsm.region import manifest_codec, manifest_invariants
from lancelsm.region.catalog import Region
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.head import Head
from lancelsm.region.manifest import FlushedGeneration, Manifest
from lancelsm.wal.replay import tail
from tests.simulation.environment import SCHEMA, Environment

KEYS = TableSchema(columns=pa.schema([SCHEMA.field("id")]), primary_key=("id",))
FILES = ("data/a.lance", "_pk_index/page.lance")
TTL = 3600.0


@dataclass(kw_only=True)
class TableEnv:
    """An environment of a region, and the newest generation that its base holds."""

    environment: Environment = field(default_factory=Environment)
    counter: Generation = NO_GENERATION
    settings: Settings = field(default_factory=Settings)
    pinned: list[Pin] = field(default_factory=list)  # pins that are confirmed and not dropped
    _patched: bool = False
    schema: ClassVar[TableSchema] = KEYS

    def region(self, process: str, *, faulty: bool = False) -> Region:
        return self.environment.region(process, faulty=faulty)

    def write(self, *numbers: int) -> None:
        for number in numbers:
            self.environment.write(self.region("writer"), number)

    def flush(self, region: Region | None = None, *, rows_max: int = 2) -> FlushedGeneration | None:
        region = region or self.region("flusher")
        made = flush(region, self.schema, write=self.writing(region), rows_max=rows_max, bytes_max=1 << 30)
        return made[-1] if made else None

    def writing(self, region: Region) -> Write:
        """Return the function that writes a generation and reads it back."""

        def write(key: str, folded: FoldedRows) -> Stored:
            rows = pa.Table.from_batches(folded.batches(), self.schema.stored)
            setsum = folded.setsum
            for name, body in zip(FILES, self._bodies(rows, setsum), strict=True):
                if not isinstance(region.context.objects.create(f"{key}/{name}", body), Written):
                    raise Unavailable("a generation could not be written", object=key)
            for name in FILES:
                if region.context.objects.get(f"{key}/{name}") is None:
                    raise Corrupt("an object that was just written is missing", object=key)
            return Stored(file_setsum=setsum)

        return write

    def _bodies(self, rows: pa.Table, setsum: Setsum) -> tuple[bytes, bytes]:
        """Return the bodies of a generation's files."""
        return setsum.digest(), setsum.digest()

    def merge(self, region: Region | None = None) -> None:
        """Merge every generation into the base. Each generation must exist with all its files."""
        region = region or self.region("merger")
        _, manifest = newest(region, region.head())
        for one in manifest.generations:
            if one.generation > self.counter:
                for name in FILES:
                    found = region.context.objects.get(f"{generation_path(region.id, one.path)}/{name}")
                    assert found is not None or one.generation <= self.counter, f"{one.path} is missing, but not merged"
        self.counter = max(self.counter, manifest.newest)

    def progress(self, *_: object) -> Progress:
        held = {self.environment.id: self.counter}
        return Progress(version=1, counters=held, checked=held, markers=held, caught_up={"by_id": held})

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Within this context, collections use the base of this environment and have no round of the base."""
        if self._patched:
            yield
            return
        with (
            mock.patch.object(self, "_patched", True),
            mock.patch.object(base, "read_progress", self.progress),
            mock.patch.object(base_check, "check_files"),
            mock.patch.object(verify_base_check, "verified_check"),
            mock.patch.object(collect, "all_scopes", _regions),
        ):
            yield

    def handle(self, process: str, *, faulty: bool = True) -> Any:
        context = replace(self.environment.context(process, faulty=faulty), parallel=1)
        return SimpleNamespace(context=context, settings=self.settings)

    def collect(self, process: str = "collector", *, faulty: bool = False, interval: float = 0.0) -> Collected:
        with self.collecting():
            return collect.collect(self.handle(process, faulty=faulty), yes=True, interval_seconds=interval)

    def dry_run(self) -> Collected:
        with self.collecting():
            return collect.collect(self.handle("dry runner", faulty=False), yes=False)

    def sweep(self, key: str, process: str = "sweeper", *, faulty: bool = False) -> Collected:
        return collect.sweep(self.handle(process, faulty=faulty), [key])

    # Pins

    def begin_pin(self, name: str, needed: RegionPin | None = None) -> Pin:
        """Write the records of a snapshot; it is not confirmed yet.

        Args:
            needed: what the snapshot needs, if its maker has read the head earlier.
        """
        region = self.region(name)
        pin = pins.begin(region.context, "snapshot", name)
        needs = pins.pin_regions(region.context, pin, {region.id: needed or self.needs(region)})
        return pins.update_pin(region.context, replace(pin, regions=needs))

    def needs(self, region: Region) -> RegionPin:
        head, manifest = newest(region, region.head())
        return RegionPin(
            first_position=Position(manifest.replay_after + 1),
            after=self.counter,
            through=manifest.newest,
            manifest_key=head.manifest_key,
            manifest_version=manifest.version,
            collector_round=head.collector_round,
            next_position=head.next_position,
            entry_setsum=head.entry_setsum,
        )

    def confirm_pin(self, pin: Pin) -> bool:
        """Confirm a pin unless a floor has passed it. Return whether it is confirmed."""
        context = self.region(pin.name).context
        if pins.overtaken(context, pin):
            return False
        try:
            self.pinned.append(pins.confirm(context, pin, ttl_seconds=TTL))
        except Contended:
            return False
        return True

    def pin(self, name: str) -> Pin:
        pin = self.begin_pin(name)
        assert self.confirm_pin(pin)
        return pin

    def unpin(self, name: str) -> None:
        (pin,) = [one for one in self.pinned if one.name == name]
        pins.forget(self.region("holder").context, pin)
        self.pinned.remove(pin)

    # What must hold

    def audit(self) -> Head:
        """All objects that readers and pins need exist, and the sums of deleted entries are kept."""
        region = self.region("auditor")
        head, manifest = newest(region, region.head())
        log = self.environment.log
        assert sorted(log) == list(range(1, head.next_position))
        assert head.entry_setsum == _sum(log[position].summary.entry_setsum for position in log)
        for position in range(head.first_position, head.next_position):
            self.check_entry(Position(position))
        assert manifest_invariants.violations(None, manifest) == []
        assert manifest.entry_setsum == self._logged(1, manifest.replay_after + 1)
        self._audit_generations(manifest)
        self._audit_published(region, head)
        if manifest.collector_key:
            found = read_list(region.context, manifest.collector_key, setsum=manifest.collector_setsum)
            assert found.round.discarded == self._logged(1, head.first_position)
        assert tail(region, head, manifest) is not None
        now = self.environment.schedule.clock.now()
        for pin in self.pinned:
            if pin.expires is None or pin.expires >= now:
                self.audit_pin(pin)
        return head

    def audit_pin(self, pin: Pin) -> None:
        """Everything that a confirmed pin needs exists."""
        needs = pin.regions[self.environment.id]
        found = self.environment.store.get(needs.manifest_key)
        assert found is not None, f"the manifest of {pin.name} is missing"
        manifest = manifest_codec.decode(found.body, key=needs.manifest_key)
        for one in manifest.generations:
            if needs.needs(one.generation):
                self._check_generation(one.path)
        for position in range(needs.first_position, needs.next_position):
            self.check_entry(Position(position))

    def stored(self) -> list[str]:
        """Return the keys of the region's objects, relative to its prefix."""
        prefix = f"_mem_wal/{self.environment.id}/"
        return [line.key.removeprefix(prefix) for line in self.environment.store.list(prefix)]

    def _audit_generations(self, manifest: Manifest) -> None:
        named = {number for g in manifest.generations for number in g.numbers}
        assert named >= set(range(self.counter + 1, manifest.current_generation)), (
            "a generation is dropped that the base lacks"
        )
        for one in manifest.generations:
            self._check_generation(one.path)

    def _audit_published(self, region: Region, head: Head) -> None:
        hint = self.environment.store.get(f"_mem_wal/{region.id}/manifest/version_hint.json")
        assert hint is not None
        start = int(hint.body.decode().rpartition(":")[2].rstrip("}"))
        for version in range(start, head.manifest_version + 1):
            found = self.environment.store.get(published_manifest(region.id, Version(version)))
            assert found is not None or version == head.manifest_version, (
                f"manifest {version} is missing, the hint is {start}"
            )

    def _check_generation(self, path: str) -> None:
        for name in FILES:
            key = f"{generation_path(self.environment.id, path)}/{name}"
            assert self.environment.store.get(key) is not None, f"{key} is missing"

    def check_entry(self, position: Position) -> None:
        """The entry is in storage, unchanged."""
        found = self.environment.store.get(wal_entry(self.environment.id, position))
        assert found is not None, f"entry {position} is missing"
        assert found.body == self.environment.log[position].body

    def _logged(self, first: int, end: int) -> Setsum:
        return _sum(self.environment.log[Position(position)].summary.entry_setsum for position in range(first, end))


def _regions(handle: Any) -> list[CollectionScope]:
    return [scope for scope in all_scopes(handle) if not isinstance(scope, BaseScope)]


def _sum(sums: Iterable[Setsum]) -> Setsum:
    return sum(sums, start=Setsum())


def filled(*, flushed: int = 4, merged: int = 2, tail_rows: int = 2, table_env: TableEnv | None = None) -> TableEnv:
    """Fill a region: generations of two rows, some of them merged, and a tail. Return its table environment."""
    table_env = table_env or TableEnv()
    number = 0
    for generation in range(1, flushed + 1):
        table_env.write(number := number + 1, number := number + 1)
        assert table_env.flush() is not None
        if generation == merged:
            table_env.merge()
    for _ in range(tail_rows):
        table_env.write(number := number + 1)
    return table_env
