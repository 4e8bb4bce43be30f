"""A collection of a whole table: a round of each region and one of the base, in steps that anybody may repeat.

mark -> verify -> commit -> interval -> sweep. `collect` takes them all in one process; a state machine calls them one
by one and passes on the keys of the lists that `mark` wrote. A crash between any two calls leaves a list that nothing
names, or a committed round that the next sweep finishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lancelsm.commit import newest
from lancelsm.errors import Contended, Corrupt, Invalid
from lancelsm.gc.commit import commit_round
from lancelsm.gc.lists import Round, RoundList, find_list, write_list
from lancelsm.gc.mark import Kept, Marked, Progress, mark_region
from lancelsm.gc.survey import seen, survey_region
from lancelsm.gc.sweep import Swept, expire_pins, has_expired, sweep_leftovers, sweep_region
from lancelsm.gc.verify import verify_region
from lancelsm.layout import MEM_WAL, RegionId, region_key, region_prefix, round_prefix
from lancelsm.manifest import Dead
from lancelsm.opening import Opened
from lancelsm.pins import Pin, read_pins
from lancelsm.region import Region, region_from_record, regions

PHASES = ("idle", "marked", "committed", "swept")
"""How far a collection came, in order; `idle`: there was nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Something that a round deletes, or would."""

    path: str
    kind: str
    bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection, or one step of it, did.

    `rounds` are the keys of the lists of the rounds that it took, none in a dry run; `phase` says how far they came,
    the one that is least far. `deleted` counts candidates.
    """

    rounds: tuple[str, ...] = ()
    phase: str = "idle"
    candidates: tuple[Candidate, ...] = ()
    kept: tuple[Kept, ...] = ()
    deleted: int = 0


def step_document(done: Collected) -> dict[str, Any]:
    """{"round": [key], "phase", "candidates", "bytes", "kept", "deleted"}, numbers but the first two: a state machine
    passes it on, which has no room for every path."""
    return {
        "round": list(done.rounds),
        "phase": done.phase,
        "candidates": len(done.candidates),
        "bytes": sum(one.bytes for one in done.candidates),
        "kept": len(done.kept),
        "deleted": done.deleted,
    }


def collect(opened: Opened, *, yes: bool, interval_seconds: float | None = None) -> Collected:
    """Collect what nothing needs any more, as far as the interval allows.

    Args:
        yes: False only looks: what a round would delete, what stays and why. Nothing is written.
        interval_seconds: between a round's commit and its sweep, for readers that began before; the table's setting by
            default. A round that was committed longer ago is swept; one that was committed just now is left to a later
            call, unless the interval is 0.

    Raises:
        Corrupt: something is missing or wrong; names it. Nothing of that region was deleted; the others were collected.
        Contended, Ambiguous, Unavailable: run it again; it goes on where this one ended.
    """
    if not yes:
        return _looked(opened)
    interval = opened.settings.collect_interval_seconds if interval_seconds is None else interval_seconds
    pins = expire_pins(opened.storage, skew_seconds=opened.settings.skew_allowance_seconds)
    progress = _progress(opened)()
    acts = {
        region_prefix(region.id): partial(_collect_region, opened, region, pins, progress, interval)
        for region in _made(opened)
    }
    done, failures = [], []
    for place, act in (*acts.items(), ("data", partial(_collect_base, opened, pins, interval))):
        try:
            done.append(act())
        except Contended as error:  # another collector is at it, or a merge has the base
            done.append(Collected(kept=(Kept(path=place, kind="round", why=error.message),)))
        except Corrupt as error:
            failures.append(error)
    sweep_leftovers(opened.storage)
    if failures:
        raise failures[0]
    return _sum(done)


def mark(opened: Opened) -> Collected:
    """The first step of a collection: write the list of each round that is worth it. Nothing names them yet.

    Raises:
        Corrupt, Contended, Unavailable: as `collect`.
    """
    from lancelsm.gc import base  # noqa: PLC0415 - Lance is loaded when it is needed

    pins = expire_pins(opened.storage, skew_seconds=opened.settings.skew_allowance_seconds)
    progress = _progress(opened)()
    marked = [_mark_region(opened, region, pins, progress) for region in _made(opened)]
    with suppress(Contended):  # a merge is under way: its files look like nobody's
        marked.append(base.mark_in_base(opened, pins))
    return _sum([_shown(opened, one, write=True) for one in marked])


