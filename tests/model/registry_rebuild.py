"""Rebuild a lost head from storage: docs/concepts/storage.md, "Rebuild".

Writers append; one of them stalls in the first epoch and leaves entries behind; another claims. A flush stages, swaps
and publishes; its generation is merged; everything below the floor is swept. At any moment the registry is lost, all
processes stop, and a head is derived from storage. An entry is its number. A generation holds the entries up to its
last position. Two things prove damage: a fence above the last entry that counts, and a committed position above it that
the head or a manifest recorded. A log without damage must show neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    PUBLISHED_ONLY = "only the newest published manifest counts; a staged manifest proves nothing"
    EPOCH_RISES = "entries count as long as epochs do not fall"
    EPOCH_AT_REPLAY = "epochs start at that of the entry at the replay point, which the manifest records"
    CONTIGUOUS = "entries count up to the first hole"
    ABOVE_COUNTER = "the next generation is above the merged counter of the base"
    PUBLISHED_BEFORE_SWEEP = "a sweep waits until the manifest that dropped the objects is published"


class Manifest(NamedTuple):
    version: int = 1
    replayed: int = 0
    generations: tuple[tuple[int, int], ...] = ()  # (number, last position)
    newest: int = 0
    epoch: int = 0  # epoch of the entry at the replay point


class Object(NamedTuple):
    entry: int
    epoch: int
    refused: bool = False  # its writer got `Fenced`


class State(NamedTuple):
    epoch: int
    log: tuple[tuple[int, int], ...]  # acknowledged (entry, epoch), in order
    objects: tuple[tuple[int, Object], ...]
    manifest: Manifest
    staged: tuple[Manifest, ...]  # manifests of flushes that were not committed
    published: Manifest
    kept: frozenset[tuple[int, int]]  # generations in storage
    base: tuple[int, int] = (0, 0)  # entries up to here are in the base, counter
    fenced: bool = True  # the fence of the epoch is in the log
    rebuilt: tuple[int, ...] | None = None  # the entries that a reader sees after a rebuild, oldest first


FENCE = 0
HOLE = -1


@dataclass(frozen=True, slots=True)
class RegistryRebuild:
    without: Guard | None = None
    entries: int = 3

    def initial(self) -> State:
        return State(1, (), (), Manifest(), (), Manifest(), frozenset())

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        if state.rebuilt is not None:
            return
        yield from self._append(state)
        yield from self._flush(state)
        yield from self._sweep(state)
        yield Step("rebuild", "from storage"), state._replace(rebuilt=self._rebuilt(state))

    def violation(self, state: State) -> Violation | None:
        if state.rebuilt is None:
            return None
        acknowledged = [entry for entry, _ in state.log if entry != FENCE]
        seen = [entry for entry in state.rebuilt if entry != FENCE]
        if acknowledged and not set(acknowledged) <= set(seen):
            return Violation("acknowledged row lost", f"{acknowledged}, rebuilt {seen}")
        if HOLE in seen:
            return Violation("hole in the log", f"{seen}")
        refused = {found.entry for _, found in state.objects if found.refused}
        if refused & set(seen):
            return Violation("refused row in the log", f"{refused & set(seen)}: {seen}")
        end = state.published.replayed + len(self._counted(state, state.published))
        proofs = [at for at, found in state.objects if at > end + 1 and found.entry == FENCE]
        if proofs or len(state.log) > end:
            return Violation("healthy log refused", f"fences at {proofs}, the log ends at {end}")
        return None

    def _append(self, state: State) -> Iterator[tuple[Step, State]]:
        n = len(state.log) + 1
        objects = dict(state.objects)
        found = objects.get(n)
        number = max([*(entry for entry, _ in state.log), *(item.entry for item in objects.values())], default=0) + 1
        if number <= self.entries and state.fenced:
            if found is None or found.epoch < state.epoch:
                objects[n] = Object(number, state.epoch)
            if objects[n].entry == number:
                appended = state._replace(
                    log=(*state.log, (number, state.epoch)), objects=tuple(sorted(objects.items()))
                )
                yield Step("writer", f"append {number}"), appended
            if found is None:
                for ahead in (0, 1, 2) if state.epoch == 1 else ():
                    if n + ahead not in objects:
                        left = {**dict(state.objects), n + ahead: Object(number, 1)}
                        yield (
                            Step("zombie", f"put {number} at {n + ahead}"),
                            state._replace(objects=tuple(sorted(left.items()))),
                        )
        if state.epoch == 1:
            yield Step("claimer", "swap epoch"), state._replace(epoch=2, fenced=False)
        elif not state.fenced:
            objects[n] = Object(FENCE, state.epoch)
            refused = tuple(
                (at, item._replace(refused=True) if at > n else item) for at, item in sorted(objects.items())
            )
            fenced = state._replace(log=(*state.log, (FENCE, state.epoch)), objects=refused, fenced=True)
            yield Step("claimer", "append fence"), fenced

    def _flush(self, state: State) -> Iterator[tuple[Step, State]]:
        manifest = state.manifest
        number = manifest.newest + 1
        if manifest.version == state.published.version:
            for last in range(manifest.replayed + 1, len(state.log) + 1):
                generations = (*manifest.generations, (number, last))
                new = Manifest(manifest.version + 1, last, generations, number, state.log[last - 1][1])
                written = state._replace(kept=state.kept | {(number, last)})
                committed = written._replace(manifest=new)
                yield Step("flush", f"commit to {last}"), committed
                if not state.staged:
                    yield Step("flush", f"stage to {last}, stop"), written._replace(staged=(new,))
        else:
            yield Step("flush", "publish"), state._replace(published=manifest)
        if manifest.newest > state.base[1]:
            merged = (manifest.replayed, manifest.newest)
            yield Step("merge", f"generation {manifest.newest}"), state._replace(base=merged)

    def _sweep(self, state: State) -> Iterator[tuple[Step, State]]:
        """Delete entries up to the replay point, and generations that are merged or that the manifest does not name."""
        manifest = state.manifest
        if manifest.version != state.published.version and self.without is not Guard.PUBLISHED_BEFORE_SWEEP:
            return
        # Fences and leftovers above the replay point stay.
        objects = tuple(item for item in state.objects if item[0] > manifest.replayed)
        if len(objects) < len(state.objects):
            yield Step("sweep", "entries"), state._replace(objects=objects)
        named = {item for item in manifest.generations if item[0] > state.base[1]}
        orphans = {item for item in state.kept - named if item[0] <= manifest.newest}
        if orphans:
            yield Step("sweep", f"generations {sorted(orphans)}"), state._replace(kept=state.kept - orphans)

    def _rebuilt(self, state: State) -> tuple[int, ...]:
        manifest = state.published
        if self.without is Guard.PUBLISHED_ONLY:
            manifest = max((*state.staged, state.manifest, manifest), key=lambda found: found.version)
        position, counter = state.base
        history = {at: entry for at, (entry, _) in enumerate(state.log, 1)}
        seen = [history[at] for at in range(1, position + 1)]
        for number, last in manifest.generations:
            if number > counter and (number, last) in state.kept:
                seen += [history[at] for at in range(1, last + 1)]
        replayed = self._counted(state, manifest)
        # The tail becomes the next generation. Readers skip it if its number is not above the counter.
        generation = manifest.newest + 1
        if self.without is not Guard.ABOVE_COUNTER:
            generation = max(generation, counter + 1)
        return tuple(seen + (replayed if generation > counter else []))

    def _counted(self, state: State, manifest: Manifest) -> list[int]:
        """Return the entries after the manifest's replay point that count."""
        replayed: list[int] = []
        objects = dict(state.objects)
        highest_epoch = 0 if self.without is Guard.EPOCH_AT_REPLAY else manifest.epoch
        for at in range(manifest.replayed + 1, max(objects, default=0) + 1):
            found = objects.get(at)
            if found is None:
                if self.without is Guard.CONTIGUOUS:
                    replayed.append(HOLE)
                    continue
                break
            if found.epoch < highest_epoch and self.without is not Guard.EPOCH_RISES:
                break
            highest_epoch = max(highest_epoch, found.epoch)
            replayed.append(found.entry)
        return replayed
