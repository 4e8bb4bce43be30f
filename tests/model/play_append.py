"""The model of append, played by `append`."""

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
from tests.model.stage import (
    Call,
    Stage,
    numbers_and_epoch,
)
from tests.simulation.environment import row


class AppendStage(Stage):
    """A claim is one step: the swap of the epoch also finishes it."""

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


class AppendPlay:
    """Each writer appends its entries by `append`, one after the other; who claims does so when it is fenced."""

    def __init__(self, model: Append) -> None:
        self.model = model
        self._names = tuple(entry for role in model.roles for entry in role.entries)

    def stage(self) -> AppendStage:
        return AppendStage(self._names)

    def cast(self, stage: Stage) -> dict[str, Callable[[], object]]:
        return {
            f"{role.owner}{index}": partial(self._write, stage, stage.region(role.owner, number=index), role)
            for index, role in enumerate(self.model.roles)
        }

    def _write(self, stage: Stage, region: Region, role: appends.Role) -> None:
        held = None
        for entry in role.entries:
            appended = None
            while appended is None:
                try:
                    appended = append(region, row(self._names.index(entry)), owner=role.owner, held=held)
                except LsmError as error:
                    if not isinstance(error, Fenced) or not role.claims:
                        stage.results.append((entry, type(error).__name__))
                        return
                    held = _swap_epoch(region, region.head(), owner=role.owner, held_by=())
            stage.results.append((entry, appended.summary.position))
            held = appended.head

    def due(self, state: appends.State) -> Mapping[str, frozenset[str]]:
        due = {}
        for index, (role, writer) in enumerate(zip(self.model.roles, state.writers, strict=True)):
            calls = frozenset({ENDED})
            if writer.call != "stopped":
                calls = frozenset({WRITES[writer.call].format(n=writer.head.next if writer.head else 0)})
            elif writer.entries:
                calls = ANYTHING  # the model has run out of epochs
            due[f"{role.owner}{index}"] = calls
        return due

    def folded(self, call: Call, due: frozenset[str]) -> bool:
        """A claim begins with a read, which nothing separates from what showed that the region is another's."""
        return call.name == READ_HEAD and due == {CLAIM}

    def happen(self, stage: Stage, step: Step) -> None:
        assert isinstance(stage, AppendStage)
        verb, _, rest = step.action.partition(" ")
        if verb == "flush":
            stage.flushed = int(stage.head()["next_position"]) - 1
        elif verb == "collect":
            stage.registry.swap(stage.key, expect={}, change={"first_position": stage.flushed + 1})
        elif verb == "sweep":
            stage.objects.remove(wal_entry(stage.id, Position(int(rest))))
        else:
            assert verb == "late"
            assert stage.late is not None
            land, stage.late = stage.late, None
            expect(land(), (Written, SwapApplied) if step.outcome == WRITTEN else (PreconditionFailed, SwapLost), step)

    def seen(self, stage: Stage) -> Hashable:
        assert isinstance(stage, AppendStage)
        head = stage.head()
        return {
            "head": appends.Head(*(head[name] for name in ("epoch", "owner", "next_position", "first_position"))),
            "objects": stage.entries(),
            "log": tuple(entry for entry, _ in stage.log),
            "flushed": stage.flushed,
            "acknowledged": tuple((entry, raised) for entry, raised in stage.results if isinstance(raised, int)),
            "failed": tuple((entry, raised) for entry, raised in stage.results if isinstance(raised, str)),
            "in flight": stage.late is not None,
        }

    def raised(self, state: appends.State) -> Hashable:
        return {
            "head": state.head,
            "objects": state.objects,
            "log": state.log,
            "flushed": state.flushed,
            "acknowledged": state.acknowledged,
            "failed": state.failed,
            "in flight": state.pending is not None,
        }


WRITES = {
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
