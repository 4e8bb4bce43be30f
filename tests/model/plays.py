"""How the models of append, claim and manifest commits are played by the code that they are models of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from functools import partial

import pyarrow as pa

from lancelsm import manifest as manifests
from lancelsm.claim import _swap_epoch, claim
from lancelsm.commit import commit
from lancelsm.errors import Fenced, LsmError
from lancelsm.flush import flush
from lancelsm.layout import Epoch, Position, generation_number, wal_entry, wal_position
from lancelsm.manifest import Manifest
from lancelsm.objects import Object as Stored
from lancelsm.objects import Refused, Written
from lancelsm.record.schema import TableSchema
from lancelsm.region import Region
from lancelsm.registry import Applied, Fields, Lost
from lancelsm.wal.append import append
from tests.model import append as appends
from tests.model import claim as claims
from tests.model import head_commits as commits
from tests.model.append import CLAIM, CREATE, GET, READ_HEAD, REPLACE, SWAP, WRITTEN, Append
from tests.model.claim import RELEASES, Claim
from tests.model.engine import Step
from tests.model.head_commits import HeadCommits
from tests.model.replay import (
    ANYTHING,
    ENDED,
    LIST,
    LOOK_AT_PUBLISHED,
    SWAP_MANIFEST,
    ZOMBIE,
    Call,
    Mismatch,
    Stage,
    decoded,
    expect,
    number_of,
)
from tests.simulation.world import SCHEMA, numbers_in, row

TABLE_SCHEMA = TableSchema(columns=pa.schema([SCHEMA.field("id")]), primary_key=("id",))


# -- append


class AppendStage(Stage):
    """A claim is one step: the swap of the epoch also finishes it."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        self.flushed = 0

    def entry(self, body: bytes, position: Position) -> appends.Object:
        (number,), epoch = numbers_and_epoch(body, position)
        return appends.Object(self.names[number], epoch)

    def swap(self, actor: str, *, expect: Fields | None, change: Fields) -> Applied | Lost:
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
                    held = _swap_epoch(region, owner=role.owner, held_by=())
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
            expect(land(), (Written, Applied) if step.outcome == WRITTEN else (Refused, Lost), step)

    def seen(self, stage: Stage) -> Hashable:
        assert isinstance(stage, AppendStage)
        head = stage.head()
        return {
            "head": appends.Head(*(head[name] for name in ("epoch", "owner", "next_position", "first_position"))),
            "objects": stage.entries(),
            "log": tuple(entry for entry, _ in stage.log),
            "flushed": stage.flushed,
            "acknowledged": tuple((entry, told) for entry, told in stage.results if isinstance(told, int)),
            "failed": tuple((entry, told) for entry, told in stage.results if isinstance(told, str)),
            "in flight": stage.late is not None,
        }

    def told(self, state: appends.State) -> Hashable:
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


# -- claim


class ClaimStage(Stage):
    """Releases that can't read each other's rows, only each other's fences."""

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
        if entry.kind == "fence" or RELEASES[entry.writer] == RELEASES[actor]:
            return stored
        return Stored(body=b"rows of another release", etag=stored.etag)


