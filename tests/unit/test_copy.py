"""Copy a table to a new one with another key, and say why if its rows can't have that key."""

from __future__ import annotations

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.read import new_key
from tests.simulation.faults import CRASH_BEFORE, Crash, FaultPlan
from tests.unit.tables import faulty

ROWS = [{"id": n, "email": f"{n}@example", "team": n % 2, "n": None} for n in range(6)]
SCHEMA = pa.schema([("id", pa.int64()), ("email", pa.string()), ("team", pa.int64()), ("n", pa.float64())])


@pytest.fixture
def table(tmp_path):
    """Rows in the base, in a generation and in the log."""
    made = lancelsm.create(
        tmp_path / "src", pa.Table.from_pylist(ROWS[:3], SCHEMA), primary_key="id", settings={"flush_rows": 77}
    )
    made.upsert(pa.Table.from_pylist(ROWS[3:5], SCHEMA))
    made.flush()
    made.upsert(pa.Table.from_pylist([ROWS[5], {**ROWS[0], "n": 1.5}], SCHEMA))
    made.delete([1])
    return made


def rows_of(table):
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])


def test_a_copy_has_the_rows_under_its_own_key_regions_and_sequence(table, tmp_path):
    copied = lancelsm.copy(
        table.uri, tmp_path / "dst", primary_key=["team", "email"], regions="bucket(email, 4)", sequence_by="n"
    )
    again = lancelsm.open(copied.uri)

    assert (copied.rows, copied.source) == (5, table.uri)
    assert rows_of(again) == rows_of(table)
    assert again.config.schema.primary_key == ("team", "email")
    assert again.config.regions.describe() == "bucket(email, 4)"
    assert again.config.sequence_by == ("n",)
    assert again.config.settings == {"flush_rows": "77"}
    assert again.config.table != table.config.table
    assert again.get([(0, "0@example")]).to_pylist() == [{**ROWS[0], "n": 1.5}]
    again.apply_changes([{**ROWS[0], "n": 2.5}])
    again.run()
    assert again.get([(0, "0@example")]).to_pylist() == [{**ROWS[0], "n": 2.5}]
    assert [pin.name for pin in table.snapshots()] == []


def test_the_same_key_keeps_the_region_spec_and_rows_may_be_those_of_a_version(table, tmp_path):
    table.reshard("bucket(id, 3)")
    kept = lancelsm.open(lancelsm.copy(table.uri, tmp_path / "now").uri)
    old = lancelsm.copy(table.uri, tmp_path / "then", at=1, regions="bucket(id, 2)")

    assert kept.config.regions.describe() == "bucket(id, 3)"
    kept.upsert(ROWS[:2])
    kept.flush()
    assert kept.scrub().ok, "the copy has no regions before a reshard"
    assert rows_of(lancelsm.open(old.uri)) == ROWS[:3]


@pytest.mark.parametrize("keys_at_once", [2, 1000])
def test_rows_with_one_new_key_are_refused_with_examples(table, tmp_path, monkeypatch, keys_at_once):
    monkeypatch.setattr(new_key, "KEYS_AT_ONCE", keys_at_once)
    with pytest.raises(Invalid, match=r"rows have the same new key: team=[01] \([23] rows\)") as refused:
        lancelsm.copy(table.uri, tmp_path / "dst", primary_key="team")
    assert refused.value.where["field"] == "primary_key"
    assert not (tmp_path / "dst").exists()

    lancelsm.copy(table.uri, tmp_path / "dst", primary_key="email")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"primary_key": ["email", "n"]}, "column 'n' of type double can't be a primary key"),
        ({"primary_key": "absent"}, "absent"),
        ({"primary_key": "email", "regions": "bucket(id, 4)"}, "id"),
        ({"sequence_by": "absent"}, "absent"),
        ({"at": 99}, "has no version 99 yet"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_written(table, tmp_path, arguments, problem):
    with pytest.raises(Invalid, match=problem):
        lancelsm.copy(table.uri, tmp_path / "dst", **arguments)
    assert not (tmp_path / "dst").exists()
    assert table.snapshots() == []


def test_null_in_the_new_key_is_refused_with_the_old_key_of_a_row(tmp_path):
    table = lancelsm.create(tmp_path / "src", SCHEMA, primary_key="id")
    table.upsert([{**ROWS[0], "email": None}, ROWS[1]])
    with pytest.raises(Invalid, match="1 rows have null in column 'email' of the new key, such as id=0"):
        lancelsm.copy(table.uri, tmp_path / "dst", primary_key="email")


def test_what_exists_at_the_target_is_never_touched(table, tmp_path):
    other = lancelsm.create(tmp_path / "dst", SCHEMA, primary_key="id")
    for _ in range(2):
        with pytest.raises(Invalid, match="a table already exists"):
            lancelsm.copy(table.uri, other.uri)
    assert other.count() == 0


@pytest.mark.rest
def test_a_copy_that_crashes_at_any_call_leaves_no_table_and_is_finished_or_refused(table, tmp_path):
    """The same call finishes it while the source is unchanged; else what is there can be dropped."""
    for at in range(3, 500, 8):
        dst, plan = tmp_path / str(at), FaultPlan.at(at, CRASH_BEFORE)
        try:
            lancelsm.copy.on(faulty(plan, process=str(at)))(table.uri, dst, primary_key="email")
        except Crash:
            pass
        else:
            break
        with pytest.raises(Invalid, match="there is no table"):
            lancelsm.open(dst)
        assert lancelsm.copy(table.uri, dst, primary_key="email").rows == 5
        lancelsm.drop(dst)
    assert at > 20
