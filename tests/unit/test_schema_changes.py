"""Columns of a table change while it is read, written and maintained."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin import change_columns
from lancelsm.dataset.base_table import open_base
from lancelsm.dataset.column_changes import first_unused_id
from lancelsm.errors import Contended, Corrupt, Invalid, Unavailable
from lancelsm.region.lease import lease
from tests.simulation.faults import FakeClock, FaultPlan
from tests.unit.schema_scenarios import configured, interrupted
from tests.unit.tables import create, faulty, levels, row, rows_of

KINDS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("i", pa.int32()),
        pa.field("f", pa.float32()),
        pa.field("d", pa.decimal128(5, 2)),
        pa.field("t", pa.string(), nullable=False),
    ]
)


def of_kinds(key: int) -> dict[str, Any]:
    return {"id": key, "i": key, "f": key / 2, "d": Decimal(key), "t": str(key)}


def test_a_change_of_columns_that_others_overtake_is_retried_until_the_budget_is_spent(tmp_path: Path) -> None:
    clock = FakeClock()
    table = create(tmp_path, settings={"retry_budget_seconds": 60}, ports=faulty(FaultPlan(), clock=clock))
    real, calls = change_columns._committed, 0

    def overtaken(handle: Any, base: Any, change: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(handle, base, change) if calls > 12 else None

    with mock.patch.object(change_columns, "_committed", overtaken):
        table.add_column("n", "int16")
    assert table.schema.names[-1] == "n"

    before = clock.monotonic()
    never = mock.patch.object(change_columns, "_committed", return_value=None)
    with never, pytest.raises(Contended, match="kept changing"):
        table.add_column("m", "int16")
    assert clock.monotonic() - before >= 60


@pytest.mark.one_case
@pytest.mark.parametrize("level", ["tail", "generation", "base"])
def test_rows_of_every_level_are_read_under_the_new_columns(tmp_path: Path, level: str) -> None:
    table = create(tmp_path, KINDS, regions="bucket(id, 2)")
    table.upsert([of_kinds(key) for key in range(6)])
    table.delete([5])
    next(name for name in levels(table) if name == level)
    held = lancelsm.open(table.uri)

    table.add_column("n", "int16", default=7)
    table.widen_column("i", "int64")
    table.widen_column("f", "double")
    table.widen_column("d", "decimal128(20, 2)")
    table.set_nullable("t")
    table.rename_column("t", "text")
    table.drop_column("d")
    table.add_column("d", pa.list_(pa.int32()))
    version = table.config.schema_version
    table.upsert([{"id": 9, "i": 1 << 40, "f": 0.1, "text": None, "n": None, "d": [1]}])

    expected = [{"id": key, "i": key, "f": key / 2, "text": str(key), "n": 7, "d": None} for key in range(5)] + [
        {"id": 9, "i": 1 << 40, "f": 0.1, "text": None, "n": None, "d": [1]}
    ]
    assert version == 9
    for found in (table, held, lancelsm.open(table.uri)):
        assert rows_of(found) == expected
    for _ in levels(table):
        assert rows_of(table) == rows_of(held) == expected
        assert table.get([0, 9]).num_rows == 2
        assert table.count(where="i > 5000000000 OR n = 7") == 6
    assert rows_of(table, where="n = 7 AND f = 1.0") == expected[2:3]
    assert table.scrub().problems == ()
    assert lance.dataset(table.uri).to_table().schema.names == ["id", "i", "f", "text", "n", "d"]


def test_an_object_that_is_open_takes_up_the_columns_with_its_next_write(tmp_path: Path) -> None:
    table = create(tmp_path)
    held, late = lancelsm.open(table.uri), lancelsm.open(table.uri)
    late.upsert([row(0)])
    table.add_column("c", "string", default="d")

    held.upsert([row(1)])
    late.upsert([row(2)])
    late.upsert([{**row(3), "c": "x"}])
    held.upsert([{**row(4), "c": "x"}])

    assert [found["c"] for found in rows_of(table)] == ["d", "d", "d", "x", "x"]
    assert held.config.schema_version == late.config.schema_version == 2


def test_a_row_that_leaves_out_an_added_column_has_its_default(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.add_column("c", "string", default="d")
    table.upsert([row(1)])
    table.upsert([{"id": 2, "c": "x"}], partial=True)
    table.upsert([{"id": 3}], partial=True)
    table.upsert([{"id": 1, "v": "new"}], partial=True)
    table.upsert([{**row(4), "c": None}])
    assert [(found["v"], found["c"]) for found in rows_of(table)] == [
        ("new", "d"),
        (None, "x"),
        (None, "d"),
        ("a", None),
    ]


def test_a_group_writer_takes_up_the_columns(tmp_path: Path) -> None:
    table = create(tmp_path)
    with table.writer() as writer:
        first = [writer.submit(row(key)) for key in range(3)]
        for future in first:
            future.result()
        lancelsm.open(table.uri).add_column("c", "string", default="d")
        writer.submit(row(3)).result()
        writer.submit({**row(4), "c": "x"}).result()
        writer.submit(row(5)).result()
    assert [found["c"] for found in rows_of(table)] == ["d", "d", "d", "d", "x", "d"]


@pytest.mark.parametrize("form", [dict, lambda values: pa.Table.from_pylist([values])])
def test_a_group_writer_takes_up_a_wider_type(tmp_path: Path, form: Any) -> None:
    table = create(tmp_path, pa.schema([("id", pa.int64()), ("n", pa.int32())]))
    rows = [{"id": key, "n": n} for key, n in enumerate([1, 2, 1 << 40, 3])]

    def write() -> None:
        with table.writer() as writer:
            for values in rows:
                if values["n"] == 1 << 40:
                    lancelsm.open(table.uri).widen_column("n", "int64")
                writer.submit(form(values)).result()
            writer.submit({"id": 9, "n": 1 << 80})

    with pytest.raises(Invalid, match=f"{1 << 80} does not fit int64"):
        write()
    assert rows_of(table) == rows


@pytest.mark.parametrize("after", ["base", "configuration"])
def test_the_next_process_finishes_an_interrupted_change(tmp_path: Path, after: str) -> None:
    table = create(tmp_path, [row(1)])
    table.upsert([row(2)])
    interrupted(table, after=after)
    assert configured(table) == (1 if after == "base" else 2)

    opened = lancelsm.open(table.uri)
    assert rows_of(opened) == rows_of(table) == [{**row(key), "c": "d"} for key in (1, 2)]
    assert configured(table) == 2
    assert opened.add_column("c", "string", default="d") == 2, "the same call has nothing left to do"
    opened.flush()
    opened.merge(engine="inprocess")
    assert {region.head().schema_version for region in table.list_regions()} == {2}


def test_a_commit_without_a_reply_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lancelsm.admin import change_columns as operations

    table, original = create(tmp_path, [row(1)]), operations.commit_change

    def lost(*given: Any, **options: Any) -> Any:
        original(*given, **options)
        raise Unavailable("no reply")

    monkeypatch.setattr(operations, "commit_change", lost)
    assert table.add_column("c", "string", default="d") == 2
    assert len(table.config.schema.history.changes) == 1


REFUSED = {
    "a key column": (lambda table: table.drop_column("id"), "it is a column of the primary key"),
    "an unknown column": (lambda table: table.rename_column("w", "x"), "the table has no column 'w'"),
    "a name that is taken": (lambda table: table.rename_column("v", "n"), "the table has a column 'n'"),
    "a reserved name": (lambda table: table.add_column("_rowid", "int8"), "column '_rowid' is reserved"),
    "a narrower type": (lambda table: table.widen_column("n", "int16"), "column 'n' of type int32 can't become int16"),
    "another kind": (lambda table: table.widen_column("n", "double"), "column 'n' of type int32 can't become double"),
    "a type that no table has": (
        lambda table: table.add_column("x", pa.month_day_nano_interval()),
        "can't have column",
    ),
    "a default that does not fit": (
        lambda table: table.add_column("x", "int8", default=300),
        "the default 300 does not",
    ),
    "a column with an index": (lambda table: table.rename_column("n", "m"), "it has the index 'n_idx'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_change_that_is_not_possible_is_refused_with_a_remedy(tmp_path: Path, case: str) -> None:
    change, message = REFUSED[case]
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string()), pa.field("n", pa.int32())])
    table = create(tmp_path, columns)
    table.upsert([{"id": 1, "v": "a", "n": 1}])
    if case == "a column with an index":
        table.flush()
        table.merge(engine="inprocess")
        table.create_index("n", kind="BTREE")
    with pytest.raises(Invalid, match=message) as error:
        change(table)
    assert error.value.remedy
    assert table.config.schema_version == 1


def test_an_id_of_a_column_that_another_tool_dropped_is_not_used_again(tmp_path: Path) -> None:
    rows = pa.table({"a": [1], "b": [2], "c": [3]})
    lance.write_dataset(rows, tmp_path / "d").drop_columns(["c"])
    assert first_unused_id(open_base(uri=str(tmp_path / "d"))) == 3


def test_rows_of_an_older_generation_are_compared_with_their_sum_when_they_are_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lancelsm.common.setsum import Setsum

    table = create(tmp_path, settings={"max_generations": 1})
    for key in range(3):
        table.upsert([row(key)])
        table.flush()
    table.add_column("c", "string", default="d")
    with monkeypatch.context() as patch:
        patch.setattr("lancelsm.compaction.compact.own_row_setsum", lambda **_: Setsum.ZERO)
        with pytest.raises(Corrupt, match="differ from those that were flushed"):
            table.compact()
    assert len(table.compact()) == 1
    assert [found["c"] for found in rows_of(table)] == ["d"] * 3


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "schema.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(example, {})


def test_a_condition_may_name_a_column_that_an_open_object_does_not_know_yet(tmp_path: Path) -> None:
    table = create(tmp_path, [row(1), row(2)])
    held = [lancelsm.open(table.uri) for _ in range(3)]
    table.add_column("c", "int64", default=1)
    held[0].update(where="c = 1 AND id = 1", set={"c": "c + 1"})
    held[1].delete(where="c = 2")
    held[2].upsert([{"id": 2, "c": 5}], partial=True)
    assert rows_of(table) == [{**row(2), "c": 5}]
    with pytest.raises(Invalid, match="unknown"):
        held[0].update(where="unknown = 1", set={"c": "2"})


def test_a_change_waits_for_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(tmp_path, [row(1)])
    context = table._handle.context
    hasty = lancelsm.open(table.uri, settings={"retry_budget_seconds": 0.05})
    with lease(context, "base"), pytest.raises(Contended, match="another process holds the lease 'base'"):
        hasty.add_column("c", "string")
    assert table.config.schema_version == 1

    merging = lease(context, "base")
    merging.__enter__()
    with monkeypatch.context() as patch:
        patch.setattr(type(context.clock), "sleep", lambda *_: merging.__exit__(None, None, None))  # the merge ends
        assert table.add_column("c", "string") == 2


def test_an_error_of_the_caller_is_raised_if_the_columns_can_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path)
    monkeypatch.setattr("lancelsm.region.config.read", mock.Mock(side_effect=Unavailable("no answer")))
    with table.writer() as writer, pytest.raises(Invalid, match="no column 'c'"):
        writer.submit({**row(1), "c": 1})
    for call in (table.upsert, partial(table.upsert, partial=True)):
        with pytest.raises(Invalid, match="no column 'c'"):
            call([{**row(1), "c": 1}])
    with pytest.raises(Invalid, match="c"):
        table.update(where="c = 1", set={"v": "'x'"})


def test_a_column_gets_the_values_of_an_expression_in_rows_of_every_level(tmp_path: Path) -> None:
    table = create(tmp_path, pa.schema([("id", pa.int64()), ("price", pa.int32()), ("n", pa.int32())]))
    for level, key in zip(levels(table), (0, 10, 20), strict=False):
        table.upsert([{"id": key, "price": 1 << 30, "n": 4}, {"id": key + 1, "price": None, "n": 4}])
        assert level
    before = rows_of(table)

    with mock.patch.object(type(table), "update", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        table.add_column("total", "price * n")
    table.upsert([{"id": 99, "price": 1, "n": 1, "total": -1}])
    version = table.add_column("total", "price * n")

    assert (table.schema.field("total").type, table.config.schema_version) == (pa.int64(), version)
    computed = [one | {"total": None if one["price"] is None else one["price"] * one["n"]} for one in before]
    assert rows_of(table) == [*computed, {"id": 99, "price": 1, "n": 1, "total": -1}]
    table.upsert([{"id": 100, "price": 2, "n": 3}])
    assert rows_of(table)[-1]["total"] is None


@pytest.mark.parametrize(
    ("expression", "default", "problem"),
    [
        ("int63", None, "'int63' is neither a type of Arrow nor an SQL expression"),
        ("price * nothing", None, "nothing"),
        ("id + 1", 5, "and a default"),
        ("", None, "neither a type"),
        ("CASE WHEN id > 1 THEN 1 END", None, "neither a type"),
    ],
)
def test_an_expression_that_does_not_fit_is_refused_before_anything_changes(
    tmp_path: Path, expression: str, default: object, problem: str
) -> None:
    table = create(tmp_path, pa.schema([("id", pa.int64()), ("price", pa.int32())]))
    with pytest.raises(Invalid, match=problem):
        table.add_column("total", expression, default=default)
    table.apply_changes([], sequence_by="id")  # which refuses expressions, but names wrong text first
    with pytest.raises(Invalid, match=problem):
        table.add_column("total", expression, default=default)
    assert table.schema.names == ["id", "price"]
