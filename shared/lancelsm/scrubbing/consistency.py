"""Compare head, manifest and log with each other, without I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from lancelsm.common.layout import Position
from lancelsm.common.setsum import Setsum
from lancelsm.region import manifest_invariants
from lancelsm.region.head import Head, RegionState, Summary
from lancelsm.region.manifest import Manifest

_SAME = ("first_position", "current_generation", "collector_round")


def manifest_problems(manifest: Manifest) -> list[str]:
    """Return the violations of the invariants of a single manifest."""
    return manifest_invariants.violations(None, manifest)


def head_problems(head: Head, manifest: Manifest) -> list[str]:
    """Return the contradictions between a head and the manifest that it names."""
    found = [
        f"{name} is {getattr(head, name)}, but {getattr(manifest, name)} in the manifest"
        for name in _SAME
        if getattr(head, name) != getattr(manifest, name)
    ]
    if head.manifest_version != manifest.version:
        found.append(f"it names version {head.manifest_version}, but the manifest is version {manifest.version}")
    if head.manifest_epoch != manifest.epoch:
        found.append(f"manifest_epoch is {head.manifest_epoch}, but the manifest's epoch is {manifest.epoch}")
    if head.epoch < head.manifest_epoch:
        found.append(f"its epoch {head.epoch} is below the manifest's epoch {head.manifest_epoch}")
    if head.next_position <= manifest.replay_after:
        found.append(f"the log ends at {head.next_position - 1}, before the replay point {manifest.replay_after}")
    if manifest.sealed and head.status is not RegionState.SEALED:
        found.append("it is open, but the manifest is sealed")
    if not 0 <= head.merged <= manifest.newest:
        found.append(f"merged is {head.merged}, but the newest generation is {manifest.newest}")
    return found


def tail_problems(head: Head, manifest: Manifest, entries: Sequence[Summary]) -> list[str]:
    """Return how head and manifest + entries after the replay point differ, except in the setsum of the entries."""
    counted = manifest.totals.after(entries)
    found = [
        f"{name} is {getattr(head, name)}, but {getattr(counted, name)} by manifest and log"
        for name in ("wal_rows", "wal_bytes")
        if getattr(head, name) != getattr(counted, name)
    ]
    if head.producers != counted.producers:
        shown = [{one: (p.sequence, p.day) for one, p in each.producers.items()} for each in (head, counted)]
        found.append(f"source is {shown[0]}, but {shown[1]} by manifest and log")
    return found


def ranges(manifest: Manifest, *, first: Position, discarded: Setsum) -> Iterator[tuple[Position, Position, Setsum]]:
    """Yield the ranges of the log from `first` through the replay point, with the expected setsum of each.

    Args:
        discarded: setsum of the entries below `first`; the first range may have begun there.
    """
    total = manifest.collected_entries
    for generation in manifest.generations:
        folded = generation.folded
        if folded is None:
            continue
        total += folded.entry_setsum
        if folded.last < first:
            continue
        if folded.first >= first:
            yield folded.first, folded.last, folded.entry_setsum
        else:
            yield first, folded.last, total - discarded


def epoch_falls(entries: Mapping[Position, Summary]) -> list[Position]:
    """Return the positions whose entry has an older epoch than the entry before."""
    ordered = sorted(entries)
    return [b for a, b in pairwise(ordered) if entries[b].epoch < entries[a].epoch]
