"""Gather what a report of a table shows. Damage is no error here: it is one of the facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from lancelsm.common.layout import Generation, Position, RegionId
from lancelsm.dataset.base_table import BaseTable
from lancelsm.dataset.versions import BaseVersion, base_versions
from lancelsm.errors import Invalid, LsmError
from lancelsm.gc.base import Floor, read_floor
from lancelsm.gc.collect import Collected, collect
from lancelsm.history.cursor import list_cursors
from lancelsm.history.pin_records import Pin
from lancelsm.history.snapshot import list_snapshots
from lancelsm.read.problems import find_problems, promise_problems
from lancelsm.region.catalog import Region, regions
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.handle import TableHandle
from lancelsm.region.head import Head
from lancelsm.region.lineage import read_lineage
from lancelsm.region.manifest import Manifest
from lancelsm.region.resharding import read_resharding
from lancelsm.region.since import Since
from lancelsm.scrubbing.report import Report
from lancelsm.scrubbing.table import scrub

T = TypeVar("T")

VERSIONS = 100
CHECK_SECONDS = 10.0
PARTS = ("base: rows", "base: indexes", "base: versions", "generations", "log", "manifests", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem of the table, and what to do about it."""

    problem: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLevels:
    """What waits in a region, and what was done there.

    Args:
        generation_rows: of the generations that wait, as stored; None if another tool wrote one of them.
        waits_since: when the oldest row was written that is not in the base, in Unix seconds; None if no row waits, or
            the time is not known.
        rounds: collections of the region.
        collected: when the last of them was committed; None if there was none, or the time is not known.
    """

    wal_rows: int
    generations: int
    generation_rows: int | None
    merged: Generation
    newest: Generation
    waits_since: float | None
    first_position: Position
    rounds: int
    collected: float | None

    @property
    def waits(self) -> bool:
        return self.wal_rows > 0 or self.generations > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFacts:
    """A region. `levels` is None if its head or its manifest can't be read; a finding has the reason."""

    id: RegionId
    values: Mapping[str, Any]
    spec: int  # the number of its region spec
    status: str
    levels: RegionLevels | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFacts:
    """All facts of a report. What could not be read is None or empty, and a finding has the reason.

    Args:
        about: other properties of the table, by name.
        regions: those with a head.
        versions: the newest ones, oldest first, at most `most_versions`.
        bytes: by part of the table, see `PARTS`.
        garbage: what a collection would do now.
        floor: of the collections of the base.
        checked: what a scrub found; None if none was run.
    """

    table: str
    time: float
    about: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = None  # of the base
    version: int | None = None  # of the base
    expires: str | None = None  # the time to live of the rows
    cloned_from: str | None = None
    spec: int = 1  # the number of the region spec
    regions: tuple[RegionFacts, ...] | None = None
    versions: tuple[BaseVersion, ...] = ()
    most_versions: int = VERSIONS
    is_listed: bool = True  # False: nothing that needs a list of all objects was gathered
    bytes: Mapping[str, int] | None = None
    garbage: Collected | None = None
    floor: Floor | None = None
    pins: tuple[Pin, ...] | None = None
    checked: Report | None = None
    findings: tuple[Finding, ...] = ()


