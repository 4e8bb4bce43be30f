"""Scrub one region in the order of a reader: head, manifests, list of the newest round, log, generations.

At the end it compares each problem with the current head, which may explain it.
"""

from __future__ import annotations

from collections.abc import Iterable

from lancelsm.common.layout import (
    generation_number,
    published_version,
    region_prefix,
    staged_version,
    wal_position,
)
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, Invalid
from lancelsm.gc.lists import read_list
from lancelsm.history.pin_records import RegionPin
from lancelsm.objects import Listed
from lancelsm.region.catalog import Region
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.handle import TableHandle
from lancelsm.region.head import Head
from lancelsm.region.manifest import Manifest
from lancelsm.scrubbing.consistency import head_problems
from lancelsm.scrubbing.generations import GenerationScrub
from lancelsm.scrubbing.log import LogScrub
from lancelsm.scrubbing.manifests import ManifestScrub
from lancelsm.scrubbing.report import ObjectKind, Tally, head_path, problem_of
from lancelsm.scrubbing.suspects import Suspects, while_named


class RegionScrub:
    """Scrubs one region. Reads objects that several pins share only once.

    Attributes:
        head: None before `run`, or if the head is damaged.
        manifest: the manifest that the head names; None if it is damaged.
    """

    def __init__(self, region: Region, *, handle: TableHandle, tally: Tally) -> None:
        self.region = region
        self.head: Head | None = None
        self.manifest: Manifest | None = None
        self._tally = tally
        self._suspects = Suspects()
        self._manifests = ManifestScrub(region=region, tally=tally, suspects=self._suspects)
        self._log = LogScrub(region=region, tally=tally, suspects=self._suspects)
        self._generations = GenerationScrub(region=region, handle=handle, tally=tally, suspects=self._suspects)

    def run(self) -> None:
        """Read everything that the head needs, and report problems that a later head does not explain.

        Raises:
            Unavailable: a store or the registry did not answer.
        """
        self.head = head = self._read_head()
        if head is None:
            return
        listed = list(self.region.context.objects.list(f"{region_prefix(self.region.id)}/"))
        self.manifest = manifest = self._manifests.named(head.manifest_key)
        if manifest is not None:
            self._check_head(head, manifest)
        self._manifests.published(head, listed)
        if manifest is not None:
            discarded = self._read_list(manifest)
            self._log.read(head, first=head.first_position)
            self._log.check_sums(manifest, head, discarded=discarded)
            for generation in sorted(manifest.generations, key=lambda one: one.generation):
                self._generations.read(generation)
            self._log.check_above(head, listed)
            self._count_orphans(head, manifest, listed)
        if self._suspects:
            self._suspects.settle(self._tally, self._later(head), self.reread())

    def run_pinned(self, pin: RegionPin, *, record: str) -> None:
        """Read everything that a snapshot needs of the region. `settle_pinned` reports the problems."""
        manifest = self._manifests.named(pin.manifest_key)
        if manifest is None:
            self._suspects.add(record, ObjectKind.SNAPSHOT, f"it names a manifest that is wrong: {pin.manifest_key}")
            return
        self._log.read(pin, first=pin.first_position)
        self._log.check_tail(manifest, pin, record=record, kind=ObjectKind.SNAPSHOT)
        for generation in sorted(manifest.generations, key=lambda one: one.generation):
            if pin.needs(generation.generation):
                self._generations.read(generation)

    def run_cursor(self, head: Head, pin: RegionPin, *, records: Iterable[str]) -> None:
        """Read everything that a cursor needs of the region. `settle_pinned` reports the problems.

        Args:
            records: paths of the records with the cursor's position.
        """
        position, end = pin.first_position, self._later(head).next_position
        problem = f"its position {position} is past the end of the log" if position > end else ""
        if position < end and not self._log.has(position):
            problem = f"its position is {position}, but there is no entry"
        if not problem:
            self._log.read(head, first=position)
        for record in records if problem else ():
            self._suspects.add(record, ObjectKind.CURSOR, problem)

    def settle_pinned(self, *, held: bool) -> None:
        """Report problems if the pin still exists: what it needs must then exist, even if no head names it."""
        self._suspects.settle_pinned(self._tally, held=held)

    def reread(self) -> Manifest | None:
        """Read the manifest that the head names now; None if it can't be read."""
        try:
            return newest(self.region, self.region.head())[1]
        except (Corrupt, Invalid):
            return None

    def _later(self, head: Head) -> Head:
        try:
            return self.region.head()
        except (Corrupt, Invalid):
            return head

    def _read_head(self) -> Head | None:
        self._tally.count()
        path = head_path(self.region)
        try:
            head = self.region.find_head()
        except (Corrupt, Invalid) as error:
            self._tally.add(path, ObjectKind.HEAD, problem_of(error))
            return None
        if head is None:
            used = any(
                wal_position(found.key) is not None or (published_version(found.key) or 0) > 1
                for found in self.region.context.objects.list(f"{region_prefix(self.region.id)}/")
            )
            if used and self._head_is_missing():
                self._tally.add(path, ObjectKind.HEAD, "it is gone")
            return None
        return head

    def _head_is_missing(self) -> bool:
        """Return whether there is still no head. A region that is being created gets its head before its first use."""
        return self.region.find_head() is None

    def _check_head(self, head: Head, manifest: Manifest) -> None:
        """Compare catalog, head and manifest."""
        values = tuple((name, value) for name, value in self.region.values if value is not None)
        if manifest.values != values or manifest.spec_id != self.region.spec_id:
            self._suspects.add(
                head.manifest_key, ObjectKind.STAGED, "its region values differ from those in the catalog"
            )
        for problem in head_problems(head, manifest):
            self._suspects.add(head_path(self.region), ObjectKind.HEAD, problem, still=while_named(head.manifest_key))

    def _read_list(self, manifest: Manifest) -> Setsum | None:
        """Check the list of the newest round. Return its sum of collected entries."""
        key = manifest.collector_key
        if not key:
            return Setsum.ZERO
        self._tally.count()
        try:
            found = read_list(self.region.context, key, setsum=manifest.collector_setsum).round
        except (Corrupt, Invalid) as error:
            self._suspects.add(
                key,
                ObjectKind.LIST,
                problem_of(error),
                still=lambda _, later: later is None or later.collector_key == key,
            )
            return None
        if (found.region, found.number) != (self.region.id, manifest.collector_round):
            self._suspects.add(key, ObjectKind.LIST, f"it is the list of round {found.number} of region {found.region}")
        return found.discarded

    def _count_orphans(self, head: Head, manifest: Manifest, listed: Iterable[Listed]) -> None:
        named = {g.path for g in manifest.generations}
        for found in listed:
            name = found.key.removeprefix(f"{region_prefix(self.region.id)}/").split("/")[0]
            if generation_number(name) is not None:
                self._tally.orphans += name not in named
            elif staged_version(found.key) is not None:
                self._tally.orphans += found.key != head.manifest_key
            elif name not in ("wal", "manifest", "gc"):
                self._tally.orphans += 1
