"""Compare a table with a dict: after any operations in any order, a scan returns the rows of the dict."""

from __future__ import annotations

import datetime as dt
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import lancelsm
from lancelsm.admin.rebuild import rebuild
from lancelsm.common.layout import SQLITE, RegionId, region_id
from lancelsm.compaction.optimize import optimize_base
from lancelsm.errors import Fenced, Invalid
from lancelsm.region.handle import open_table
from lancelsm.routing.route import route

UTC = dt.UTC
POOLS: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [False, True],
    pa.int8(): [-128, -1, 0, 1, 127],
    pa.int32(): [-(1 << 31), -7, 0, 7, (1 << 31) - 1],
    pa.int64(): [-(1 << 63), -1, 0, 1, 2, 3, 255, 256, (1 << 63) - 1],
    pa.uint64(): [0, 1, 1 << 63, (1 << 64) - 1],
    pa.string(): ["", "a", "A", "a'b", "a\0", "ä", "\U0001f600", "a" * 300],
    pa.large_string(): ["", "x", "xx", "\\", "%"],
    pa.binary(): [b"", b"\0", b"\0\xff", b"\xff", b"ab"],
    pa.date32(): [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29)],
    pa.timestamp("us"): [
        dt.datetime.fromisoformat(at) for at in ("1969-12-31T23:59:59.999999", "2024-01-01", "0001-01-01")
    ],
    pa.timestamp("ms", "UTC"): [dt.datetime(1960, 1, 1, tzinfo=UTC), dt.datetime(2024, 2, 29, 13, tzinfo=UTC)],
}
VALUES = [pa.field("v", pa.int64()), pa.field("w", pa.string()), pa.field("xs", pa.list_(pa.int16()))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The primary key and the region spec of a table."""

    key: tuple[tuple[str, pa.DataType], ...]
    regions: str | None = None

    @property
    def primary_key(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.key)

    @property
    def columns(self) -> pa.Schema:
        first, *others = [pa.field(name, kind) for name, kind in self.key]
        return pa.schema([first, VALUES[0], *others, *VALUES[1:]])  # key columns need not come first

    def keys(self) -> st.SearchStrategy[tuple[Any, ...]]:
        return st.tuples(*(st.sampled_from(POOLS[kind]) for _, kind in self.key))


SHAPES = (
    Shape(key=(("id", pa.int64()),)),
    Shape(key=(("id", pa.int64()),), regions="bucket(id, 3)"),
    Shape(key=(("k", pa.string()),), regions="identity(k)"),
    Shape(key=(("k", pa.large_string()), ("n", pa.uint64())), regions="multi_bucket(n, k, 2)"),
    Shape(key=(("b", pa.binary()), ("flag", pa.bool_())), regions="identity(flag), truncate(b, 1)"),
    Shape(key=(("day", pa.date32()), ("n", pa.int32())), regions="year(day), bucket(n, 2)"),
    Shape(key=(("at", pa.timestamp("ms", "UTC")), ("n", pa.int8())), regions="month(at)"),
    Shape(key=(("n", pa.int8()), ("at", pa.timestamp("us"))), regions="expr(n % 2)"),
)
CONDITIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "v < 3": lambda row: row["v"] is not None and row["v"] < 3,
    "v IS NULL": lambda row: row["v"] is None,
    "w = 'x' OR v >= 6": lambda row: row["w"] == "x" or (row["v"] is not None and row["v"] >= 6),
    "NOT (w = 'x')": lambda row: row["w"] is not None and row["w"] != "x",
    "false": lambda row: False,
}
OTHER_VALUES = st.fixed_dictionaries(
    {
        "v": st.none() | st.integers(0, 9),
        "w": st.none() | st.sampled_from(["", "x", "y"]),
        "xs": st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=2),
    }
)
TABLES = st.sampled_from([0, 1])  # which of the two handles of the table
SEED = st.integers(0, 1 << 30)


class Reference(RuleBasedStateMachine):
    """Two handles of one table, and the rows that the table must have."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="lancelsm-"))
        self.uri = str(self.directory / "table")
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.sealed: set[RegionId] = set()
        self.kept: dict[int, dict[tuple[Any, ...], dict[str, Any]]] = {}  # the rows of versions of the base

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    # The table and the dict

    @initialize(shape=st.sampled_from(SHAPES), data=st.data(), loaded=st.booleans())
    def create(self, shape: Shape, data: st.DataObject, loaded: bool) -> None:
        self.shape = shape
        rows = data.draw(self.batch()) if loaded else []
        first = pa.Table.from_pylist(rows, schema=shape.columns) if loaded else shape.columns
        limits = {"group_commit_milliseconds": 1, "flush_rows": 6, "max_generations": 2}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about key types that Lance's own writer can't hash
            lancelsm.create(self.uri, first, primary_key=shape.primary_key, regions=shape.regions, settings=limits)
        self.open()
        self.apply(rows)

    def open(self) -> None:
        self.tables = [lancelsm.open(self.uri), lancelsm.open(self.uri)]

    def batch(self) -> st.SearchStrategy[list[dict[str, Any]]]:
        """Rows whose keys often repeat."""
        named = self.shape.keys().map(lambda key: dict(zip(self.shape.primary_key, key, strict=True)))
        return st.lists(st.builds(lambda key, rest: {**key, **rest}, named, OTHER_VALUES), max_size=8)

    def key_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.shape.primary_key)

    def apply(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            self.rows[self.key_of(row)] = dict(row)

    def arrow_keys(self, keys: Iterable[tuple[Any, ...]]) -> pa.Table:
        schema = self.tables[0].schema
        columns = zip(*keys, strict=True)
        return pa.table(
            {
                name: pa.array(values, schema.field(name).type)
                for name, values in zip(self.shape.primary_key, columns, strict=True)
            }
        )

    def is_sealed(self, key: tuple[Any, ...]) -> bool:
        if not self.sealed:
            return False
        config = self.tables[0].config
        assert config.regions is not None
        (part,) = route(self.arrow_keys([key]), config.regions)
        return region_id(table=config.table, spec_id=config.regions.spec_id, values=part.values) in self.sealed

    def check(self) -> None:
        for table in self.tables:
            self.compare(table.scan().to_arrow(), self.rows.values())
            assert {region.id for region in table.list_regions()} >= self.sealed

    def compare(self, found: pa.Table, expected: Iterable[dict[str, Any]]) -> None:
        assert found.schema.names == self.shape.columns.names
        rows = {self.key_of(row): row for row in found.to_pylist()}
        assert len(rows) == found.num_rows, "a key twice"
        assert rows == {self.key_of(row): row for row in expected}

    # Writing

    @rule(which=TABLES, data=st.data())
    def upsert(self, which: int, data: st.DataObject) -> None:
        batch = data.draw(self.batch())
        accepted = [row for row in batch if not self.is_sealed(self.key_of(row))]
        rows = pa.Table.from_pylist(batch, schema=self.shape.columns)
        if len(accepted) < len(batch):
            with pytest.raises(Invalid, match="sealed"):
                self.tables[which].upsert(rows)
        else:
            assert self.tables[which].upsert(rows).rows == len({self.key_of(row) for row in batch})
        self.apply(accepted)
        self.check()

    @rule(which=TABLES, data=st.data())
    def delete_keys(self, which: int, data: st.DataObject) -> None:
        keys = [key for key in data.draw(st.lists(self.shape.keys(), max_size=5)) if not self.is_sealed(key)]
        if keys:
            self.tables[which].delete(self.arrow_keys(keys))
        for key in keys:
            self.rows.pop(key, None)
        self.check()

    @rule(which=TABLES, where=st.sampled_from(sorted(CONDITIONS)))
    def delete_where(self, which: int, where: str) -> None:
        matching = [key for key, row in self.rows.items() if CONDITIONS[where](row)]
        deleted = [key for key in matching if not self.is_sealed(key)]
        if len(deleted) < len(matching):
            with pytest.raises(Invalid, match="sealed"):
                self.tables[which].delete(where=where)
        else:
            assert self.tables[which].delete(where=where).rows == len(deleted)
        for key in deleted:
            del self.rows[key]
        self.check()

    @rule(which=TABLES, where=st.sampled_from(sorted(CONDITIONS)))
    def update(self, which: int, where: str) -> None:
        matching = [key for key, row in self.rows.items() if CONDITIONS[where](row)]
        updated = [key for key in matching if not self.is_sealed(key)]
        change = {"v": "coalesce(v, 0) + 1", "w": "'x'"}
        if len(updated) < len(matching):
            with pytest.raises(Invalid, match="sealed"):
                self.tables[which].update(where=where, set=change)
        else:
            assert self.tables[which].update(where=where, set=change).rows == len(updated)
        for key in updated:
            self.rows[key] = {**self.rows[key], "v": (self.rows[key]["v"] or 0) + 1, "w": "x"}
        self.check()

    @precondition(lambda self: not self.sealed)
    @rule(which=TABLES, data=st.data(), option=st.sampled_from(["if_absent", "if_newer", "partial", "if_unchanged"]))
    def upsert_with_an_option(self, which: int, data: st.DataObject, option: str) -> None:
        newest = {self.key_of(row): row for row in data.draw(self.batch())}
        given = pa.Table.from_pylist(list(newest.values()), schema=self.shape.columns)
        options: dict[str, Any] = {option: "v" if option == "if_newer" else True}
        written = dict(newest)
        match option:
            case "if_absent":
                written = {key: row for key, row in newest.items() if key not in self.rows}
            case "if_newer":
                ranks = {key: rank(row) for key, row in self.rows.items()}
                written = {key: row for key, row in newest.items() if rank(row) > ranks.get(key, -2)}
            case "partial":
                given = given.drop_columns(["w"])
                empty = {"w": None}
                written = {key: {**row, "w": self.rows.get(key, empty)["w"]} for key, row in newest.items()}
            case "if_unchanged":
                keys = self.arrow_keys(newest) if newest else []
                options = {option: self.tables[1 - which].get(keys, with_token=True).token}
        done = self.tables[which].upsert(given, **options)
        assert (done.rows, done.skipped) == (len(written), len(newest) - len(written))
        self.apply(written.values())
        self.check()

    @precondition(lambda self: not self.sealed)
    @rule(which=TABLES, data=st.data())
    def transact(self, which: int, data: st.DataObject) -> None:
        keys = list(dict.fromkeys(data.draw(st.lists(self.shape.keys(), min_size=1, max_size=5))))
        deleted = [key for key in keys if data.draw(st.booleans())]

        def fn(current: pa.Table) -> lancelsm.Edits:
            rows = [{**row, "v": (row["v"] or 0) + 1} for row in current.to_pylist()]
            upserts = pa.Table.from_pylist(rows, schema=self.shape.columns)
            return lancelsm.Edits(upserts=upserts, deletes=self.arrow_keys(deleted) if deleted else [])

        done = self.tables[which].transact(self.arrow_keys(keys), fn)
        assert done.rows == len({*deleted, *(key for key in keys if key in self.rows)})
        for key in keys:
            if key in self.rows:
                self.rows[key] = {**self.rows[key], "v": (self.rows[key]["v"] or 0) + 1}
        for key in deleted:
            self.rows.pop(key, None)
        self.check()

    @precondition(lambda self: not self.sealed)
    @rule(which=TABLES, exclusive=st.booleans(), data=st.data())
    def write_in_groups(self, which: int, exclusive: bool, data: st.DataObject) -> None:
        batches = data.draw(st.lists(self.batch(), min_size=1, max_size=4))
        with self.tables[which].writer(exclusive=exclusive) as writer:
            done = [writer.submit(pa.Table.from_pylist(batch, schema=self.shape.columns)) for batch in batches]
            for batch in batches:
                self.apply(batch)
            acknowledged = [future.result() for future in done]
            self.check()
            if exclusive and batches[-1]:
                with pytest.raises(Fenced, match="held by"):
                    self.tables[1 - which].upsert(pa.Table.from_pylist(batches[-1], schema=self.shape.columns))
        assert [one.rows for one in acknowledged] == [len({self.key_of(row) for row in batch}) for batch in batches]
        self.check()

    # Reading

    @rule(which=TABLES, where=st.none() | st.sampled_from(sorted(CONDITIONS)), data=st.data())
    def scan(self, which: int, where: str | None, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(self.shape.columns.names), unique=True, min_size=1))
        limit = data.draw(st.none() | st.integers(0, 5))

        found = self.tables[which].scan(columns=names, where=where, limit=limit).to_arrow()

        matching = [row for row in self.rows.values() if where is None or CONDITIONS[where](row)]
        expected = [[row[name] for name in names] for row in matching]
        rows = [[row[name] for name in names] for row in found.to_pylist()]
        assert found.schema.names == names
        assert len(rows) == min(len(expected), len(expected) if limit is None else limit)
        assert all(rows.count(row) <= expected.count(row) for row in rows)

    @rule(which=TABLES, data=st.data())
    def get(self, which: int, data: st.DataObject) -> None:
        keys = data.draw(st.lists(self.shape.keys(), min_size=1, max_size=6))
        found = self.tables[which].get(self.arrow_keys(keys))
        self.compare(found, [self.rows[key] for key in keys if key in self.rows])

    # Maintenance

    @rule(which=TABLES)
    def flush(self, which: int) -> None:
        self.tables[which].flush()
        assert [region.wal_rows for region in self.tables[which].status().regions if region.wal_rows] == []
        self.check()

    @rule(which=TABLES)
    def compact(self, which: int) -> None:
        self.tables[which].compact()
        assert [region.generations for region in self.tables[which].status().regions if region.generations > 2] == []
        self.check()

    @rule(which=TABLES)
    def merge(self, which: int) -> None:
        self.tables[which].merge(engine="inprocess")
        assert [region.generations for region in self.tables[which].status().regions if region.generations] == []
        self.check()

    # Time travel

    @rule(which=TABLES)
    def keep_a_version(self, which: int) -> None:
        self.tables[which].flush()
        self.tables[which].merge(engine="inprocess")
        self.kept[self.tables[which].status().base_version] = dict(self.rows)
        self.check()

    @precondition(lambda self: self.kept and not self.sealed)
    @rule(which=TABLES, seed=SEED)
    def restore_a_version(self, which: int, seed: int) -> None:
        version = sorted(self.kept)[seed % len(self.kept)]
        rows, table = self.kept[version], self.tables[which]
        with table.at(version) as old:
            self.compare(old.scan().to_arrow(), rows.values())
        written = sum(self.rows.get(key) != row for key, row in rows.items())
        assert table.restore(version) == lancelsm.Restored(written=written, deleted=len(self.rows.keys() - rows.keys()))
        self.rows = dict(rows)
        self.check()

    @rule()
    def optimize(self) -> None:
        optimize_base(uri=self.uri, small_fragments=2, deleted_share=0.01)
        self.check()

    @precondition(lambda self: len(self.shape.key) == 1)
    @rule()
    def index(self) -> None:
        with suppress(RuntimeError):  # there are no rows to index
            lance.dataset(self.uri).create_scalar_index(self.shape.primary_key[0], "BTREE", replace=True)
        self.check()

    # Regions and registry

    @rule(which=TABLES)
    def reopen(self, which: int) -> None:
        self.tables[which] = lancelsm.open(self.uri)
        self.check()

    @rule(which=TABLES, seed=SEED)
    def claim(self, which: int, seed: int) -> None:
        table = self.tables[which]
        regions = [region for region in table.list_regions() if region.id not in self.sealed]
        if regions:
            region = regions[seed % len(regions)]
            before = region.head()
            assert table.claim(region).epoch == before.epoch + 1
        self.check()

    @precondition(lambda self: not self.sealed)
    @rule(which=TABLES, seed=SEED)
    def seal(self, which: int, seed: int) -> None:
        regions = self.tables[which].list_regions()
        if len(regions) > 1:
            region = regions[seed % len(regions)]
            self.tables[which].seal(region)
            self.sealed.add(region.id)
        self.check()

    @rule()
    def back_up_the_registry(self) -> None:
        with (
            closing(sqlite3.connect(Path(self.uri) / SQLITE)) as source,
            closing(sqlite3.connect(self.directory / "backup")) as copy,
        ):
            source.backup(copy)

    @rule(restored=st.booleans())
    def lose_and_rebuild_the_registry(self, restored: bool) -> None:
        epochs = {region.id: region.head().epoch for region in self.tables[0].list_regions()}
        self.tables = []
        path = Path(self.uri) / SQLITE
        for one in path.parent.glob(path.name + "*"):
            one.unlink()
        if restored and (self.directory / "backup").exists():
            shutil.copy(self.directory / "backup", path)
        rebuilt = rebuild(open_table(self.uri))
        assert {one.region.id for one in rebuilt} == set(epochs)
        assert all(one.head.epoch >= epochs[one.region.id] for one in rebuilt)
        self.open()
        self.check()


def rank(row: dict[str, Any]) -> int:
    """Null is lower than every value."""
    return -1 if row["v"] is None else int(row["v"])


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore::lancelsm.LsmWarning")  # about the index that Lance builds
def test_a_table_behaves_like_a_dict() -> None:
    profile = settings(max_examples=16, stateful_step_count=16, suppress_health_check=QUIET)
    run_state_machine_as_test(Reference, settings=profile)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::lancelsm.LsmWarning")  # about the index that Lance builds
def test_a_table_behaves_like_a_dict_in_long_runs() -> None:
    profile = settings(max_examples=100, stateful_step_count=40, suppress_health_check=QUIET)
    run_state_machine_as_test(Reference, settings=profile)
