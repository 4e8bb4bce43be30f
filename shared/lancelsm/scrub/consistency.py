"""What head, manifest and log must say of each other: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from lancelsm.common.layout import Position
from lancelsm.common.setsum import Setsum
from lancelsm.region import manifest as manifests
from lancelsm.region.head import Head, RegionState, Summary
from lancelsm.region.manifest import Manifest

_SAME = ("first_position", "current_generation", "collector_round")


def manifest_problems(manifest: Manifest) -> list[str]:
    """What no manifest may be, whatever came before it."""
    return manifests.violations(None, manifest)


def head_problems(head: Head, manifest: Manifest) -> list[str]:
    """What a head and the manifest that it names contradict each other in."""
    found = [
        f"{name} is {getattr(head, name)}, the manifest's {getattr(manifest, name)}"
        for name in _SAME
        if getattr(head, name) != getattr(manifest, name)
    ]
    if head.manifest_version != manifest.version:
        found.append(f"it names version {head.manifest_version}, the manifest is version {manifest.version}")
    if head.manifest_epoch != manifest.epoch:
        found.append(f"manifest_epoch is {head.manifest_epoch}, the manifest's epoch {manifest.epoch}")
    if head.epoch < head.manifest_epoch:
        found.append(f"the epoch {head.epoch} is below the manifest's, {head.manifest_epoch}")
    if head.next_position <= manifest.replay_after:
        found.append(f"the log ends at {head.next_position - 1}, before the replay point {manifest.replay_after}")
    if manifest.sealed and head.status is not RegionState.SEALED:
        found.append("it is open, the manifest is sealed")
    if not 0 <= head.merged <= manifest.newest:
        found.append(f"merged is {head.merged}, the newest generation {manifest.newest}")
    return found


def tail_problems(head: Head, manifest: Manifest, entries: Sequence[Summary]) -> list[str]:
    """Whether head = manifest + the entries after its replay point, but for the sum of the entries."""
    counted = manifest.totals.after(entries)
    found = [
        f"{name} is {getattr(head, name)}, manifest and log say {getattr(counted, name)}"
        for name in ("wal_rows", "wal_bytes")
        if getattr(head, name) != getattr(counted, name)
    ]
    if dict(head.applied_sequences) != dict(counted.applied_sequences):
        found.append(
            f"source is {dict(head.applied_sequences)}, manifest and log say {dict(counted.applied_sequences)}"
        )
    return found


def ranges(manifest: Manifest, *, first: Position, discarded: Setsum) -> Iterator[tuple[Position, Position, Setsum]]:
    """The stretches of the log from `first` through the replay point, and what the entries of each must sum to.

    Args:
        discarded: of the entries below `first`, of which the first stretch may have some.
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
    """Positions whose entry is of an older epoch than the entry before."""
    ordered = sorted(entries)
    return [b for a, b in pairwise(ordered) if entries[b].epoch < entries[a].epoch]
