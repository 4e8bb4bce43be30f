"""The code takes the same steps as the models of append, claim and manifest commits. Replay finds code that does not.

The complete graphs of two writers are large. Tests that are not `long` replay only paths with few unanswered calls. The
number of edges shows how much is replayed: change it only together with a model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lancelsm.region import compare_and_swap as commits
from lancelsm.region import head as heads
from lancelsm.region import manifest as manifests
from lancelsm.region.head import Swap
from lancelsm.wal import append as appends
from lancelsm.wal import claim as claims
from lancelsm.wal import slot
from lancelsm.wal.slot import Appended
from tests.model import append, claim
from tests.model.append import Append, Role
from tests.model.claim import Claim
from tests.model.drive_append import AppendDriver
from tests.model.drive_claim import ClaimDriver
from tests.model.drive_flush import FlushDriver
from tests.model.engine import Model, Path, Step, graph
from tests.model.head_commits import HeadCommits
from tests.model.replay import Cut, Driver, Mismatch, paths, replay, unanswered, walk


@dataclass(frozen=True, slots=True)
class Replay:
    """A model, its driver, and optionally how often rare steps may be taken on a path."""

    driver: Callable[[Any], Driver[Any]]
    model: Model[Any]
    rare: tuple[tuple[Callable[[Step], bool], int], ...] = ()

    def paths(self) -> Iterable[Path[Any]]:
        return paths(Cut(model=self.model, rare=self.rare)) if self.rare else graph(self.model).covering_paths()

    def run(self, *, shuffled: bool = False) -> int:
        """Replay all paths and return the number of edges taken."""
        driver, taken = self.driver(self.model), set()
        found = list(self.paths())
        if shuffled:
            random.Random(1).shuffle(found)
        for path in found:
            replay(driver, path)
            taken.update(path)
        return len(taken)


def collects(step: Step) -> bool:
    return step.action == "collect"


def claims_epoch(step: Step) -> bool:
    return step.action == "swap epoch"


ALONE = Replay(AppendDriver, Append((Role(owner="O", entries=("a", "b")),)))
SIBLINGS = Replay(AppendDriver, Append(append.SIBLINGS), ((unanswered, 1), (collects, 0)))
COLLECTED = Replay(AppendDriver, Append(append.SIBLINGS), ((unanswered, 0), (collects, 1)))
TAKEOVER = Replay(AppendDriver, Append(append.TAKEOVER), ((unanswered, 1), (collects, 1)))
CLAIM = Replay(ClaimDriver, Claim())
RIVAL_CLAIMS = Replay(ClaimDriver, Claim(roles=(claim.P, claim.Q)))
FLUSHES = Replay(FlushDriver, HeadCommits(entries=2), ((unanswered, 0),))
UNANSWERED_FLUSHES = Replay(FlushDriver, HeadCommits(entries=2), ((claims_epoch, 0),))
FLUSHES_AND_CLAIM = Replay(FlushDriver, HeadCommits(entries=1))

REPLAYS = {
    "append, alone": (ALONE, 1_729),
    "append, two writers of one owner": (SIBLINGS, 2_476),
    "append, two writers of one owner and a collector": (COLLECTED, 528),
    "append, with a takeover": (TAKEOVER, 2_514),
    "claim, finished by a sibling": (CLAIM, 1_328),
    "claim, two rivals": (RIVAL_CLAIMS, 1_080),
    "two flushes and a claim": (FLUSHES, 1_111),
    "two flushes, replies are lost": (UNANSWERED_FLUSHES, 254),
    "two flushes and a claim, replies are lost": (FLUSHES_AND_CLAIM, 503),
}
LONG = {
    "append, two writers of one owner": (
        Replay(AppendDriver, Append(append.SIBLINGS), ((unanswered, 1), (collects, 2))),
        9_648,
    ),
    "append, with a takeover": (Replay(AppendDriver, Append(append.TAKEOVER)), 21_172),
    "claim, two rivals and a sibling": (
        Replay(ClaimDriver, Claim(roles=(claim.P, claim.SIBLING, claim.Q), leftovers=(1,)), ((unanswered, 0),)),
        12_253,
    ),
    "two flushes and a claim, complete": (Replay(FlushDriver, HeadCommits(entries=2)), 3_211),
}


@pytest.mark.rest
@pytest.mark.parametrize(("case", "edges"), REPLAYS.values(), ids=REPLAYS)
def test_the_code_takes_every_step_of_its_model(case: Replay, edges: int) -> None:
    assert case.run() == edges


@pytest.mark.long
@pytest.mark.parametrize(("case", "edges"), LONG.values(), ids=LONG)
def test_the_code_takes_every_step_of_a_larger_model(case: Replay, edges: int) -> None:
    assert case.run() == edges


# The paths above are the shortest ones to each edge. On a longer path the code may hold state that the model lacks.
LARGE = {
    "append, siblings and a takeover": (AppendDriver, Append((*append.SIBLINGS, append.BUSY_TAKEOVER[1]))),
    "append, takeover by siblings": (AppendDriver, Append(append.TAKEOVER_BY_SIBLINGS)),
    "append, two takeovers": (AppendDriver, Append(append.TWO_TAKEOVERS)),
    "append, take and retake": (AppendDriver, Append(append.TAKE_AND_RETAKE)),
    "claim": (ClaimDriver, Claim(roles=(claim.P, claim.SIBLING, claim.Q), leftovers=(1, 2, 4), last_epoch=4)),
    "flush": (FlushDriver, HeadCommits(entries=5, flushers=("F", "G", "H"))),
}


@pytest.mark.parametrize(("driver", "model"), LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("walks", [60, pytest.param(2_000, marks=pytest.mark.long)])
def test_the_code_takes_the_steps_of_random_walks(
    driver: Callable[[Any], Driver[Any]], model: Model[Any], walks: int
) -> None:
    for seed in range(walks):
        replay(driver(model), walk(model, seed=seed, most=80))


# Flawed code that replay must find

Original = Callable[..., Any]


def trusts_the_object_alone(resolve: Original) -> Original:
    def resolved(region, entry):
        found = slot.read_slot(region, entry.summary.position)
        if found is not None and found.entry is not None and found.entry.nonce == entry.nonce:
            return Appended(summary=entry.summary, head=region.head())
        return resolve(region, entry)

    return resolved


def reads_the_head_first(resolve: Original) -> Original:
    def resolved(region, entry):
        head = region.head()
        found = slot.read_slot(region, entry.summary.position)
        if head.first_position > entry.summary.position:
            raise slot.ambiguous(region, entry.summary.position, "collected")
        ours = found is not None and found.entry is not None and found.entry.nonce == entry.nonce
        return Appended(summary=entry.summary, head=head) if ours else head

    return resolved


def replaces_its_own_epoch(resolve: Original) -> Original:
    def resolved(region, found, entry, **others):
        if found.entry is not None and found.entry.summary.epoch == entry.summary.epoch:
            return None
        return resolve(region, found, entry, **others)

    return resolved


def forgets_unanswered_puts(resolve: Original) -> Original:
    return lambda region, found, entry, **others: resolve(region, found, entry, **{**others, "maybe_written": False})


def acknowledges_the_object(commit: Original) -> Original:
    return lambda region, entry, head, **others: Appended(summary=entry.summary, head=head)


def without(field: str) -> Callable[[Original], Original]:
    """Leave a field out of the condition of a swap."""

    def patched(step: Original) -> Original:
        def swap(*args, **named):
            made = step(*args, **named)
            return Swap(expect={k: v for k, v in made.expect.items() if k != field}, change=made.change)

        return swap

    return patched


def always(value: object) -> Callable[[Original], Original]:
    return lambda _: lambda *args, **named: value


def flushes_without_precondition(flushed: Original) -> Original:
    return lambda manifest, after, built, at_end, index_number: flushed(
        manifest,
        after=manifest.replay_after,
        built=replace(built, generation=manifest.current_generation),
        at_end=at_end,
        index_number=index_number,
    )


def leaves_the_epoch_out_of_the_manifest(with_epoch: Original) -> Original:
    return lambda manifest, epoch, last_seen: replace(manifest, last_seen=last_seen)


FLAWS: dict[str, tuple[object, str, Callable[[Original], Original], Replay]] = {
    "an object proves a commit without a later head": (slot, "resolve_outcome", trusts_the_object_alone, SIBLINGS),
    "the head is read before the object": (slot, "resolve_outcome", reads_the_head_first, SIBLINGS),
    "an entry of the same epoch is replaced": (slot, "resolve_conflict", replaces_its_own_epoch, SIBLINGS),
    "an unanswered put is forgotten": (slot, "resolve_conflict", forgets_unanswered_puts, SIBLINGS),
    "an entry is acknowledged before the swap": (slot, "_commit", acknowledges_the_object, ALONE),
    "an append does not swap on the epoch": (heads, "appended", without("epoch"), TAKEOVER),
    "an append does not swap on the position": (heads, "appended", without("next_position"), SIBLINGS),
    "every owner is admitted": (appends, "check_writable", always(None), TAKEOVER),
    "a claim does not swap on the epoch": (heads, "claimed", without("epoch"), RIVAL_CLAIMS),
    "fences end below the leftovers": (claims, "_highest_object", always(0), CLAIM),
    "a sibling does not finish the claim": (appends, "finish_claim", lambda _: lambda region, head, **_: head, CLAIM),
    "the manifest does not get the epoch": (manifests, "with_epoch", leaves_the_epoch_out_of_the_manifest, CLAIM),
    "an overtaken flush goes on": (manifests, "flushed", flushes_without_precondition, FLUSHES),
    "a manifest does not swap on the version": (heads, "manifest_swapped", without("manifest_version"), FLUSHES),
    "a manifest of another committer counts as the own one": (commits, "_was_published", always(True), FLUSHES),
}


@pytest.mark.one_case
@pytest.mark.parametrize("flaw", FLAWS)
def test_replay_finds_flawed_code(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, spoil, case = FLAWS[flaw]
    monkeypatch.setattr(module, name, spoil(getattr(module, name)))

    with pytest.raises(Mismatch):
        case.run(shuffled=True)
