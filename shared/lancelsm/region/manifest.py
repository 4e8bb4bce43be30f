"""The manifest of a region: its generations, and the position up to which the log was flushed into them.

A manifest is an immutable value, and each change of it is a pure function below. `manifest_invariants` checks what
always holds, and `manifest_codec` has the bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lancelsm.common.layout import (
    Epoch,
    Generation,
    Position,
    RegionId,
    Version,
)
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Contended
from lancelsm.region.head import LogTotals
from lancelsm.region.producers import Producers

if TYPE_CHECKING:
    from lancelsm.record.key_bounds import Bounds

_SPANS_IN_HEAD = 16
_NO_POSITION = Position(0)  # before the first entry
_FIRST_POSITION = Position(1)
_FIRST_GENERATION = Generation(1)
_NO_EPOCH = Epoch(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushedRange:
    """The entries from which a generation was flushed, `first` through `last`, and the sums that prove it."""

    first: Position
    last: Position
    entry_setsum: Setsum
    row_setsum: Setsum
    file_setsum: Setsum | None = None  # None: flushed by an earlier release
    bloom_setsum: Setsum | None = None  # None: flushed by an earlier release
    key_index_setsums: tuple[Setsum, ...] = ()  # of each file of KEY_INDEX_FILES; empty: flushed by an earlier release


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationIndexes:
    """The indexes of a generation: it has every index of the wanted list with this number.

    `version` is the Lance version of its directory that has them, `setsum` the sum of their files.
    """

    number: int
    version: int
    setsum: Setsum


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationKeys:
    """Which keys a generation may have, those of tombstones included.

    `bounds` are those of each key column (`record.key_bounds`). The key filter has `filter_blocks` blocks
    (`dataset.key_filter`), and its file has the sum `filter_setsum`.
    """

    bounds: tuple[Bounds, ...]
    filter_blocks: int
    filter_setsum: Setsum

    def sum_at(self, path: str) -> Setsum:
        """Return the sum over all of this and the path of the generation. A flipped bit could hide existing keys."""
        ends = (b"" if end is None else b"+" + end for bounds in self.bounds for end in bounds)
        pieces = (path.encode(), str(self.filter_blocks).encode(), self.filter_setsum.digest(), *ends)
        return Setsum.of_pieces(len(piece).to_bytes(4, "little") + piece for piece in pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushedGeneration:
    """One generation in a manifest. `folded` is None if Lance's own writer flushed it.

    A compaction makes one generation of several. It has the number of its newest part, and `first_number` is that of
    its oldest one. The range of its entries is that of all parts.
    """

    generation: Generation
    path: str  # directory name below the region
    rows: int | None  # as stored, tombstones included
    bytes: int | None
    folded: FlushedRange | None = None
    indexes: GenerationIndexes | None = None  # None: it has no index that readers may rely on
    keys: GenerationKeys | None = None  # None: it may have any key; Lance or an earlier release flushed it
    first_number: Generation | None = None  # None: a flush wrote it

    @property
    def index_number(self) -> int:
        """The number of the list of indexes that it has; 0 if it has none."""
        return 0 if self.indexes is None else self.indexes.number

    @property
    def numbers(self) -> range:
        """The numbers of the generations that a flush wrote and that this one replaces, or its own number."""
        return range(self.generation if self.first_number is None else self.first_number, self.generation + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of the manifest of a region.

    `replay_after`, the replay point, is the last position that is in a generation (0: there is no generation); the
    entries after it are the tail. `entry_setsum`, `wal_rows`, `wal_bytes` and `producers` are the values of the
    head at that position, so head - manifest = tail. `collected_*` are the sums of the generations that were collected,
    so listed + collected = total. `collector_committed` is the time in Unix seconds at which the newest collection
    round was committed. `compactions` is the number of compactions of generations that were ever committed.
    """

    region: RegionId
    spec_id: int
    values: tuple[tuple[str, bytes], ...]  # without null values
    version: Version
    epoch: Epoch
    replay_after: Position = _NO_POSITION
    current_generation: Generation = _FIRST_GENERATION  # the number of the next flush
    generations: tuple[FlushedGeneration, ...] = ()
    sealed: bool = False
    first_position: Position = _FIRST_POSITION
    entry_setsum: Setsum = field(default_factory=Setsum)
    wal_rows: int = 0
    wal_bytes: int = 0
    producers: Producers = field(default_factory=dict)
    replay_epoch: Epoch = _NO_EPOCH  # the epoch of the entry at the replay point
    collected_entries: Setsum = field(default_factory=Setsum)
    collected_rows: Setsum = field(default_factory=Setsum)
    collector_round: int = 0
    collector_key: str = ""
    collector_setsum: Setsum = field(default_factory=Setsum)
    collector_committed: float = 0.0
    last_seen: Position = _NO_POSITION  # end of the log when this was written; a hint for Lance's writers
    index_number: int = 0  # the lowest number of the wanted list of indexes that a flush may build for
    foreign: bool = False  # of a shard that is not a region: its rows below `first_position` were routed to regions
    compactions: int = 0

    @property
    def totals(self) -> LogTotals:
        """The totals of the log through the replay point."""
        return LogTotals(
            entry_setsum=self.entry_setsum,
            wal_rows=self.wal_rows,
            wal_bytes=self.wal_bytes,
            producers=self.producers,
            epoch=self.replay_epoch,
        )

    @property
    def newest(self) -> Generation:
        """The number of the newest generation ever flushed; 0 if there is none yet."""
        return Generation(self.current_generation - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """The transition can never apply any more, because another one was faster. Its objects are orphans."""

    why: str


class IndexesChanged(Contended):
    """An index was created while a generation was written without it. Nothing was committed: write it again."""

    required = 0  # the number of the list that the manifest requires


def flushed(
    manifest: Manifest, *, after: Position, built: FlushedGeneration, at_end: LogTotals, index_number: int = 0
) -> Manifest | Superseded:
    """Add a flushed generation to the manifest.

    Args:
        after: the replay point from which the flush was planned.
        built: the new generation.
        at_end: the totals of the log up to the last position of the generation.
        index_number: the number of the wanted list of indexes that the generation was built for.

    Returns:
        The next manifest; the same manifest if it already lists the path of the generation; `Superseded` if another
        flush took the range or the number.

    Raises:
        IndexesChanged: the manifest requires a later list of indexes.
    """
    if any(g.path == built.path for g in manifest.generations):
        return manifest
    if manifest.replay_after != after or manifest.current_generation != built.generation:
        return Superseded(
            why=f"planned generation {built.generation} after position {after}, but the manifest is at generation "
            f"{manifest.current_generation} after position {manifest.replay_after}"
        )
    if built.folded is None:
        raise ValueError("a flushed generation needs its range of entries")
    if index_number < manifest.index_number:  # guard: flush builds every index of the list in the head
        raise _indexes_changed(manifest, index_number, remedy="Flush again")
    return replace(
        manifest,
        replay_after=built.folded.last,
        last_seen=max(manifest.last_seen, built.folded.last),
        current_generation=Generation(built.generation + 1),
        generations=(*manifest.generations, built),
        entry_setsum=at_end.entry_setsum,
        wal_rows=at_end.wal_rows,
        wal_bytes=at_end.wal_bytes,
        producers=at_end.producers,
        replay_epoch=at_end.epoch,
        index_number=index_number,
    )


def _indexes_changed(manifest: Manifest, index_number: int, *, remedy: str) -> IndexesChanged:
    outdated = IndexesChanged(
        f"an index was created while the generation was written: it was built for list {index_number}, but the "
        f"manifest requires list {manifest.index_number}",
        remedy=remedy,
        region=manifest.region,
    )
    outdated.required = manifest.index_number
    return outdated


def compacted(
    manifest: Manifest,
    *,
    parts: Collection[str],
    built: FlushedGeneration,
    collector_round: int,
    index_number: int = 0,
) -> Manifest | Superseded:
    """Replace neighbouring generations by one that has the newest row of each of their keys.

    Args:
        parts: the paths of these generations.
        built: the generation that replaces them.
        collector_round: of the manifest from which the compaction was planned. A later round may delete the directory
            of `built`, which no manifest listed and whose number is used.
        index_number: the number of the wanted list of indexes that the generation was built for.

    Returns:
        The next manifest; the same manifest if it already lists the path of the generation; `Superseded` if a part is
        not listed any more, or a collection round was committed since.

    Raises:
        IndexesChanged: the manifest requires a later list of indexes.
    """
    if any(g.path == built.path for g in manifest.generations):
        return manifest
    listed = [at for at, g in enumerate(manifest.generations) if g.path in parts]
    if len(listed) != len(parts):  # guard: parts of a compaction are still listed
        return Superseded(why=f"generations {built.numbers.start} to {built.generation} are not all listed any more")
    if manifest.collector_round != collector_round:  # guard: no round was committed during a compaction
        return Superseded(
            why=f"planned after collection round {collector_round}, but the manifest is after round "
            f"{manifest.collector_round}, which may delete the new directory"
        )
    if index_number < manifest.index_number:  # guard: compaction builds every index of the list in the head
        raise _indexes_changed(manifest, index_number, remedy="Compact again")
    before, after = manifest.generations[: listed[0]], manifest.generations[listed[-1] + 1 :]
    return replace(
        manifest,
        generations=(*before, built, *after),
        compactions=manifest.compactions + 1,
        index_number=index_number,
    )


def joined_range(parts: Sequence[FlushedGeneration]) -> tuple[Position, Position, Setsum] | None:
    """Return the first and last entry of neighbouring generations, and the sum of all; None if Lance flushed one."""
    ranges = [g.folded for g in parts if g.folded]
    if len(ranges) < max(1, len(parts)):
        return None
    return ranges[0].first, ranges[-1].last, sum((one.entry_setsum for one in ranges), start=Setsum.ZERO)


def missing_numbers(spans: Iterable[range], *, above: int, newest: int) -> list[int]:
    """Return the numbers from `above` + 1 to `newest` that none of these spans of generations has.

    The first span may begin below: a compacted generation may have rows that the base has too, or newer ones.
    """
    missing: list[int] = []
    reached = above
    for span in sorted(spans, key=lambda span: span.start):
        missing += range(reached + 1, min(span.start, newest + 1))
        reached = max(reached, span.stop - 1)
    return [*missing, *range(reached + 1, newest + 1)]


def with_spans(
    generations: Iterable[FlushedGeneration], known: Iterable[FlushedGeneration]
) -> tuple[FlushedGeneration, ...]:
    """Restore the first numbers, which Lance's writer drops, from known generations with the same paths."""
    firsts = {g.path: g.first_number for g in known}
    return tuple(replace(g, first_number=firsts.get(g.path)) for g in generations)


def live_numbers(manifest: Manifest, *, above: int) -> str:
    """Return the spans of compacted generations that end above a number, as the head records them: the newest 16.

    The head stays small. A generation whose span is left out counts as several until its merge is reported.
    """
    spans = [g.numbers for g in manifest.generations if g.generation > above and len(g.numbers) > 1]
    return " ".join(f"{span.start}-{span.stop - 1}" for span in spans[-_SPANS_IN_HEAD:])


def requiring_indexes(manifest: Manifest, number: int) -> Manifest:
    """Return a manifest that refuses flushes that were built for a list of indexes with a lower number."""
    return manifest if manifest.index_number >= number else replace(manifest, index_number=number)


def with_indexes(manifest: Manifest, *, path: str, indexes: GenerationIndexes) -> Manifest | Superseded:
    """Record the indexes of a listed generation, which were built after its flush."""
    if not any(g.path == path for g in manifest.generations):
        return Superseded(why=f"generation {path} was collected")
    changed = tuple(
        replace(g, indexes=indexes) if g.path == path and g.index_number < indexes.number else g
        for g in manifest.generations
    )
    return manifest if changed == manifest.generations else replace(manifest, generations=changed)


def with_epoch(manifest: Manifest, *, epoch: Epoch, last_seen: Position) -> Manifest:
    """Record the epoch of a claim; unchanged if a later claim was faster."""
    if manifest.epoch >= epoch:
        return manifest
    return replace(manifest, epoch=epoch, last_seen=max(manifest.last_seen, last_seen))


def with_seal(manifest: Manifest, *, epoch: Epoch, last_seen: Position) -> Manifest:
    """Seal the manifest. The log ends at `last_seen`: an object that a stalled writer puts after it is not an entry."""
    if manifest.sealed and manifest.epoch >= epoch:
        return manifest
    last_seen = manifest.last_seen if manifest.sealed else max(manifest.last_seen, last_seen)
    return replace(manifest, epoch=max(manifest.epoch, epoch), last_seen=last_seen, sealed=True)


def collected(
    manifest: Manifest,
    *,
    round_number: int,
    key: str,
    list_setsum: Setsum,
    first_position: Position,
    paths: frozenset[str],
    compactions: int = 0,
    at: float,
) -> Manifest | Superseded:
    """Commit a collection round: remove the generations that its list deletes, and raise the floor.

    Args:
        round_number: the number of this round; the manifest has the number before it.
        key, list_setsum: the key and the sum of the list of the round.
        first_position: the new floor of the log; WAL objects below it may be deleted.
        paths: the paths of the generations that are removed, which are the oldest ones.
        compactions: of the manifest from which the round was marked. The list may have the directory of a later
            compaction, which no manifest listed then.
        at: the current time in Unix seconds; readers of the removed generations started before.

    Returns:
        The next manifest; the same manifest if it already names this list; `Superseded` if another round was faster.
    """
    if manifest.collector_key == key:
        return manifest
    leaving = [g for g in manifest.generations if g.path in paths]
    if (
        manifest.collector_round != round_number - 1  # guard: committed round is the next one
        or manifest.compactions != compactions  # guard: no compaction was committed since the mark
        or len(leaving) != len(paths)
    ):
        return Superseded(
            why=f"planned round {round_number} after {compactions} compactions, but the manifest is after round "
            f"{manifest.collector_round} and {manifest.compactions} compactions"
        )
    folded = [g.folded for g in leaving if g.folded]
    return replace(
        manifest,
        generations=tuple(g for g in manifest.generations if g.path not in paths),
        first_position=max(manifest.first_position, first_position),
        collected_entries=sum((f.entry_setsum for f in folded), start=manifest.collected_entries),
        collected_rows=sum((f.row_setsum for f in folded), start=manifest.collected_rows),
        collector_round=round_number,
        collector_key=key,
        collector_setsum=list_setsum,
        collector_committed=at,
    )


def above(manifest: Manifest, counter: Generation) -> Manifest:
    """Return what readers of a base with this counter need: without the generations that the base has.

    Their sums count as collected. The same manifest, if Lance's own writer flushed one of them: it has no sums.
    """
    merged = [g for g in manifest.generations if g.generation <= counter]
    folded = [g.folded for g in merged if g.folded]
    if len(folded) < len(merged):
        return manifest
    return replace(
        manifest,
        generations=manifest.generations[len(merged) :],
        collected_entries=sum((f.entry_setsum for f in folded), start=manifest.collected_entries),
        collected_rows=sum((f.row_setsum for f in folded), start=manifest.collected_rows),
    )
