"""Append keeps its promises in every interleaving, and needs every guard for it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.model import append
from tests.model.append import Append, Guard
from tests.model.engine import graph
from tests.model.verdicts import check_broken, check_clean

CAUGHT = {
    Guard.CONDITION: (append.SIBLINGS, "committed twice"),
    Guard.OWN_NONCE: (append.SIBLINGS, "committed twice"),
    Guard.DEFINITE_REFUSAL: (append.SIBLINGS, "committed twice"),
    Guard.HEAD_AFTER_OBJECT: (append.SIBLINGS, "acknowledged, not committed"),
    Guard.HELP_NOT_REPLACE: (append.SIBLINGS, "committed entry missing"),
    Guard.REPLACE_UNDER_ETAG: (append.TAKEOVER_BY_SIBLINGS, "committed entry missing"),
    Guard.STOP_AT_NEW_EPOCH: (append.TAKEOVER, "committed entry missing"),
    Guard.FRESH_HEAD: (append.TAKEOVER, "false alarm"),
    Guard.COMMIT_BEFORE_SWEEP: (append.SIBLINGS, "committed entry missing"),
    Guard.ACKNOWLEDGE_AFTER_SWAP: (append.SIBLINGS, "acknowledged, not committed"),
}


def _without_late_writes(roles: tuple[append.Role, ...]) -> Append:
    """No write lands late. With late writes, three writers have more states than a test can visit."""
    return Append(roles, in_flight=(), last_epoch=3)


@pytest.mark.parametrize(
    ("roles", "states"),
    [
        pytest.param(append.SIBLINGS, 20_644, id="siblings"),
        pytest.param(append.TAKEOVER, 5_959, id="takeover"),
    ],
)
def test_appends_keep_every_promise_in_every_interleaving(roles: tuple[append.Role, ...], states: int) -> None:
    check_clean(Append(roles), states=states)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "states"),
    [
        pytest.param(Append(append.BUSY_TAKEOVER), 232_729, id="busy takeover"),
        pytest.param(_without_late_writes(append.SIBLINGS_AND_TAKEOVER), 130_116, id="siblings and takeover"),
        pytest.param(_without_late_writes(append.TAKEOVER_BY_SIBLINGS), 132_907, id="takeover by siblings"),
        pytest.param(_without_late_writes(append.TWO_TAKEOVERS), 116_172, id="two takeovers"),
        pytest.param(_without_late_writes(append.TAKE_AND_RETAKE), 94_430, id="take and retake"),
    ],
)
def test_appends_of_more_writers_keep_every_promise(model: Append, states: int) -> None:
    check_clean(model, states=states)


@pytest.mark.parametrize("guard", Guard, ids=lambda guard: guard.name.lower())
def test_a_promise_of_append_breaks_without_the_guard(guard: Guard) -> None:
    roles, kind = CAUGHT[guard]

    check_broken(Append(roles, without=guard), kind=kind, guard=guard)


def test_every_edge_of_the_takeover_lies_on_a_path_that_can_be_replayed() -> None:
    takeover = graph(Append(append.TAKEOVER))

    replayed = set()
    for path in takeover.covering_paths():
        assert path[0].before == Append(append.TAKEOVER).initial()
        assert all(edge.after == following.before for edge, following in pairwise(path))
        replayed.update(path)

    assert replayed == set(takeover.edges)