class ClaimPlay:
    """Who claims calls `claim`, the sibling `append`, which finishes the claim that it finds."""

    def __init__(self, model: Claim) -> None:
        self.model = model

    def stage(self) -> ClaimStage:
        stage = ClaimStage(tuple(role.name for role in self.model.roles))
        for position in self.model.leftovers:
            stage.put(row(position), position=position, epoch=1)
        return stage

    def cast(self, stage: Stage) -> dict[str, Callable[[], object]]:
        return {
            role.name: partial(self._act, stage.region(role.name, number=index), role)
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

    def due(self, state: claims.State) -> Mapping[str, frozenset[str]]:
        due = {}
        for role, actor in zip(self.model.roles, state.actors, strict=True):
            n = actor.head.next if actor.head else 0
            # Spent: the model has run out of epochs.
            due[role.name] = ANYTHING if actor.call == "spent" else frozenset({CLAIMS[actor.call].format(n=n)})
        return due

    def folded(self, call: Call, due: frozenset[str]) -> bool:
        """Reads that look back, and what a commit does with manifests beside the swap that counts."""
        if call.reads:
            return call.name != LIST
        return call.name.endswith((" manifest", " hint")) and call.name != SWAP_MANIFEST

    def happen(self, stage: Stage, step: Step) -> None:
        raise Mismatch(f"{step}: nobody does that")

    def seen(self, stage: Stage) -> Hashable:
        head = stage.head()
        return {
            "head": claims.Head(*(head[name] for name in ("epoch", "owner", "next_position", "manifest_epoch"))),
            "objects": stage.entries(),
            "log": tuple((entry, after["epoch"], after["owner"]) for entry, after in stage.log),
        }

    def told(self, state: claims.State) -> Hashable:
        return {"head": state.head, "objects": state.objects, "log": state.log}


CLAIMS = {
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


# -- flush


class FlushStage(Stage):
    def entry(self, body: bytes, position: Position) -> int:
        (number,), _ = numbers_and_epoch(body, position)
        return number


class FlushPlay:
    """`append`, `flush` and the manifest's half of a claim. Generations are written to memory: their rows alone."""

    def __init__(self, model: HeadCommits) -> None:
        self.model = model

    def stage(self) -> FlushStage:
        return FlushStage()

    def cast(self, stage: Stage) -> dict[str, Callable[[], object]]:
        flushers = {
            name: partial(self._flush, stage, stage.region(name, number=index), name)
            for index, name in enumerate(self.model.flushers)
        }
        return {
            "A": partial(self._append, stage, stage.region("A", number=10)),
            "C": partial(self._claim, stage.region("C", number=11)),
            **flushers,
        }

    def _append(self, stage: Stage, region: Region) -> None:
        for number in range(1, self.model.entries + 1):
            try:
                appended = append(region, row(number), owner="O")
            except Fenced:
                return
            stage.remarks["acknowledged"] = appended.summary.position

    def _claim(self, region: Region) -> None:
        epoch = _swap_epoch(region, owner="C", held_by=()).epoch
        commit(region, partial(manifests.with_epoch, epoch=epoch, last_seen=Position(0)))

    def _flush(self, stage: Stage, region: Region, name: str) -> None:
        def write(key: str, rows: pa.Table, *_: object) -> int:
            ids = rows.column("id").to_pylist()
            directory = key.rpartition("/")[2]
            stage.remarks[directory] = commits.Generation(generation_number(directory), min(ids), max(ids), name)
            assert sorted(ids) == list(range(min(ids), max(ids) + 1))
            stage.remarks[name] = directory
            return rows.nbytes

        done = flush(region, TABLE_SCHEMA, write=write, rows_max=100, bytes_max=1_000_000)
        stage.results.append((stage.remarks[name], "dead" if done is None else "done"))

    def due(self, state: commits.State) -> Mapping[str, frozenset[str]]:
        appender = state.appender
        if appender.held:
            appends = {f"{SWAP} {appender.held.next}"}
        else:
            over = state.head.epoch > 1 or state.head.next > self.model.entries
            appends = {READ_HEAD, ENDED} if over else {READ_HEAD}
        flushes = zip(self.model.flushers, state.flushers, strict=True)
        return {
            "A": frozenset(appends),
            "C": frozenset({CLAIM}) if state.claimer.call == "start" else COMMITS[state.claimer.call],
            **{name: COMMITS[flusher.call] for name, flusher in flushes},
        }

    def folded(self, call: Call, due: frozenset[str]) -> bool:
        """All but swaps, and the one read after a swap without an answer: what is staged or put is nobody's yet."""
        return call.name != SWAP_MANIFEST and not call.name.startswith(f"{SWAP} ") and call.name != CLAIM

    def happen(self, stage: Stage, step: Step) -> None:
        raise Mismatch(f"{step}: nobody does that")

    def seen(self, stage: Stage) -> Hashable:
        head = stage.head()
        named = stage.objects.get(str(head["manifest_key"]))
        assert named is not None
        manifest = _manifest(named.body)
        generations = tuple(stage.remarks[generation.path] for generation in manifest.generations)
        folded = tuple((g.generation, g.folded.first, g.folded.last) for g in manifest.generations)
        assert folded == tuple(generation[:3] for generation in generations)
        return {
            "head": commits.Head(
                head["epoch"],
                head["next_position"],
                commits.Manifest(manifest.version, manifest.epoch, generations),
            ),
            "half": (head["manifest_version"], head["manifest_epoch"], head["current_generation"]),
            "log": tuple(entry for entry, _ in stage.log),
            "reports": tuple((stage.remarks[directory], told) for directory, told in stage.results),
            "acknowledged": stage.remarks.get("acknowledged", 0),
        }

    def told(self, state: commits.State) -> Hashable:
        manifest = state.head.manifest
        return {
            "head": state.head,
            "half": (manifest.version, manifest.epoch, len(manifest.generations) + 1),
            "log": tuple(range(1, state.head.next)),
            "reports": state.reports,
            "acknowledged": state.acknowledged,
        }


COMMITS = {
    "start": frozenset({READ_HEAD}),
    "look": frozenset({LOOK_AT_PUBLISHED}),
    "stage": frozenset({READ_HEAD}),
    "swap": frozenset({SWAP_MANIFEST}),
    "settle": frozenset({READ_HEAD}),
    "stopped": frozenset({ENDED}),
}


@functools.lru_cache(maxsize=10_000)
def numbers_and_epoch(body: bytes, position: Position) -> tuple[tuple[int, ...], Epoch]:
    entry = decoded(body, position)
    return tuple(numbers_in(entry)), entry.summary.epoch


@functools.lru_cache(maxsize=10_000)
def _manifest(body: bytes) -> Manifest:
    return manifests.decode(body, key="")
