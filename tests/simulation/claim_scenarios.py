"""Scenarios of claims and seals that meet leftovers, undecodable objects, another claim or another epoch."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Epoch, Position, wal_entry
from lancelsm.errors import Corrupt, Fenced, Invalid
from lancelsm.region.head import RegionState
from lancelsm.wal.claim import claim, finish_claim, seal
from tests.simulation.environment import OWNER, Environment, collect
from tests.simulation.situations import half_claim, orphan


def two_claims() -> None:
    """Two writers claim the region. The one that lost gets `Fenced` before it can write. See slatedb 271."""
    environment = Environment()
    half_claim(environment.region("first"), owner="first")
    first = environment.region("first").head()
    second = claim(environment.region("second"), owner="second")

    with pytest.raises(Fenced, match="'second'"):
        finish_claim(environment.region("first"), first, owner="first")
    with pytest.raises(Fenced, match="'second'"):
        environment.write(environment.region("first"), 1, owner="first", held=first)
    environment.write(environment.region("second"), 2, owner="second", held=second)
    environment.audit()


def leftovers_above_a_gap() -> None:
    """There are objects above the head, behind a gap.

    Lance's own writer fills the first gap, and its next start replays the objects behind it.
    """
    environment = Environment()
    head = environment.write(environment.region("writer"), 1).head
    for ahead in (1, 3):
        position = Position(head.next_position + ahead)
        orphan(environment, 10 + ahead, position=position, epoch=head.epoch)

    after = claim(environment.region("claimer"), owner=OWNER)

    assert after.next_position == 6
    assert [environment.log[Position(p)].fence for p in (2, 3, 4, 5)] == [True] * 4
    environment.audit()


def undecodable_object() -> None:
    """The object above the head can't be decoded. Appends are blocked until a claim replaces it."""
    environment = Environment()
    head = environment.write(environment.region("writer"), 1).head
    environment.store.create(wal_entry(environment.id, head.next_position), b"torn")
    with pytest.raises(Corrupt, match=r"position 2.*lancelsm region claim"):
        environment.write(environment.region("writer"), 2)

    claim(environment.region("claimer"), owner=OWNER)
    environment.raised.clear()

    assert environment.write(environment.region("writer"), 3).summary.position == 3
    environment.audit()


def undecodable_object_after_the_claim() -> None:
    """An undecodable object lands after the claim. A sibling of another release may be about to commit it."""
    environment = Environment()
    head = claim(environment.region("claimer"), owner=OWNER)
    key = wal_entry(environment.id, head.next_position)
    environment.store.create(key, b"of another release")

    with pytest.raises(Corrupt):
        environment.write(environment.region("writer"), 1)

    assert environment.store.get(key).body == b"of another release"


def entry_of_a_higher_epoch() -> None:
    """The object above the head has a higher epoch than the head: its writer does not use the registry."""
    environment = Environment()
    head = environment.write(environment.region("writer"), 1).head
    body = orphan(environment, 2, position=head.next_position, epoch=Epoch(7))

    with pytest.raises(Corrupt, match=r"does not use the registry.*lancelsm region adopt memory://t"):
        claim(environment.region("claimer"), owner=OWNER)

    assert environment.store.get(wal_entry(environment.id, head.next_position)).body == body


def sealed_region() -> None:
    """A sealed region refuses appends and claims, and stays sealed."""
    environment = Environment()
    held = environment.write(environment.region("writer"), 1).head

    head = seal(environment.region("sealer"))

    assert (head.status, head.owner, head.epoch, head.manifest_epoch) == (RegionState.SEALED, "", 2, 2)
    for act in (
        lambda: environment.write(environment.region("writer"), 2, held=held),
        lambda: environment.write(environment.region("new writer"), 3),
        lambda: claim(environment.region("claimer"), owner=OWNER),
    ):
        with pytest.raises(Invalid, match="the region is sealed"):
            act()
    assert seal(environment.region("sealer")).manifest_version == head.manifest_version
    collect(environment, environment.region("collector"))
    environment.audit()
