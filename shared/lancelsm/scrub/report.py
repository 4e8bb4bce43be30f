"""The report of a scrub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

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
    """A wrong object or record. `path` is the key relative to the table, or `partition/sort` of a record."""

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
        complete: False if the limit or the time ended the scrub.
    """

    checked: int
    problems: tuple[Problem, ...]
    orphans: int
    complete: bool
    unsummed: int = 0

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(slots=True, kw_only=True)
class Tally:
    """Collects the problems and counts of a report."""

    limit: int | None = None  # maximum number of objects
    has_time: Callable[[], bool] = lambda: True  # whether to read one more object
    checked: int = 0
    orphans: int = 0
    unsummed: int = 0
    complete: bool = True
    _problems: dict[Problem, None] = field(default_factory=dict)

    def count(self, objects: int = 1) -> bool:
        """Count objects that will be read; False, without counting, if the limit is reached or the time is over."""
        if (self.limit is not None and self.checked + objects > self.limit) or not self.has_time():
            self.complete = False
            return False
        self.checked += objects
        return True

    def add(self, path: str, kind: ObjectKind, problem: str) -> None:
        self._problems[Problem(path=path, kind=kind, problem=problem)] = None

    def names(self, path: str) -> bool:
        """Return whether there is a problem with this path, or with one that begins with it."""
        return any(problem.path.startswith(path) for problem in self._problems)

    def separate(self) -> Tally:
        """Return a new tally with the rest of the limit, for `merge`."""
        left = None if self.limit is None else max(0, self.limit - self.checked)
        return Tally(limit=left, has_time=self.has_time)

    def merge(self, other: Tally, *, held: bool) -> None:
        """Add the counts of another tally; and its problems, if the pin that they are about still exists (`held`)."""
        self.checked += other.checked
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
        )


def record_path(key: Key) -> str:
    return f"{key.partition}/{key.sort}"


def head_path(region: Region) -> str:
    """Return the path of the record of a region's head."""
    return record_path(head_key(region.context.table, region.id))


def problem_of(error: LsmError) -> str:
    """Return the text of an error for the report."""
    return error.message
