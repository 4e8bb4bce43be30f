"""Verify a round of a region: check against storage, with separate code, that it deletes nothing that is needed.

The verifier only takes the list from mark. It repairs nothing. A round that it refuses is never committed, and a later
round deletes its list.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import NoReturn

import pyarrow as pa

from lancelsm.common.layout import Position, head_key, version_hint, wal_entry
from lancelsm.common.setsum import Setsum
from lancelsm.common.settings import Settings
from lancelsm.errors import Contended, Corrupt, Invalid
from lancelsm.gc.lists import GarbageItem, GarbageKind, Round, find_list, read_list
from lancelsm.gc.mark import Progress
from lancelsm.gc.survey import contended_if_overtaken
from lancelsm.history.pin_records import Pin
from lancelsm.region import head as heads
from lancelsm.region import manifest_codec
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.region.manifest import Manifest

_NUMBER = re.compile(r"[0-9]+")
_OWN_SUM = b"(the sum of the entry goes here)"  # in the bytes of an entry that are summed


def verify_region(region: Region, key: str, *, pins: Sequence[Pin], progress: Progress, settings: Settings) -> None:
    """Check the round whose list has this key. Return if it may be committed, else raise.

    Args:
        pins, progress: read after the list was written. They may be older than the head that is read here: the sweep
            reads all pins again, and sees newer ones; and the base never loses generations that it has.

    Raises:
        Corrupt: the round would delete something that is needed, or sums do not balance. The error names the object.
        Contended: another round, its sweep, or a pin came first: mark a new round.
        Invalid: the round takes more of the log than one round may.
        Unavailable: a store or the registry did not answer.
    """
    context = region.context
    listed = find_list(context, key, newest=lambda: region.head().collector_round)
    record = context.registry.read(head_key(context.table, region.id))
    if record is None:
        raise Corrupt("the region has no head", **region.where)
    head = heads.from_record(record)
    named = context.objects.get(head.manifest_key)
    if named is None:
        raise Contended("the manifest was replaced meanwhile", **region.where)
    manifest = manifest_codec.decode(named.body, key=head.manifest_key)
    if manifest.collector_key == key:
        return  # already verified and committed
    if (
        listed is None
        or manifest.collector_round + 1 != listed.round.number  # guard: verified round is the next one
        or listed.round.region != region.id  # guard: verified round is of the region
        or listed.round.compactions != manifest.compactions  # guard: verified round knows all compactions
    ):
        raise Contended("another round or a compaction came first", **region.where)
    with contended_if_overtaken(region, head):
        check = _Check(region, listed.round, head, manifest, pins)
        check.items()
        check.generations(progress)
        check.log(settings)


class _Check:
    """Checks one round against storage."""

    def __init__(self, region: Region, found: Round, head: Head, manifest: Manifest, pins: Sequence[Pin]) -> None:
        self._region = region
        self._round = found
        self._head = head
        self._manifest = manifest
        self._needs = [(pin, needs) for pin in pins if (needs := pin.of(region.id)) is not None]
        self._damaged: list[Position] = []  # entries without the sum that they declare

    def items(self) -> None:
        """Check that each item has the name of its kind and number, is below its rank, and is not in use."""
        hint = self._hint()
        needed = {
            self._head.manifest_key,  # guard: verifier keeps the manifest of the head
            self._manifest.collector_key,  # guard: verifier keeps the list of the manifest
        }
        prefix = f"_mem_wal/{self._region.id}/"
        for item in self._round.items:
            if (
                not item.path.startswith(prefix)  # guard: item is below the region
                or ".." in item.path  # guard: path does not leave the region
            ):
                self._refuse(item, "it is outside of the region")
            name = item.path.removeprefix(prefix)
            if item.path in needed:
                self._refuse(item, "the head or the manifest names it")
            if not self._is_named_as(item, name):  # guard: item has the name of its kind
                self._refuse(item, f"it is not {item.kind.value} {item.number}")
            if item.kind is GarbageKind.ENTRY and item.number >= self._round.floor:  # guard: verifier keeps the log
                self._refuse(item, f"it is not below the floor {self._round.floor}")
            if (  # guard: verifier keeps manifests in flight
                item.kind is GarbageKind.STAGED and item.number > self._head.manifest_version
            ):
                self._refuse(item, "its version is not used yet")
            if item.kind is GarbageKind.PUBLISHED and item.number >= min(
                hint,  # guard: verifier keeps published manifests from the hint on
                self._head.manifest_version,  # guard: verifier keeps the newest published manifest
            ):
                self._refuse(item, "Lance's readers may start there")
            for pin, needs in self._needs:
                published = item.kind is GarbageKind.PUBLISHED and item.number == needs.manifest_version
                if (
                    published  # guard: verifier keeps pinned published manifests
                    or item.path == needs.manifest_key  # guard: verifier keeps pinned staged manifests
                ):
                    self._overtaken(item, pin)
            if (  # guard: verifier keeps lists of later rounds
                item.kind is GarbageKind.LIST and item.number > self._manifest.collector_round
            ):
                self._refuse(item, "its round may still be committed")

    def generations(self, progress: Progress) -> None:
        """Check that the base has the listed generations, the oldest first, and that orphans have a used number."""
        counter = progress.counters.get(self._region.id, 0)
        if (  # guard: base is not ahead of the head
            counter >= self._manifest.current_generation and counter >= self._region.head().current_generation
        ):
            raise Corrupt(
                "the base has merged more generations than the region's head has",
                remedy=self._region.context.rebuild_remedy,
                **self._region.where,
            )
        listed = {
            item.path.rpartition("/")[2]: item for item in self._round.items if item.kind is GarbageKind.GENERATION
        }
        for name, item in listed.items():
            if item.number >= self._manifest.current_generation:  # guard: verifier keeps generations in flight
                self._refuse(item, "a flush may be writing it")
            for pin, needs in self._needs:
                if needs.after < item.number <= needs.through:  # guard: verifier keeps pinned generations
                    self._overtaken(item, pin)
            if all(g.path != name for g in self._manifest.generations):
                continue
            known = [
                progress.counters,  # guard: base has each deleted generation
                progress.markers,  # guard: marker has each deleted generation
                *progress.caught_up.values(),  # guard: every index has each deleted generation
            ]
            if min(one.get(self._region.id, 0) for one in known) < item.number:
                self._refuse(item, "the base, Lance's marker or an index does not have it")
            if progress.checked.get(self._region.id, 0) < item.number:  # guard: verifier keeps what is not checked
                raise Contended(
                    f"the files of the base that have the rows of {item.path} are not checked",
                    **self._region.where,
                    object=item.path,
                )
        leaving = [g.path in listed for g in self._manifest.generations]
        if leaving != sorted(leaving, reverse=True):  # guard: oldest generations are deleted first
            raise Corrupt(
                "the round would delete a generation before an older one", **self._region.where, object=self._path()
            )

    def log(self, settings: Settings) -> None:
        """Check that the entries that the round takes are those that were flushed: they have the manifest's sums.

        If not, the error names the first damaged entry, or the range if no single entry is damaged.
        """
        manifest, floor = self._manifest, self._round.floor
        if not (
            manifest.first_position  # guard: verified floor does not fall
            <= floor
            <= manifest.replay_after + 1  # guard: verified floor is not past the replay point
        ):
            self._unbalanced(f"the floor {floor} is not between {manifest.first_position} and the replay point")
        for pin, needs in self._needs:
            if manifest.first_position < floor and needs.first_position < floor:  # guard: verifier keeps the pinned log
                raise Contended(
                    f"{pin.kind} {pin.name} needs the log from {needs.first_position} on",
                    **self._region.where,
                )
        taken, size, bounds = self._discarded(), 0, _bounds(manifest)
        begin = _summed_from(manifest)
        boundary = min(position for position in bounds if position >= floor - 1)  # guard: floor is within known sums
        positions = [Position(at) for at in range(manifest.first_position, boundary + 1)]
        summed = self._region.context.each(self._summed, positions)
        for position, (entry_sum, entry_bytes, sound) in zip(positions, summed, strict=True):
            if position == floor and taken != self._round.discarded:  # guard: list has the sum up to its floor
                self._wrong_sum("the entries that the round takes don't have the sum in its list", position - 1)
            if not sound:
                self._damaged.append(position)
            taken = taken + entry_sum if position >= begin else taken
            size += entry_bytes if position < floor else 0
        if floor == boundary + 1 and taken != self._round.discarded:  # guard: list has the sum up to a boundary
            self._wrong_sum("the entries that the round takes don't have the sum in its list", boundary)
        if taken != bounds[Position(boundary)]:  # guard: log is what was flushed
            self._wrong_sum(f"the log through position {boundary} is not what was flushed", boundary)
        self._parts(floor)
        self._share(size, settings)

    def _parts(self, floor: int) -> None:
        """Check that parts + collected = total, and that no generation goes before its entries."""
        manifest = self._manifest
        listed = {item.path.rpartition("/")[2] for item in self._round.items if item.kind is GarbageKind.GENERATION}
        total = manifest.collected_entries
        for g in manifest.generations:
            last = g.folded.last if g.folded else _summed_from(manifest) - 1
            if g.path in listed and last >= floor:  # guard: verifier keeps generations with entries
                self._unbalanced(f"the round would delete generation {g.generation}, but not its entries")
            total += g.folded.entry_setsum if g.folded else Setsum.ZERO
        if total != manifest.entry_setsum:  # guard: generations add up to the log
            self._unbalanced("generations and collected entries don't add up to the log at the replay point")

    def _share(self, size: int, settings: Settings) -> None:
        if size <= settings.collect_floor_bytes:
            return
        log_bytes = sum(found.size for found in self._region.context.objects.list(f"_mem_wal/{self._region.id}/wal/"))
        if size * 100 > log_bytes * settings.collect_share_percent:  # guard: round takes a share of the log
            what = f"the round takes {size} of the {log_bytes} bytes of the log"
            if size * 100 <= self._round.log_bytes * settings.collect_share_percent:
                raise Contended(
                    f"{what}; there were {self._round.log_bytes} when it was marked: another round was swept meanwhile",
                    **self._region.where,
                    object=self._path(),
                )
            raise Invalid(
                what,
                remedy=f"Look at what it takes: lancelsm gc {self._region.context.uri}. If that is right, raise the "
                "setting collect_share_percent",
                **self._region.where,
                object=self._path(),
            )

    def _discarded(self) -> Setsum:
        if not self._manifest.collector_key:
            return Setsum.ZERO
        key = self._manifest.collector_key
        return read_list(self._region.context, key, setsum=self._manifest.collector_setsum).round.discarded

    def _summed(self, position: Position) -> tuple[Setsum, int, bool]:
        """Return sum and size of a committed entry, from its bytes, and whether it declares this sum or no sum."""
        key = wal_entry(self._region.id, position)
        found = self._region.context.objects.get(key)
        if found is None:
            raise Corrupt("a committed entry is gone", **self._region.where, position=position, object=key)
        body = found.body
        try:
            with pa.ipc.open_stream(body) as stream:
                metadata = stream.schema.metadata or {}
                inner = stream.schema.field(len(stream.schema) - 1).metadata if len(stream.schema) else None
            epoch = int(metadata[b"writer_epoch"])
            declared = {**metadata, **(inner or {})}.get(b"lancelsm.entry_setsum")  # None: Lance's writer
            first = 8 + struct.unpack_from("<i", body, 4)[0]
        except (pa.ArrowException, KeyError, ValueError, OSError, struct.error) as error:
            raise Corrupt(f"not a WAL entry: {error!r}", **self._region.where, position=position, object=key) from error
        numbers = position.to_bytes(8, "big"), epoch.to_bytes(8, "big")
        message = bytes(memoryview(body)[:first])
        if declared is not None and len(declared) == len(_OWN_SUM):
            message = message.replace(declared, _OWN_SUM)
        summed = Setsum.of_item(*numbers, message, memoryview(body)[first:])
        return summed, len(body), declared in (None, summed.hex().encode())

    def _hint(self) -> int:
        found = self._region.context.objects.get(version_hint(self._region.id))
        numbers = _NUMBER.findall(found.body.decode(errors="replace")) if found else []
        return int(numbers[0]) if len(numbers) == 1 else 0

    def _is_named_as(self, item: GarbageItem, name: str) -> bool:
        digits = format(item.number, "064b")[::-1]
        match item.kind:
            case GarbageKind.GENERATION:
                return (  # guard: path of a generation has its number
                    re.fullmatch(rf"[0-9a-f]{{8}}_gen_{item.number}", name) is not None
                )
            case GarbageKind.ENTRY:
                return name == f"wal/{digits}.arrow"  # guard: path of an entry has its position
            case GarbageKind.STAGED:
                return (  # guard: path of a staged manifest has its version
                    re.fullmatch(rf"manifest/staged/{item.number}-[0-9a-f]{{32}}\.binpb", name) is not None
                )
            case GarbageKind.PUBLISHED:
                return name == f"manifest/{digits}.binpb"  # guard: path of a published manifest has its version
            case GarbageKind.LIST:
                return (  # guard: path of a list has its round
                    re.fullmatch(rf"gc/{item.number}-[0-9a-f]{{32}}\.binpb", name) is not None
                )
        return False  # guard: round of a region keeps the base

    def _path(self) -> str:
        return f"_mem_wal/{self._region.id}/gc/{self._round.number}"

    def _refuse(self, item: GarbageItem, why: str) -> NoReturn:
        raise Corrupt(
            f"round {self._round.number} would delete {item.kind.value} {item.number}: {why}",
            remedy="Nothing was deleted. Collect again",
            **self._region.where,
            object=item.path,
        )

    def _overtaken(self, item: GarbageItem, pin: Pin) -> NoReturn:
        raise Contended(
            f"{pin.kind} {pin.name} needs {item.path}",
            **self._region.where,
            object=item.path,
        )

    def _wrong_sum(self, what: str, last: int) -> NoReturn:
        """Raise for the entries from the manifest's floor to `last`."""
        if self._damaged:
            raise Corrupt(
                f"{what}: entry {self._damaged[0]} does not have the sum that it declares",
                remedy="Nothing was deleted. Restore it from a copy of the bucket",
                **self._region.where,
                position=self._damaged[0],
                object=wal_entry(self._region.id, self._damaged[0]),
            )
        raise Corrupt(
            f"{what}, although each entry has the sum that it declares",
            remedy="Nothing was deleted. An entry was replaced by another one: restore it from a copy of the bucket",
            **self._region.where,
            position=f"{self._manifest.first_position}..{last}",
            object=f"_mem_wal/{self._region.id}/wal/",
        )

    def _unbalanced(self, what: str) -> NoReturn:
        raise Corrupt(
            what,
            remedy="Nothing was deleted. lancelsm scrub lists all damage",
            **self._region.where,
            object=self._head.manifest_key,
        )


def _summed_from(manifest: Manifest) -> int:
    """Return the first position in the sums of the manifest."""
    for index, g in enumerate(manifest.generations):
        if g.folded is not None:
            return g.folded.first if index else 1
    return manifest.replay_after + 1 if manifest.generations else 1


def _bounds(manifest: Manifest) -> dict[Position, Setsum]:
    """Return the positions at which the sum of the log is known, each with the sum of the log through it."""
    folded = [g.folded for g in manifest.generations if g.folded is not None]
    total = manifest.collected_entries
    bounds = {Position(folded[0].first - 1 if folded else manifest.replay_after): total}
    for one in folded:
        total += one.entry_setsum
        bounds[one.last] = total
    return bounds
