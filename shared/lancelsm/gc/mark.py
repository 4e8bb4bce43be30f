"""Mark: decide which objects of a region are no longer needed, from a survey of the region. No I/O.

Decisions depend on ranks (positions, versions, numbers), not on age: a marked object can never be needed again, even by
a process that stalls and continues later. So a survey may be incomplete; objects that it missed wait for a later round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from lancelsm.common.layout import (
    Generation,
    Position,
    RegionId,
    generation_number,
    generation_path,
    manifest_prefix,
    published_version,
    region_prefix,
    round_number,
    round_prefix,
    staged_version,
    wal_entry,
    wal_position,
    wal_prefix,
)
from lancelsm.common.setsum import Setsum
from lancelsm.gc.lists import GarbageItem, GarbageKind, Round
from lancelsm.history.pin_records import Pin
from lancelsm.objects import Listed
from lancelsm.region.head import Head
from lancelsm.region.manifest import FlushedGeneration, Manifest

ITEMS_MAX = 10_000  # items of one round; also the number of log entries that it reads
_OWN_OBJECTS = 3  # objects that a round adds: list, staged manifest, published manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The newest generation of each region in one version of the base: by counter, by Lance's marker, by each index.

    `checked` has the counters of the version whose files were checked last (`gc.base_check`). `caught_up` has an entry
    for every index; an index that never caught up has an empty one.
    """

    version: int
    counters: Mapping[RegionId, Generation]
    checked: Mapping[RegionId, Generation]
    markers: Mapping[RegionId, Generation]
    caught_up: Mapping[str, Mapping[RegionId, Generation]]

    def reason_to_keep(self, region: RegionId, generation: Generation) -> str:
        """Return why a generation must stay; empty if base, marker and all indexes have it."""
        if generation > self.counters.get(region, 0):
            return "it is not merged yet"
        if generation > self.checked.get(region, 0):  # guard: mark keeps generations that the checked base lacks
            return "the files of the base that have its rows are not checked yet: a later collection checks them"
        if generation > self.markers.get(region, 0):
            return "Lance's marker is behind: the next merge repairs it"
        behind = sorted(name for name, known in self.caught_up.items() if generation > known.get(region, 0))
        return f"index {behind[0]} has not caught up: run optimize" if behind else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFacts:
    """Facts about an object of the log. `fence` is True for a fence of lancelsm, not of Lance."""

    bytes: int
    fence: bool
    entry_setsum: Setsum


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What was read of a region.

    Args:
        hint: the published version at which Lance's readers start; 0 if there is none.
        listed: objects of the region, perhaps not all.
        entries: all committed entries from the manifest's floor up to `log_end`, and objects below the floor. None for
            an object below the floor that is missing or unreadable.
        discarded: sum of the entries that earlier rounds took from the log.
        log_bytes: size of all objects of the log.
        bytes_max: how much of the log this round may take.
    """

    head: Head
    manifest: Manifest
    hint: int
    pins: Sequence[Pin]
    progress: Progress
    listed: Sequence[Listed]
    entries: Mapping[Position, EntryFacts | None]
    discarded: Setsum
    log_bytes: int
    bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An object that stays, and the reason.

    Args:
        path: its key, relative to the table.
        kind: what it is, such as `generation` or `entry`.
        why: what needs it, such as a snapshot or a cursor.
    """

    path: str
    kind: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedRound:
    """What a round would delete, and what stays. `worthwhile` is False if it deletes no more than it adds."""

    round: Round
    kept: tuple[Kept, ...]
    worthwhile: bool


def log_end(manifest: Manifest, pins: Iterable[Pin]) -> Position:
    """Return the first position that the round can't take: not flushed, pinned, or beyond the maximum of items."""
    ends = [  # guard: mark keeps the log of a pin
        needs.first_position for pin in pins if (needs := pin.of(manifest.region)) is not None
    ]
    return Position(
        max(
            manifest.first_position,
            min([manifest.replay_after + 1, manifest.first_position + ITEMS_MAX, *ends]),
        )
    )


def summed_from(manifest: Manifest) -> Position:
    """Return the first position in the sums of the region. If it was adopted, they start after what Lance flushed."""
    if all(g.folded for g in manifest.generations):
        return Position(1)
    ours = [g.folded.first for g in manifest.generations if g.folded]
    return ours[0] if ours else Position(manifest.replay_after + 1)


def log_objects(region: RegionId, listed: Iterable[Listed]) -> dict[Position, int]:
    """Return the sizes of the objects of the log among the listed objects, by position."""
    inside = (found for found in listed if found.key.startswith(wal_prefix(region)))
    return {position: found.size for found in inside if (position := wal_position(found.key)) is not None}