def verify(opened: Opened, rounds: Iterable[str]) -> Collected:
    """The second step: recompute from storage that these rounds delete nothing that is needed.

    Raises:
        Corrupt: one does, or sums do not balance; names the object.
        Contended: another round came first: begin with `mark`.
        Invalid: one takes too much of the log, or is no round of this table.
        Unavailable: run it again.
    """
    from lancelsm.gc import base  # noqa: PLC0415

    rounds = tuple(rounds)
    for key in rounds:
        region = _region_of(opened, key)
        if region is None:
            base.verify_base(opened, key)
        else:
            verify_region(region, key, read_progress=_progress(opened), settings=opened.settings)
    return Collected(rounds=rounds, phase="marked")


def commit(opened: Opened, rounds: Iterable[str]) -> Collected:
    """The third step: drop from manifests and catalog what these rounds delete. One that came too late is left out.

    Raises:
        Contended, Ambiguous, Unavailable: run it again: what was committed is recognised.
    """
    from lancelsm.gc import base  # noqa: PLC0415

    committed = []
    for key in rounds:
        region = _region_of(opened, key)
        late = not base.commit_base(opened, key) if region is None else isinstance(commit_round(region, key), Dead)
        if not late:
            committed.append(key)
    return Collected(rounds=tuple(committed), phase="committed")


def sweep(opened: Opened, rounds: Iterable[str]) -> Collected:
    """The last step: delete, but for what pins hold. Rounds that others have finished since are left out.

    Raises:
        Invalid: a round is not committed.
        Unavailable: run it again.
    """
    rounds = tuple(rounds)
    swept = [_sweep(opened, key) for key in rounds]
    sweep_leftovers(opened.storage)
    return Collected(
        rounds=rounds,
        phase="swept",
        kept=tuple(kept for one in swept for kept in one.kept),
        deleted=sum(one.deleted for one in swept),
    )


def _sweep(opened: Opened, key: str) -> Swept:
    from lancelsm.gc import base  # noqa: PLC0415

    region = _region_of(opened, key)
    if region is None:
        return base.sweep_base(opened, key)
    return sweep_region(region, key, skew_seconds=opened.settings.skew_allowance_seconds)


def _looked(opened: Opened) -> Collected:
    """A dry run."""
    from lancelsm.gc import base  # noqa: PLC0415

    storage, settings = opened.storage, opened.settings
    pins = read_pins(storage)
    now = storage.clock.now()
    expired = [pin for pin in pins if has_expired(pin, now=now, skew_seconds=settings.skew_allowance_seconds)]
    counting = [pin for pin in pins if pin not in expired]
    progress = _progress(opened)()
    marked = [_mark_region(opened, region, counting, progress) for region in _made(opened)]
    marked.append(base.survey_base(opened, counting))
    shown = _sum([_shown(opened, one, write=False) for one in marked])
    removed = tuple(Candidate(path=pin.name, kind=pin.kind, bytes=0, why="it has expired") for pin in expired)
    return replace(shown, candidates=(*removed, *shown.candidates), phase="marked")


def _collect_region(
    opened: Opened, region: Region, pins: Sequence[Pin], progress: Progress, interval: float
) -> Collected:
    def unswept(found: Round) -> bool:
        prefix = f"{region_prefix(region.id)}/"
        names = [one.key.removeprefix(prefix) for one in seen(region.storage, prefix)]
        there = {*names, *(name.partition("/")[0] for name in names)}
        return any(item.path.removeprefix(prefix) in there for item in found.items)

    manifest = newest(region, region.head())[1]
    named = (
        find_list(
            opened.storage,
            manifest.collector_key,
            newest=lambda: region.head().collector_round,
            setsum=manifest.collector_setsum,
        )
        if manifest.collector_key
        else None
    )
    return _collected(
        opened,
        named,
        unswept=unswept,
        mark_one=lambda: _mark_region(opened, region, pins, progress),
        interval=interval,
    )


