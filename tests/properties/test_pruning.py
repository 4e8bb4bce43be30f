"""What a read leaves out has no row that meets the condition, whatever the condition and the region spec."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import lancelsm
from lancelsm.common.layout import Generation, RegionId
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.conditions import read_condition
from lancelsm.errors import Invalid
from lancelsm.read.pruning.generation_pruning import by_bounds, keys_of
from lancelsm.read.pruning.key_conditions import key_boxes
from lancelsm.read.pruning.region_pruning import RegionFilter
from lancelsm.record.key_bounds import key_bounds
from lancelsm.record.schema import TableSchema, declare_primary_key, numbered
from lancelsm.region.manifest import FlushedGeneration, GenerationKeys
from lancelsm.routing.route import route
from lancelsm.routing.spec import parse_regions
from lancelsm.table import Table

_KEY = ("n", "u", "s", "x", "t", "z", "d", "b")
_COLUMNS = pa.schema(
    [
        pa.field("n", pa.int16()),
        pa.field("u", pa.uint64()),
        pa.field("s", pa.string()),
        pa.field("x", pa.binary()),
        pa.field("t", pa.timestamp("us")),
        pa.field("z", pa.timestamp("ms", "America/New_York")),
        pa.field("d", pa.date32()),
        pa.field("b", pa.bool_()),
        pa.field("v", pa.int64()),
    ]
)
SCHEMA = TableSchema(columns=numbered(declare_primary_key(_COLUMNS, _KEY)), primary_key=_KEY)
SPECS = [
    "bucket(n, 5)",
    "bucket(s, 7), bucket(b, 2)",
    "multi_bucket(n, b, 6)",
    "identity(n)",
    "identity(u), identity(x)",
    "identity(b)",
    "truncate(n, 10)",
    "truncate(s, 1)",
    "truncate(x, 2)",
    "truncate(u, 3), year(z)",
    "year(t)",
    "month(t), day(d)",
    "day(z)",
    "hour(t), hour(d)",
    "hour(z), month(z)",
    "expr(n % 4)",
    "expr(substr(s, 1, 1)), year(d)",
    "unsharded",
]
_START = dt.datetime(2023, 12, 31, 22, 30, tzinfo=dt.UTC)
_TIMES = [
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
    dt.datetime(1582, 10, 15, tzinfo=dt.UTC),
    *(_START + dt.timedelta(minutes=29 * n * n) for n in range(12)),
]
VALUES: dict[str, list[Any]] = {
    "n": [-32768, -11, -10, -9, -1, 0, 1, 3, 9, 10, 11, 25, 32767],
    "u": [0, 1, 2, 3, 1 << 63, (1 << 64) - 1],
    "s": ["", "a", "ab", "abc", "b", "\u00e9", "\u00e9a", "\U0001f600", "it's"],
    "x": [b"", b"\0", b"\0\0", b"ab", b"abc", b"\xff", b"\xff\xff\xff"],
    "t": [one.replace(tzinfo=None) for one in _TIMES],
    "z": [one.replace(microsecond=0) for one in _TIMES],
    "d": [one.date() for one in _TIMES],
    "b": [False, True],
    "v": [None, 1, 2],
}


def _rows() -> pa.Table:
    draw = random.Random("rows")
    columns = []
    for field, values in zip(SCHEMA.columns, VALUES.values(), strict=True):
        columns.append(pa.array([*values, *(draw.choice(values) for _ in range(90 - len(values)))], field.type))
    return pa.table(columns, schema=SCHEMA.columns)


ROWS = _rows()


def _sql(name: str, value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, dt.datetime):
        return f"'{value.isoformat().replace('+00:00', 'Z')}'"
    return f"'{value.isoformat()}'" if isinstance(value, dt.date) else str(value)


@st.composite
def _comparisons(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from([*VALUES, "`n`", "s"]))
    values = [value for value in VALUES[name.strip("`")] if value is not None]
    one, two = (_sql(name, draw(st.sampled_from(values))) for _ in range(2))
    how = draw(st.sampled_from(["=", "==", "<>", "!=", "<", "<=", ">", ">="]))
    negated = draw(st.sampled_from(["", "NOT "]))
    forms = [
        f"{name} {how} {one}",
        f"{one} {how} {name}",
        f"{name} {negated}IN ({one}, {two})",
        f"{name} {negated}BETWEEN {one} AND {two}",
        f"{name} IS {negated}NULL",
        f"({name}) {how} {one}",
        f"({name} {how} {one}) = b",
        f"coalesce({name}, {one}) {how} {two}",
        "b",
        "v + 1 BETWEEN 1 AND 2",
        "n + 1 > 3",
        "s LIKE 'a%'",
        f"({name} = NULL) IS NULL",
        f"{name} IN ({one}, NULL)",
    ]
    return draw(st.sampled_from(forms))


CONDITIONS = st.recursive(
    _comparisons(),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" AND ", " OR "]), inner).map("".join),
        inner.map(lambda one: f"NOT {one}"),
        inner.map(lambda one: f"({one})"),
    ),
    max_leaves=6,
)


_REGION = RegionId("r")


def _generation(keys: pa.Table) -> FlushedGeneration:
    known = GenerationKeys(bounds=key_bounds(keys), filter_blocks=1, filter_setsum=Setsum())
    return FlushedGeneration(generation=Generation(1), path="", rows=1, bytes=1, keys=known)


@pytest.mark.rest
@settings(max_examples=150)
@given(where=CONDITIONS)
def test_the_region_of_every_row_that_meets_a_condition_is_read(where: str) -> None:
    try:
        matching = read_condition(where, columns=SCHEMA.columns, table="t").matching(ROWS, table="t")
    except Invalid:
        reject()
    boxes = key_boxes(where, SCHEMA)
    keys = matching.select(list(_KEY)).cast(SCHEMA.key)
    looked_up = keys_of(boxes, SCHEMA)
    for number in range(keys.num_rows):
        key = keys.slice(number, 1)
        assert by_bounds(_REGION, [_generation(key)], boxes, SCHEMA)[1] == []
        assert looked_up is None or key.to_pylist()[0] in looked_up.to_pylist()
    for text in SPECS:
        spec = parse_regions(text, schema=SCHEMA)
        keep = RegionFilter(boxes, spec, SCHEMA)
        named = keep.named()
        for part in route(matching, spec):
            assert keep.needs(spec.spec_id, part.values), (text, part.values)
            assert named is None or part.values in named, (text, part.values)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, pa.Table]:
    """A table with every level, of which each hides rows of the ones below, and its rows."""
    at = tmp_path_factory.mktemp("pruned")
    base = ROWS.slice(0, 60).set_column(len(_KEY), _COLUMNS.field("v"), pa.array([3] * 60))
    with pytest.warns(UserWarning, match="Lance's own writer"):
        made = lancelsm.create(at, base, primary_key=_KEY, regions="identity(b)")
    for first in (0, 20, 40):
        made.upsert(ROWS.slice(first, 25))
        made.delete(ROWS.slice(first + 5, 3).select(list(_KEY)))
        made.flush()
    made.upsert(ROWS.slice(60, 10))
    return made, made.scan().to_arrow()


@pytest.mark.rest
@settings(max_examples=30)
@given(where=CONDITIONS)
def test_a_scan_with_a_condition_has_the_rows_of_a_full_scan_that_meet_it(
    table: tuple[Table, pa.Table], where: str
) -> None:
    pruned, every = table
    try:
        expected = read_condition(where, columns=SCHEMA.columns, table="t").matching(every, table="t")
    except Invalid:
        reject()

    found = pruned.scan(where=where).to_arrow()

    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist()))
