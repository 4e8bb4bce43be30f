"""Explain a read: which levels it took its rows from, what it left out, and what it cost."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any, TypeVar

from lancelsm.common.clock import Clock
from lancelsm.common.layout import Generation, RegionId
from lancelsm.common.read_trace import Trace
from lancelsm.dataset.indexes import base_indexes
from lancelsm.objects import ObjectStore
from lancelsm.read.index_status import read_index_statuses
from lancelsm.read.pruning.key_conditions import key_boxes
from lancelsm.read.pruning.region_pruning import RegionFilter, SkippedRegion
from lancelsm.read.view import View, level_name
from lancelsm.region.catalog import Region
from lancelsm.region.config import Config

T = TypeVar("T")

_INDEX = re.compile(r"@([^\s()\[\],]+)\(")  # in a plan of Lance: `ScalarIndexQuery: query=[id = 3]@id_idx(BTree)`
_SEARCHED = ("IVF_", "INVERTED")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLevel:
    """A level that a read took rows from.

    Args:
        region: the id of its region; None for the base.
        generation: the number of the generation; None for the base and for the log of a region.
        rows: how many rows it has, with tombstones; None if Lance's writer did not record it.
    """

    region: RegionId | None
    generation: Generation | None
    rows: int | None

    @property
    def name(self) -> str:
        """The name for people; of a region, with the start of its id."""
        return "base" if self.region is None else level_name(self.region, self.generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLevel:
    """A generation or log that a read left out, and why."""

    level: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCount:
    """How many requests of a kind, such as `objects.get`, a read sent, and the bytes that they returned."""

    kind: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStep:
    """A step of a read, such as `view` or `base`, and the seconds that it took."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How a read was done. `str` returns it as text.

    Args:
        rows: the number of rows that the read returned.
        base_version: the version of the base.
        levels: what the read took its rows from; regions that have no rows above the base are left out.
        skipped_regions: the regions that the read left out, and why.
        skipped_levels: the levels that the read left out, and why.
        indexes: the indexes of the base that the read used.
        rows_without_index: for each column that was searched, the number of rows that no index covers.
        requests: by kind, all that the read sent to an object store or a registry. `bytes` are those of objects and
            records, not of listings. `lance.read` are reads of open Lance datasets. Lance counts them: what another
            thread reads of the same open table at this moment is included. On a local disk a request is a read of a
            file, and opening a base or a generation is counted without its listing.
        steps: in the order in which they began. Steps of several threads overlap.
    """

    rows: int
    base_version: int
    levels: tuple[ReadLevel, ...]
    skipped_regions: tuple[SkippedRegion, ...]
    skipped_levels: tuple[SkippedLevel, ...]
    indexes: tuple[str, ...]
    rows_without_index: dict[str, int]
    requests: tuple[RequestCount, ...]
    steps: tuple[ReadStep, ...]

    def _repr_html_(self) -> str:
        """Show the text in a notebook."""
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        return "\n".join(_text(self))


class ReadTrace(Trace):
    """Collects what one read does. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self.view: View | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._counts: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._datasets: dict[int, tuple[Any, int, int]] = {}  # with Lance's counts that are not to be counted here
        self._plans: list[Callable[[], str]] = []
        self._columns: dict[str, None] = {}
        self._skipped: dict[str, str] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = self._clock.monotonic()
        self._seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            with self._lock:
                self._seconds[name] += self._clock.monotonic() - began

    def steps(self, name: str, values: Iterator[T]) -> Iterator[T]:
        while True:
            with self.step(name):
                try:
                    value = next(values)
                except StopIteration:
                    return
            yield value

    def request(self, kind: str, size: int = 0, *, count: int = 1) -> None:
        with self._lock:
            self._counts[kind] += count
            self._bytes[kind] += size

    def opened(self, kind: str, dataset: Any) -> None:
        self.reads(dataset)
        with self._lock:
            _, count, size = self._datasets[id(dataset)]
        self.request(kind, size, count=count)

    def reads(self, dataset: Any) -> None:
        with self._lock:
            if id(dataset) not in self._datasets:
                found = dataset.io_stats_snapshot()
                self._datasets[id(dataset)] = dataset, found.read_iops, found.read_bytes

    @contextmanager
    def apart(self, kind: str, dataset: Any) -> Iterator[None]:
        before = dataset.io_stats_snapshot()
        try:
            yield
        finally:
            now = dataset.io_stats_snapshot()
            count, size = now.read_iops - before.read_iops, now.read_bytes - before.read_bytes
            self.request(kind, size, count=max(count, 1))  # Lance does not count a listing of a local directory
            with self._lock:
                if (known := self._datasets.get(id(dataset))) is not None:
                    self._datasets[id(dataset)] = dataset, known[1] + count, known[2] + size

    def planned(self, explain: Callable[[], str]) -> None:
        self._plans.append(explain)

    def searched(self, column: str) -> None:
        self._columns[column] = None

    def skipped(self, what: str, why: str) -> None:
        self._skipped[what] = why

    def viewed(self, view: Any) -> None:
        self.view = view

    def explanation(self, *, rows: int, skipped_regions: Sequence[SkippedRegion], objects: ObjectStore) -> Explanation:
        """Return what was collected, after the read.

        Args:
            objects: the object store of the table, for what is read only to explain.

        Raises: Corrupt, Unavailable: the indexes of the base could not be read.
        """
        assert self.view is not None, "a read takes a view"
        requests = self._requests()  # before anything is read to explain
        view = self.view
        indexes, without = _indexes_of(view, self._columns, objects)
        planned = {name for explain in self._plans for name in _INDEX.findall(explain())}
        return Explanation(
            rows=rows,
            base_version=view.base.version,
            levels=tuple(level for level in _levels(view) if level.name not in self._skipped),
            skipped_regions=tuple(skipped_regions),
            skipped_levels=tuple(SkippedLevel(level=level, why=why) for level, why in self._skipped.items()),
            indexes=tuple(sorted({*indexes, *planned})),
            rows_without_index=without,
            requests=requests,
            steps=tuple(ReadStep(name=name, seconds=seconds) for name, seconds in self._seconds.items()),
        )

    def _requests(self) -> tuple[RequestCount, ...]:
        found = [RequestCount(kind=kind, count=count, bytes=self._bytes[kind]) for kind, count in self._counts.items()]
        stats = [(dataset.io_stats_snapshot(), *before) for dataset, *before in self._datasets.values()]
        count = sum(now.read_iops - before for now, before, _ in stats)
        size = sum(now.read_bytes - before for now, _, before in stats)
        return (*sorted(found, key=lambda one: one.kind), RequestCount(kind="lance.read", count=count, bytes=size))


