"""Scrub the log of a region: each entry, the sums of ranges of entries, and objects above the head."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from lancelsm.common.layout import Position, wal_entry, wal_position, wal_prefix
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, Invalid
from lancelsm.objects import Listed
from lancelsm.record.rowsum import row_setsum
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head, Summary
from lancelsm.region.manifest import Manifest
from lancelsm.scrubbing.consistency import epoch_falls, ranges, tail_problems
from lancelsm.scrubbing.report import ObjectKind, Tally, head_path, problem_of
from lancelsm.scrubbing.suspects import Still, Suspects, always, while_named
from lancelsm.wal.entry import Entry, decode
from lancelsm.wal.replay import LogEnd

_AT_ONCE = 64  # entries in memory


@dataclass(slots=True, kw_only=True)
class LogScrub:
    """Reads the log of one region, each entry only once."""

    region: Region
    tally: Tally
    suspects: Suspects
    _entries: dict[Position, Summary | None] = field(default_factory=dict)  # None: missing or damaged
    _left: set[Position] = field(default_factory=set)  # left out

    def has(self, position: Position) -> bool:
        """Return whether there is an object at this position."""
        return self.region.context.objects.get(wal_entry(self.region.id, position)) is not None

    def read(self, end: LogEnd, *, first: Position) -> None:
        """Read the entries from `first` to the end, except those that were read or left out before."""
        seen = self._entries.keys() | self._left
        wanted = [Position(p) for p in range(first, end.next_position) if Position(p) not in seen]
        for at in range(0, len(wanted), _AT_ONCE):
            some = wanted[at : at + _AT_ONCE]
            chunk = [p for p in some if self.tally.reads(f"2/{p:020}")]
            self._left.update(set(some) - set(chunk))
            for position, summary in self.region.context.each(self._entry, chunk):
                self._entries[position] = summary
        found = {p: s for p, s in self._entries.items() if s is not None}
        for position in epoch_falls(found):
            self._suspect_entry(position, "its epoch is below that of the entry before")

    def check_sums(self, manifest: Manifest, head: Head, *, discarded: Setsum | None) -> None:
        """Check the sum of the entries of each generation, the sum of the tail, and the totals of the head.

        Args:
            discarded: sum of the collected entries, from the newest round's list; None if that can't be read.
        """
        if discarded is not None:
            for first, last, wanted in ranges(manifest, first=head.first_position, discarded=discarded):
                self._check_range(first, last, wanted)
        path, still = head_path(self.region), while_named(head.manifest_key)
        if self.check_tail(manifest, head, record=path, kind=ObjectKind.HEAD, still=still):
            tail = [self._entries[Position(p)] for p in range(manifest.replay_after + 1, head.next_position)]
            for problem in tail_problems(head, manifest, [summary for summary in tail if summary is not None]):
                self.suspects.add(path, ObjectKind.HEAD, problem, still=still)

    def check_tail(
        self, manifest: Manifest, end: LogEnd, *, record: str, kind: ObjectKind, still: Still = always
    ) -> bool:
        """Return whether all entries after the replay point were read and have the sum in `end`.

        Args:
            record: path of the record with `end`. If all entries are intact, this record may be the wrong one.
        """
        first, last = Position(manifest.replay_after + 1), Position(end.next_position - 1)
        complete = self._check_range(first, last, end.entry_setsum - manifest.entry_setsum)
        if complete is False:
            text = f"it contradicts the entries {first}..{last}: they don't have the sum in it"
            self.suspects.add(record, kind, text, still=still)
        return bool(complete)

    def check_above(self, head: Head, listed: Iterable[Listed]) -> None:
        """Check objects above the head. A crashed writer leaves harmless ones; others would block the next append."""
        prefix = wal_prefix(self.region.id)
        entries = [(wal_position(found.key) if found.key.startswith(prefix) else None, found) for found in listed]
        for position, found in sorted(entries, key=lambda one: one[0] or 0):
            if position is None or position < head.next_position or not self.tally.reads(f"4/{position:020}"):
                continue
            body = self.region.context.objects.get(found.key)
            if body is None:
                continue
            try:
                entry = decode(body.body, position=position, key=found.key)
                if entry.summary.epoch < head.epoch or (entry.sound and entry.summary.epoch == head.epoch):
                    continue
                problem = "no writer of this epoch writes it, and it blocks the next entry"
            except Corrupt as error:
                problem = f"it blocks the next entry: {problem_of(error)}"
            self.suspects.add(found.key, ObjectKind.FOREIGN, problem, still=lambda later, _: later.epoch == head.epoch)

    def _entry(self, position: Position) -> tuple[Position, Summary | None]:
        key = wal_entry(self.region.id, position)
        found = self.region.context.objects.get(key)
        if found is None:
            self._suspect_entry(position, "it is gone")
            return position, None
        try:
            entry = decode(found.body, position=position, key=key)
            problem = _entry_problem(entry)
        except Corrupt as error:
            entry, problem = None, problem_of(error)
        if problem:
            self._suspect_entry(position, problem)
            return position, None
        assert entry is not None
        return position, entry.summary

    def _check_range(self, first: Position, last: Position, wanted: Setsum) -> bool | None:
        """Return whether these entries have the expected sum; None if some were not read."""
        found = [self._entries.get(Position(p)) for p in range(first, last + 1)]
        if None in found:
            return None
        if sum((summary.entry_setsum for summary in found if summary), start=Setsum.ZERO) == wanted:
            return True
        path = wal_entry(self.region.id, first) if first == last else wal_prefix(self.region.id)
        problem = f"the entries {first}..{last} are not those that were committed"
        self.suspects.add(path, ObjectKind.ENTRY, problem, still=_while_kept(first))
        return False

    def _suspect_entry(self, position: Position, problem: str) -> None:
        path = wal_entry(self.region.id, position)
        self.suspects.add(path, ObjectKind.ENTRY, problem, still=_while_kept(position))


def _while_kept(position: Position) -> Still:
    """Return the condition for a problem that counts until a later head has its floor above this position."""
    return lambda later, _: later.first_position <= position


def _entry_problem(entry: Entry) -> str:
    """Check an entry by itself. Return the problem, or an empty string. Entries of Lance's writer declare no sums."""
    if entry.nonce is not None and not entry.sound:
        return "its bytes don't have the sum that it declares"
    if entry.row_setsum is not None:
        try:
            total = row_setsum(entry.table()) if entry.summary.rows else Setsum.ZERO
        except (Invalid, pa.ArrowException, ValueError) as error:
            return f"its rows can't be read: {error}"
        if total != entry.row_setsum:
            return "its rows don't have the sum that it declares"
    return ""
