"""Replay the model of manifest commits with `append`, `flush` and `commit`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from functools import partial

import pyarrow as pa

from lancelsm.common.layout import Position, generation_number
from lancelsm.common.setsum import Setsum
from lancelsm.compaction.flush import Stored, flush
from lancelsm.compaction.fold import FoldedRows
from lancelsm.errors import Fenced
from lancelsm.record.schema import TableSchema
from lancelsm.region import manifest as manifests
from lancelsm.region import manifest_codec
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
from tests.model.stepped_region import GET_PUBLISHED, SWAP_MANIFEST, Call, SteppedRegion, numbers_and_epoch
from tests.simulation.environment import SCHEMA, row

TABLE_SCHEMA = TableSchema(columns=pa.schema([SCHEMA.field("id")]), primary_key=("id",))


class FlushStorage(SteppedRegion):
    def entry(self, body: bytes, position: Position) -> int:
        (number,), _ = numbers_and_epoch(body, position)
        return number


class FlushDriver:
    """Runs `append`, `flush` and the manifest half of a claim. Only the rows of a generation are kept, in memory."""

    def __init__(self, model: HeadCommits) -> None:
        self.model = model

    def storage(self) -> FlushStorage:
        return FlushStorage()

    def actors(self, stepped: SteppedRegion) -> dict[str, Callable[[], object]]:
        flushers = {
            name: partial(self._flush, stepped, stepped.region(name, number=index), name)
            for index, name in enumerate(self.model.flushers)
        }
        return {
            "A": partial(self._append, stepped, stepped.region("A", number=10)),
            "C": partial(self._claim, stepped.region("C", number=11)),
            **flushers,
        }

    def _append(self, stepped: SteppedRegion, region: Region) -> None:
        for number in range(1, self.model.entries + 1):
            try:
                appended = append(region, row(number), owner="O")
            except Fenced:
                return
            stepped.notes["acknowledged"] = appended.summary.position

    def _claim(self, region: Region) -> None:
        epoch = _swap_epoch(region, region.head(), owner="C", held_by=()).epoch
        commit(region, partial(manifests.with_epoch, epoch=epoch, last_seen=Position(0)))

    def _flush(self, stepped: SteppedRegion, region: Region, name: str) -> None:
        def write(key: str, rows: FoldedRows) -> Stored:
            ids = [row for batch in rows.batches() for row in batch.column("id").to_pylist()]
            directory = key.rpartition("/")[2]
            stepped.notes[directory] = commits.Generation(generation_number(directory), min(ids), max(ids), name)
            assert sorted(ids) == list(range(min(ids), max(ids) + 1))
            stepped.notes[name] = directory
            return Stored(file_setsum=Setsum.ZERO)

        done = flush(region, TABLE_SCHEMA, write=write, rows_max=100, bytes_max=1_000_000)
        stepped.results.append((stepped.notes[name], "done" if done else "dead"))

    def expected_calls(self, state: commits.State) -> Mapping[str, frozenset[str]]:
        appender = state.appender
        if appender.held:
            appends = {f"{SWAP} {appender.held.next}"}
        else:
            over = state.head.epoch > 1 or state.head.next > self.model.entries
            appends = {READ_HEAD, ENDED} if over else {READ_HEAD}
        flushes = zip(self.model.flushers, state.flushers, strict=True)
        return {
            "A": frozenset(appends),
            "C": frozenset({CLAIM}) if state.claimer.call == "start" else CALLS[state.claimer.call],
            **{name: CALLS[flusher.call] for name, flusher in flushes},
        }

    def continues_step(self, call: Call, expected: frozenset[str]) -> bool:
        """Only swaps have a step of their own: a staged manifest or an uncommitted object has no effect on others."""
        return call.name != SWAP_MANIFEST and not call.name.startswith(f"{SWAP} ") and call.name != CLAIM

    def perform(self, stepped: SteppedRegion, step: Step) -> None:
        raise Mismatch(f"{step}: unknown actor")

    def observed(self, stepped: SteppedRegion) -> Hashable:
        head = stepped.head()
        named = stepped.objects.get(str(head["manifest_key"]))
        assert named is not None
        manifest = _manifest(named.body)
        generations = tuple(stepped.notes[generation.path] for generation in manifest.generations)
        folded = tuple((g.generation, g.folded.first, g.folded.last) for g in manifest.generations)
        assert folded == tuple(generation[:3] for generation in generations)
        return {
            "head": commits.Head(
                head["epoch"],
                head["next_position"],
                commits.Manifest(manifest.version, manifest.epoch, generations),
            ),
            "half": (head["manifest_version"], head["manifest_epoch"], head["current_generation"]),
            "log": tuple(entry for entry, _ in stepped.log),
            "reports": tuple((stepped.notes[directory], report) for directory, report in stepped.results),
            "acknowledged": stepped.notes.get("acknowledged", 0),
        }

    def expected(self, state: commits.State) -> Hashable:
        manifest = state.head.manifest
        return {
            "head": state.head,
            "half": (manifest.version, manifest.epoch, len(manifest.generations) + 1),
            "log": tuple(range(1, state.head.next)),
            "reports": state.reports,
            "acknowledged": state.acknowledged,
        }


CALLS = {
    "start": frozenset({READ_HEAD}),
    "look": frozenset({GET_PUBLISHED}),
    "stage": frozenset({READ_HEAD}),
    "swap": frozenset({SWAP_MANIFEST}),
    "settle": frozenset({READ_HEAD}),
    "stopped": frozenset({ENDED}),
}


@functools.lru_cache(maxsize=10_000)
def _manifest(body: bytes) -> Manifest:
    return manifest_codec.decode(body, key="")