def _collect_base(opened: Opened, pins: Sequence[Pin], interval: float) -> Collected:
    from lancelsm.gc import base  # noqa: PLC0415

    return _collected(
        opened,
        base.committed_base(opened),
        unswept=lambda found: base.unswept_base(opened, found),
        mark_one=lambda: base.mark_in_base(opened, pins),
        interval=interval,
    )


def _collected(
    opened: Opened,
    named: RoundList | None,
    *,
    unswept: Callable[[Round], bool],
    mark_one: Callable[[], Marked],
    interval: float,
) -> Collected:
    """Finish the committed round if its interval has passed, then take the next one as far as the interval allows."""
    deleted = 0
    if named is not None and unswept(named.round):
        if opened.storage.clock.now() - named.round.marked < interval:
            return _listed(named.round, rounds=(named.key,), phase="committed")
        deleted = _sweep(opened, named.key).deleted
    marked = _shown(opened, mark_one(), write=True)
    if not marked.rounds:
        return replace(marked, deleted=deleted, phase="swept" if deleted else "idle")
    verify(opened, marked.rounds)
    committed = commit(opened, marked.rounds)
    if not committed.rounds or interval > 0:
        return replace(marked, rounds=committed.rounds, phase="committed", deleted=deleted)
    swept = sweep(opened, committed.rounds)
    return replace(marked, phase="swept", kept=(*marked.kept, *swept.kept), deleted=deleted + swept.deleted)


def _mark_region(opened: Opened, region: Region, pins: Sequence[Pin], progress: Progress) -> Marked:
    survey = survey_region(region, pins=pins, progress=progress, settings=opened.settings)
    return mark_region(survey, now=opened.storage.clock.now())


def _shown(opened: Opened, marked: Marked, *, write: bool) -> Collected:
    """A round as a result; its list is written if it is worth a round."""
    if not marked.worth_it:
        few = tuple(
            Kept(path=i.path, kind=i.kind, why=f"{i.why}; too little for a round of its own")
            for i in marked.round.items
        )
        return Collected(kept=(*marked.kept, *few))
    rounds = (write_list(opened.storage, marked.round).key,) if write else ()
    return replace(_listed(marked.round, rounds=rounds, phase="marked"), kept=marked.kept)


def _listed(found: Round, *, rounds: tuple[str, ...], phase: str) -> Collected:
    return Collected(
        rounds=rounds,
        phase=phase,
        candidates=tuple(Candidate(path=i.path, kind=i.kind, bytes=i.bytes, why=i.why) for i in found.items),
    )


def _sum(parts: Sequence[Collected]) -> Collected:
    """Several results as one."""
    busy = [part.phase for part in parts if part.phase != "idle"]
    return Collected(
        rounds=tuple(key for part in parts for key in part.rounds),
        phase=min(busy, key=PHASES.index, default="idle"),
        candidates=tuple(one for part in parts for one in part.candidates),
        kept=tuple(one for part in parts for one in part.kept),
        deleted=sum(part.deleted for part in parts),
    )


def _made(opened: Opened) -> list[Region]:
    return [region for region in regions(opened.storage) if region.find_head() is not None]


def _region_of(opened: Opened, key: str) -> Region | None:
    """Whose round a list is; None for the base's. Raises `Invalid` for a key of no region."""
    if key.startswith(round_prefix(None)):
        return None
    identity = RegionId(key.removeprefix(f"{MEM_WAL}/").partition("/")[0])
    if key.startswith(round_prefix(identity)):  # one of many: not by a list of all
        record = opened.storage.registry.read(region_key(opened.storage.table, identity))
        if record is not None:
            return region_from_record(opened.storage, identity, record)
    raise Invalid(
        f"{key!r:.200} names no round of the table",
        remedy="Give what mark returned",
        table=opened.storage.uri,
        field="round",
    )


def _progress(opened: Opened) -> Callable[[], Progress]:
    def read() -> Progress:
        from lancelsm.gc.base import read_progress  # noqa: PLC0415 - Lance is loaded when it is needed

        return read_progress(opened)

    return read
