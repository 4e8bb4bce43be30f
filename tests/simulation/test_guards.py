"""Each guard of append, claim and commit carries weight: without it, some seed or some order of events breaks the log.

A guard is taken out of its function's source, so a guard that is reworded must be reworded here.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lancelsm.region import catalog, compare_and_swap, head
from lancelsm.wal import append, claim, slot
from tests.simulation.actors import actors
from tests.simulation.removal import ends_badly
from tests.simulation.test_append import (
    test_a_late_put_that_refills_a_collected_slot_between_two_looks_proves_nothing as refilled_slot,
)
from tests.simulation.test_append import (
    test_a_stalled_writer_is_not_acknowledged_after_the_collector_passed as stalled_writer,
)
from tests.simulation.test_claim import test_a_claim_replaces_what_nobody_can_read_and_the_owner_goes_on as torn_entry
from tests.simulation.test_claim import test_an_unreadable_object_after_the_claim_is_left_alone as foreign_entry
from tests.simulation.test_claim import (
    test_fences_fill_the_log_through_the_highest_object_above_the_head as leftovers_above,
)
from tests.simulation.test_commit import (
    test_a_reply_that_is_lost_until_others_committed_more_is_recognised_by_the_published_manifest as late_reply,
)

LOG = '{"epoch": head.epoch, "next_position": head.next_position}'
CLAIM = '{"epoch": head.epoch, "status": RegionState.OPEN.value}'
OBJECT_THEN_HEAD = """\
    standing = _look(region, position)
    # The head is read after the object: a late put may have refilled a collected slot.
    head = region.head()
"""
HEAD_THEN_OBJECT = """\
    head = region.head()
    standing = _look(region, position)
"""


def seeds() -> None:
    for seed in range(400):
        actors(seed)


# guard: (function, its text, the text without the guard, where the violation shows)
GUARDS: dict[str, tuple[Callable[..., object], str, str, Callable[[], None]]] = {
    "append swaps on the epoch": (head.appended, LOG, '{"next_position": head.next_position}', seeds),
    "append swaps on the position": (head.appended, LOG, '{"epoch": head.epoch}', seeds),
    "claim swaps on the epoch": (head.claimed, CLAIM, '{"status": RegionState.OPEN.value}', seeds),
    "manifest swaps on the version": (
        head.manifest_swapped,
        '{"manifest_version": head.manifest_version}',
        "{}",
        seeds,
    ),
    "owner admission": (catalog.check_writable, "if head.owner != owner:", "if False:", seeds),
    "claim finished before appending": (
        append.append_after,
        "if head.manifest_epoch < head.epoch:",
        "if False:",
        seeds,
    ),
    "every claim finished": (
        claim.finish_claim,
        "while head.manifest_epoch < head.epoch:",
        "for _ in range(1):",
        seeds,
    ),
    "fences through the leftovers": (
        claim.finish_claim,
        "max(_highest_object(region), head.next_position)",
        "head.next_position",
        leftovers_above,
    ),
    "a claim replaces what is unreadable": (
        slot.resolve_conflict,
        "if fencing and fresh.manifest_epoch < epoch:",
        "if False:",
        torn_entry,
    ),
    "only an unfinished claim replaces it": (
        slot.resolve_conflict,
        "if fencing and fresh.manifest_epoch < epoch:",
        "if True:",
        foreign_entry,
    ),
    "nonce compared after the put": (slot.put_entry, "standing.entry.nonce == entry.nonce", "False", seeds),
    "nonce compared before the acknowledgement": (
        slot.resolve_outcome,
        "standing.entry.nonce == entry.nonce",
        "True",
        seeds,
    ),
    "floor compared before the acknowledgement": (
        slot.resolve_outcome,
        "if head.first_position > position:",
        "if False:",
        stalled_writer,
    ),
    "head read after the object": (slot.resolve_outcome, OBJECT_THEN_HEAD, HEAD_THEN_OBJECT, refilled_slot),
    "an unanswered put is remembered": (
        slot.put_entry,
        "maybe_written |= isinstance(outcome, Unknown)",
        "maybe_written = False",
        seeds,
    ),
    "helped, not replaced": (
        slot.resolve_conflict,
        "other.summary.epoch < epoch",
        "other.summary.epoch <= epoch",
        seeds,
    ),
    "replaced under its ETag": (slot.put_entry, "expect=replacing)", "expect=objects.get(key).etag)", seeds),
    "position looked at before helping": (
        slot.resolve_conflict,
        "if fresh.next_position > position:",
        "if False:",
        seeds,
    ),
    "epoch looked at before helping": (slot.resolve_conflict, "if fresh.epoch != epoch:", "if False:", seeds),
    "position looked at after a lost swap": (slot._commit, "if now.next_position > position:", "if False:", seeds),
    "epoch looked at after a lost swap": (slot._commit, "if now.epoch != entry.summary.epoch:", "if False:", seeds),
    "published before its successor": (
        compare_and_swap.commit,
        "_ensure_published(region, current, budget=budget)",
        "pass",
        seeds,
    ),
    "own manifest recognised by its key": (
        compare_and_swap._swap,
        "if now.manifest_key == staged.key:",
        "if False:",
        seeds,
    ),
    "own manifest recognised by its publication": (
        compare_and_swap._swap,
        "return now if _was_published(region, staged) else None",
        "return None",
        late_reply,
    ),
    "another's publication recognised": (
        compare_and_swap._was_published,
        "return found.body == staged.body",
        "return True",
        seeds,
    ),
    "the hint only rises": (compare_and_swap._raise_hint, "if hinted(found.body) < version:", "if True:", seeds),
    "the hint rises under its ETag": (
        compare_and_swap._raise_hint,
        "expect=found.etag)",
        "expect=objects.get(key).etag)",
        seeds,
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_without_the_guard_something_breaks(guard: str) -> None:
    function, text, instead, hunt = GUARDS[guard]

    assert ends_badly([(function, text, instead)], hunt)