def gather(handle: TableHandle, *, is_listed: bool = True, most_versions: int = VERSIONS) -> ReportFacts:
    """Read all facts of a report. Whatever can't be read is a finding.

    It lists every object of the table, and reads objects to check them for up to ten seconds.

    Args:
        is_listed: False leaves out the list and the check, and what needs them. The rest is read from records,
            manifests and versions of the base.
        most_versions: of the base; each costs a few reads.
    """
    context = handle.context
    found = _Findings(context.uri)
    catalog = found.attempt(lambda: regions(context))
    base = found.attempt(handle.inspect_base)
    read = found.attempt(lambda: _regions(handle, catalog, base, found)) if catalog is not None else None
    if base is not None and read is not None and not found.all:
        found.attempt(lambda: found.problems(handle, base))
    pins = found.attempt(lambda: (*list_snapshots(context), *list_cursors(context)))
    expires = None if base is None else found.attempt(lambda: None if base.ttl is None else base.ttl.text)
    lineage = found.attempt(lambda: read_lineage(context.objects))
    facts = replace(
        _begin(handle, base, read),
        about=_about(handle, found),
        is_listed=is_listed,
        most_versions=most_versions,
        expires=expires,
        cloned_from=None if lineage is None else lineage.source,
        versions=found.attempt(lambda: _versions(handle, most_versions)) or (),
        floor=found.attempt(lambda: read_floor(handle)),
        pins=pins,
    )
    if is_listed:
        facts = replace(
            facts,
            bytes=found.attempt(lambda: _sizes((one.key, one.size) for one in context.objects.list(""))),
            garbage=found.attempt(lambda: collect(handle, yes=False)),
            checked=found.attempt(lambda: _check(handle)),
        )
    return found.add_to(facts)


def gather_levels(handle: TableHandle) -> ReportFacts:
    """Read only what waits in each region, and the number of rows in the base."""
    found = _Findings(handle.context.uri)
    base = found.attempt(handle.inspect_base)
    catalog = found.attempt(lambda: regions(handle.context))
    read = found.attempt(lambda: _regions(handle, catalog, base, found)) if catalog is not None else None
    return found.add_to(_begin(handle, base, read))


def unreadable(uri: str, error: LsmError, *, time: float) -> ReportFacts:
    """Return the facts of a table that can't be opened because of this error."""
    found = _Findings(uri)
    found.error(error)
    return found.add_to(ReportFacts(table=uri, time=time))


class _Findings:
    """Collects findings, each only once."""

    def __init__(self, uri: str) -> None:
        self._scrub = f"lancelsm scrub {uri}"
        self.all: dict[str, Finding] = {}  # by message

    def attempt(self, read: Callable[[], T]) -> T | None:
        """Return what was read; None if that fails."""
        try:
            return read()
        except LsmError as error:
            self.error(error)
            return None

    def error(self, error: LsmError) -> None:
        where = ", ".join(f"{name} {value}" for name, value in error.where.items() if name != "table")
        problem = f"{error.message} ({where})" if where else error.message
        is_general = isinstance(error, Invalid) and error.remedy == error.next_step
        self._add(error.message, Finding(problem=problem, remedy=f"See {self._scrub}" if is_general else error.remedy))

    def problems(self, handle: TableHandle, base: BaseTable) -> None:
        """Add what other tools did to the table."""
        found = find_problems(handle, base=base)
        if base.manifest is None:  # it has indexes
            found += promise_problems(handle)
        for one in found:
            self._add(one.message, Finding(problem=one.message, remedy=one.remedy))

    def add_to(self, facts: ReportFacts) -> ReportFacts:
        """Return the facts with all findings, among them those of the check."""
        known = list(self.all.values())
        for one in facts.checked.problems if facts.checked is not None else ():
            if one.problem not in self.all and not any(one.path in finding.problem for finding in known):
                finding = Finding(problem=f"{one.path}: {one.problem}", remedy=f"See {self._scrub}")
                self._add(finding.problem, finding)
        return replace(facts, findings=tuple(self.all.values()))

    def _add(self, key: str, finding: Finding) -> None:
        self.all.setdefault(key, finding)


def _begin(handle: TableHandle, base: BaseTable | None, read: tuple[RegionFacts, ...] | None) -> ReportFacts:
    return ReportFacts(
        table=handle.context.uri,
        time=handle.context.clock.now(),
        rows=None if base is None else base.rows,
        version=None if base is None else base.version,
        spec=1 if handle.config.regions is None else handle.config.regions.number,
        regions=read,
    )


