"""Scrub one region: its records, manifests, log, generations and the list of its newest round."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from lancelsm import manifest as manifests
from lancelsm.commit import newest
from lancelsm.dataset.scrubbing import BLOOM, PK_INDEX, Examined, examine_generation
from lancelsm.errors import Corrupt, Invalid
from lancelsm.filesum import sum_files
from lancelsm.gc.lists import read_list
from lancelsm.head import Head, Summary
from lancelsm.layout import (
    Position,
    Version,
    generation_number,
    generation_path,
    head_key,
    manifest_prefix,
    published_manifest,
    published_version,
    region_prefix,
    staged_version,
    version_hint,
    wal_entry,
    wal_position,
    wal_prefix,
)
from lancelsm.manifest import FlushedGeneration, Manifest
from lancelsm.objects import Listed
from lancelsm.opening import Opened
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TableSchema
from lancelsm.region import Region
from lancelsm.routing.route import route
from lancelsm.scrub.checks import epoch_falls, head_problems, manifest_problems, ranges, tail_problems
from lancelsm.scrub.report import Kind, Problem, Suspect, Tally, record_path, told
from lancelsm.setsum import Setsum
from lancelsm.wal.entry import Entry, decode
from lancelsm.wal.replay import LogEnd

_AT_ONCE = 64  # entries in memory


@dataclass(slots=True, kw_only=True)
class RegionScrub:
    """What was read of a region so far. What several pins share is read once.

    Args:
        schema: the table's, as the newest base or the configuration says.
    """

    region: Region
    opened: Opened
    schema: TableSchema
    tally: Tally
    head: Head | None = None
    manifest: Manifest | None = None
    _suspects: list[Suspect] = field(default_factory=list)
    _entries: dict[Position, Summary | None] = field(default_factory=dict)
    _generations: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Read everything that the head needs, and report what a later head needs still.

        Raises:
            Unavailable: a store or the registry did not answer.
        """
        self._read_head()
        if self.head is None:
            return
        listed = list(self.region.storage.objects.list(f"{region_prefix(self.region.id)}/"))
        self._named(self.head)
        self._publications(self.head, listed)
        if self.manifest is not None:
            self._against(self.head, self.manifest, listed)
        self.settle()

    def settle(self) -> None:
        """Hold what looks wrong against a head that is read only now, and what that one names."""
        if self._suspects:
            later = self._later()
            if later is not None:
                self.tally.confirm(self._suspects, later, self.reread())
        self._suspects.clear()

    def reread(self) -> Manifest | None:
        """The manifest that the head names by now; None if it can't be read."""
        try:
            return newest(self.region, self.region.head())[1]
        except (Corrupt, Invalid):
            return None

    def _later(self) -> Head | None:
        try:
            return self.region.head()
        except (Corrupt, Invalid):
            return self.head

    def settle_pinned(self, *, held: bool) -> None:
        """What a pin needs is there for as long as the pin is, whatever heads say."""
        for suspect in self._suspects if held else ():
            self.tally.add(suspect.problem.path, suspect.problem.kind, suspect.problem.problem)
        self._suspects.clear()

    def _read_head(self) -> None:
        self.tally.take()
        path = record_path(head_key(self.region.storage.table, self.region.id))
        try:
            self.head = self.region.find_head()
        except (Corrupt, Invalid) as error:
            self.tally.add(path, Kind.HEAD, told(error))
            return
        if self.head is None:
            used = any(
                wal_position(found.key) is not None or (published_version(found.key) or 0) > 1
                for found in self.region.storage.objects.list(f"{region_prefix(self.region.id)}/")
            )
            if used:
                self.tally.add(path, Kind.HEAD, "it is gone")
        elif not self.head.manifest_key.startswith(manifest_prefix(self.region.id)):
            self.tally.add(path, Kind.HEAD, f"it names another region's manifest: {self.head.manifest_key}")
            self.head = None

    def _named(self, head: Head) -> None:
        """The manifest that the head names, and whether the two agree."""
        manifest = self.named_manifest(head.manifest_key)
        if manifest is None:
            return
        path = record_path(head_key(self.region.storage.table, self.region.id))
        self.manifest = manifest
        values = tuple((name, value) for name, value in self.region.values if value is not None)
        if manifest.values != values or manifest.spec_id != self.region.spec_id:
            self._suspect(head.manifest_key, Kind.STAGED, "its region values are not those of the catalog")
        for problem in head_problems(head, manifest):
            self._suspect_head(path, problem, head)

    def named_manifest(self, key: str) -> Manifest | None:
        """The manifest at a key that a head or a pin names; suspect unless a later head names another."""
        self.tally.take()
        found = self.region.storage.objects.get(key)
        problem, manifest = "it is gone", None
        if found is not None:
            try:
                manifest = manifests.decode(found.body, key=key)
                broken = manifest_problems(manifest)
                if manifest.region != self.region.id:
                    broken.append(f"it is a manifest of region {manifest.region}")
                if manifest.version != staged_version(key):
                    broken.append(f"it is version {manifest.version}")
                problem = "; ".join(broken)
            except (Corrupt, Invalid) as error:
                problem = told(error)
        if problem:
            self._suspects.append(
                Suspect(
                    problem=Problem(path=key, kind=Kind.STAGED, problem=problem),
                    still=lambda later, _: later.manifest_key == key,
                )
            )
            return None
        return manifest

    def _publications(self, head: Head, listed: Sequence[Listed]) -> None:
        """Published manifests from the hint up, where Lance's readers walk, and the hint."""
        versions = {version for found in listed if (version := published_version(found.key)) is not None}
        objects, current = self.region.storage.objects, head.manifest_version
        hint_key = version_hint(self.region.id)
        hint, start = objects.get(hint_key), current
        self.tally.take()
        try:
            start = Version(int(json.loads(hint.body)["version"])) if hint else current
            problem = "" if hint else "it is gone"
        except (ValueError, KeyError, TypeError):
            problem = "it is unreadable"
        if start > current or start < 1:
            problem, start = f"it says {start}, the newest version is {current}", current
        if problem:
            self._suspect_published(hint_key, Kind.HINT, problem, head)
        for number in range(start, current + 1):
            self._published(head, Version(number))
        for version in sorted(versions):
            if version > current:
                key = published_manifest(self.region.id, version)
                self._suspect_published(key, Kind.FOREIGN, "a version that the head does not know", head)
                path = record_path(head_key(self.region.storage.table, self.region.id))
                self._suspect_published(path, Kind.HEAD, f"version {version} of the manifest was published", head)

    def _published(self, head: Head, version: Version) -> None:
        if not self.tally.take():
            return
        key = published_manifest(self.region.id, version)
        found = self.region.storage.objects.get(key)
        named = self.region.storage.objects.get(head.manifest_key) if version == head.manifest_version else None
        if found is None:
            problem = "it is gone: Lance's readers stop before it"
        elif named is not None and found.body != named.body:
            problem = "it is not the one that the head names"
            self._suspect_published(head.manifest_key, Kind.STAGED, "it is not what was published", head)
        else:
            try:
                manifest = manifests.decode(found.body, key=key)
                right = (manifest.region, manifest.version) == (self.region.id, version)
                problem = "" if right else f"it is version {manifest.version} of region {manifest.region}"
            except (Corrupt, Invalid) as error:
                problem = told(error)
        if problem:
            self._suspect_published(key, Kind.PUBLISHED, problem, head)

    def _against(self, head: Head, manifest: Manifest, listed: Sequence[Listed]) -> None:
        """Log, generations and list, against head and manifest."""
        discarded = self._list(manifest)
        self.log(head, first=head.first_position)
        self._sums(manifest, head, discarded)
        for generation in manifest.generations:
            self.generation(generation)
        self._beyond(head, listed)
        self._count_orphans(manifest, listed)

    def _list(self, manifest: Manifest) -> Setsum | None:
        """The newest round's list; returns what it says left the log."""
        if not manifest.collector_key:
            return Setsum.ZERO
        self.tally.take()
        key = manifest.collector_key
        try:
            found = read_list(self.region.storage, key, setsum=manifest.collector_setsum).round
        except (Corrupt, Invalid) as error:
            self._suspects.append(
                Suspect(
                    problem=Problem(path=key, kind=Kind.LIST, problem=told(error)),
                    still=lambda _, later: later is None or later.collector_key == key,
                )
            )
            return None
        if (found.region, found.number) != (self.region.id, manifest.collector_round):
            self._suspect(key, Kind.LIST, f"it is of round {found.number} of region {found.region}")
        return found.discarded

    def log(self, end: LogEnd, *, first: Position) -> None:
        """Read the entries from `first` to the end that were not read before."""
        wanted = [Position(p) for p in range(first, end.next_position) if Position(p) not in self._entries]
        for at in range(0, len(wanted), _AT_ONCE):
            chunk = [p for p in wanted[at : at + _AT_ONCE] if self.tally.take()]
            for position, summary in self.region.storage.each(self._entry, chunk):
                self._entries[position] = summary
        found = {p: s for p, s in self._entries.items() if s is not None}
        for position in epoch_falls(found):
            self._suspect_entry(position, "its epoch is below that of the entry before")

    def _entry(self, position: Position) -> tuple[Position, Summary | None]:
        key = wal_entry(self.region.id, position)
        found = self.region.storage.objects.get(key)
        if found is None:
            self._suspect_entry(position, "it is gone")
            return position, None
        try:
            entry = decode(found.body, position=position, key=key)
            problem = _unsound(entry)
        except Corrupt as error:
            entry, problem = None, told(error)
        if problem:
            self._suspect_entry(position, problem)
            return position, None
        assert entry is not None
        return position, entry.summary

    def _sums(self, manifest: Manifest, head: Head, discarded: Setsum | None) -> None:
        """The sums of each generation's stretch of the log and of the tail, and the head's totals."""
        if discarded is not None:
            for first, last, wanted in ranges(manifest, first=head.first_position, discarded=discarded):
                self._stretch(first, last, wanted)
        if self.tail(manifest, head):
            tail = [self._entries[Position(p)] for p in range(manifest.replay_after + 1, head.next_position)]
            path = record_path(head_key(self.region.storage.table, self.region.id))
            for problem in tail_problems(head, manifest, [summary for summary in tail if summary is not None]):
                self._suspect_head(path, problem, head)

    def tail(self, manifest: Manifest, end: LogEnd, *, record: str = "", kind: Kind = Kind.HEAD) -> bool:
        """Whether the entries after the replay point were all read and sum to what `end` says.

        Args:
            record: what says where the log ends, by default the head: if every entry is sound, it may be wrong itself.
        """
        first, last = Position(manifest.replay_after + 1), Position(end.next_position - 1)
        complete = self._stretch(first, last, end.entry_setsum - manifest.entry_setsum)
        if complete is False:
            path = record or record_path(head_key(self.region.storage.table, self.region.id))
            text = f"it contradicts the entries {first}..{last}: they don't add up to what it says"
            if kind is Kind.HEAD:
                assert self.head is not None
                self._suspect_head(path, text, self.head)
            else:
                self._suspect(path, kind, text)
        return bool(complete)

    def _stretch(self, first: Position, last: Position, wanted: Setsum) -> bool | None:
        """Whether these entries add up; None if some were not read."""
        found = [self._entries.get(Position(p)) for p in range(first, last + 1)]
        if None in found:
            return None
        if sum((summary.entry_setsum for summary in found if summary), start=Setsum.ZERO) == wanted:
            return True
        path = wal_entry(self.region.id, first) if first == last else wal_prefix(self.region.id)
        problem = f"the entries {first}..{last} are not those that were committed"
        self._suspects.append(
            Suspect(
                problem=Problem(path=path, kind=Kind.ENTRY, problem=problem),
                still=lambda later, _: later.first_position <= first,
            )
        )
        return False

    def generation(self, generation: FlushedGeneration) -> None:
        """Read a generation whole, unless it was read before."""
        if generation.path in self._generations or not self.tally.take():
            return
        self._generations.add(generation.path)
        storage, place = self.region.storage, generation_path(self.region.id, generation.path)
        bloom = storage.objects.get(f"{place}/{BLOOM}")
        folded = generation.folded
        found = examine_generation(
            uri=f"{storage.uri}/{place}",
            schema=self.schema,
            files=frozenset(found.key.rpartition("/")[2] for found in storage.objects.list(f"{place}/data/")),
            bloom=None if bloom is None else bloom.body,
            exact=folded is not None,
            storage_options=self.opened.storage_options,
        )
        kinds = {BLOOM: Kind.BLOOM, PK_INDEX: Kind.PK_INDEX}
        wrong = [(f"{place}/{one.path}", kinds.get(one.path, Kind.GENERATION), one.problem) for one in found.wrong]
        if found.keys is not None:
            wrong += [(f"{place}/data", Kind.GENERATION, problem) for problem in self._rows(generation, found)]
        if Kind.GENERATION not in {kind for _, kind, _ in wrong}:  # else a file is named already
            wrong += [(place, Kind.GENERATION, problem) for problem in self._files(generation, place)]
        for path, kind, problem in wrong:
            self._suspects.append(
                Suspect(
                    problem=Problem(path=path, kind=kind, problem=problem),
                    still=lambda _, later: later is None or any(g.path == generation.path for g in later.generations),
                )
            )

    def _files(self, generation: FlushedGeneration, place: str) -> Iterable[str]:
        wanted = generation.folded.file_setsum if generation.folded else None
        if wanted is not None and (found := sum_files(self.region.storage.objects, place)).setsum != wanted:
            yield f"its files are not those that were flushed; there are {found}"

    def _rows(self, generation: FlushedGeneration, found: Examined) -> Iterable[str]:
        if generation.folded is not None:
            if generation.rows != found.rows:
                yield f"it holds {found.rows} rows, the manifest says {generation.rows}"
            elif generation.folded.row_setsum != found.row_setsum:
                yield "its rows are not those that the manifest sums"
        spec = self.opened.config.regions
        if spec is None or spec.spec_id != self.region.spec_id or not found.keys:
            return
        keys = found.keys.cast(self.schema.key)
        elsewhere = [part for part in route(keys, spec) if part.values != self.region.values]
        if elsewhere:
            yield f"{sum(part.rows.num_rows for part in elsewhere)} rows belong to other regions"

    def _beyond(self, head: Head, listed: Sequence[Listed]) -> None:
        """Objects above the head are what a crashed writer left, or stand in the way of the next one."""
        for found in listed:
            position = wal_position(found.key) if found.key.startswith(wal_prefix(self.region.id)) else None
            if position is None or position < head.next_position or not self.tally.take():
                continue
            body = self.region.storage.objects.get(found.key)
            if body is None:
                continue
            try:
                entry = decode(body.body, position=position, key=found.key)
                if entry.summary.epoch < head.epoch or (entry.sound and entry.summary.epoch == head.epoch):
                    continue
                problem = "it is not one that a writer of this epoch puts there, and in the way of the next entry"
            except Corrupt as error:
                problem = f"in the way of the next entry: {told(error)}"
            self._suspects.append(
                Suspect(
                    problem=Problem(path=found.key, kind=Kind.FOREIGN, problem=problem),
                    still=lambda later, _, epoch=head.epoch: later.epoch == epoch,  # type: ignore[misc]
                )
            )

    def _count_orphans(self, manifest: Manifest, listed: Iterable[Listed]) -> None:
        named = {g.path for g in manifest.generations}
        for found in listed:
            name = found.key.removeprefix(f"{region_prefix(self.region.id)}/").split("/")[0]
            if generation_number(name) is not None:
                self.tally.orphans += name not in named
            elif staged_version(found.key) is not None:
                self.tally.orphans += self.head is not None and found.key != self.head.manifest_key
            elif name not in ("wal", "manifest", "gc"):
                self.tally.orphans += 1

    def _suspect(self, path: str, kind: Kind, problem: str) -> None:
        self._suspects.append(Suspect(problem=Problem(path=path, kind=kind, problem=problem)))

    def _suspect_entry(self, position: Position, problem: str) -> None:
        path = wal_entry(self.region.id, position)
        self._suspects.append(
            Suspect(
                problem=Problem(path=path, kind=Kind.ENTRY, problem=problem),
                still=lambda later, _: later.first_position <= position,
            )
        )

    def _suspect_head(self, path: str, problem: str, head: Head) -> None:
        self._suspects.append(
            Suspect(
                problem=Problem(path=path, kind=Kind.HEAD, problem=problem),
                still=lambda later, _: later.manifest_key == head.manifest_key,
            )
        )

    def _suspect_published(self, key: str, kind: Kind, problem: str, head: Head) -> None:
        self._suspects.append(
            Suspect(
                problem=Problem(path=key, kind=kind, problem=problem),
                still=lambda later, _: later.manifest_version == head.manifest_version,
            )
        )


def _unsound(entry: Entry) -> str:
    """What is wrong with an entry by itself; empty if nothing is. Those of Lance's writer declare nothing."""
    if entry.nonce is not None and not entry.sound:
        return "its bytes do not have the sum that it declares"
    if entry.row_setsum is not None:
        try:
            total = row_setsum(entry.table()) if entry.summary.rows else Setsum.ZERO
        except (Invalid, pa.ArrowException, ValueError) as error:
            return f"its rows can't be read: {error}"
        if total != entry.row_setsum:
            return "its rows do not have the sum that it declares"
    return ""
