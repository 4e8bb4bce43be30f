"""A collection of a whole table: a round of each region and one of the base, in steps that anybody may repeat.

mark -> verify -> commit -> interval -> sweep. `collect` takes them all in one process; a state machine calls them one
by one and passes on the keys of the lists that `mark` gave. A crash between any two calls leaves a list that nothing
names, or a committed round that the next collection finishes.

Each step is taken of all places before the next one, so that it reads pins, and the base, once for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lancelsm.errors import Contended, Corrupt, Invalid
from lancelsm.gc.lists import GarbageItem, write_list
from lancelsm.gc.mark import Kept, MarkedRound
from lancelsm.gc.scopes import CollectionScope, all_places, places_of, read_progress
from lancelsm.gc.sweep import Swept, Waiting, expire_pins, has_expired, sweep_leftovers
from lancelsm.history.pins import Pin, read_pins
from lancelsm.region.catalog import TableContext
from lancelsm.region.handle import TableHandle

T = TypeVar("T")

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

    `rounds` are the keys of the lists of the rounds that it took, in a dry run of those alone that are committed and
    wait for their sweep; `phase` says how far they came, the one that is least far. `deleted` counts candidates.
    Expired pins are among them: they are no part of a round, and removed at once. `corrupt` is what was found wrong
    with places that a step left out, to go on with the others.
    """

    rounds: tuple[str, ...] = ()
    phase: str = "idle"
    candidates: tuple[Candidate, ...] = ()
    kept: tuple[Kept, ...] = ()
    deleted: int = 0
    corrupt: tuple[Corrupt, ...] = ()


def step_document(done: Collected) -> dict[str, Any]:
    """{"round": [key], "phase", "candidates", "bytes", "kept", "deleted", "failure"}, of which four are numbers: a
    state machine passes it on, which has no room for every path. `failure` is {"Error", "Cause"} of the first place
    that is corrupt, as if the step had failed with it; {} if there is none."""
    return {
        "round": list(done.rounds),
        "phase": done.phase,
        "candidates": len(done.candidates),
        "bytes": sum(one.bytes for one in done.candidates),
        "kept": len(done.kept),
        "deleted": done.deleted,
        "failure": _failure(done.corrupt[0]) if done.corrupt else {},
    }


def _failure(error: Corrupt) -> dict[str, str]:
    document = json.dumps(error.document(redacted=True), default=str)
    return {"Error": error.kind, "Cause": json.dumps({"errorType": error.kind, "errorMessage": document})}


def collect(handle: TableHandle, *, yes: bool, interval_seconds: float | None = None) -> Collected:
    """Collect what nothing needs any more, as far as the interval allows.

    Args:
        yes: False only looks: what a round would delete, what waits for its sweep, what stays and why. Nothing is
            written.
        interval_seconds: between a round's commit and its sweep, for readers that began before; the table's setting by
            default. A round that was committed longer ago is swept; one that was committed just now is left to a later
            call, unless the interval is 0.

    Raises:
        Invalid: the interval is less than 0, or the table was dropped.
        Corrupt: something is missing or wrong; names it. Nothing of that region was deleted; the others were collected.
        Contended, Ambiguous, Unavailable: run it again; it goes on where this one ended.
    """
    if interval_seconds is not None and not interval_seconds >= 0:  # NaN is none
        raise Invalid(
            f"the interval is {interval_seconds} seconds",
            remedy="Give 0 seconds or more",
            table=handle.context.uri,
            field="interval_seconds",
        )
    if not yes:
        return _looked(handle)
    interval = handle.settings.collect_interval_seconds if interval_seconds is None else interval_seconds
    tour = _Tour(handle.context)
    pins = expire_pins(handle.context, skew_seconds=handle.settings.skew_allowance_seconds, removed=tour.removed)
    progress = read_progress(handle)
    found = tour.each(lambda place: place.waiting(pins), all_places(handle))
    waiting = {place: one for place, one in found.items() if one is not None}
    now = handle.context.clock.now()
    young = {place: one for place, one in waiting.items() if interval > max(0.0, now - one.since)}
    due = _swept(handle, tour, {place: one.key for place, one in waiting.items() if place not in young})
    free = [place for place in found if place not in waiting or place in due]
    marked = tour.each(lambda place: _written(handle, place.mark(pins, progress)), free)
    committed = _committed(tour, _verified(handle, tour, _rounds(marked)))
    swept = _swept(handle, tour, committed) if interval <= 0 else {}
    sweep_leftovers(handle.context)
    tour.end(Corrupt)
    return tour.result(
        [
            *(_waits(one) for one in young.values()),
            *(Collected(deleted=one.deleted, phase="swept" if one.deleted else "idle") for one in due.values()),
            *(one for one in marked.values() if not one.rounds),
            *(replace(marked[place], phase="swept" if place in swept else "committed") for place in committed),
            *(Collected(kept=one.kept, deleted=one.deleted) for one in swept.values()),
        ]
    )


