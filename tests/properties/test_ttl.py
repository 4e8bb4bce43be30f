"""Compare a table whose rows expire with a dictionary and a clock: every read, at every level, at every moment."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lancelsm
from lancelsm.common.layout import table_id
from lancelsm.compaction.compact import compact_table
from lancelsm.compaction.maintenance import optimize_table
from lancelsm.dataset.base_reads import scan_base
from lancelsm.dataset.base_table import BaseFacts, create_base
from lancelsm.dataset.conditions import unexpired
from lancelsm.record.ttl import Expiry, parse_ttl
from lancelsm.region.handle import Ports
from lancelsm.table import Table
from tests.simulation.faults import FakeClock

HOUR, SKEW = 3600, 300
KINDS = [
    pa.timestamp("us", "UTC"),
    pa.timestamp("s"),
    pa.timestamp("ms", "America/New_York"),
    pa.timestamp("ns"),
    pa.date32(),
    pa.date64(),
]
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
KEYS = range(8)


def number(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(kind) else pa.int64()


def per_day(kind: pa.DataType) -> int:
    if pa.types.is_date32(kind):
        return 1
    return 86_400 * (1000 if pa.types.is_date64(kind) else PER_SECOND[kind.unit])


@given(
    kind=st.sampled_from(KINDS),
    seconds=st.integers(0, 100 * 365 * 86_400),
    now=st.floats(-1e15, 1e15),
    values=st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-100, 100)),
)
@example(kind=pa.timestamp("ns"), seconds=0, now=9_223_372_036.854775807, values=[(1 << 63) - 1, -(1 << 63)])
@example(kind=pa.timestamp("ns"), seconds=0, now=-9_223_372_037.0, values=[-(1 << 63)])
@example(kind=pa.date32(), seconds=0, now=86_400.0, values=[0, 1, 2, None])
@example(kind=pa.date32(), seconds=1, now=86_400.0, values=[0, 1])
def test_a_value_has_expired_if_it_lies_the_time_to_live_ago(
    kind: pa.DataType, seconds: int, now: float, values: list[int | None]
) -> None:
    least, most = (-(1 << 31), (1 << 31) - 1) if pa.types.is_date32(kind) else (-(1 << 63), (1 << 63) - 1)
    given = [None if one is None else max(least, min(one, most)) for one in values]
    rows = pa.table({"at": pa.array(given, number(kind)).cast(kind)})
    expiry = parse_ttl(f"{seconds}s on at", rows.schema).at(now, rows.schema)
    up, down = float(now).as_integer_ratio()
    expected = [one is not None and one * 86_400 * down <= (up - seconds * down) * per_day(kind) for one in given]
    found = [False] * len(given) if expiry is None else expiry.expired(rows).to_pylist()
    assert found == expected


@pytest.mark.parametrize("kind", [*KINDS, pa.timestamp("s", "UTC"), pa.timestamp("ns", "Asia/Tokyo")], ids=str)
def test_lance_leaves_out_the_same_rows_of_a_base(tmp_path: Path, kind: pa.DataType) -> None:
    bits = number(kind).bit_width
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    bounds = [least, least + 1, -1, 0, 1, 19_000, most - 1, most]
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", kind)])
    values = [None, *bounds, 18_999, 19_001]
    rows = pa.table([pa.array(range(len(values))), pa.array(values, number(kind)).cast(kind)], schema=columns)
    facts = BaseFacts(table=table_id("0" * 32), registry="sqlite", owner="default", regions="")
    base = create_base(
        uri=str(tmp_path / "base"), columns=columns, primary_key=["id"], facts=facts, rows=rows.to_batches()
    )
    for newest in bounds:
        expiry = Expiry(column="at", newest=newest)
        where = unexpired(None, expiry, base.schema.columns)
        found = [one for batch in scan_base(base, columns=["id"], where=where) for one in batch["id"].to_pylist()]
        assert found == [row for row, value in enumerate(values) if value is None or value > newest]
        assert found == expiry.live(rows)["id"].to_pylist()


@dataclass
class Expiring:
    """A table, and the newest row of each key with the level that it is in. A deleted or removed key has none."""

    table: Table
    other: Table
    clock: FakeClock
    kind: pa.DataType
    ttl: tuple[int, str] | None
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    level: dict[int, str] = field(default_factory=dict)
    snapshots: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def value(self, seconds: float) -> int:
        """A time that lies this many seconds from now, in the unit of the column."""
        days = (Fraction(self.clock.now()) + seconds) / 86_400
        return int(days) * per_day(self.kind) if pa.types.is_date(self.kind) else int(days * per_day(self.kind))

    def written(self, keys: Iterable[int], values: Iterable[dict[str, Any]]) -> None:
        for key, row in zip(keys, values, strict=True):
            self.rows[key], self.level[key] = row, "log"

    def arrow(self, rows: list[dict[str, Any]]) -> pa.Table:
        schema = pa.schema([one.remove_metadata() for one in self.table.schema])
        at = pa.array([row["at"] for row in rows], number(self.kind)).cast(self.kind)
        return pa.table([[row["id"] for row in rows], at, [row["v"] for row in rows]], schema=schema)

    def expired(self, row: dict[str, Any], *, skew: float = 0) -> bool:
        if self.ttl is None or row["at"] is None:
            return False
        moment = Fraction(self.clock.now()) - Fraction(skew) - self.ttl[0]
        return bool(row["at"] * 86_400 <= moment * per_day(self.kind))

    def live(self) -> list[dict[str, Any]]:
        return [row for _, row in sorted(self.rows.items()) if not self.expired(row)]

    def remove(self, level: str) -> None:
        """Remove what has expired by every clock from a level."""
        for key, row in list(self.rows.items()):
            if self.level[key] == level and self.expired(row, skew=SKEW):
                del self.rows[key]

    def read(self, found: pa.Table) -> list[dict[str, Any]]:
        at = found["at"].cast(number(self.kind)).to_pylist()
        rows = [{**row, "at": time} for row, time in zip(found.drop_columns(["at"]).to_pylist(), at, strict=True)]
        return sorted(rows, key=lambda row: row["id"])

    def check(self) -> None:
        live = self.live()
        for table in (self.table, self.other):
            assert self.read(table.scan().to_arrow()) == live
            assert table.count() == len(live)
            assert self.read(table.get(list(KEYS))) == live
            assert table.get(list(KEYS), columns=["v"]).num_rows == len(live)
            some = [row for row in live if row["v"] > 2]
            assert self.read(table.scan(where="v > 2").to_arrow()) == some
            assert table.count(where="v > 2") == len(some)
            assert table.count(where="id = 3") == sum(row["id"] == 3 for row in live)
            assert table.scan(columns=["v"], limit=3).to_arrow().num_rows == min(3, len(live))
            eventual = table.scan(consistency="eventual", max_staleness=600).to_arrow()
            assert eventual.num_rows == table.count(consistency="eventual", max_staleness=600)
        for name, rows in self.snapshots.items():
            assert self.read(self.table.at(name).scan().to_arrow()) == rows

    # What may happen

    def upsert(self, dice: random.Random) -> None:
        keys = dice.sample(KEYS, dice.randrange(1, 5))
        times = [None, self.value(0), self.value(-HOUR), self.value(HOUR * 30), self.value(-HOUR * 90), self.value(9)]
        rows = [{"id": key, "at": dice.choice(times), "v": dice.randrange(6)} for key in keys]
        option = dice.choice(["", "", "if_absent", "partial"])
        if option == "if_absent":
            present = {row["id"] for row in self.live()}
            self.table.upsert(self.arrow(rows), if_absent=True)
            rows = [row for row in rows if row["id"] not in present]
        elif option == "partial":
            before = {row["id"]: row["at"] for row in self.live()}
            self.table.upsert(self.arrow(rows).drop_columns(["at"]), partial=True)
            rows = [{**row, "at": before.get(row["id"])} for row in rows]
        else:
            self.table.upsert(self.arrow(rows))
        self.written([row["id"] for row in rows], rows)

    def change(self, dice: random.Random) -> None:
        live = self.live()
        match dice.randrange(4):
            case 0:
                keys = dice.sample(KEYS, 2)
                self.table.delete(keys)
                for key in keys:
                    self.rows.pop(key, None)
            case 1:
                chosen = [row for row in live if row["v"] == 5]
                assert self.table.delete(where="v = 5").rows == len(chosen)
                for row in chosen:
                    del self.rows[row["id"]]
            case 2:
                chosen = [row for row in live if row["v"] < 2]
                assert self.table.update(where="v < 2", set={"v": "v + 1"}).rows == len(chosen)
                self.written([row["id"] for row in chosen], [{**row, "v": row["v"] + 1} for row in chosen])
            case _:
                seen: list[dict[str, Any]] = []

                def fn(rows: pa.Table) -> None:
                    seen.extend(self.read(rows))

                self.table.transact(list(KEYS), fn)
                assert sorted(seen, key=lambda row: row["id"]) == live

    def maintain(self, dice: random.Random) -> None:
        match dice.randrange(4):
            case 0:
                self.table.flush()
                self.level = {key: "generation" if level == "log" else level for key, level in self.level.items()}
            case 1:
                self.table.merge(engine="inprocess")
                self.remove("generation")
                self.level = {key: "base" if level == "generation" else level for key, level in self.level.items()}
            case 2:
                before = self.table._handle.read_base().rows
                removed = optimize_table(self.table._handle).rows_expired
                assert self.table._handle.read_base().rows == before - removed
                self.remove("base")
            case _:
                compact_table(self.table._handle)

    def pass_time(self, dice: random.Random) -> None:
        self.clock.advance(dice.choice([1, SKEW, HOUR, 10 * HOUR]))

    def set_ttl(self, dice: random.Random) -> None:
        hours = dice.choice([24, 0, 48, None])
        self.ttl = None if hours is None else (hours * HOUR, f"{hours}h on at")
        self.other.set_ttl(None if self.ttl is None else self.ttl[1])

    def snapshot(self, dice: random.Random) -> None:
        name = f"s{len(self.snapshots)}"
        self.table.snapshot(name, ttl="never")
        self.snapshots[name] = self.live()


@pytest.mark.rest
@pytest.mark.parametrize("seed", range(6))
def test_every_read_leaves_out_what_has_expired(tmp_path: Path, seed: int) -> None:
    kind = KINDS[seed]
    dice, clock = random.Random(f"rows that expire {seed}"), FakeClock()
    ports = Ports(clock=clock, threads=1)
    columns = pa.schema([("id", pa.int64()), ("at", kind), ("v", pa.int64())])
    regions = dice.choice([None, "bucket(id, 2)"])
    options: Any = {"regions": regions, "settings": {"max_generations": 1}}
    lancelsm.create.on(ports)(tmp_path / "t", columns, primary_key="id", ttl="24h on at", **options)
    first, second = (lancelsm.open.on(ports)(tmp_path / "t") for _ in range(2))
    expiring = Expiring(table=first, other=second, clock=clock, kind=kind, ttl=(24 * HOUR, "24h on at"))
    steps = [expiring.upsert] * 4 + [expiring.change] * 2 + [expiring.maintain] * 4 + [expiring.pass_time] * 2
    for _ in range(25):
        dice.choice([*steps, expiring.set_ttl, expiring.snapshot])(dice)
        expiring.check()
