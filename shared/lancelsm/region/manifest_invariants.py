"""Check the invariants of a manifest, and of the step from one manifest to the next."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from lancelsm.region.manifest import FlushedGeneration, Manifest, joined_range

_NEVER_DECREASE = (
    "epoch",
    "replay_epoch",
    "replay_after",
    "current_generation",
    "first_position",
    "wal_rows",
    "wal_bytes",
    "collector_round",
    "index_number",
    "compactions",
)


def violations(old: Manifest | None, new: Manifest) -> list[str]:
    """Return the invariants that `new` breaks, as text; empty if it may follow `old` (None: it is the first one)."""
    return [*_inner_violations(new), *(_step_violations(old, new) if old else [])]


def _inner_violations(m: Manifest) -> list[str]:
    broken = []
    numbers = [g.generation for g in m.generations]
    spans = [g.numbers for g in m.generations]
    if spans and [span.stop for span in spans] != [*(span.start for span in spans[1:]), m.current_generation]:
        broken.append(f"generations {numbers} are not contiguous up to {m.current_generation - 1}")
    broken += [
        f"generation {g.generation} has the empty range {g.folded.first}..{g.folded.last}"
        for g in m.generations
        if g.folded and g.folded.last < g.folded.first
    ]
    for a, b in pairwise(m.generations):
        if a.folded and b.folded and b.folded.first != a.folded.last + 1:
            broken.append(
                f"generation {b.generation} starts at {b.folded.first}, the one before ends at {a.folded.last}"
            )
    if m.generations:
        end = m.generations[-1].folded
        if end and end.last != m.replay_after:
            broken.append(f"the newest generation ends at {end.last}, but the replay point is {m.replay_after}")
    sums = [g.folded.entry_setsum for g in m.generations if g.folded]
    if len(sums) == len(m.generations) and sum(sums, start=m.collected_entries) != m.entry_setsum:
        broken.append("the sums of listed and collected generations do not add up to the sum at the replay point")
    if m.first_position > m.replay_after + 1:
        broken.append(f"the floor {m.first_position} is above the replay point {m.replay_after}")
    return broken


def _step_violations(old: Manifest, new: Manifest) -> list[str]:
    broken = []
    if (new.region, new.spec_id, new.values) != (old.region, old.spec_id, old.values):
        broken.append("the manifest belongs to another region")
    if new.version != old.version + 1:
        broken.append(f"version {new.version} does not follow {old.version}")
    broken += [
        f"{name} decreases from {getattr(old, name)} to {getattr(new, name)}"
        for name in _NEVER_DECREASE
        if getattr(new, name) < getattr(old, name)
    ]
    if old.sealed and not new.sealed:
        broken.append("a sealed region is opened again")
    added = [g.folded.first for g in new.generations if g.generation >= old.current_generation and g.folded]
    if added and added[0] != old.replay_after + 1:
        broken.append(f"the next generation starts at {added[0]}, but the replay point was {old.replay_after}")
    kept = {g.generation: g for g in new.generations}
    oldest = new.generations[0].numbers.start if new.generations else new.current_generation
    replaced = {part.path for g in new.generations for part in _parts(old, g)}
    broken += [
        f"generation {g.generation} was changed or is missing"
        for g in old.generations
        if g.generation >= oldest and g.path not in replaced and not _same_rows(g, kept.get(g.generation))
    ]
    return broken


def _parts(old: Manifest, new: FlushedGeneration) -> list[FlushedGeneration]:
    """Return the generations that a new one replaces; none if it does not have exactly their numbers and entries."""
    parts = [g for g in old.generations if g.generation in new.numbers]
    if len(parts) < 2 or new.folded is None or parts[0].numbers.start != new.numbers.start:
        return []
    ours = new.folded.first, new.folded.last, new.folded.entry_setsum
    return parts if parts[-1].generation == new.generation and joined_range(parts) == ours else []


def _same_rows(old: FlushedGeneration, new: FlushedGeneration | None) -> bool:
    """Return whether a generation is the same, apart from indexes of a later list."""
    if new is None or replace(new, indexes=old.indexes) != old:
        return False
    return new.indexes == old.indexes or new.index_number > old.index_number
