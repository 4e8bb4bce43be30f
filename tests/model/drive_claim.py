"""Replay the model of claim with `claim` and with the `append` of a sibling."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial

from lancelsm.common.layout import Position, wal_position
from lancelsm.errors import LsmError
from lancelsm.objects import Object as Stored
from lancelsm.region.catalog import Region
from lancelsm.wal.append import append
from lancelsm.wal.claim import claim
from tests.model import claim as claims
from tests.model.append import CLAIM, CREATE, GET, READ_HEAD, REPLACE, SWAP
from tests.model.claim import RELEASES, Claim
from tests.model.engine import Step
from tests.model.replay import ANYTHING, ENDED, Mismatch
from tests.model.stepped_region import LIST, SWAP_MANIFEST, ZOMBIE, Call, SteppedRegion, decoded, number_of
from tests.simulation.environment import row


class ClaimStorage(SteppedRegion):
    """Storage with two releases. A release decodes fences of the other one, but none of its uncommitted rows.

    Each release decodes all committed entries, since a claim sums them: a release that writes another format comes only
    after a release that reads it.
    """

    def __init__(self, writers: tuple[str, ...]) -> None:
        super().__init__()
        self.writers = writers

    def entry(self, body: bytes, position: Position) -> claims.Object:
        entry = decoded(body, position)
        assert entry.nonce is not None
        number = number_of(entry.nonce)
        writer = "O" if number == ZOMBIE else self.writers[number]
        return claims.Object("fence" if entry.fence else "rows", writer, entry.summary.epoch)

    def get(self, actor: str, key: str) -> Stored | None:
        stored, position = super().get(actor, key), wal_position(key)
        if stored is None or position is None:
            return stored
        entry = self.entry(stored.body, position)
        committed = position < self.head()["next_position"]
        if committed or entry.kind == "fence" or RELEASES[entry.writer] == RELEASES[actor]:
            return stored
        return Stored(body=b"rows of another release", etag=stored.etag)


class ClaimDriver:
    """A claimer calls `claim`. The sibling calls `append`, which finishes the claim that it finds."""

    def __init__(self, model: Claim) -> None:
        self.model = model

    def storage(self) -> ClaimStorage:
        stepped = ClaimStorage(tuple(role.name for role in self.model.roles))
        for position in self.model.leftovers:
            stepped.put(row(position), position=position, epoch=1)
        return stepped

    def actors(self, stepped: SteppedRegion) -> dict[str, Callable[[], object]]:
        return {
            role.name: partial(self._act, stepped.region(role.name, number=index), role)
            for index, role in enumerate(self.model.roles)
        }

    def _act(self, region: Region, role: claims.Role) -> None:
        try:
            if role.claims:
                claim(region, owner=role.owner)
            else:
                append(region, row(50), owner=role.owner)
        except LsmError:
            pass

    def expected_calls(self, state: claims.State) -> Mapping[str, frozenset[str]]:
        expected = {}
        for role, actor in zip(self.model.roles, state.actors, strict=True):
            n = actor.head.next if actor.head else 0
            # "spent": the model has run out of epochs.
            expected[role.name] = ANYTHING if actor.call == "spent" else frozenset({CALLS[actor.call].format(n=n)})
        return expected

    def continues_step(self, call: Call, expected: frozenset[str]) -> bool:
        """Reads that check a result, and calls of a manifest commit other than its swap, have no step of their own."""
        if call.reads:
            return call.name != LIST
        return call.name.endswith((" manifest", " hint")) and call.name != SWAP_MANIFEST

    def perform(self, stepped: SteppedRegion, step: Step) -> None:
        raise Mismatch(f"{step}: unknown actor")

    def observed(self, stepped: SteppedRegion) -> Hashable:
        head = stepped.head()
        return {
            "head": claims.Head(*(head[name] for name in ("epoch", "owner", "next_position", "manifest_epoch"))),
            "objects": stepped.entries(),
            "log": tuple((entry, after["epoch"], after["owner"]) for entry, after in stepped.log),
        }

    def expected(self, state: claims.State) -> Hashable:
        return {"head": state.head, "objects": state.objects, "log": state.log}


CALLS = {
    "start": READ_HEAD,
    "claim": CLAIM,
    "list": LIST,
    "create": f"{CREATE} {{n}}",
    "examine": f"{GET} {{n}}",
    "judge": READ_HEAD,
    "replace": f"{REPLACE} {{n}}",
    "swap": f"{SWAP} {{n}}",
    "help": f"{SWAP} {{n}}",
    "load manifest": READ_HEAD,
    "swap manifest": SWAP_MANIFEST,
    "settle": READ_HEAD,
    "stopped": ENDED,
}
