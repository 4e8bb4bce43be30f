"""Collect a whole table: a round for each region and one for the base, in steps that any process may repeat.

The steps are mark, verify, commit, wait for the interval, sweep. `collect` runs all of them in one process. A state
machine calls them one by one, and passes on the keys of the lists that `mark` returned. A crash between two calls
leaves a list that nothing names, or a committed round that the next collection finishes.

Each step runs for all scopes before the next one, so that pins and base are read once per step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lancelsm.errors import Contended, Corrupt, Invalid
from lancelsm.gc.lists import GarbageItem, write_list
from lancelsm.gc.mark import Kept, MarkedRound
from lancelsm.gc.scopes import BaseScope, CollectionScope, all_scopes, check_progress, read_progress, scopes_of
from lancelsm.gc.sweep import Swept, Waiting, expire_pins, has_expired, sweep_leftovers
from lancelsm.history.pin_records import Pin
from lancelsm.history.pins import read_pins
from lancelsm.region.catalog import TableContext
from lancelsm.region.handle import TableHandle
from lancelsm.region.shards import ForeignShard, foreign_shards_of

T = TypeVar("T")

PHASES = ("idle", "marked", "committed", "swept")
"""The phases of a collection, in order; `idle`: there was nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An object that a round deletes, or would delete.

    Args:
        path: its key, relative to the table.
        kind: what it is, such as `generation`, `entry` or `base_file`.
        bytes: its size.
        why: why it is no longer needed.
    """

    path: str
    kind: str
    bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection, or one step of it, did.

    Args:
        rounds: keys of the lists of its rounds. In a dry run only rounds that are committed and wait for their sweep.
        phase: the earliest phase that one of them is in.
        candidates: what is or would be deleted. Includes expired pins, which are removed at once, outside of rounds.
        deleted: number of candidates that were deleted.
        corrupt: errors of scopes that a step left out; it continued with the others.
    """

    rounds: tuple[str, ...] = ()
    phase: str = "idle"
    candidates: tuple[Candidate, ...] = ()
    kept: tuple[Kept, ...] = ()
    deleted: int = 0
    corrupt: tuple[Corrupt, ...] = ()


def step_document(done: Collected) -> dict[str, Any]:
    """Return the result of one step as a document. `stack.collection_steps` keeps it for the next step.

    {"round": [key], "phase", "candidates", "bytes", "kept", "deleted", "failure"}. `candidates`, `bytes`, `kept` and
    `deleted` are numbers, since a state machine has no room for every path. `failure` is {"Error", "Cause"} of the
    first corrupt scope, in the form of a failed step; {} if no scope is corrupt.
    """
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
    """Collect objects that are no longer needed, as far as the interval allows.

    Args:
        yes: False is a dry run. It writes nothing, and reports what a round would delete, what waits for its sweep, and
            what stays and why.
        interval_seconds: time between the commit of a round and its sweep, for readers that began before the commit. By
            default the table's setting. Earlier rounds are swept if the interval has passed. A new round is swept by a
            later call, unless the interval is 0.

    Raises:
        Invalid: the interval is less than 0, or the table was dropped.
        Corrupt: an object is missing or wrong; the error names it. Nothing of its region was deleted; all others were
            collected.
        Contended, Ambiguous, Unavailable: retry; the next call continues.
    """
    if interval_seconds is not None and not interval_seconds >= 0:  # also refuses NaN
        raise Invalid(
            f"the interval is {interval_seconds} seconds",
            remedy="Give 0 seconds or more",
            table=handle.context.uri,
            field="interval_seconds",
        )
    if not yes:
        return _dry_run(handle)
    interval = handle.settings.collect_interval_seconds if interval_seconds is None else interval_seconds
    runner = _Runner(handle.context)
    pins = expire_pins(handle.context, skew_seconds=handle.settings.skew_allowance_seconds, removed=runner.removed)
    progress = check_progress(handle, write=True)
    found = runner.each(lambda scope: scope.waiting(pins), all_scopes(handle))
    waiting = {scope: one for scope, one in found.items() if one is not None}
    now = handle.context.clock.now()
    young = {  # guard: round waits until its interval has passed
        scope: one for scope, one in waiting.items() if interval > max(0.0, now - one.since)
    }
    due = _sweep_all(handle, runner, {scope: one.key for scope, one in waiting.items() if scope not in young})
    free = [scope for scope in found if scope not in waiting or scope in due]
    marked = runner.each(lambda scope: _write_round(handle, scope.mark(pins, progress)), free)
    committed = _commit_all(runner, _verify_all(handle, runner, _rounds(marked)))
    swept = (
        _sweep_all(handle, runner, committed)
        if interval <= 0  # guard: round waits after its commit
        else {}
    )
    sweep_leftovers(handle.context)
    runner.raise_first(Corrupt)
    return runner.result(
        [
            *(_describe_waiting(one) for one in young.values()),
            *(Collected(deleted=one.deleted, phase="swept" if one.deleted else "idle") for one in due.values()),
            *(one for one in marked.values() if not one.rounds),
            *(replace(marked[scope], phase="swept" if scope in swept else "committed") for scope in committed),
            *(Collected(kept=one.kept, deleted=one.deleted) for one in swept.values()),
        ]
    )


