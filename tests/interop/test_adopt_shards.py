"""`adopt` moves rows that LanceDB, or Lance's own writer, wrote to shards of their own to the regions of their keys."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable

from lancelsm.admin.adopt import adopt
from lancelsm.admin.rebuild import rebuild
from lancelsm.errors import Fenced, Invalid, LsmError, LsmWarning
from lancelsm.read.problems import ProblemKind
from lancelsm.region.handle import open_table
from lancelsm.table import Table
from tests.interop.lancedb_writes import (
    ROWS,
    Row,
    base_keys,
    connected,
    create,
    kinds,
    lancedb_merges,
    seen,
    shard_writes,
)
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, FAIL_AFTER, FAIL_BEFORE, Crash, FaultPlan
from tests.unit.tables import faulty

pytestmark = [pytest.mark.interop, pytest.mark.rest]

SHARD = "5f0b2f3e-9a0a-4c4c-8f7e-0000000000a1"
OTHER = "5f0b2f3e-9a0a-4c4c-8f7e-0000000000b2"
LOADED = {row["id"]: 0 for row in ROWS}


def levels(table: Table) -> Iterator[str]:
    yield "log"
    table.flush()
    yield "generations"
    table.merge()
    yield "base"


def check(table: Table, expected: dict[Any, Any], *, before_the_merge: Sequence[ProblemKind] = ()) -> None:
    """Every level returns these rows, by scan and by get. In the end the base has each key once, and scrub agrees.

    Args:
        before_the_merge: what `status` reports until then.
    """
    assert kinds(table) == list(before_the_merge)
    for level in levels(table):
        assert seen(table) == expected, level
    assert not kinds(table)
    assert base_keys(table) == sorted(expected)
    assert table.scrub().problems == ()


@pytest.mark.parametrize("close", [True, False], ids=["flushed", "in its log"])
@pytest.mark.parametrize("regions", [None, "bucket(id, 2)"])
def test_rows_of_lancedb_are_newer_than_what_the_table_was_loaded_with(
    tmp_path: Path, regions: str | None, close: bool
) -> None:
    table = create(tmp_path, regions=regions)
    writer = lancedb_merges(table, [{"id": 2, "v": 50}, {"id": 77, "v": 50}], [{"id": 2, "v": 51}], close=close)

    table = Table(adopt(table.uri))

    check(table, {**LOADED, 2: 51, 77: 50})
    del writer


def test_lancedb_sees_the_rows_once_before_and_after_the_merge(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    lancedb_merges(table, [{"id": 2, "v": 50}, {"id": 77, "v": 50}])
    table = Table(adopt(table.uri))
    table.upsert([{"id": 2, "v": 60}])
    expected = {**LOADED, 2: 60, 77: 50}

    for level in levels(table):
        if level == "log":  # LanceDB reads no log but its own
            continue
        rows = connected(table).search().limit(100).to_list()
        assert len(rows) == len({row["id"] for row in rows}), level
        assert {row["id"]: row["v"] for row in rows} == expected, level


CONFLICT = {
    "refuse": None,
    "theirs": {**LOADED, 2: 50, 5: 50, 6: 50, 77: 50},
    "ours": {**{key: value for key, value in LOADED.items() if key != 5}, 2: 100, 6: 50, 77: 50},
}


@pytest.mark.parametrize("merged", [False, True], ids=["in our log", "in our base"])
@pytest.mark.parametrize("decision", CONFLICT)
def test_keys_that_both_wrote_are_refused_until_somebody_decides(tmp_path: Path, decision: Any, merged: bool) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    lancedb_merges(table, [{"id": key, "v": 50} for key in (2, 5, 6, 77)])
    table.upsert([{"id": 2, "v": 100}])
    table.delete([5])
    if merged:
        with pytest.warns(LsmWarning):
            table.run()
    before = {path: path.read_bytes() for path in Path(table.uri, "_mem_wal").rglob("*") if path.is_file()}

    if decision == "refuse":
        with pytest.raises(Invalid, match=r"both wrote 2 keys, .*id=2; id=5|both wrote 2 keys, .*id=5; id=2") as raised:
            adopt(table.uri)
        assert "--theirs, or --ours" in raised.value.remedy
        assert before == {path: path.read_bytes() for path in before}
        assert len(kinds(table)) == 2, "two shards of LanceDB"
        return
    table = Table(adopt(table.uri, on_conflict=decision))
    expected = CONFLICT[decision]
    assert expected is not None
    check(table, expected)


def test_more_than_20_keys_are_counted_and_the_first_20_listed(tmp_path: Path) -> None:
    table = create(tmp_path)
    rows = [{"id": key, "v": 1} for key in range(100, 130)]
    lancedb_merges(table, rows)
    table.upsert(rows)

    with pytest.raises(Invalid, match="both wrote 30 keys") as raised:
        adopt(table.uri)

    assert raised.value.message.count("id=") == 20


def test_deletes_of_another_tool_delete(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    shard_writes(table, SHARD, [{"id": 1, "v": 9}, {"id": 50, "v": 9}], deleted=[{"id": 1}, {"id": 3}])

    table = Table(adopt(table.uri))

    check(table, {**{key: value for key, value in LOADED.items() if key not in (1, 3)}, 50: 9})


def spread(regions: str) -> tuple[Any, list[Row], list[Row], Any]:
    """Return rows and key for a region spec, further rows, and one of their keys."""
    if "day" in regions:
        days = [date(2024, 1, day) for day in range(1, 5)]
        return ["id", "d"], [{"id": n, "d": day, "v": 0} for n, day in enumerate(days)], [
            {"id": 1, "d": days[1], "v": 7}, {"id": 9, "d": date(2024, 2, 1), "v": 7}
        ], "d"  # fmt: skip
    if "identity" in regions:
        return ["r", "id"], [{"r": name, "id": 1, "v": 0} for name in "abc"], [
            {"r": "b", "id": 1, "v": 7}, {"r": "new", "id": 1, "v": 7}
        ], "r"  # fmt: skip
    return "id", ROWS, [{"id": 2, "v": 7}, {"id": 1_000, "v": 7}], "id"


@pytest.mark.parametrize("regions", ["identity(r)", "truncate(id, 10)", "bucket(id, 3)", "day(d)", "expr(id % 3)"])
def test_rows_are_routed_by_any_region_spec(tmp_path: Path, regions: str) -> None:
    key, rows, more, _ = spread(regions)
    names = [key] if isinstance(key, str) else key
    with pytest.warns(UserWarning, match="Lance's own writer") if regions == "day(d)" else nullcontext():
        table = create(tmp_path, regions=regions, rows=rows, primary_key=key)
    writer = shard_writes(table, SHARD, more, close=False)  # Lance can't flush every key

    table = Table(adopt(table.uri))

    def keyed(found: list[Row]) -> dict[Any, Any]:
        return {row[names[0]] if len(names) == 1 else tuple(row[n] for n in names): row["v"] for row in found}

    check(table, keyed([*rows, *more]))
    del writer


def test_two_shards_are_adopted_and_a_shard_can_be_adopted_again(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    shard_writes(table, SHARD, [{"id": 1, "v": 1}, {"id": 20, "v": 1}])
    shard_writes(table, OTHER, [{"id": 2, "v": 2}, {"id": 30, "v": 2}])
    table = Table(adopt(table.uri))
    assert seen(table) == {**LOADED, 1: 1, 20: 1, 2: 2, 30: 2}

    # Its writer goes on: a later row of the same shard is newer than an earlier one
    shard_writes(table, SHARD, [{"id": 1, "v": 11}], close=False)
    assert len(kinds(table)) == 1
    table = Table(adopt(table.uri))
    check(table, {**LOADED, 1: 11, 20: 1, 2: 2, 30: 2})


def test_a_key_that_we_wrote_between_two_adoptions_is_refused(tmp_path: Path) -> None:
    table = create(tmp_path)
    shard_writes(table, SHARD, [{"id": 1, "v": 1}])
    table = Table(adopt(table.uri))
    table.upsert([{"id": 1, "v": 100}])
    shard_writes(table, SHARD, [{"id": 1, "v": 2}])

    with pytest.raises(Invalid, match="both wrote 1 keys"):
        adopt(table.uri)
    check(Table(adopt(table.uri, on_conflict="ours")), {**LOADED, 1: 100})


@pytest.mark.parametrize("decision", ["refuse", "theirs"])
def test_a_key_in_two_shards_is_refused_until_it_is_written_again(tmp_path: Path, decision: Any) -> None:
    table = create(tmp_path)
    shard_writes(table, SHARD, [{"id": 1, "v": 1}])
    shard_writes(table, OTHER, [{"id": 1, "v": 2}, {"id": 2, "v": 2}])

    with pytest.raises(Invalid, match=r"1 keys are in several shards .* id=1"):
        adopt(table.uri, on_conflict=decision)
    table.upsert([{"id": 1, "v": 3}])
    check(Table(adopt(table.uri, on_conflict="ours")), {**LOADED, 1: 3, 2: 2})


def test_a_writer_that_is_running_is_fenced_and_loses_nothing(tmp_path: Path) -> None:
    table = create(tmp_path)
    opened = lancedb_merges(table, [{"id": 1, "v": 1}], close=False)

    table = Table(adopt(table.uri))

    data = pa.Table.from_pylist([{"id": 2, "v": 2}], schema=opened.schema)
    merging = opened.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    with pytest.raises(Exception, match=r"(?i)fenced"):
        merging.execute(data)
    check(table, {**LOADED, 1: 1})

    lancedb_merges(table, [{"id": 2, "v": 2}])
    check(Table(adopt(table.uri)), {**LOADED, 1: 1, 2: 2})


def test_rows_that_another_tool_merged_are_not_appended_again(tmp_path: Path) -> None:
    table = create(tmp_path)
    shard_writes(table, SHARD, [{"id": 1, "v": 1}])
    dataset = lance.dataset(table.uri)
    merging = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merging.mark_sstables_as_compacted([CompactedSsTable(SHARD, 1)])
    merging.execute(pa.Table.from_pylist([{"id": 1, "v": 1}], schema=dataset.schema))
    table.upsert([{"id": 1, "v": 2}])  # newer than what is in the base
    shard_writes(table, SHARD, [{"id": 3, "v": 3}])

    check(Table(adopt(table.uri)), {**LOADED, 1: 2, 3: 3}, before_the_merge=[ProblemKind.COMMIT])


def test_rows_of_lances_writer_that_belong_to_another_region_are_refused(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    table.upsert([{"id": key, "v": 1} for key in range(10)])
    region = table.list_regions()[0]
    shard_writes(table, region.id, [{"id": key, "v": 2} for key in range(4)])

    with pytest.raises(Invalid, match="rows of other regions into this region: id="):
        adopt(table.uri)


def test_rows_of_lances_writer_that_belong_to_the_region_are_kept(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    entry, *_ = table.upsert([{"id": 1, "v": 1}]).entries
    shard_writes(table, entry.region, [{"id": 1, "v": 2}])
    lancedb_merges(table, [{"id": 4, "v": 4}])

    check(Table(adopt(table.uri)), {**LOADED, 1: 2, 4: 4})


def test_a_row_that_does_not_fit_the_table_is_refused(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64(), nullable=False)])
    table = create(tmp_path, rows=columns)
    dataset = lance.dataset(table.uri)
    nullable = pa.schema([dataset.schema.field("id"), dataset.schema.field("v").with_nullable(True)])
    writer = dataset.mem_wal_writer(SHARD)
    try:
        writer.put(pa.Table.from_pylist([{"id": 1, "v": None}], schema=nullable))
    except (OSError, ValueError) as error:
        pytest.skip(f"Lance refuses it itself: {error}")
    with pytest.raises(Invalid, match="no value in column 'v'"):
        adopt(table.uri)
    del writer


def test_a_shard_is_not_adopted_while_the_columns_of_the_base_differ(tmp_path: Path) -> None:
    table = create(tmp_path)
    shard_writes(table, SHARD, [{"id": 1, "v": 1}])
    version = lance.dataset(table.uri).version
    lance.dataset(table.uri).add_columns(pa.schema([pa.field("note", pa.string())]))

    with pytest.raises(Invalid, match="added column 'note'"):
        adopt(table.uri)

    lance.dataset(table.uri, version=version).restore()
    check(Table(adopt(table.uri)), {**LOADED, 1: 1})


@pytest.mark.parametrize("how", ["dropped", "replaced"])
def test_the_mem_wal_index_is_installed_again(tmp_path: Path, how: str) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    table.upsert([{"id": 1, "v": 1}])
    table.run()
    connected(table).unset_lsm_write_spec()
    if how == "replaced":
        lance.dataset(table.uri).initialize_mem_wal(bucket_column="id", num_buckets=4)
        lancedb_merges(table, [{"id": 2, "v": 2}])
    else:
        with pytest.raises(Invalid, match="dropped the MemWAL index"):
            table.merge()
        with pytest.raises(Invalid, match="takes no rows for now"):
            table.upsert([{"id": 1, "v": 2}])

    table = Table(adopt(table.uri))

    spec = connected(table).get_lsm_write_spec()
    assert "num_buckets=2" in repr(spec)
    table.upsert([{"id": 3, "v": 3}])
    check(table, {**LOADED, 1: 1, 3: 3, **({2: 2} if how == "replaced" else {})})


def test_a_rebuild_makes_no_region_of_a_shard(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    shard_writes(table, SHARD, [{"id": 1, "v": 1}])
    table = Table(adopt(table.uri))
    shard_writes(table, OTHER, [{"id": 2, "v": 2}])
    before = {region.id for region in table.list_regions()}
    for path in Path(table.uri, "_lancelsm").glob("registry.sqlite*"):
        path.unlink()

    rebuilt = rebuild(open_table(table.uri))

    assert {one.region.id for one in rebuilt} == before
    table = Table(adopt(table.uri))
    check(table, {**LOADED, 1: 1, 2: 2})


def test_a_region_of_an_exclusive_writer_is_not_touched(tmp_path: Path) -> None:
    table = create(tmp_path)
    shard_writes(table, SHARD, [{"id": 1, "v": 1}])
    with table.writer(exclusive=True) as writer:
        writer.upsert([{"id": 5, "v": 5}])
        with pytest.raises(Fenced):
            adopt(table.uri)
    check(Table(adopt(table.uri)), {**LOADED, 1: 1, 5: 5})


@pytest.fixture(scope="module")
def two_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with rows of ours, and two shards of other tools."""
    table = create(tmp_path_factory.mktemp("shards"), regions="bucket(id, 2)")
    table.upsert([{"id": 5, "v": 5}, {"id": 6, "v": 6}])
    shard_writes(table, SHARD, [{"id": 1, "v": 1}, {"id": 2, "v": 1}], deleted=[{"id": 3}])
    shard_writes(table, OTHER, [{"id": 20, "v": 2}, {"id": 21, "v": 2}], close=False)
    return Path(table.uri)


