"""Replay the model of append with `append`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial

from lancelsm.common.layout import Position, wal_entry
from lancelsm.errors import Fenced, LsmError
from lancelsm.objects import PreconditionFailed, Written
from lancelsm.region.catalog import Region
from lancelsm.registry import Fields, SwapApplied, SwapLost
from lancelsm.wal.append import append
from lancelsm.wal.claim import _swap_epoch
from tests.model import append as appends
from tests.model.append import CLAIM, CREATE, GET, READ_HEAD, REPLACE, SWAP, WRITTEN, Append
from tests.model.engine import Step
from tests.model.replay import ANYTHING, ENDED, expect
from tests.model.stepped_region import SWAP_NOTE, Call, SteppedRegion, numbers_and_epoch
from tests.simulation.environment import row


class AppendStorage(SteppedRegion):
    """Storage in which a claim is one step: the swap of the epoch also finishes the claim."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        self.flushed = 0

    def entry(self, body: bytes, position: Position) -> appends.Object:
        (number,), epoch = numbers_and_epoch(body, position)
        return appends.Object(self.names[number], epoch)

    def swap(self, actor: str, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost:
        if "owner" in change:
            change = {**change, "manifest_epoch": change["epoch"]}
        return super().swap(actor, expect=expect, change=change)


class AppendDriver:
    """Each writer appends its entries with `append`, one after the other. A writer that claims does so when fenced."""

    def __init__(self, model: Append) -> None:
        self.model = model
        self._names = tuple(entry for role in model.roles for entry in role.entries)

    def storage(self) -> AppendStorage:
        return AppendStorage(self._names)

    def actors(self, stepped: SteppedRegion) -> dict[str, Callable[[], object]]:
        return {
            f"{role.owner}{index}": partial(self._write, stepped, stepped.region(role.owner, number=index), role)
            for index, role in enumerate(self.model.roles)
        }

    def _write(self, stepped: SteppedRegion, region: Region, role: appends.Role) -> None:
        held = None
        for entry in role.entries:
            appended = None
            while appended is None:
                try:
                    appended = append(region, row(self._names.index(entry)), owner=role.owner, held=held)
                except LsmError as error:
                    if not isinstance(error, Fenced) or not role.claims:
                        stepped.results.append((entry, type(error).__name__))
                        return
                    held = _swap_epoch(region, region.head(), owner=role.owner, held_by=())
            stepped.results.append((entry, appended.summary.position))
            held = appended.head

    def expected_calls(self, state: appends.State) -> Mapping[str, frozenset[str]]:
        expected = {}
        for index, (role, writer) in enumerate(zip(self.model.roles, state.writers, strict=True)):
            calls = frozenset({ENDED})
            if writer.call != "stopped":
                calls = frozenset({CALLS[writer.call].format(n=writer.head.next if writer.head else 0)})
            elif writer.entries:
                calls = ANYTHING  # the model has run out of epochs
            expected[f"{role.owner}{index}"] = calls
        return expected

    def continues_step(self, call: Call, expected: frozenset[str]) -> bool:
        """A claim begins with a read. In the model, this read is part of the step that found the other owner.

        A writer that has lost several swaps leaves a note in the head, which decides nothing (waiting_note.py).
        """
        return call.name == SWAP_NOTE or (call.name == READ_HEAD and expected == {CLAIM})

    def perform(self, stepped: SteppedRegion, step: Step) -> None:
        assert isinstance(stepped, AppendStorage)
        verb, _, rest = step.action.partition(" ")
        if verb == "flush":
            stepped.flushed = int(stepped.head()["next_position"]) - 1
        elif verb == "collect":
            stepped.registry.swap(stepped.key, expect={}, change={"first_position": stepped.flushed + 1})
        elif verb == "sweep":
            stepped.objects.remove(wal_entry(stepped.id, Position(int(rest))))
        else:
            assert verb == "late"
            assert stepped.late is not None
            land, stepped.late = stepped.late, None
            expect(land(), (Written, SwapApplied) if step.outcome == WRITTEN else (PreconditionFailed, SwapLost), step)

    def observed(self, stepped: SteppedRegion) -> Hashable:
        assert isinstance(stepped, AppendStorage)
        head = stepped.head()
        return {
            "head": appends.Head(*(head[name] for name in ("epoch", "owner", "next_position", "first_position"))),
            "objects": stepped.entries(),
            "log": tuple(entry for entry, _ in stepped.log),
            "flushed": stepped.flushed,
            "acknowledged": tuple((entry, result) for entry, result in stepped.results if isinstance(result, int)),
            "failed": tuple((entry, result) for entry, result in stepped.results if isinstance(result, str)),
            "in flight": stepped.late is not None,
        }

    def expected(self, state: appends.State) -> Hashable:
        return {
            "head": state.head,
            "objects": state.objects,
            "log": state.log,
            "flushed": state.flushed,
            "acknowledged": state.acknowledged,
            "failed": state.failed,
            "in flight": state.pending is not None,
        }


CALLS = {
    "start": READ_HEAD,
    "claim": CLAIM,
    "create": f"{CREATE} {{n}}",
    "replace": f"{REPLACE} {{n}}",
    "examine": f"{GET} {{n}}",
    "yield": READ_HEAD,
    "help": f"{SWAP} {{n}}",
    "swap": f"{SWAP} {{n}}",
    "settle": READ_HEAD,
    "verify": f"{GET} {{n}}",
    "verify head": READ_HEAD,
}
