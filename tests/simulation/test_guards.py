"""Each guard of append, claim and commit is needed: without it, a seed or a scenario breaks the log.

A test removes a guard from the source of its function. A guard that is reworded there must be reworded here.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lancelsm.region import catalog, compare_and_swap, head
from lancelsm.wal import append, claim, slot
from tests.simulation import append_scenarios, claim_scenarios, commit_scenarios
from tests.simulation.actors import run_actors
from tests.simulation.removal import fails

LOG = '{"epoch": head.epoch, "next_position": head.next_position}'
CLAIM = '{"epoch": head.epoch, "status": RegionState.OPEN.value}'
OBJECT_THEN_HEAD = """\
    found = read_slot(region, position)
    # The head is read after the object: a late put may have refilled a collected slot.
    head = region.head()
"""
HEAD_THEN_OBJECT = """\
    head = region.head()
    found = read_slot(region, position)
"""


def seeds() -> None:
    for seed in range(400):
        run_actors(seed)


# guard: (function, its text, the text without the guard, what finds the violation)
GUARDS: dict[str, tuple[Callable[..., object], str, str, Callable[[], None]]] = {
    "an append swaps on the epoch": (head.appended, LOG, '{"next_position": head.next_position}', seeds),
    "an append swaps on the position": (head.appended, LOG, '{"epoch": head.epoch}', seeds),
    "a claim swaps on the epoch": (head.claimed, CLAIM, '{"status": RegionState.OPEN.value}', seeds),
    "a manifest commit swaps on the version": (
        head.manifest_swapped,
        '{"manifest_version": head.manifest_version}',
        "{}",
        seeds,
    ),
    "only the owner may append": (catalog.check_writable, "if head.owner != owner:", "if False:", seeds),
    "a claim is finished before an append": (
        append.append_after,
        "if head.manifest_epoch < head.epoch:",
        "if False:",
        seeds,
    ),
    "every claim is finished": (
        claim.finish_claim,
        "while head.manifest_epoch < head.epoch:",
        "for _ in range(1):",
        seeds,
    ),
    "fences are appended up to the highest leftover": (
        claim.finish_claim,
        "max(_highest_object(region), head.next_position)",
        "head.next_position",
        claim_scenarios.leftovers_above_a_gap,
    ),
    "a claim replaces an undecodable object": (
        slot.resolve_conflict,
        "if fencing and fresh.manifest_epoch < epoch:",
        "if False:",
        claim_scenarios.undecodable_object,
    ),
    "only an unfinished claim replaces an undecodable object": (
        slot.resolve_conflict,
        "if fencing and fresh.manifest_epoch < epoch:",
        "if True:",
        claim_scenarios.undecodable_object_after_the_claim,
    ),
    "the nonce is compared after the put": (slot.put_entry, "found.entry.nonce == entry.nonce", "False", seeds),
    "the nonce is compared before the acknowledgement": (
        slot.resolve_outcome,
        "found.entry.nonce == entry.nonce",
        "True",
        seeds,
    ),
    "the floor is compared before the acknowledgement": (
        slot.resolve_outcome,
        "if head.first_position > position:",
        "if False:",
        append_scenarios.stalled_writer,
    ),
    "the head is read after the object": (
        slot.resolve_outcome,
        OBJECT_THEN_HEAD,
        HEAD_THEN_OBJECT,
        append_scenarios.refilled_slot,
    ),
    "an unanswered put is remembered": (
        slot.put_entry,
        "maybe_written |= isinstance(outcome, WriteUnknown)",
        "maybe_written = False",
        seeds,
    ),
    "an entry of the same epoch is committed and not replaced": (
        slot.resolve_conflict,
        "other.summary.epoch < epoch",
        "other.summary.epoch <= epoch",
        seeds,
    ),
    "an entry is replaced under its ETag": (
        slot.put_entry,
        "expect=replacing)",
        "expect=objects.get(key).etag)",
        seeds,
    ),
    "the position is compared before another entry is committed": (
        slot.resolve_conflict,
        "if fresh.next_position > position:",
        "if False:",
        seeds,
    ),
    "the epoch is compared before another entry is committed": (
        slot.resolve_conflict,
        "if fresh.epoch != epoch:",
        "if False:",
        seeds,
    ),
    "the position is compared after a lost swap": (
        slot._commit,
        "if now.next_position > position:",
        "if False:",
        seeds,
    ),
    "the epoch is compared after a lost swap": (
        slot._commit,
        "if now.epoch != entry.summary.epoch:",
        "if False:",
        seeds,
    ),
    "a manifest is published before its successor is committed": (
        compare_and_swap.commit,
        "_ensure_published(region, current, budget=budget)",
        "pass",
        seeds,
    ),
    "a committer recognises its own manifest by its key": (
        compare_and_swap._swap,
        "if now.manifest_key == staged.key:",
        "if False:",
        seeds,
    ),
    "a committer recognises its own manifest by the published copy": (
        compare_and_swap._swap,
        "return now if _was_published(region, staged) else None",
        "return None",
        commit_scenarios.lost_reply_and_newer_commits,
    ),
    "a committer recognises the published manifest of another committer": (
        compare_and_swap._was_published,
        "return found.body == staged.body",
        "return True",
        seeds,
    ),
    "the hint only rises": (compare_and_swap._raise_hint, "if decode_hint(found.body) < version:", "if True:", seeds),
    "the hint rises under its ETag": (
        compare_and_swap._raise_hint,
        "expect=found.etag)",
        "expect=objects.get(key).etag)",
        seeds,
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_the_log_breaks_without_the_guard(guard: str) -> None:
    function, text, instead, scenario = GUARDS[guard]

    assert fails([(function, text, instead)], scenario)
