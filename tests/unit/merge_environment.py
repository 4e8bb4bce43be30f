"""A table for merge tests: a real base, real generations, and a model of the rows the table must hold."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from lancelsm.common.clock import SeededIds
from lancelsm.common.layout import Generation, Nonce, RegionId, TableId, generation_name, generation_path
from lancelsm.compaction.inprocess import InProcess
from lancelsm.compaction.merge import Merged, merge_generations
from lancelsm.compaction.plan import RegionPending, Sums
from lancelsm.compaction.runner import Item, Result, TaskRunner
from lancelsm.dataset.base_table import BaseFacts, BaseTable, Sharding, create_base, open_base
from lancelsm.dataset.generation_writer import write_generation
from lancelsm.objects.filesum import sum_files
from lancelsm.objects.filesystem import LocalStore
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TOMBSTONE

TABLE = TableId("0d9c7c5e-0000-4000-8000-000000000001")
A = RegionId(str(uuid.UUID(int=1 << 120, version=4)))
B = RegionId(str(uuid.UUID(int=2 << 120, version=4)))
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64())])

Row = dict[str, Any]


class StillClock:
    """A clock whose time passes only in `sleep`."""

    def __init__(self) -> None:
        self.slept = 0.0

    def now(self) -> float:
        return self.slept

    def monotonic(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


class Environment:
    """One table, and the rows that its readers must see."""

    def __init__(
        self,
        path: Path,
        *,
        rows: Sequence[Row] = (),
        columns: pa.Schema = COLUMNS,
        key: Sequence[str] = ("id",),
        per_fragment: int = 1_000_000,
    ) -> None:
        self.uri = str(path / "table")
        self.columns = columns
        self.key = tuple(key)
        self.objects = LocalStore(Path(self.uri))
        self.clock = StillClock()
        self.ids = SeededIds(7)
        self.pending: dict[RegionId, list[tuple[Generation, str]]] = {}
        self.sums: dict[RegionId, dict[Generation, Sums]] = {}
        self.expected: dict[tuple[Any, ...], Row] = {}
        facts = BaseFacts(table=TABLE, registry="sqlite", owner="default", regions="{}")
        first, later = rows[:per_fragment], rows[per_fragment:]
        create_base(
            uri=self.uri,
            columns=columns,
            primary_key=key,
            facts=facts,
            sharding=None if any(pa.types.is_temporal(columns.field(name).type) for name in key) else Sharding(),
            rows=self.table(first).to_batches(),
        )
        for start in range(0, len(later), per_fragment):
            self.append(later[start : start + per_fragment])
        self._expect(rows)

    def table(self, rows: Sequence[Row]) -> pa.Table:
        return pa.Table.from_pylist(list(rows), schema=self.columns)

    def base(self) -> BaseTable:
        return open_base(uri=self.uri)

    def dataset(self) -> lance.LanceDataset:
        return lance.dataset(self.uri)

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows to the base with plain Lance, as another tool would."""
        declared = pa.schema(
            [field.with_nullable(field.nullable and field.name not in self.key) for field in self.columns]
        )
        lance.write_dataset(self.table(rows).cast(declared), self.uri, mode="append")

    def flush(self, region: RegionId, rows: Sequence[Row] = (), deleted: Iterable[Any] = ()) -> Generation:
        """Write the region's next generation. `deleted` has keys: tuples, or plain values for a key of one column."""
        keys = [key if isinstance(key, tuple) else (key,) for key in deleted]
        stored = [{**row, TOMBSTONE: False} for row in rows]
        stored += [{**dict(zip(self.key, key, strict=True)), TOMBSTONE: True} for key in keys]
        generation = Generation(len(self.pending.setdefault(region, [])) + 1)
        path = generation_path(region, generation_name(generation, Nonce(self.ids.nonce())))
        schema = self.base().schema
        stored_table = pa.Table.from_pylist(stored, schema=schema.stored)
        write_generation(
            uri=f"{self.uri}/{path}",
            keys=stored_table,
            rows=stored_table.to_batches(),
            schema=schema,
            data_storage_version="2.2",
        )
        self.pending[region].append((generation, path))
        sums = Sums(rows=row_setsum(stored_table), files=sum_files(self.objects, path).setsum)
        self.sums.setdefault(region, {})[generation] = sums
        self._expect(rows)
        for key in keys:
            self.expected.pop(key, None)
        return generation

    def _expect(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.expected[tuple(row[name] for name in self.key)] = dict(row)

    def read_regions(self) -> list[RegionPending]:
        return [
            RegionPending(
                region=region, newest=listed[-1][0], generations=tuple(listed), sums=self.sums.get(region, {})
            )
            for region, listed in self.pending.items()
        ]

    def merge(
        self,
        *,
        runner: TaskRunner | None = None,
        read_regions: Callable[[], Iterable[RegionPending]] | None = None,
        parallel: int = 1,
    ) -> Merged:
        return merge_generations(
            uri=self.uri,
            table=TABLE,
            read_regions=read_regions or self.read_regions,
            check=self.check_base,
            objects=self.objects,
            runner=runner or InProcess(),
            clock=self.clock,
            ids=self.ids,
            parallel=parallel,
        )

    def check_base(self, base: BaseTable) -> None:
        """Accept each base; a test replaces it."""

    def rows(self) -> list[Row]:
        """All rows of the base, sorted by key."""
        found: list[Row] = self.dataset().to_table().to_pylist()
        return sorted(found, key=lambda row: tuple(row[name] for name in self.key))

    def check(self) -> None:
        """Assert that the base holds exactly the expected rows, each key once, and that Lance validates it."""
        self.dataset().validate()
        assert self.rows() == [self.expected[key] for key in sorted(self.expected)]


class Interrupted:
    """A runner that calls back once, right after the n-th `map` of a merge: 1 is fold, 2 is write, 3 is hide."""

    parallelism = 1

    def __init__(self, after: int, callback: Callable[[], object]) -> None:
        self.left = after
        self.callback = callback
        self.names: list[str] = []

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        results = [function(item) for item in items]
        self.names.append(getattr(function, "func", function).__name__)
        self.left -= 1
        if self.left == 0:
            self.callback()
        return results


def row(key: int, value: int) -> Row:
    return {"id": key, "v": value}
