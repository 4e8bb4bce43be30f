"""The model of manifest commits, played by `append`, `flush` and `commit`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from functools import partial

import pyarrow as pa

from lancelsm.common.layout import Position, generation_number
from lancelsm.common.setsum import Setsum
from lancelsm.compaction.flush import Stored, flush
from lancelsm.errors import Fenced
from lancelsm.record.schema import TableSchema
from lancelsm.region import manifest as manifests
from lancelsm.region.catalog import Region
from lancelsm.region.compare_and_swap import commit
from lancelsm.region.manifest import Manifest
from lancelsm.wal.append import append
from lancelsm.wal.claim import _swap_epoch
from tests.model import head_commits as commits
from tests.model.append import CLAIM, READ_HEAD, SWAP
from tests.model.engine import Step
from tests.model.head_commits import HeadCommits
from tests.model.replay import ENDED, Mismatch
from tests.model.stage import LOOK_AT_PUBLISHED, SWAP_MANIFEST, Call, Stage, numbers_and_epoch
from tests.simulation.environment import SCHEMA, row

TABLE_SCHEMA = TableSchema(columns=pa.schema([SCHEMA.field("id")]), primary_key=("id",))


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
        epoch = _swap_epoch(region, region.head(), owner="C", held_by=()).epoch
        commit(region, partial(manifests.with_epoch, epoch=epoch, last_seen=Position(0)))

    def _flush(self, stage: Stage, region: Region, name: str) -> None:
        def write(key: str, rows: pa.Table, *_: object) -> Stored:
            ids = rows.column("id").to_pylist()
            directory = key.rpartition("/")[2]
            stage.remarks[directory] = commits.Generation(generation_number(directory), min(ids), max(ids), name)
            assert sorted(ids) == list(range(min(ids), max(ids) + 1))
            stage.remarks[name] = directory
            return Stored(bytes=rows.nbytes, file_setsum=Setsum.ZERO)

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
            "reports": tuple((stage.remarks[directory], raised) for directory, raised in stage.results),
            "acknowledged": stage.remarks.get("acknowledged", 0),
        }

    def raised(self, state: commits.State) -> Hashable:
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
def _manifest(body: bytes) -> Manifest:
    return manifests.decode(body, key="")