def mark(handle: TableHandle) -> Collected:
    """Run the first step of a collection: write the list of each round that is worthwhile.

    A scope with a committed round that waits for its sweep returns that round, in phase `committed`, instead of a new
    one; verify and commit leave it unchanged. A scope where another collector or a merge works has no round. Neither
    has a corrupt scope; `corrupt` has its error.

    Raises:
        Corrupt: an object is missing or wrong, and no other scope has a round. Nothing was deleted.
        Contended, Unavailable: retry.
    """
    runner = _Runner(handle.context)
    pins = expire_pins(handle.context, skew_seconds=handle.settings.skew_allowance_seconds, removed=runner.removed)
    progress = check_progress(handle, write=True)

    def mark_scope(scope: CollectionScope) -> Collected:
        waiting = scope.waiting(pins)
        return _describe_waiting(waiting) if waiting else _write_round(handle, scope.mark(pins, progress))

    marked = runner.each(mark_scope, all_scopes(handle))
    return runner.step_result(runner.result(list(marked.values())), Corrupt)


def verify(handle: TableHandle, rounds: Iterable[str]) -> Collected:
    """Run the second step: check against storage that these rounds delete nothing that is needed.

    Returns:
        The rounds that passed.

    Raises:
        Corrupt: no round passed, and one deletes something that is needed, or sums do not balance. The error names the
            object.
        Contended: no round passed, since others came first: start again with `mark`.
        Invalid: a round takes too much of the log, or is not a round of this table.
        Unavailable: retry.
    """
    runner = _Runner(handle.context)
    passed = _verify_all(handle, runner, scopes_of(handle, tuple(rounds)))
    found = runner.result([Collected(rounds=tuple(passed.values()), phase="marked")])
    return runner.step_result(found, Corrupt, Contended)


def commit(handle: TableHandle, rounds: Iterable[str]) -> Collected:
    """Run the third step: remove from manifests and catalog what these rounds delete.

    Returns:
        The rounds that are committed. Rounds that came too late are left out, and so are scopes where a merge works.
        `corrupt` has errors of corrupt scopes.

    Raises:
        Corrupt, Contended: no round is committed.
        Ambiguous, Unavailable: retry; committed rounds are recognised.
    """
    runner = _Runner(handle.context)
    committed = _commit_all(runner, scopes_of(handle, tuple(rounds)))
    found = runner.result([Collected(rounds=tuple(committed.values()), phase="committed")])
    return runner.step_result(found, Corrupt, Contended)