def mark(handle: TableHandle) -> Collected:
    """The first step of a collection: write the list of each round that is worth it. Nothing names them yet.

    Where a committed round waits for its sweep, that one is given in place of a new one, at phase `committed`: the
    next steps leave it as it is, until it is swept. Where another collector or a merge is at work, there is none; nor
    where something is wrong, which `corrupt` tells.

    Raises:
        Corrupt: something is missing or wrong, and there is no round of any other place. Nothing was deleted.
        Unavailable: run it again.
    """
    tour = _Tour(handle.context)
    pins = expire_pins(handle.context, skew_seconds=handle.settings.skew_allowance_seconds, removed=tour.removed)
    progress = read_progress(handle)

    def act(place: CollectionScope) -> Collected:
        waiting = place.waiting(pins)
        return _waits(waiting) if waiting else _written(handle, place.mark(pins, progress))

    marked = tour.each(act, all_places(handle))
    return tour.step(tour.result(list(marked.values())), Corrupt)


def verify(handle: TableHandle, rounds: Iterable[str]) -> Collected:
    """The second step: recompute from storage that these rounds delete nothing that is needed; returns those.

    Raises:
        Corrupt: none is left, and one deletes what is needed, or sums do not balance; names the object.
        Contended: none is left, since others came first: begin with `mark`.
        Invalid: one takes too much of the log, or is no round of this table.
        Unavailable: run it again.
    """
    tour = _Tour(handle.context)
    passed = _verified(handle, tour, places_of(handle, tuple(rounds)))
    found = tour.result([Collected(rounds=tuple(passed.values()), phase="marked")])
    return tour.step(found, Corrupt, Contended)


def commit(handle: TableHandle, rounds: Iterable[str]) -> Collected:
    """The third step: drop from manifests and catalog what these rounds delete; returns those that are committed.

    One that came too late is left out, as is one where a merge is at work; something is wrong where `corrupt` tells it.

    Raises:
        Corrupt, Contended: none is committed.
        Ambiguous, Unavailable: run it again: what was committed is recognised.
    """
    tour = _Tour(handle.context)
    committed = _committed(tour, places_of(handle, tuple(rounds)))
    found = tour.result([Collected(rounds=tuple(committed.values()), phase="committed")])
    return tour.step(found, Corrupt, Contended)


def sweep(handle: TableHandle, rounds: Iterable[str]) -> Collected:
    """The last step: delete, but for what pins hold. Rounds that others have finished since are left out.

    Raises:
        Invalid: a round is not committed. Nothing was deleted.
        Corrupt: the list of one has what its region needs, or is another one; the others were swept.
        Unavailable: run it again.
    """
    rounds, tour = tuple(rounds), _Tour(handle.context)
    swept = _swept(handle, tour, places_of(handle, rounds)).values()
    sweep_leftovers(handle.context)
    tour.end(Corrupt, Contended)
    return Collected(
        rounds=rounds,
        phase="swept",
        candidates=_expired(tour.removed),
        kept=tuple(kept for one in swept for kept in one.kept),
        deleted=sum(one.deleted for one in swept) + len(tour.removed),
    )


class _Tour:
    """Takes a step of many places, several at a time; what is wrong with one stops none of the others.

    `removed` are the expired pins that were removed on the way.
    """

    def __init__(self, context: TableContext) -> None:
        self.removed: list[Pin] = []
        self._context = context
        self._errors: list[Contended | Corrupt] = []
        self._kept: list[Kept] = []

    def each(
        self, act: Callable[[CollectionScope], T], places: Collection[CollectionScope]
    ) -> dict[CollectionScope, T]:
        """What came of the places with which nothing is wrong."""

        def tried(place: CollectionScope) -> T | Contended | Corrupt:
            try:
                return act(place)
            except (Contended, Corrupt) as error:
                return error

        done = {}
        for place, outcome in zip(places, self._context.each(tried, places), strict=True):
            if isinstance(outcome, Contended | Corrupt):  # another collector is at it, a merge has the base; or damage
                self._errors.append(outcome)
                self.leave(place, outcome.message)
            else:
                done[place] = outcome
        return done

    def leave(self, place: CollectionScope, why: str) -> None:
        """Say why no round is taken of a place."""
        self._kept.append(Kept(path=place.path, kind="round", why=why))

    def end(self, *kinds: type[Contended | Corrupt]) -> None:
        """Raise the first error of the first of these kinds that there is one of."""
        for kind in kinds:
            for error in self._errors:
                if isinstance(error, kind):
                    raise error

    def step(self, found: Collected, *kinds: type[Contended | Corrupt]) -> Collected:
        """A result with what is corrupt elsewhere; where it has no round, raises as `end`."""
        if not found.rounds:
            self.end(*kinds)
        return replace(found, corrupt=tuple(error for error in self._errors if isinstance(error, Corrupt)))

    def result(self, parts: Sequence[Collected]) -> Collected:
        """What came of all places together."""
        removed = Collected(
            candidates=_expired(self.removed), deleted=len(self.removed), phase="swept" if self.removed else "idle"
        )
        return _sum([removed, *parts, Collected(kept=tuple(self._kept))])


