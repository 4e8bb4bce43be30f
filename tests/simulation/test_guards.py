"""Each guard of append, claim and commit is needed: without it, a seed or a scenario breaks the log.

The library marks each guard with a comment. A test removes the guard of a mark (see `removal`).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import append_scenarios, claim_scenarios, commit_scenarios
from tests.simulation.actors import run_actors
from tests.simulation.marks import Edit, changed, moved, without
from tests.simulation.removal import fails


def seeds() -> None:
    for seed in range(400):
        run_actors(seed)


# guard: (its removal, what finds the violation)
GUARDS: dict[str, tuple[Edit, Callable[[], None]]] = {
    "an append swaps on the epoch": (without("append swaps on the epoch"), seeds),
    "an append swaps on the position": (without("append swaps on the position"), seeds),
    "a claim swaps on the epoch": (without("claim swaps on the epoch"), seeds),
    "a manifest commit swaps on the version": (without("manifest commit swaps on the version", instead={}), seeds),
    "only the owner may append": (without("only the owner appends"), seeds),
    "a claim is finished before an append": (without("claim is finished before an append"), seeds),
    "every claim is finished": (without("every claim is finished"), seeds),
    "fences are appended up to the highest leftover": (
        without("fences reach the highest object", instead=0),
        claim_scenarios.leftovers_above_a_gap,
    ),
    "a claim replaces an undecodable object": (
        without("only an unfinished claim replaces unknown objects"),
        claim_scenarios.undecodable_object,
    ),
    "only an unfinished claim replaces an undecodable object": (
        without("only an unfinished claim replaces unknown objects", instead=True),
        claim_scenarios.undecodable_object_after_the_claim,
    ),
    "the nonce is compared after the put": (without("nonce is compared after the put"), seeds),
    "the nonce is compared before the acknowledgement": (
        without("nonce is compared before the acknowledgement"),
        seeds,
    ),
    "the floor is compared before the acknowledgement": (
        without("floor is compared before the acknowledgement"),
        append_scenarios.stalled_writer,
    ),
    "the head is read after the object": (
        moved("head is read after the object", by=-1),
        append_scenarios.refilled_slot,
    ),
    "an unanswered put is remembered": (without("put without an answer is remembered"), seeds),
    "an entry of the same epoch is committed and not replaced": (
        changed("only an entry of an older epoch is replaced", "other.summary.epoch <= epoch"),
        seeds,
    ),
    "an entry is replaced under its ETag": (
        changed("entry is replaced under its ETag", "objects.replace(key, entry.body, expect=objects.get(key).etag)"),
        seeds,
    ),
    "the position is compared before another entry is committed": (
        without("position is compared before another entry is committed"),
        seeds,
    ),
    "the epoch is compared before another entry is committed": (
        without("epoch is compared before another entry is committed"),
        seeds,
    ),
    "the position is compared after a lost swap": (without("position is compared after a lost swap"), seeds),
    "the epoch is compared after a lost swap": (without("epoch is compared after a lost swap"), seeds),
    "a manifest is published before its successor is committed": (
        without("manifest is published before its successor"),
        seeds,
    ),
    "a committer recognises its own manifest by its key": (without("own manifest is recognised by its key"), seeds),
    "a committer recognises its own manifest by the published copy": (
        without("own manifest is recognised if published", instead=None),
        commit_scenarios.lost_reply_and_newer_commits,
    ),
    "a committer recognises the published manifest of another committer": (
        without("published manifest of another committer is recognised", instead=True),
        seeds,
    ),
    "the hint only rises": (without("hint only rises", instead=True), seeds),
    "the hint rises under its ETag": (
        changed("hint rises under its ETag", "objects.replace(key, body, expect=objects.get(key).etag)"),
        seeds,
    ),
}


@pytest.mark.one_case
@pytest.mark.parametrize("guard", GUARDS)
def test_the_log_breaks_without_the_guard(guard: str) -> None:
    edit, scenario = GUARDS[guard]

    assert fails([edit], scenario)