def sweep(handle: TableHandle, rounds: Iterable[str]) -> Collected:
    """Run the last step: delete what the rounds list, except what pins need. Skips rounds that others finished.

    Raises:
        Invalid: a round is not committed. Nothing was deleted.
        Corrupt: a list has something that its region needs, or is not the committed one. The other rounds were swept.
        Contended: another process works on a scope. The other rounds were swept.
        Unavailable: retry.
    """
    rounds, runner = tuple(rounds), _Runner(handle.context)
    swept = _sweep_all(handle, runner, scopes_of(handle, rounds)).values()
    sweep_leftovers(handle.context)
    runner.raise_first(Corrupt, Contended)
    return Collected(
        rounds=rounds,
        phase="swept",
        candidates=_expired(runner.removed),
        kept=tuple(kept for one in swept for kept in one.kept),
        deleted=sum(one.deleted for one in swept) + len(runner.removed),
    )


class _Runner:
    """Runs one step for many scopes, several at a time. An error in one scope does not stop the others.

    `removed` collects the expired pins that were removed.
    """

    def __init__(self, context: TableContext) -> None:
        self.removed: list[Pin] = []
        self._context = context
        self._errors: list[Contended | Corrupt] = []
        self._kept: list[Kept] = []

    def each(
        self, act: Callable[[CollectionScope], T], scopes: Collection[CollectionScope]
    ) -> dict[CollectionScope, T]:
        """Run `act` for all scopes; return the results of those that succeeded."""

        def attempt(scope: CollectionScope) -> T | Contended | Corrupt:
            try:
                return act(scope)
            except (Contended, Corrupt) as error:
                return error

        done = {}
        for scope, outcome in zip(scopes, self._context.each(attempt, scopes), strict=True):
            if isinstance(outcome, Contended | Corrupt):  # another collector or a merge came first; or damage
                self._errors.append(outcome)
                self.skip(scope, outcome.message)
            else:
                done[scope] = outcome
        return done

    def skip(self, scope: CollectionScope, why: str) -> None:
        """Record why a scope has no round."""
        self._kept.append(Kept(path=scope.path, kind="round", why=why))

    def skip_region(self, scope: CollectionScope, shard: ForeignShard) -> bool:
        """Record that a region has no round because of a shard of another tool. Return False for the base."""
        if isinstance(scope, BaseScope):
            return False
        table = shard.region.context.uri
        self.skip(scope, f"another tool writes to shard {shard.region.id}: lancelsm region adopt {table}")
        return True

    def raise_first(self, *kinds: type[Contended | Corrupt]) -> None:
        """Raise the first error of one of these kinds; earlier kinds come first."""
        for kind in kinds:
            for error in self._errors:
                if isinstance(error, kind):
                    raise error

    def step_result(self, found: Collected, *kinds: type[Contended | Corrupt]) -> Collected:
        """Add the errors of corrupt scopes to a result. If it has no round, raise the first error of these kinds."""
        if not found.rounds:
            self.raise_first(*kinds)
        return replace(found, corrupt=tuple(error for error in self._errors if isinstance(error, Corrupt)))

    def result(self, parts: Sequence[Collected]) -> Collected:
        """Combine the results of all scopes."""
        removed = Collected(
            candidates=_expired(self.removed), deleted=len(self.removed), phase="swept" if self.removed else "idle"
        )
        return _sum([removed, *parts, Collected(kept=tuple(self._kept))])


def _verify_all(
    handle: TableHandle, runner: _Runner, rounds: Mapping[CollectionScope, str]
) -> Mapping[CollectionScope, str]:
    """Verify rounds; return those that passed. The sweep sees a pin that is created after this read.

    While a shard of another tool has rows, no log is collected: entries that were committed after them must stay, or
    the order of both could not be known. The shards are listed after mark has read the heads, so whatever a round
    takes was committed before a shard that is missing in the listing.
    """
    if not rounds:
        return rounds
    foreign = foreign_shards_of(handle.context)
    if foreign:  # guard: log is kept while a shard of another tool has rows
        rounds = {scope: key for scope, key in rounds.items() if not runner.skip_region(scope, foreign[0])}
    pins, progress = read_pins(handle.context), read_progress(handle)
    return {
        scope: rounds[scope] for scope in runner.each(lambda scope: scope.verify(rounds[scope], pins, progress), rounds)
    }


