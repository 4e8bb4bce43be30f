"""The code goes where the models of append, claim and manifest commits go, call by call; if not, replay notices.

The whole graphs of two writers are long: without `long` they are cut to what happens with few unanswered calls. The
number of edges shows what is replayed: change it together with a model only.
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
from tests.model.engine import Model, Path, Step, graph
from tests.model.head_commits import HeadCommits
from tests.model.play_append import AppendPlay
from tests.model.play_claim import ClaimPlay
from tests.model.play_flush import FlushPlay
from tests.model.replay import Cut, Mismatch, Play, paths, replay, unanswered, walk


@dataclass(frozen=True, slots=True)
class Scene:
    """A model, who plays it, and how much of it: all, or at most so often what a step is about."""

    play: Callable[[Any], Play[Any]]
    model: Model[Any]
    most: tuple[tuple[Callable[[Step], bool], int], ...] = ()

    def paths(self) -> Iterable[Path[Any]]:
        return paths(Cut(model=self.model, rare=self.most)) if self.most else graph(self.model).covering_paths()

    def run(self, *, shuffled: bool = False) -> int:
        """The number of edges taken."""
        play, taken = self.play(self.model), set()
        ways = list(self.paths())
        if shuffled:
            random.Random(1).shuffle(ways)
        for path in ways:
            replay(play, path)
            taken.update(path)
        return len(taken)


def collects(step: Step) -> bool:
    return step.action == "collect"


def claims_epoch(step: Step) -> bool:
    return step.action == "swap epoch"


ALONE = Scene(AppendPlay, Append((Role(owner="O", entries=("a", "b")),)))
SIBLINGS = Scene(AppendPlay, Append(append.SIBLINGS), ((unanswered, 1), (collects, 0)))
COLLECTED = Scene(AppendPlay, Append(append.SIBLINGS), ((unanswered, 0), (collects, 1)))
TAKEOVER = Scene(AppendPlay, Append(append.TAKEOVER), ((unanswered, 1), (collects, 1)))
CLAIM = Scene(ClaimPlay, Claim())
RIVAL_CLAIMS = Scene(ClaimPlay, Claim(roles=(claim.P, claim.Q)))
FLUSHES = Scene(FlushPlay, HeadCommits(entries=2), ((unanswered, 0),))
UNANSWERED_FLUSHES = Scene(FlushPlay, HeadCommits(entries=2), ((claims_epoch, 0),))
FLUSHES_AND_CLAIM = Scene(FlushPlay, HeadCommits(entries=1))

SCENES = {
    "append, alone": (ALONE, 1_729),
    "append, two of one owner": (SIBLINGS, 2_476),
    "append, two of one owner and a collector": (COLLECTED, 528),
    "append, a takeover": (TAKEOVER, 2_514),
    "claim, finished by a sibling": (CLAIM, 1_328),
    "claim, two rivals": (RIVAL_CLAIMS, 1_080),
    "flush, two of them and a claim": (FLUSHES, 1_770),
    "flush, without a reply": (UNANSWERED_FLUSHES, 428),
    "flush, without a reply and a claim": (FLUSHES_AND_CLAIM, 570),
}
LONG = {
    "append, two of one owner": (
        Scene(AppendPlay, Append(append.SIBLINGS), ((unanswered, 1), (collects, 2))),
        9_648,
    ),
    "append, a takeover": (Scene(AppendPlay, Append(append.TAKEOVER)), 21_172),
    "claim, two rivals and a sibling": (
        Scene(ClaimPlay, Claim(roles=(claim.P, claim.SIBLING, claim.Q), leftovers=(1,)), ((unanswered, 0),)),
        12_253,
    ),
    "flush, all of it": (Scene(FlushPlay, HeadCommits(entries=2)), 5_012),
}


@pytest.mark.parametrize(("scene", "edges"), SCENES.values(), ids=SCENES)
def test_the_code_takes_every_step_of_its_model(scene: Scene, edges: int) -> None:
    assert scene.run() == edges


@pytest.mark.long
@pytest.mark.parametrize(("scene", "edges"), LONG.values(), ids=LONG)
def test_the_code_takes_every_step_of_a_larger_model(scene: Scene, edges: int) -> None:
    assert scene.run() == edges


# The way to an edge of the graph is a shortest one; on a longer one the code may remember what the model forgot.
LARGE = {
    "append, siblings and a takeover": (AppendPlay, Append((*append.SIBLINGS, append.BUSY_TAKEOVER[1]))),
    "append, takeover by siblings": (AppendPlay, Append(append.TAKEOVER_BY_SIBLINGS)),
    "append, two takeovers": (AppendPlay, Append(append.TWO_TAKEOVERS)),
    "append, take and retake": (AppendPlay, Append(append.TAKE_AND_RETAKE)),
    "claim": (ClaimPlay, Claim(roles=(claim.P, claim.SIBLING, claim.Q), leftovers=(1, 2, 4), last_epoch=4)),
    "flush": (FlushPlay, HeadCommits(entries=5, flushers=("F", "G", "H"))),
}


@pytest.mark.parametrize(("play", "model"), LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("walks", [60, pytest.param(2_000, marks=pytest.mark.long)])
def test_the_code_goes_where_a_random_walk_does(
    play: Callable[[Any], Play[Any]], model: Model[Any], walks: int
) -> None:
    for seed in range(walks):
        replay(play(model), walk(model, seed=seed, most=80))


# Code that lacks something, where replay should notice

Original = Callable[..., Any]


def believes_the_object(judge: Original) -> Original:
    def hasty(region, entry):
        standing = slot.read_slot(region, entry.summary.position)
        if standing is not None and standing.entry is not None and standing.entry.nonce == entry.nonce:
            return Appended(summary=entry.summary, head=region.head())
        return judge(region, entry)

    return hasty


def reads_the_head_first(judge: Original) -> Original:
    def judged(region, entry):
        head = region.head()
        standing = slot.read_slot(region, entry.summary.position)
        if head.first_position > entry.summary.position:
            raise slot.ambiguous(region, entry.summary.position, "collected")
        ours = standing is not None and standing.entry is not None and standing.entry.nonce == entry.nonce
        return Appended(summary=entry.summary, head=head) if ours else head

    return judged


def replaces_its_own_epoch(yield_to: Original) -> Original:
    def replaces(region, standing, entry, **others):
        if standing.entry is not None and standing.entry.summary.epoch == entry.summary.epoch:
            return None
        return yield_to(region, standing, entry, **others)

    return replaces


def forgets_what_may_be_written(yield_to: Original) -> Original:
    return lambda region, standing, entry, **others: yield_to(
        region, standing, entry, **{**others, "maybe_written": False}
    )


def acknowledges_the_object(commit: Original) -> Original:
    return lambda region, entry, head, **others: Appended(summary=entry.summary, head=head)


def without(field: str) -> Callable[[Original], Original]:
    """A swap that does not rely on a field."""

    def patched(step: Original) -> Original:
        def swap(*args, **named):
            made = step(*args, **named)
            return Swap(expect={k: v for k, v in made.expect.items() if k != field}, change=made.change)

        return swap

    return patched


def always(value: object) -> Callable[[Original], Original]:
    return lambda _: lambda *args, **named: value


def flushes_whatever_came(flushed: Original) -> Original:
    return lambda manifest, after, built, at_end: flushed(
        manifest,
        after=manifest.replay_after,
        built=replace(built, generation=manifest.current_generation),
        at_end=at_end,
    )


def claims_nothing_in_the_manifest(with_epoch: Original) -> Original:
    return lambda manifest, epoch, last_seen: replace(manifest, last_seen=last_seen)


FLAWS: dict[str, tuple[object, str, Callable[[Original], Original], Scene]] = {
    "an object is believed without a later head": (slot, "resolve_outcome", believes_the_object, SIBLINGS),
    "the head is read before the object": (slot, "resolve_outcome", reads_the_head_first, SIBLINGS),
    "an entry of the own epoch is replaced": (slot, "resolve_conflict", replaces_its_own_epoch, SIBLINGS),
    "an unanswered put is forgotten": (slot, "resolve_conflict", forgets_what_may_be_written, SIBLINGS),
    "an entry is acknowledged before the swap": (slot, "_commit", acknowledges_the_object, ALONE),
    "an append does not swap on the epoch": (heads, "appended", without("epoch"), TAKEOVER),
    "an append does not swap on the position": (heads, "appended", without("next_position"), SIBLINGS),
    "anybody is admitted": (appends, "admit", always(None), TAKEOVER),
    "a claim does not swap on the epoch": (heads, "claimed", without("epoch"), RIVAL_CLAIMS),
    "fences stop short of the leftovers": (claims, "_highest_object", always(0), CLAIM),
    "a sibling does not finish the claim": (appends, "finish_claim", lambda _: lambda region, head, **_: head, CLAIM),
    "the manifest does not get the epoch": (manifests, "with_epoch", claims_nothing_in_the_manifest, CLAIM),
    "an overtaken flush goes on": (manifests, "flushed", flushes_whatever_came, FLUSHES),
    "a manifest does not swap on the version": (heads, "manifest_swapped", without("manifest_version"), FLUSHES),
    "another's manifest is taken for the own": (commits, "_was_published", always(True), FLUSHES),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_replay_notices(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, spoil, scene = FLAWS[flaw]
    monkeypatch.setattr(module, name, spoil(getattr(module, name)))

    with pytest.raises(Mismatch):
        scene.run(shuffled=True)
