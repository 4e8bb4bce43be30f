"""Draw how a table grew, and when its merges and collections were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html import escape

from lancelsm.common.error_text import counted
from lancelsm.gc.lists import GarbageKind
from lancelsm.stack.table_report import charts
from lancelsm.stack.table_report.charts import TimeSpan, duration, moment, size
from lancelsm.stack.table_report.region_sections import NOT_READ, all_readable, readable
from lancelsm.stack.table_report.report_facts import ReportFacts

_HOUR, _DAY = 3600.0, 86_400.0
_OPEN_ROWS = 16  # a longer table is folded
_MOST_MERGES = 20
_KINDS: Mapping[str, str] = {
    GarbageKind.GENERATION: "generation",
    GarbageKind.ENTRY: "entry of a log",
    GarbageKind.STAGED: "staged manifest",
    GarbageKind.PUBLISHED: "published manifest",
    GarbageKind.LIST: "list of a collection",
    GarbageKind.BASE_FILE: "file of the base",
    GarbageKind.BASE_VERSION: "version of the base",
}


def growth_section(facts: ReportFacts) -> str:
    if not facts.versions:
        return NOT_READ
    points = [(one.time.timestamp(), one.rows) for one in facts.versions]
    first, last = facts.versions[0], facts.versions[-1]
    text = f"{counted(last.rows, 'row')} in version {last.version:,} of {moment(points[-1][0])}."
    if len(facts.versions) == 1:
        text += " It is the only version that is kept, so no growth is known."
    else:
        text += f" Version {first.version:,} of {moment(points[0][0])} had {counted(first.rows, 'row')}"
        text += f": {_rate(last.rows - first.rows, points[-1][0] - points[0][0])}."
    span = TimeSpan(first=points[0][0], last=max(facts.time, points[-1][0]))
    return f"<p>{text}</p>{charts.steps(points, span=span, title='Rows in the base by time', colour='base')}"


def _rate(rows: int, seconds: float) -> str:
    """Return a change with its rate. What took less than an hour has no rate: it would say nothing about a day."""
    if not rows:
        return f"no change in {duration(seconds)}"
    change = f"{'+' if rows > 0 else ''}{counted(rows, 'row')} in {duration(seconds)}"
    if seconds < _HOUR:
        return change
    per, unit = (_DAY, "day") if seconds >= _DAY else (_HOUR, "hour")
    return f"{change}, {rows / seconds * per:+,.0f} a {unit}"


def history_section(facts: ReportFacts) -> str:
    """Draw merges and collections by time, and list them."""
    merges = [
        (one.time.timestamp(), f"merge: version {one.version:,}, {moment(one.time.timestamp())}")
        for one in facts.versions
        if one.merged
    ]
    collections = [
        (one.levels.collected, f"collection of region {one.id[:8]}, {moment(one.levels.collected)}")
        for one in facts.regions or ()
        if one.levels is not None and one.levels.collected is not None
    ]
    if facts.floor is not None and facts.floor.committed:
        collections.append((float(facts.floor.committed), f"collection of the base, {moment(facts.floor.committed)}"))
    times = [time for time, _ in (*merges, *collections)]
    plot = ""
    if times:
        span = TimeSpan(first=min(times), last=max(facts.time, *times))
        lanes = (("merges", "generation", merges), ("collections", "base", collections))
        plot = charts.events(lanes, span=span, title="Merges, and the last collection of each region and of the base")
    return f"<p>{_merges(facts, len(merges))}</p>{plot}{_merges_table(facts)}{_collections(facts)}"


def _merges(facts: ReportFacts, number: int) -> str:
    if not facts.versions:
        return "The versions of the base can't be read, so no merge is known."
    kept, oldest = len(facts.versions), facts.versions[0]
    which = (
        f"the newest {kept:,} versions of the base" if kept == facts.most_versions else f"the {_versions(kept)} kept"
    )
    text = f"{counted(number, 'merge')} among {which}."
    if oldest.version > 1 and kept < facts.most_versions:
        gone = f"version {oldest.version:,} of {moment(oldest.time.timestamp())} is the oldest one"
        text += f" Earlier merges are not shown: {gone}."
    levels = readable(facts)
    flushed, merged = sum(one.newest for one in levels), sum(one.merged for one in levels)
    if not all_readable(facts):
        return text
    if not flushed:
        return f"{text} No generation was flushed yet."
    return f"{text} In all, {counted(flushed, 'generation')} {_was(flushed)} flushed, and {merged:,} of these merged."


def _versions(number: int) -> str:
    return "only version of the base that is" if number == 1 else f"{number:,} versions of the base that are"


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


def _merges_table(facts: ReportFacts) -> str:
    merged = [one for one in facts.versions if one.merged]
    rows = [
        (
            f"{one.version:,}",
            moment(one.time.timestamp()),
            escape(one.operation or "not known"),
            f"{len(one.merged or {}):,}",
            f"{one.rows:,}",
        )
        for one in reversed(merged)
    ]
    heads = ("version", "committed", "operation of Lance", "regions merged", "rows after it")
    return charts.table(heads, rows, most=_MOST_MERGES) if rows else ""


def _collections(facts: ReportFacts) -> str:
    """List the collections: of each region, and of the base."""
    done = [
        (f"region {one.id[:8]}", one.levels.rounds, one.levels.collected, f"position {one.levels.first_position:,}")
        for one in facts.regions or ()
        if one.levels is not None
    ]
    if facts.floor is not None:
        kept = f"version {facts.floor.version:,}" if facts.floor.version else "all versions"
        done.append(("the base", facts.floor.round, facts.floor.committed or None, kept))
    rounds = sum(number for _, number, _, _ in done)
    if not done:
        return NOT_READ
    if not rounds:
        return "<p>Nothing was collected yet.</p>"
    rows = [
        (f"<code>{escape(of)}</code>", f"{number:,}", _when(number, at, facts.time), escape(kept))
        for of, number, at, kept in sorted(done, key=lambda one: -(one[2] or 0))
    ]
    listed = charts.table(("collections of", "rounds", "last one committed", "kept from"), rows)
    text = f"<p>{counted(rounds, 'round')} of collections so far.</p>"
    if len(rows) <= _OPEN_ROWS:
        return text + listed
    return f"{text}<details><summary>Collections of each region</summary>{listed}</details>"


def _when(rounds: int, at: float | None, now: float) -> str:
    if not rounds:
        return "never"
    return "not known" if at is None else f"{moment(at)}, {duration(now - at)} ago"


def garbage_section(facts: ReportFacts) -> str:
    """List what a collection would delete now, and what it would keep."""
    if facts.garbage is None:
        return NOT_READ
    found = facts.garbage.candidates
    kinds = Counter(one.kind for one in found)
    sizes: Counter[str] = Counter()
    for one in found:
        sizes[one.kind] += one.bytes
    listed = [(escape(_KINDS.get(kind, kind)), f"{kinds[kind]:,}", size(sizes[kind])) for kind in sorted(kinds)]
    kept = Counter(one.why for one in facts.garbage.kept)
    reasons = [(escape(why), f"{number:,}") for why, number in kept.most_common()]
    text = f"<p>{counted(len(found), 'object')}, {size(sum(sizes.values()))}.</p>"
    return (
        text
        + (charts.table(("kind", "objects", "in storage"), listed) if listed else "")
        + (f"<p>What stays, and why:</p>{charts.table(('reason', 'objects'), reasons)}" if reasons else "")
    )