def _verified(handle: TableHandle, tour: _Tour, rounds: Mapping[CollectionScope, str]) -> Mapping[CollectionScope, str]:
    """The rounds that may be committed. A pin that comes after this read of them is seen by the sweep."""
    if not rounds:
        return rounds
    pins, progress = read_pins(handle.context), read_progress(handle)
    return {
        place: rounds[place] for place in tour.each(lambda place: place.verify(rounds[place], pins, progress), rounds)
    }


def _committed(tour: _Tour, rounds: Mapping[CollectionScope, str]) -> dict[CollectionScope, str]:
    """The rounds that are committed, if others did not come first."""
    done = tour.each(lambda place: place.commit(rounds[place]), rounds)
    for place, ours in done.items():
        if not ours:
            tour.leave(place, "another round came first")
    return {place: rounds[place] for place, ours in done.items() if ours}


def _swept(handle: TableHandle, tour: _Tour, rounds: Mapping[CollectionScope, str]) -> dict[CollectionScope, Swept]:
    """Sweep rounds: every floor is committed and published before any pin is read, and pins are before any deletion."""
    if not rounds:
        return {}
    confirmed = tour.each(lambda place: place.confirm(rounds[place]), rounds)
    counting = expire_pins(handle.context, skew_seconds=handle.settings.skew_allowance_seconds, removed=tour.removed)
    return tour.each(lambda place: confirmed[place](counting), confirmed)


def _looked(handle: TableHandle) -> Collected:
    """A dry run."""
    context, now = handle.context, handle.context.clock.now()
    skew = handle.settings.skew_allowance_seconds
    pins = read_pins(context)
    expired = [pin for pin in pins if has_expired(pin, now=now, skew_seconds=skew)]
    counting = [pin for pin in pins if pin not in expired]
    progress = read_progress(handle)

    def look(place: CollectionScope) -> Collected:
        waiting = place.waiting(counting)
        return _waits(waiting) if waiting else _shown(place.look(counting, progress))

    tour = _Tour(context)
    looked = tour.each(look, all_places(handle))
    tour.end(Corrupt)
    found = tour.result([Collected(candidates=_expired(expired)), *looked.values()])
    return replace(found, phase="marked") if found.phase == "idle" else found


def _expired(pins: Iterable[Pin]) -> tuple[Candidate, ...]:
    return tuple(Candidate(path=pin.name, kind=pin.kind, bytes=0, why="it has expired") for pin in pins)


def _written(handle: TableHandle, marked: MarkedRound) -> Collected:
    """A round as a result, once its list is written; there is none if it is not worth it."""
    shown = _shown(marked)
    return replace(shown, rounds=(write_list(handle.context, marked.round).key,)) if marked.worthwhile else shown


def _shown(marked: MarkedRound) -> Collected:
    """A round as a result, without a list."""
    if not marked.worthwhile:
        few = tuple(
            Kept(path=i.path, kind=i.kind, why=f"{i.why}; too little for a round of its own")
            for i in marked.round.items
        )
        return Collected(kept=(*marked.kept, *few))
    return Collected(phase="marked", candidates=_candidates(marked.round.items), kept=marked.kept)


def _waits(waiting: Waiting) -> Collected:
    """A committed round as a result."""
    return Collected(
        rounds=(waiting.key,),
        phase="committed",
        candidates=_candidates(waiting.items, but="; its round is committed and waits for its sweep"),
        kept=waiting.kept,
    )


def _candidates(items: Iterable[GarbageItem], *, but: str = "") -> tuple[Candidate, ...]:
    return tuple(Candidate(path=i.path, kind=i.kind, bytes=i.bytes, why=f"{i.why}{but}") for i in items)


def _rounds(marked: Mapping[CollectionScope, Collected]) -> dict[CollectionScope, str]:
    return {place: key for place, one in marked.items() for key in one.rounds}


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
