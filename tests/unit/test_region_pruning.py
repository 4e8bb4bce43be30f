"""Which regions a condition needs, and what reading them costs. tests/properties checks that none is missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.errors import Corrupt
from lancelsm.objects import Listed, Object
from lancelsm.read.pruning.key_conditions import key_boxes
from lancelsm.read.pruning.region_pruning import RegionFilter
from lancelsm.record.ranges import Ranges
from lancelsm.region.handle import Ports
from lancelsm.routing.route import route
from lancelsm.routing.spec import parse_regions
from tests.properties.test_pruning import ROWS, SCHEMA
from tests.simulation.faults import MemoryStore
from tests.unit.tables import COLUMNS, CountingStore, create, row, rows_of


class _Counted(MemoryStore):
    """Counts requests, and notes the names of the objects that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.keys: list[str] = []

    def get(self, key: str) -> Object | None:
        self.calls["get"] += 1
        self.keys.append(key)
        return super().get(key)

    def list(self, prefix: str) -> Iterator[Listed]:
        self.calls["list"] += 1
        return super().list(prefix)

    def during_scan(self, uri: Path, where: str) -> Counter[str]:
        table = lancelsm.open.on(Ports(store=lambda *_: self))(uri)
        self.calls.clear()
        self.keys.clear()
        rows_of(table, where=where)
        return Counter(self.calls)


def _table(path: Path, store: MemoryStore, regions: str, rows: Iterable[int]) -> lancelsm.Table:
    ports = Ports(store=lambda *_: store)
    table = lancelsm.create.on(ports)(path, COLUMNS, primary_key="id", regions=regions, registry="object")
    table.upsert([row(key) for key in rows])
    return table


@pytest.mark.rest
def test_a_key_in_256_regions_costs_the_requests_of_one_region(tmp_path: Path) -> None:
    one, many = _Counted(), _Counted()
    _table(tmp_path / "one", one, "bucket(id, 1)", [3])
    _table(tmp_path / "many", many, "bucket(id, 256)", range(50))

    costs = many.during_scan(tmp_path / "many", "id = 3")

    assert costs == one.during_scan(tmp_path / "one", "id = 3")
    assert sum(many.during_scan(tmp_path / "many", "id = 3 OR v = 'x'").values()) > 256


@pytest.mark.parametrize(
    ("regions", "where", "read"),
    [
        ("identity(n)", "n = 3", 1),
        ("identity(n)", "(3 = n)", 1),
        ("identity(n)", "NOT n <> 3 AND v IS NULL", 1),
        ("identity(n)", "n IN (1, 3) OR n = 9 OR n = 10", 4),
        ("identity(n)", "n BETWEEN 1 AND 3 AND v BETWEEN 1 AND 2", 2),
        ("identity(n)", "n NOT IN (1, 3) AND NOT n BETWEEN -32768 AND 0", 5),
        ("identity(n)", "n > 9 AND NOT (n >= 11 OR n IS NULL)", 1),
        ("identity(n)", "n IS NULL", 0),
        ("identity(n)", "n = 3 AND n = 1", 0),
        ("identity(b)", "b", 1),
        ("identity(b)", "b <> true", 1),
        ("identity(u)", "u >= 9223372036854775808", 2),
        ("identity(s)", "s = 'it''s'", 1),
        ("identity(x)", "x < X'6162'", 3),
        ("bucket(n, 64)", "n = 3", 1),
        ("bucket(n, 64)", "n > 8 AND n < 12", 3),
        ("multi_bucket(n, b, 64)", "n = 3 AND b = true", 1),
        ("truncate(n, 10)", "n = 3", 1),
        ("truncate(n, 10)", "n > 9 AND n < 20", 1),
        ("truncate(n, 10)", "n > -20 AND n < 0", 2),
        ("truncate(s, 1)", "s >= 'a' AND s < 'b'", 1),
        ("truncate(x, 2)", "x >= X'6162' AND x <= X'616263'", 1),
        ("year(t)", "t >= '2024-01-01T00:00:00'", 1),
        ("year(t)", "t < '1600-01-01T00:00:00'", 1),
        ("month(d)", "d BETWEEN '2023-12-31' AND '2024-01-02'", 2),
        ("day(z)", "z = '2024-01-01T01:00:00Z'", 1),
        ("hour(t)", "t >= '2024-01-01T00:00:00' AND t < '2024-01-01T01:00:00'", 1),
        ("expr(n % 4)", "n = 3", 1),
        ("identity(n), identity(b)", "n = 3 AND NOT b", 1),
    ],
)
def test_a_condition_reads_only_the_regions_that_may_have_its_keys(regions: str, where: str, read: int) -> None:
    spec = parse_regions(regions, schema=SCHEMA)
    keep = RegionFilter(key_boxes(where, SCHEMA), spec, SCHEMA)

    assert sum(keep.needs(spec.spec_id, part.values) for part in route(ROWS, spec)) == read


