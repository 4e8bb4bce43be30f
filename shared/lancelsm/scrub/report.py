"""What a scrub found."""

from __future__ import annotations

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
    LIST = "list"
    SNAPSHOT = "snapshot"
    CURSOR = "cursor"
    LEASE = "lease"
    BASE = "base"  # a version of it
    BASE_FILE = "base_file"
    DELETION = "deletion"
    INDEX = "index"
    TAG = "tag"
    FOREIGN = "foreign"  # what nobody of ours put there, where it does harm


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An object that is wrong. `path` is its key below the table, of a record `partition/sort`."""

    path: str
    kind: ObjectKind
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that a scrub found.

    Args:
        checked: how many objects and records were read.
        orphans: objects of regions that nothing names. A crash leaves them, a collection removes them: no problem.
        complete: False if the limit ended it.
    """

    checked: int
    problems: tuple[Problem, ...]
    orphans: int
    complete: bool

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(slots=True, kw_only=True)
class Tally:
    """A report in the making."""

    limit: int | None = None  # of objects
    checked: int = 0
    orphans: int = 0
    complete: bool = True
    _problems: dict[Problem, None] = field(default_factory=dict)

    def take(self, objects: int = 1) -> bool:
        """Whether so many more objects may be read; counts them if so."""
        if self.limit is not None and self.checked + objects > self.limit:
            self.complete = False
            return False
        self.checked += objects
        return True

    def add(self, path: str, kind: ObjectKind, problem: str) -> None:
        self._problems[Problem(path=path, kind=kind, problem=problem)] = None

    def names(self, path: str) -> bool:
        """Whether something is wrong with what has this path, or one that begins with it."""
        return any(problem.path.startswith(path) for problem in self._problems)

    def apart(self) -> Tally:
        """A tally with what is left of the limit, to be adopted."""
        return Tally(limit=None if self.limit is None else max(0, self.limit - self.checked))

    def adopt(self, other: Tally, *, held: bool) -> None:
        """Take over what another tally counted, and its problems if what they are about is still held."""
        self.checked += other.checked
        self.complete &= other.complete
        if held:
            self._problems |= other._problems

    def report(self) -> Report:
        return Report(
            checked=self.checked, problems=tuple(self._problems), orphans=self.orphans, complete=self.complete
        )


def record_path(key: Key) -> str:
    return f"{key.partition}/{key.sort}"


def head_path(region: Region) -> str:
    """The record of a region's head."""
    return record_path(head_key(region.context.table, region.id))


def problem_of(error: LsmError) -> str:
    """An error as a sentence of a report."""
    return error.message