def _commit_all(runner: _Runner, rounds: Mapping[CollectionScope, str]) -> dict[CollectionScope, str]:
    """Commit rounds; return those that are committed."""
    done = runner.each(lambda scope: scope.commit(rounds[scope]), rounds)
    for scope, ours in done.items():
        if not ours:
            runner.skip(scope, "another round came first")
    return {scope: rounds[scope] for scope, ours in done.items() if ours}


def _sweep_all(
    handle: TableHandle, runner: _Runner, rounds: Mapping[CollectionScope, str]
) -> dict[CollectionScope, Swept]:
    """Sweep rounds. All floors are committed and published before pins are read, and pins are read before deletions."""
    if not rounds:
        return {}
    confirmed = runner.each(lambda scope: scope.confirm(rounds[scope]), rounds)
    counting = expire_pins(  # guard: pins are read before the sweep
        handle.context, skew_seconds=handle.settings.skew_allowance_seconds, removed=runner.removed
    )
    return runner.each(lambda scope: confirmed[scope](counting), confirmed)


def _dry_run(handle: TableHandle) -> Collected:
    """Decide what a collection would do, without any write."""
    context, now = handle.context, handle.context.clock.now()
    skew = handle.settings.skew_allowance_seconds
    pins = read_pins(context)
    expired = [pin for pin in pins if has_expired(pin, now=now, skew_seconds=skew)]
    counting = [pin for pin in pins if pin not in expired]
    progress = check_progress(handle, write=False)

    def look_at(scope: CollectionScope) -> Collected:
        waiting = scope.waiting(counting)
        return _describe_waiting(waiting) if waiting else _describe(scope.look(counting, progress))

    runner = _Runner(context)
    looked = runner.each(look_at, all_scopes(handle))
    runner.raise_first(Corrupt)
    found = runner.result([Collected(candidates=_expired(expired)), *looked.values()])
    return replace(found, phase="marked") if found.phase == "idle" else found


def _expired(pins: Iterable[Pin]) -> tuple[Candidate, ...]:
    return tuple(Candidate(path=pin.name, kind=pin.kind, bytes=0, why="it has expired") for pin in pins)


def _write_round(handle: TableHandle, marked: MarkedRound) -> Collected:
    """Write the list of a round if the round is worthwhile, and describe the round as a result."""
    described = _describe(marked)
    return (
        replace(described, rounds=(write_list(handle.context, marked.round).key,)) if marked.worthwhile else described
    )


def _describe(marked: MarkedRound) -> Collected:
    """Describe a round as a result, without a list."""
    if not marked.worthwhile:
        postponed = tuple(
            Kept(path=i.path, kind=i.kind, why=f"{i.why}; too few objects for a round") for i in marked.round.items
        )
        return Collected(kept=(*marked.kept, *postponed))
    return Collected(phase="marked", candidates=_candidates(marked.round.items), kept=marked.kept)


def _describe_waiting(waiting: Waiting) -> Collected:
    """Describe a committed round as a result."""
    return Collected(
        rounds=(waiting.key,),
        phase="committed",
        candidates=_candidates(waiting.items, suffix="; its round is committed and waits for its sweep"),
        kept=waiting.kept,
    )


def _candidates(items: Iterable[GarbageItem], *, suffix: str = "") -> tuple[Candidate, ...]:
    return tuple(Candidate(path=i.path, kind=i.kind, bytes=i.bytes, why=f"{i.why}{suffix}") for i in items)


def _rounds(marked: Mapping[CollectionScope, Collected]) -> dict[CollectionScope, str]:
    return {scope: key for scope, one in marked.items() for key in one.rounds}


def _sum(parts: Sequence[Collected]) -> Collected:
    """Combine several results into one."""
    busy = [part.phase for part in parts if part.phase != "idle"]
    return Collected(
        rounds=tuple(key for part in parts for key in part.rounds),
        phase=min(busy, key=PHASES.index, default="idle"),
        candidates=tuple(one for part in parts for one in part.candidates),
        kept=tuple(one for part in parts for one in part.kept),
        deleted=sum(part.deleted for part in parts),
    )