@pytest.mark.parametrize(
    "where",
    [
        "v = 1",
        "n = 3 OR v = 1",
        "n + 0 = 3",
        "n = 3.0",
        "n = '3'",
        "n = v",
        "coalesce(n, 3) = 3",
        "NOT (v = 1 AND n = 3)",
        "n IN (3, NULL, v)",
        "v NOT BETWEEN n AND 3 OR n = 3",
        "not a condition ((",
        pytest.param("n = " + 5000 * "9", id="more digits than Python converts"),
    ],
)
def test_what_is_no_comparison_with_a_literal_may_be_true_in_every_region(where: str) -> None:
    assert key_boxes(where, SCHEMA) == ({},)


def test_a_long_condition_keeps_the_ranges_of_one_column_and_widens_many_boxes_of_two() -> None:
    numbers = range(0, 600, 2)
    one = key_boxes(" OR ".join(f"n = {n}" for n in numbers), SCHEMA)
    other = key_boxes(" AND ".join(f"n <> {n}" for n in numbers), SCHEMA)
    two = key_boxes(" OR ".join(f"(n = {n} AND u = {n})" for n in numbers), SCHEMA)

    assert one == ({"n": Ranges.points(numbers)},)
    assert other == ({"n": Ranges.all_of(pa.int16()) - Ranges.points(numbers)},)
    assert two == ({"n": Ranges.points(numbers), "u": Ranges.points(numbers)},)


def test_a_region_of_another_spec_is_always_read() -> None:
    spec = parse_regions("identity(n)", schema=SCHEMA)
    keep = RegionFilter(key_boxes("n = 3", SCHEMA), spec, SCHEMA)

    assert keep.needs(spec.spec_id + 1, ())
    assert keep.needs(spec.spec_id, ())


def test_only_the_regions_that_meet_a_condition_are_needed() -> None:
    spec = parse_regions("identity(b)", schema=SCHEMA)
    keep = RegionFilter(key_boxes("b", SCHEMA), spec, SCHEMA)

    assert [keep.needs(spec.spec_id, part.values) for part in route(ROWS, spec)] == [False, True]


def test_a_named_region_whose_head_is_lost_is_not_taken_for_one_that_never_existed(tmp_path: Path) -> None:
    store = _Counted()
    table = _table(tmp_path, store, "identity(id)", [1, 2])
    assert rows_of(table, where="id IN (1, 7)") == [row(1)]
    store.delete([line.key for line in store.list("_lancelsm/registry")])

    for where in ("id = 1", "id = 7"):
        with pytest.raises(Corrupt):
            rows_of(table, where=where)


def test_deletes_and_snapshots_leave_out_regions_too(tmp_path: Path) -> None:
    store = _Counted()
    table = _table(tmp_path, store, "identity(id)", [1, 2, 3])
    table.flush()
    table.snapshot("s")

    table.delete(where="id >= 2 AND id < 3")

    assert [found["id"] for found in rows_of(table)] == [1, 3]
    assert [found["id"] for found in rows_of(table.at("s"), where="id = 2")] == [2]


@pytest.mark.parametrize(("query", "regions"), [({"vector": [0.0, 0.0]}, 1), ({"text": "word"}, 3)])
def test_a_search_by_vector_reads_only_the_regions_that_its_condition_needs(
    tmp_path: Path, query: dict[str, Any], regions: int
) -> None:
    columns = pa.schema([*COLUMNS, pa.field("vec", pa.list_(pa.float32(), 2))])
    table = create(tmp_path, columns, regions="identity(id)")
    table.create_index("v", kind="INVERTED")
    table.upsert([{**row(key, "word"), "vec": [key, key]} for key in (1, 2, 3)])
    store = CountingStore(tmp_path / "table")
    fresh = lancelsm.open.on(Ports(store=lambda *_: store))(table.uri)

    found = fresh.search(**query, where="id = 2", columns=["id"]).to_arrow()

    assert found["id"].to_pylist() == [2]
    assert len({key.split("/")[1] for key in store.entries}) == regions
