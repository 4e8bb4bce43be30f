"""A pin below the floor of the log: its entries are kept and reported, and deleted once the pin is gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lancelsm.common.layout import Position
from lancelsm.gc import collect as collection
from lancelsm.table import Table
from tests.simulation.collecting import TableEnv, filled
from tests.unit.tables import NEWEST, by_key, three_levels

NEEDED = Position(3)  # the first position that the pin needs


@pytest.fixture
def table_env() -> TableEnv:
    """A table where a pin was confirmed between the verification and the commit of a round, which was then swept."""
    table_env = filled()
    needs = replace(table_env.needs(table_env.region("holder")), first_position=NEEDED)
    handle = table_env.handle("collector", faulty=False)
    with table_env.collecting():
        rounds = collection.mark(handle).rounds
        collection.verify(handle, rounds)
        assert table_env.confirm_pin(table_env.begin_pin("held", needs))
        collection.commit(handle, rounds)
        collection.sweep(handle, rounds)
    assert table_env.audit().first_position == 9
    assert entries_stored(table_env) == 8
    return table_env


def entries_stored(table_env: TableEnv) -> int:
    return sum("wal/" in key for key in table_env.stored())


def test_entries_that_a_pin_needs_below_the_floor_are_kept_and_reported_without_a_new_round(
    table_env: TableEnv,
) -> None:
    before = table_env.stored()

    dry_run, collections = table_env.dry_run(), [table_env.collect() for _ in range(3)]

    why = "snapshot held needs it from position 3 on"
    for result in (dry_run, *collections):
        assert not [item for item in result.candidates if item.kind == "entry"]
        assert [(item.path, item.why) for item in result.kept if why in item.why] == [
            (f"_mem_wal/{table_env.environment.id}/wal/", why)
        ]
    assert (table_env.audit().collector_round, table_env.stored()) == (1, before)


def test_entries_below_the_floor_are_deleted_by_the_first_collection_after_the_pin(table_env: TableEnv) -> None:
    table_env.collect()
    table_env.unpin("held")

    table_env.collect()

    assert (table_env.audit().collector_round, entries_stored(table_env)) == (1, 2), (
        "the next sweep uses the list of the round"
    )


def test_entries_below_the_floor_are_found_by_position_after_other_rounds_were_committed(
    table_env: TableEnv,
) -> None:
    for number in range(4):
        table_env.environment.store.create(
            f"_mem_wal/{table_env.environment.id}/manifest/staged/1-{number:032x}.binpb", b"never named"
        )
    table_env.collect()
    assert (table_env.audit().collector_round, entries_stored(table_env)) == (2, 8)
    table_env.unpin("held")

    table_env.collect()

    assert (table_env.audit().collector_round, entries_stored(table_env)) == (3, 2)


def test_the_floor_advances_after_a_pin_below_it_is_gone(table_env: TableEnv) -> None:
    table_env.collect()
    table_env.write(100, 101)
    table_env.flush(rows_max=100)
    table_env.merge()
    table_env.collect()
    assert (table_env.audit().first_position, entries_stored(table_env)) == (9, 10)
    table_env.unpin("held")

    table_env.collect()

    assert (table_env.audit().first_position, entries_stored(table_env)) == (13, 0), "the round is summed and verified"


@pytest.mark.rest
@pytest.mark.parametrize("merged", [True, False])
def test_a_snapshot_of_a_flushed_table_keeps_no_log(tmp_path: Path, merged: bool) -> None:
    """After a merge it keeps no generation either. Otherwise a snapshot without expiry would keep all later writes."""
    table = three_levels(tmp_path / "t", settings={"collect_floor_bytes": 1 << 30})
    table.flush()
    if merged:
        table.merge(engine="inprocess")
    table.snapshot("monday", "never")
    for version in range(2):
        table.upsert([{"id": n, "v": 10 + version} for n in range(4)])
        table.run()

    table.collect(yes=True, interval_seconds=0)

    heads = [region.head() for region in table.list_regions()]
    assert [head.first_position for head in heads] == [head.next_position for head in heads]
    assert not list(Path(table.uri).glob("_mem_wal/*/wal/*"))
    assert bool(generations(table)) == (not merged)
    assert by_key(table.at("monday").scan().to_arrow()) == NEWEST
    assert table.scrub().problems == ()

    table.drop_snapshot("monday")
    table.collect(yes=True, interval_seconds=0)
    assert generations(table) == 0


def generations(table: Table) -> int:
    return len(list(Path(table.uri).glob("_mem_wal/*/*_gen_*")))
