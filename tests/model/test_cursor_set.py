"""Setting a cursor back or forward keeps every promise in every interleaving, and needs every guard for it."""

from __future__ import annotations

import pytest

from tests.model.cursor_set import CursorSet, Guard
from tests.model.verdicts import check_broken, check_clean

MISSING, FALSE = "kept entry missing", "false report"
CAUGHT: dict[Guard, tuple[bool, str]] = {  # whether the cursor is set back, and what breaks
    Guard.NEW_COUNTS: (True, MISSING),
    Guard.OLD_COUNTS: (False, MISSING),
    Guard.KEPT: (True, MISSING),
    Guard.FLOOR_AFTER: (True, MISSING),
    Guard.OLD_AFTER: (True, MISSING),
    Guard.ARRIVES_AS_ANNOUNCED: (True, FALSE),
    Guard.EXPIRED_WITHDRAWN: (True, MISSING),
    Guard.WITHDRAWN_AS_JUDGED: (False, MISSING),
    Guard.HELD: (True, FALSE),
}


@pytest.mark.parametrize(("back", "states"), [(True, 14_002), (False, 2_405)], ids=["back", "forward"])
def test_a_cursor_that_is_set_has_one_position_and_keeps_its_entries(back: bool, states: int) -> None:
    check_clean(CursorSet(back=back), states=states)


@pytest.mark.one_case
@pytest.mark.parametrize("guard", Guard, ids=lambda guard: guard.name.lower())
def test_a_promise_breaks_without_the_guard(guard: Guard) -> None:
    back, kind = CAUGHT[guard]
    check_broken(CursorSet(without=guard, back=back), kind=kind, guard=guard)
