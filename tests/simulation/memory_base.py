"""A base in memory for reads, merges and collections: versions that name files, tags, schema metadata.

It replaces the functions of `lancelsm.dataset` with the same results and errors. Its calls pass the plan and the
schedule of the environment. Rows are in the store of the environment, one file for each version, so that a collector
can delete them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from unittest import mock

import pyarrow as pa

from lancelsm.common.layout import Generation, RegionId
from lancelsm.dataset import base_table
from lancelsm.dataset.base_rows import Base, CommittedVersion, Preempted
from lancelsm.dataset.base_table import MERGED, BaseFacts, BaseTable, VersionGone
from lancelsm.dataset.cleanup import StoredVersion
from lancelsm.dataset.merged_generations import Markers
from lancelsm.dataset.statement import NamedFile, StatedFile, sum_body
from lancelsm.errors import Contended, Corrupt, Unavailable
from lancelsm.gc import base as collecting_base
from lancelsm.gc import base_check, verify_base_check
from lancelsm.history import snapshot
from lancelsm.objects import ObjectStore, Written
from lancelsm.read import view_cache
from lancelsm.record.schema import TableSchema
from lancelsm.region.base_checked import read_checked
from tests.simulation.environment import OWNER, TABLE, Environment
from tests.simulation.seam import PROCESS

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version: the file with its rows, its schema metadata, and the time of its commit."""

    file: str
    metadata: Mapping[str, str]
    committed: float


class MemoryBase:
    """The base of an environment."""

    def __init__(self, environment: Environment, schema: TableSchema) -> None:
        self.environment = environment
        self.schema = schema
        self.versions: dict[int, Version] = {}
        self.tagged: dict[str, int] = {}
        self.newest = 0
        facts = BaseFacts(table=TABLE, registry="memory", owner=OWNER, regions="")
        self.environment.store.create("data/first.lance", written(schema.stored.empty_table()))
        self._add("data/first.lance", facts.metadata())

    def _add(self, file: str, metadata: Mapping[str, str]) -> int:
        assert self.environment.store.get(file) is not None, (
            f"version {self.newest + 1} names {file}, which does not exist"
        )
        self.newest += 1
        now = self.environment.schedule.clock.now()
        self.versions[self.newest] = Version(file=file, metadata=dict(metadata), committed=now)
        return self.newest

    # Replacements for `lancelsm.dataset`

    def open_base(self, *, uri: str, version: int | None = None, storage_options: Any = None) -> BaseTable:
        def act() -> BaseTable:
            number = version or self.newest
            if number not in self.versions:
                raise VersionGone(f"version {number} of the base is gone")
            found = self.versions[number]  # an open dataset outlives the removal of its version
            return BaseTable(
                uri=uri,
                version=number,
                schema=self.schema,
                metadata=found.metadata,
                fragments=(),
                data_storage_version="2.1",
                opened=lambda: cast("Any", found),
            )

        return self._call("open_base", version, act)

    def newest_version(self, base: BaseTable) -> int:
        return self._call("newest_version", base.version, lambda: self.newest)

    def files_of(self, base: BaseTable) -> list[NamedFile]:
        """Return the files that a version names. Like Lance, use what was read when the version was opened."""
        file = cast("Version", base.dataset).file
        return [NamedFile(root=base.uri, key=file, path=file)]

    def commit(
        self, base: Base, *, metadata: Mapping[str, str], file: str = "", **_: Any
    ) -> CommittedVersion | Preempted:
        """Like `base_rows.commit`: commit a version with this file, or with the file of the version that was read."""

        def act() -> CommittedVersion | Preempted:
            if base.version != self.newest:
                return Preempted(reason="the base has changed")
            return CommittedVersion(version=self._add(file or self.versions[base.version].file, metadata))

        return self._call("commit", base.version, act, writes=True)

    def stored_versions(self, **_: Any) -> tuple[StoredVersion, ...]:
        def act() -> tuple[StoredVersion, ...]:
            return tuple(StoredVersion(version=n, committed=one.committed) for n, one in sorted(self.versions.items()))

        return self._call("stored_versions", "", act)

    def named_files(self, *, version: int, **_: Any) -> frozenset[str]:
        def act() -> frozenset[str]:
            if version not in self.versions:
                raise Contended(f"version {version} of the base was removed meanwhile")
            return frozenset({self.versions[version].file})

        return self._call("named_files", version, act)

    def sum_file(self, named: NamedFile, **_: Any) -> StatedFile:
        def act() -> StatedFile:
            found = self.environment.store.get(named.key)
            if found is None:
                raise Corrupt("a file of the base is gone", object=named.path)
            return sum_body(named.key, found.body)

        return self._call("sum_file", named.key, act)

    def clean_versions(self, *, versions: Collection[int], **_: Any) -> int:
        """Like Lance, keep the newest version and tagged ones. Delete the files that only removed versions name."""

        def act() -> int:
            going = {n for n in versions if n in self.versions} - {self.newest, *self.tagged.values()}
            files = {self.versions.pop(n).file for n in going}
            for file in files - {one.file for one in self.versions.values()}:
                self.environment.store.remove(file)
            return len(going)

        return self._call("clean_versions", "", act, writes=True)

    def tags(self, **_: Any) -> dict[str, int]:
        return self._call("tags", "", lambda: dict(self.tagged))

    def tag_version(self, *, version: int, tag: str, **_: Any) -> None:
        def act() -> None:
            if version not in self.versions:
                raise VersionGone(f"version {version} of the base is gone")
            self.tagged.setdefault(tag, version)

        self._call("tag_version", version, act, writes=True)

    def remove_tag(self, *, tag: str, **_: Any) -> None:
        def act() -> None:
            self.tagged.pop(tag, None)

        self._call("remove_tag", tag, act, writes=True)

    def read_markers(self, *, version: int, **_: Any) -> Markers:
        def act() -> Markers:
            if version not in self.versions:
                raise Corrupt(f"version {version} of the base has no manifest")
            held = base_table.counters(self.versions[version].metadata)
            return Markers(merged=held, caught_up={})

        return self._call("read_markers", version, act)

    def _call(self, name: str, about: object, act: Callable[[], T], *, writes: bool = False) -> T:
        def unknown(cause: str) -> T:
            raise Unavailable(cause)

        def act_in_turn() -> T:
            self.environment.schedule.switch()
            return act()

        return self.environment.plan.perform(
            "lance", name, str(about), PROCESS.get(), act_in_turn, unknown=unknown if writes else None
        )

    # Mergers

    def rows(self, version: int, get: Callable[[str], Any]) -> pa.Table:
        """Return the rows of a version. `get` reads an object."""
        found = self.versions.get(version)
        stored = None if found is None else get(found.file)
        if stored is None:
            raise Corrupt(f"version {version} of the base is gone")
        return rows_in(stored.body)

    def replace_rows(
        self, base: BaseTable, objects: ObjectStore, rows: pa.Table, *, region: RegionId, key: str
    ) -> Callable[[Generation], bool]:
        """Write new rows of the base. Return a function that commits them with a counter, if they are still valid.

        Written rows are valid while counter and fence are the same as when they were written.
        """
        if not isinstance(objects.create(key, written(rows)), Written):
            raise Unavailable("rows could not be written", object=key)

        def commit(counter: Generation) -> bool:
            merge_base = base
            for _ in range(3):
                moved = merge_base.fence != base.fence or merge_base.counters.get(region) != base.counters.get(region)
                if moved:
                    return False
                metadata = {**merge_base.metadata, MERGED + region: str(counter)}
                if isinstance(self.commit(Base.of(merge_base), metadata=metadata, file=key), CommittedVersion):
                    return True
                merge_base = self.open_base(uri=base.uri)
            return False

        return commit