def _levels(view: View) -> Iterator[ReadLevel]:
    yield ReadLevel(region=None, generation=None, rows=view.base.rows)
    for region in view.regions:
        for one in region.generations:
            yield ReadLevel(region=region.region, generation=one.generation, rows=one.rows)
        if region.tail.num_rows:
            yield ReadLevel(region=region.region, generation=None, rows=region.tail.num_rows)


def _indexes_of(view: View, columns: Collection[str], objects: ObjectStore) -> tuple[list[str], dict[str, int]]:
    """Return the indexes of the searched columns, and how many rows of each column no index covers."""
    if not columns:
        return [], {}
    used = [
        one for one in base_indexes(view.base) if one.kind.startswith(_SEARCHED) and set(one.columns) & set(columns)
    ]
    statuses = {
        one.name: one
        for one in read_index_statuses(view.base, [region.manifest for region in view.regions], objects=objects)
    }
    in_logs = sum(region.tail.num_rows for region in view.regions)
    everywhere = sum(level.rows or 0 for level in _levels(view))
    without = dict.fromkeys(columns, everywhere)
    for index in used:
        for column in set(index.columns) & set(columns):
            without[column] = min(without[column], statuses[index.name].rows_without + in_logs)
    return [one.name for one in used], without


def skipped_regions(
    listed: Sequence[Region], view: View | None, *, where: str | None, by_key: bool, config: Config
) -> list[SkippedRegion]:
    """Return the regions of the catalog that a view leaves out, and why.

    Args:
        by_key: whether the view is of the regions of some keys.
    """
    viewed = set() if view is None else {one.region for one in view.regions}
    left_out = [region for region in listed if region.id not in viewed]
    found = [
        SkippedRegion(region=one.id, why="the base has all its rows") for one in left_out if one.retired is not None
    ]
    left_out = [region for region in left_out if region.retired is None]
    if by_key:
        return found + [SkippedRegion(region=one.id, why="none of the keys is in the region") for one in left_out]
    if where is None or config.regions is None:
        return found
    keep = RegionFilter(key_boxes(where, config.schema), config.regions, config.schema)
    return found + [
        SkippedRegion(region=one.id, why="no key of the region meets the condition")
        for one in left_out
        if not keep.needs(one.spec_id, one.values)
    ]


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number:,} rows"


def _text(found: Explanation) -> Iterator[str]:
    yield f"{_rows(found.rows)}, from version {found.base_version} of the base"
    yield "levels:"
    for level in found.levels:
        yield f"  {level.name}: {'rows not recorded' if level.rows is None else _rows(level.rows)}"
    for title, skipped in (
        ("skipped regions", [(one.region, one.why) for one in found.skipped_regions]),
        ("skipped levels", [(one.level, one.why) for one in found.skipped_levels]),
    ):
        if skipped:
            yield f"{title}: {len(skipped):,}"
            by_reason = Counter(why for _, why in skipped)
            yield from (f"  {count:,}: {why}" for why, count in by_reason.items())
    yield f"indexes: {', '.join(found.indexes) or 'none'}"
    for column, rows_without in found.rows_without_index.items():
        yield f"  {column}: {_rows(rows_without)} searched without an index"
    yield "requests:"
    yield from (f"  {one.kind}: {one.count:,}, {one.bytes:,} bytes" for one in found.requests)
    yield "steps:"
    yield from (f"  {one.name}: {one.seconds * 1000:,.1f} ms" for one in found.steps)
