"""The report of a scrub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from lancelsm.common.html import records_html
from lancelsm.common.layout import Key, head_key
from lancelsm.errors import LsmError
from lancelsm.region.catalog import Region


class ObjectKind(StrEnum):
    CONFIG = "config"
    CATALOG = "catalog"
    HEAD = "head"
    STAGED = "staged"  # the manifest that a head or a snapshot names
    PUBLISHED = "published"
    HINT = "hint"
    ENTRY = "entry"
    GENERATION = "generation"
    PK_INDEX = "pk_index"
    BLOOM = "bloom"
    KEY_FILTER = "key_filter"
    LIST = "list"
    SNAPSHOT = "snapshot"
    CURSOR = "cursor"
    LEASE = "lease"
    BASE = "base"  # a version of the base
    STATEMENT = "statement"  # the statement of its files
    DELETED_KEYS = "deleted_keys"  # keys whose deletes were merged, with their sequences
    BASE_FILE = "base_file"
    DELETION = "deletion"
    INDEX = "index"
    TAG = "tag"
    FOREIGN = "foreign"  # a harmful object that lancelsm did not write


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A wrong object or record.

    Args:
        path: its key, relative to the table; of a record `partition/sort`.
        kind: what it is, such as `generation`.
        problem: what is wrong with it, in one sentence.
    """

    path: str
    kind: ObjectKind
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a scrub.

    Args:
        checked: number of objects and records that were read.
        orphans: number of objects of regions that nothing names. They are no problem: crashes leave them, and
            collections remove them.
        unsummed: number of files of the base without a sum, such as those of another tool. Nothing proves their bytes
            until the next merge or collection has summed them.
        complete: False if an object was left out: by the limit, by the time, or since the scrub began after it.
        next: where a scrub with `after` continues, if the limit or the time ended this one; else None.
    """

    checked: int
    problems: tuple[Problem, ...]
    orphans: int
    complete: bool
    unsummed: int = 0
    next: str | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def _repr_html_(self) -> str:
        """Show the problems in a notebook."""
        whole = "" if self.complete else ", not all"
        title = f"{self.checked:,} objects checked{whole}: {len(self.problems):,} problems, {self.orphans:,} orphans"
        return records_html(title, ("kind", "path", "problem"), map(asdict, self.problems))


@dataclass(slots=True, kw_only=True)
class Tally:
    """Collects the problems and counts of a report."""

    limit: int | None = None  # maximum number of objects, without those that are always read
    has_time: Callable[[], bool] = lambda: True  # whether to read one more object
    after: str = ""  # objects up to this one, in the order of a scrub, are left out
    section: str = ""  # the part of the table that is scrubbed now; sections have ascending names
    last: str = ""  # the last object that was read or left out
    read: int = 0  # objects that count against the limit
    ended: bool = False  # by the limit or the time
    checked: int = 0
    orphans: int = 0
    unsummed: int = 0
    complete: bool = True
    _problems: dict[Problem, None] = field(default_factory=dict)

    def count(self) -> None:
        """Count an object that is always read: a record, or what a record names."""
        self.checked += 1

    def reads(self, name: str) -> bool:
        """Count an object that will be read; False, without counting, if it is to be left out.

        Args:
            name: of the object in its section. The names that a scrub asks for ascend, so that a later scrub can
                continue after the last one.
        """
        name = f"{self.section}/{name}"
        if name <= self.after:
            self.complete = False
            return False
        if self.ended or (self.limit is not None and self.read >= self.limit) or not self.has_time():
            self.ended, self.complete = True, False
            return False
        self.last = name
        self.read += 1
        self.checked += 1
        return True

    def add(self, path: str, kind: ObjectKind, problem: str) -> None:
        self._problems[Problem(path=path, kind=kind, problem=problem)] = None

    def names(self, path: str) -> bool:
        """Return whether there is a problem with this path, or with one that begins with it."""
        return any(problem.path.startswith(path) for problem in self._problems)

    def separate(self) -> Tally:
        """Return a new tally with the rest of the limit, for `merge`."""
        left = None if self.limit is None else max(0, self.limit - self.read)
        return Tally(
            limit=left, has_time=self.has_time, after=self.after, section=self.section, last=self.last, ended=self.ended
        )

    def merge(self, other: Tally, *, held: bool) -> None:
        """Add the counts of another tally; and its problems, if the pin that they are about still exists (`held`)."""
        self.checked += other.checked
        self.read += other.read
        self.last = other.last
        self.ended |= other.ended
        self.complete &= other.complete
        self.unsummed += other.unsummed
        if held:
            self._problems |= other._problems

    def report(self) -> Report:
        return Report(
            checked=self.checked,
            problems=tuple(self._problems),
            orphans=self.orphans,
            complete=self.complete,
            unsummed=self.unsummed,
            next=(self.last or self.after) if self.ended else None,
        )


def record_path(key: Key) -> str:
    return f"{key.partition}/{key.sort}"


def head_path(region: Region) -> str:
    """Return the path of the record of a region's head."""
    return record_path(head_key(region.context.table, region.id))


def problem_of(error: LsmError) -> str:
    """Return the text of an error for the report."""
    return error.message