def _about(handle: TableHandle, found: _Findings) -> dict[str, str]:
    config = handle.config
    resharding = found.attempt(lambda: read_resharding(handle.context))
    return {
        "primary key": ", ".join(config.schema.primary_key),
        "regions": "none yet" if config.regions is None else config.regions.describe(),
        **({"reshard that runs": resharding.spec.describe()} if resharding and not resharding.done else {}),
        "columns": f"{len(config.schema.columns):,}",
        "registry": config.registry,
        **({"change events ordered by": ", ".join(config.sequence_by)} if config.sequence_by else {}),
    }


def _regions(
    handle: TableHandle, catalog: Iterable[Region], base: BaseTable | None, found: _Findings
) -> tuple[RegionFacts, ...]:
    def read(region: Region) -> RegionFacts | LsmError | None:
        try:
            head = region.find_head()
            return None if head is None else facts_of(region, *newest(region, head))
        except LsmError as error:
            error.where = {**region.where, **error.where}
            return error

    def facts_of(region: Region, head: Head, manifest: Manifest) -> RegionFacts:
        merged = head.merged if base is None else base.counters.get(region.id, Generation(0))
        levels = _levels(head, manifest, merged=merged)
        return _facts(handle, region, head.status.value, levels)

    several = list(catalog)
    done = []
    for region, one in zip(several, handle.context.each(read, several), strict=True):
        if isinstance(one, LsmError):
            found.error(one)
            done.append(_facts(handle, region, "damaged", None))
        elif one is not None:
            done.append(one)
    return tuple(done)


def _facts(handle: TableHandle, region: Region, status: str, levels: RegionLevels | None) -> RegionFacts:
    return RegionFacts(
        id=region.id,
        values=handle.config.region_values(region.values, number=region.number),
        spec=region.number,
        status=status,
        levels=levels,
    )


def _levels(head: Head, manifest: Manifest, *, merged: Generation) -> RegionLevels:
    waiting = [one for one in manifest.generations if one.generation > merged]
    rows = [one.rows for one in waiting]
    wal_rows = head.wal_rows - manifest.wal_rows
    since = [Since.parse(head.log_since)] if wal_rows else []
    since += [Since.parse(head.merge_since)] if waiting else []
    times = [float(one.at) for one in since if one is not None and one.at]
    return RegionLevels(
        wal_rows=wal_rows,
        generations=len(waiting),
        generation_rows=None if None in rows else sum(one for one in rows if one is not None),
        merged=merged,
        newest=manifest.newest,
        waits_since=min(times) if since and len(times) == len(since) else None,
        first_position=head.first_position,
        rounds=head.collector_round,
        collected=manifest.collector_committed or None,
    )


def _versions(handle: TableHandle, most: int) -> tuple[BaseVersion, ...]:
    return tuple(base_versions(uri=handle.context.uri, newest=most, storage_options=handle.storage_options))


def _check(handle: TableHandle) -> Report:
    clock = handle.context.clock
    end = clock.monotonic() + CHECK_SECONDS
    return scrub(handle, has_time=lambda: clock.monotonic() < end)


def _sizes(objects: Iterable[tuple[str, int]]) -> dict[str, int]:
    sizes = dict.fromkeys(PARTS, 0)
    for key, size in objects:
        sizes[part_of(key)] += size
    return sizes


def part_of(key: str) -> str:
    """Return which part of a table an object belongs to."""
    top, _, rest = key.partition("/")
    if top == "_mem_wal":
        _, _, inside = rest.partition("/")
        kind = inside.partition("/")[0]
        return {"wal": "log", "manifest": "manifests"}.get(kind, "generations" if "_gen_" in kind else "other")
    parts = {
        "data": "base: rows",
        "_deletions": "base: rows",
        "_indices": "base: indexes",
        "_versions": "base: versions",
        "_transactions": "base: versions",
    }
    return parts.get(top, "other")
