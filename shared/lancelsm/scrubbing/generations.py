"""Scrub the generations of a region: their files, their rows, and whether the keys belong to the region."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lancelsm.common.layout import KEY_FILTER, KEY_INDEX, KEY_INDEX_FILES, generation_path
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.file_ranges import range_reader
from lancelsm.dataset.key_filter import build_key_filter
from lancelsm.dataset.scrub_reads import BLOOM, Examined, examine_generation
from lancelsm.errors import Corrupt
from lancelsm.objects.filesum import sum_files, sum_indexes
from lancelsm.record.key_bounds import key_bounds
from lancelsm.region.catalog import Region
from lancelsm.region.handle import TableHandle
from lancelsm.region.manifest import FlushedGeneration
from lancelsm.routing.route import route
from lancelsm.scrubbing.report import ObjectKind, Tally
from lancelsm.scrubbing.suspects import Suspects

_KINDS = {BLOOM: ObjectKind.BLOOM, KEY_INDEX: ObjectKind.PK_INDEX}


@dataclass(slots=True, kw_only=True)
class GenerationScrub:
    """Reads the generations of one region, each only once."""

    region: Region
    handle: TableHandle
    tally: Tally
    suspects: Suspects
    _seen: set[str] = field(default_factory=set)

    def read(self, generation: FlushedGeneration) -> None:
        """Read and check a whole generation, unless it was read or left out before."""
        if generation.path in self._seen:
            return
        self._seen.add(generation.path)
        if not self.tally.reads(f"3/{generation.generation:020}"):
            return
        context, directory = self.region.context, generation_path(self.region.id, generation.path)
        bloom = context.objects.get(f"{directory}/{BLOOM}")
        found = examine_generation(
            uri=f"{context.uri}/{directory}",
            schema=self.handle.config.schema,
            files=frozenset(found.key.rpartition("/")[2] for found in context.objects.list(f"{directory}/data/")),
            bloom=None if bloom is None else bloom.body,
            exact=generation.folded is not None,
            storage_options=self.handle.storage_options,
        )
        wrong = [
            (f"{directory}/{one.path}", _KINDS.get(one.path, ObjectKind.GENERATION), one.problem) for one in found.wrong
        ]
        if changed := list(self._key_index(generation, directory)):
            wrong = [*(one for one in wrong if one[1] is not ObjectKind.PK_INDEX), *changed]
        wrong += self._key_filter(generation, directory, found)
        if found.keys is not None:
            wrong += [
                (f"{directory}/data", ObjectKind.GENERATION, problem) for problem in self._rows(generation, found)
            ]
        if ObjectKind.GENERATION not in {kind for _, kind, _ in wrong}:  # else a wrong file is already reported
            wrong += [(directory, ObjectKind.GENERATION, problem) for problem in self._files(generation, directory)]
        for path, kind, problem in wrong:
            self.suspects.add(
                path,
                kind,
                problem,
                still=lambda _, later: later is None or any(g.path == generation.path for g in later.generations),
            )

    def _key_index(self, generation: FlushedGeneration, directory: str) -> Iterable[tuple[str, ObjectKind, str]]:
        wanted = generation.folded.key_index_setsums if generation.folded else ()
        for name, setsum in zip(KEY_INDEX_FILES, wanted, strict=False):  # there are no sums of an earlier release
            found = self.region.context.objects.get(f"{directory}/{name}")
            if found is None or Setsum.of_item(name.encode() + b"\0", found.body) != setsum:
                problem = "it is gone" if found is None else "its bytes are not those that were written"
                yield f"{directory}/{name}", ObjectKind.PK_INDEX, problem

    def _key_filter(
        self, generation: FlushedGeneration, directory: str, found: Examined
    ) -> Iterable[tuple[str, ObjectKind, str]]:
        if generation.keys is None:
            return
        path = f"{directory}/{KEY_FILTER}"
        body = self.region.context.objects.get(path)
        if body is None:
            yield path, ObjectKind.KEY_FILTER, "it is gone"
        elif Setsum.of_item(body.body) != generation.keys.filter_setsum:
            yield path, ObjectKind.KEY_FILTER, "its bytes are not those that were written"
        elif found.keys is not None and found.keys.num_rows:
            keys = found.keys.cast(self.handle.config.schema.key)
            if build_key_filter(keys, name=generation.path).body != body.body:
                yield path, ObjectKind.KEY_FILTER, "it is not the filter over the generation's keys"
            if key_bounds(keys) != generation.keys.bounds:
                yield directory, ObjectKind.GENERATION, "its keys don't have the bounds in the manifest"

    def _files(self, generation: FlushedGeneration, directory: str) -> Iterable[str]:
        wanted = generation.folded.file_setsum if generation.folded else None
        if wanted is not None:
            read_range = range_reader(self.region.context.uri, self.handle.storage_options)
            found = sum_files(self.region.context.objects, directory, read_range=read_range)
            if found.setsum != wanted:
                yield f"its files are not those that were flushed; now there are {found}"
        if (indexes := generation.indexes) is not None:
            try:
                found = sum_indexes(self.region.context.objects, directory, version=indexes.version)
            except Corrupt as error:
                yield error.message
                return
            if found.setsum != indexes.setsum:
                yield f"the files of its indexes are not those that were built; now there are {found}"

    def _rows(self, generation: FlushedGeneration, found: Examined) -> Iterable[str]:
        if generation.folded is not None:
            if generation.rows != found.rows:
                yield f"it has {found.rows} rows, but {generation.rows} by the manifest"
            elif generation.folded.row_setsum != found.row_setsum:
                yield "its rows don't have the sum in the manifest"
        spec = self.handle.config.regions_of(self.region.number)
        if spec is None or spec.spec_id != self.region.spec_id or not found.keys:
            return
        keys = found.keys.cast(self.handle.config.schema.key)
        elsewhere = [part for part in route(keys, spec) if part.values != self.region.values]
        if elsewhere:
            yield f"{sum(part.rows.num_rows for part in elsewhere)} rows belong to other regions"