def mark_region(survey: Survey, *, now: float) -> MarkedRound:
    """Decide what one round of a region deletes."""
    marking = _Marking(survey)
    items, kept = marking.items(), marking.kept
    big = any(item.kind in (GarbageKind.GENERATION, GarbageKind.ENTRY) for item in items)
    return MarkedRound(
        round=Round(
            region=survey.manifest.region,
            number=survey.manifest.collector_round + 1,
            floor=marking.floor,
            items=tuple(items),
            marked=now,
            discarded=marking.discarded,
            log_bytes=survey.log_bytes,
            compactions=survey.manifest.compactions,
        ),
        kept=tuple(kept),
        worthwhile=big or len(items) > _OWN_OBJECTS,
    )


class _Marking:
    """Decides one round, and collects the reasons for objects that stay."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._region = survey.manifest.region
        self.kept: list[Kept] = []
        self.floor, self.discarded = self._floor()

    def items(self) -> list[GarbageItem]:
        # Entries come last: there can be so many that they leave no room for other objects in any round.
        manifests = sorted(self._manifests(), key=lambda item: item.number)
        found = [*self._lists(), *manifests, *self._generations(), *self._entries()]
        items, later = bounded(region_prefix(self._region), found)
        self.kept.extend(later)
        return items

    def _floor(self) -> tuple[Position, Setsum]:
        """Return the new floor of the log, and the sum of all entries below it."""
        survey, manifest = self._survey, self._survey.manifest
        floor, end, taken = manifest.first_position, log_end(manifest, survey.pins), 0
        discarded, known = survey.discarded, summed_from(manifest)
        while floor < end:
            entry = survey.entries[floor]
            assert entry is not None, f"the survey has no committed entry {floor}"
            if taken + entry.bytes > survey.bytes_max:
                break
            taken += entry.bytes
            if floor >= known:
                discarded += entry.entry_setsum
            floor = Position(floor + 1)
        pinned = self._log_pin(Position(min(floor, manifest.replay_after)))
        if pinned or floor <= manifest.replay_after:
            why = "the share of the log that one round may take is reached; a later round takes the rest"
            self._keep(wal_prefix(self._region), GarbageKind.ENTRY, pinned or why)
        if manifest.replay_after < floor < survey.head.next_position:
            self._keep(wal_prefix(self._region), GarbageKind.ENTRY, f"from position {floor} on it is not flushed yet")
        return floor, discarded

    def _log_pin(self, floor: Position) -> str:
        for pin in self._survey.pins:
            needs = pin.of(self._region)
            if needs is not None and needs.first_position <= floor:
                return f"{_named(pin)} needs it from position {needs.first_position} on"
        return ""

    def _generations(self) -> Iterator[GarbageItem]:
        survey, manifest = self._survey, self._survey.manifest
        sizes: dict[str, int] = {}
        prefix = f"{region_prefix(self._region)}/"
        for found in survey.listed:
            name, inside, _ = found.key.removeprefix(prefix).partition("/")
            if inside and generation_number(name) is not None:
                sizes[name] = sizes.get(name, 0) + found.size
        leaving = list(takewhile(self._leaves, manifest.generations))
        for one in leaving:
            why = f"the base has it since version {survey.progress.version} or before"
            yield self._generation(one.path, one.generation, sizes.pop(one.path, 0), why)
        for one in manifest.generations:
            sizes.pop(one.path, None)
        numbers = [(number, name) for name in sizes if (number := generation_number(name)) is not None]
        for number, name in sorted(numbers):
            if number >= manifest.current_generation:  # guard: mark keeps generations in flight
                self._keep(generation_path(self._region, name), GarbageKind.GENERATION, "a flush may be writing it")
            elif pinned := self._generation_pin(number):
                self._keep(generation_path(self._region, name), GarbageKind.GENERATION, pinned)
            else:
                why = "the manifest does not list it, and its number is used"
                yield self._generation(name, number, sizes[name], why)

    def _leaves(self, one: FlushedGeneration) -> bool:
        """Return whether a generation can be deleted now. If not, all later ones stay too."""
        last = one.folded.last if one.folded else summed_from(self._survey.manifest) - 1
        why = (
            self._survey.progress.reason_to_keep(self._region, one.generation)  # guard: only merged generations leave
            or self._generation_pin(one.generation)
        )
        if not why and last >= self.floor:  # guard: mark keeps generations with entries
            why = f"its entries are still in the log, up to position {last}"
        if why:
            self._keep(generation_path(self._region, one.path), GarbageKind.GENERATION, why)
        return not why

    def _generation_pin(self, number: Generation) -> str:
        for pin in self._survey.pins:
            needs = pin.of(self._region)
            if needs is not None and needs.needs(number):  # guard: mark keeps the generations of a pin
                return f"{_named(pin)} needs it"
        return ""

    def _generation(self, name: str, number: int, size: int, why: str) -> GarbageItem:
        return GarbageItem(
            kind=GarbageKind.GENERATION, path=generation_path(self._region, name), number=number, bytes=size, why=why
        )

    def _entries(self) -> Iterator[GarbageItem]:
        """Yield objects of the log below the floor, but not the oldest and the newest fence: they stop Lance's writers.

        Objects below the old floor that a pin needs are left out too: a round of these could not be swept.
        """
        survey = self._survey
        needs = [needed.first_position for pin in survey.pins if (needed := pin.of(self._region)) is not None]
        end = min([self.floor, *needs])
        sizes = log_objects(self._region, survey.listed)
        fences = [at for at, entry in sorted(survey.entries.items()) if at < self.floor and entry and entry.fence]
        stay = {*fences[:1], *fences[-1:]}  # guard: oldest and newest fence stay
        committed = range(survey.manifest.first_position, self.floor)
        for position in sorted({*(at for at in sizes if at < end), *committed}):
            key = wal_entry(self._region, Position(position))
            if position in stay:
                self._keep(
                    key, GarbageKind.ENTRY, "the oldest and the newest fence stay: they stop Lance's own writers"
                )
                continue
            why = "it is in a generation" if position in committed else "it is below the floor of the log"
            entry = survey.entries.get(Position(position))
            size = entry.bytes if entry else sizes.get(Position(position), 0)
            yield GarbageItem(kind=GarbageKind.ENTRY, path=key, number=position, bytes=size, why=why)

    def _manifests(self) -> Iterator[GarbageItem]:
        head, pins = self._survey.head, self._survey.pins
        needs = [needed for pin in pins if (needed := pin.of(self._region)) is not None]
        keys, versions = {one.manifest_key for one in needs}, {one.manifest_version for one in needs}
        for found in self._survey.listed:
            if not found.key.startswith(manifest_prefix(self._region)):
                continue
            staged, published = staged_version(found.key), published_version(found.key)
            if (
                staged is not None
                and staged <= head.manifest_version  # guard: mark keeps manifests in flight
                and found.key != head.manifest_key  # guard: mark keeps the manifest of the head
            ):
                if found.key in keys:  # guard: mark keeps the staged manifest of a pin
                    self._keep(found.key, GarbageKind.STAGED, "a snapshot needs it")
                else:
                    yield _item(
                        GarbageKind.STAGED, found, staged, "the head names another manifest, and its version is used"
                    )
            elif published is not None and published < min(
                self._survey.hint,  # guard: mark keeps published manifests from the hint on
                head.manifest_version,
            ):
                if published in versions:  # guard: mark keeps the published manifest of a pin
                    self._keep(found.key, GarbageKind.PUBLISHED, "a snapshot needs it")
                else:
                    yield _item(GarbageKind.PUBLISHED, found, published, "Lance's readers start at a later version")

    def _lists(self) -> list[GarbageItem]:
        manifest, prefix = self._survey.manifest, round_prefix(self._region)
        lists = [found for found in self._survey.listed if found.key.startswith(prefix)]
        return passed_lists(lists, newest=manifest.collector_round, named=manifest.collector_key)

    def _keep(self, path: str, kind: GarbageKind, why: str) -> None:
        self.kept.append(Kept(path=path, kind=kind, why=why))


def passed_lists(lists: Iterable[Listed], *, newest: int, named: str) -> list[GarbageItem]:
    """Return all lists but that of the newest round, oldest first: their rounds are finished or were never committed.

    Args:
        newest: the number of the newest committed round.
        named: the key of its list.
    """
    numbers = sorted((number, found.key, found) for found in lists if (number := round_number(found.key)) is not None)
    why = "its round is finished, or was never committed"
    return [
        _item(GarbageKind.LIST, one, number, why)
        for number, key, one in numbers
        if number <= newest  # guard: mark keeps lists of later rounds
        and key != named
    ]


def bounded(path: str, items: Sequence[GarbageItem]) -> tuple[list[GarbageItem], list[Kept]]:
    """Return as many items as one round takes, and why the rest stays. Later rounds find the rest again."""
    left = len(items) - ITEMS_MAX
    why = f"a round takes at most {ITEMS_MAX} objects; later rounds take {left} more"
    return list(items[:ITEMS_MAX]), [Kept(path=path, kind="round", why=why)] if left > 0 else []


def _item(kind: GarbageKind, found: Listed, number: int, why: str) -> GarbageItem:
    return GarbageItem(kind=kind, path=found.key, number=number, bytes=found.size, why=why)


def _named(pin: Pin) -> str:
    return f"{pin.kind} {pin.name}"