@contextmanager
def in_place_of_lance(base: MemoryBase) -> Iterator[None]:
    """Within this context, the library opens, tags and collects this base."""
    with ExitStack() as stack:

        def put(module: Any, **instead: Any) -> None:
            stack.enter_context(mock.patch.multiple(module, **instead))

        put(base_table, open_base=base.open_base)
        put(snapshot, open_base=base.open_base, tag_version=base.tag_version, remove_tag=base.remove_tag)
        put(view_cache, newest_version=base.newest_version)
        put(base_check, open_base=base.open_base, files_of=base.files_of, sum_file=base.sum_file)
        put(verify_base_check, verified_check=read_checked)  # it verifies manifests, and this base has none
        put(
            collecting_base,
            commit=base.commit,
            stored_versions=base.stored_versions,
            named_files=base.named_files,
            clean_versions=base.clean_versions,
            searched_indexes=lambda _: frozenset(),
            read_markers=base.read_markers,
            remove_tag=base.remove_tag,
            tags=base.tags,
            _VERSIONS_MIN=1,
        )
        yield


def written(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def rows_in(body: bytes) -> pa.Table:
    with pa.ipc.open_stream(body) as reader:
        return reader.read_all()


def folded(parts: list[pa.Table]) -> dict[int, int]:
    """Fold these parts, oldest first, into the value by key. Tombstones hide rows."""
    live: dict[int, int] = {}
    for part in parts:
        for key, value, dead in zip(*(part.column(name).to_pylist() for name in part.column_names), strict=True):
            live.pop(key, None)
            if not dead:
                live[key] = value
    return live
