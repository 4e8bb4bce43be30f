"""A pin that the floor of the log has passed: what it needs stays, is said to stay, and goes once the pin does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lancelsm.common.layout import Position
from lancelsm.gc import collect as collection
from lancelsm.table import Table
from tests.simulation.collecting import TableEnv, filled
from tests.unit.tables import NEWEST, by_key, three_levels

NEEDED = Position(3)  # from here on the pin needs the log


@pytest.fixture
def table_env() -> TableEnv:
    """A table environment with a pin that was made between the verification of a round and its commit, which is
    swept.
    """
    table_env = filled()
    needs = replace(table_env.needs(table_env.region("holder")), first_position=NEEDED)
    handle = table_env.handle("collector", faulty=False)
    with table_env.collecting():
        rounds = collection.mark(handle).rounds
        collection.verify(handle, rounds)
        assert table_env.end_pin(table_env.begin_pin("held", needs))
        collection.commit(handle, rounds)
        collection.sweep(handle, rounds)
    assert table_env.audit().first_position == 9
    assert logged(table_env) == 8
    return table_env


def logged(table_env: TableEnv) -> int:
    return sum("wal/" in key for key in table_env.stored())


def test_what_a_pin_needs_below_the_floor_is_kept_with_the_reason_and_makes_no_round(table_env: TableEnv) -> None:
    before = table_env.stored()

    looked, done = table_env.look(), [table_env.collect() for _ in range(3)]

    why = "snapshot held needs it from position 3 on"
    for one in (looked, *done):
        assert not [item for item in one.candidates if item.kind == "entry"]
        assert [(item.path, item.why) for item in one.kept if why in item.why] == [
            (f"_mem_wal/{table_env.environment.id}/wal/", why)
        ]
    assert (table_env.audit().collector_round, table_env.stored()) == (1, before)


def test_what_a_pin_needed_below_the_floor_goes_with_the_first_collection_after_it(table_env: TableEnv) -> None:
    table_env.collect()
    table_env.unpin("held")

    table_env.collect()

    assert (table_env.audit().collector_round, logged(table_env)) == (1, 2), "by the list of its round"


def test_what_a_pin_needed_below_the_floor_is_found_by_rank_once_other_rounds_were_committed(
    table_env: TableEnv,
) -> None:
    for number in range(4):
        table_env.environment.store.create(
            f"_mem_wal/{table_env.environment.id}/manifest/staged/1-{number:032x}.binpb", b"never named"
        )
    table_env.collect()
    assert (table_env.audit().collector_round, logged(table_env)) == (2, 8)
    table_env.unpin("held")

    table_env.collect()

    assert (table_env.audit().collector_round, logged(table_env)) == (3, 2)


def test_the_log_goes_on_past_what_a_pin_needed_below_the_floor(table_env: TableEnv) -> None:
    table_env.collect()
    table_env.write(100, 101)
    table_env.flush(rows_max=100)
    table_env.merge()
    table_env.collect()
    assert (table_env.audit().first_position, logged(table_env)) == (9, 10)
    table_env.unpin("held")

    table_env.collect()

    assert (table_env.audit().first_position, logged(table_env)) == (13, 0), "summed and verified"


@pytest.mark.parametrize("merged", [True, False])
def test_a_snapshot_of_a_table_that_is_flushed_keeps_none_of_its_log(tmp_path: Path, merged: bool) -> None:
    """Nor, if it was merged too, any generation: else one that never expires kept everything that is written later."""
    table = three_levels(tmp_path / "t", settings={"collect_floor_bytes": 1 << 30})
    table.flush()
    if merged:
        table.merge(engine="inprocess")
    table.snapshot("monday", "never")
    for version in range(2):
        table.upsert([{"id": n, "v": 10 + version} for n in range(4)])
        table.run()

    table.collect(yes=True, interval_seconds=0)

    heads = [region.head() for region in table.regions()]
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