@pytest.mark.parametrize("fault", [CRASH_AFTER, CRASH_BEFORE, FAIL_BEFORE, FAIL_AFTER], ids=lambda fault: fault.kind)
def test_an_adoption_interrupted_at_any_call_is_finished_by_the_next_one(
    tmp_path: Path, two_shards: Path, fault: Any
) -> None:
    """Our writer goes on after the crash: no row of the shards may be appended a second time, behind its rows."""
    location = tmp_path / "orders.lance"
    shutil.copytree(two_shards, location)
    plan = FaultPlan()
    adopt(location, ports=faulty(plan))
    expected = {**{key: value for key, value in LOADED.items() if key != 3}, 5: 5, 6: 6, 1: 1, 2: 1, 20: 2, 21: 2}
    for call in plan.calls:
        if fault.kind != CRASH_AFTER.kind and not call.writes:
            continue
        print(call)
        shutil.rmtree(location)
        shutil.copytree(two_shards, location)
        try:
            adopt(location, ports=faulty(FaultPlan.at(call.index, fault)))
        except (Crash, LsmError) as error:
            print(f"{error!r}")
        table = Table(open_table(location))
        appended = seen_rows(table)
        changed = [key for key in (1, 2, 20, 21) if key in appended and appended[key] == expected[key]]
        if changed:
            table.upsert([{"id": changed[0], "v": 99}])
        if kinds(table):
            adopt(location, ports=faulty(FaultPlan(), process="next"))
        assert not kinds(table)
        assert seen(Table(open_table(location))) == {**expected, **({changed[0]: 99} if changed else {})}


def seen_rows(table: Table) -> dict[Any, Any]:
    return {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}
