"""What users of other tables expect of a table: counts, heads, order, frames, notebooks, pickles, and async writers."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm import testing
from lancelsm.common.layout import CONFIG
from lancelsm.errors import Invalid
from lancelsm.read.ordering import in_order, parse_order
from lancelsm.table import Table
from tests.simulation.faults import FakeClock

ROWS = [
    {"id": 1, "state": "new", "total": 2.5},
    {"id": 2, "state": "paid", "total": None},
    {"id": 3, "state": "new", "total": 9.0},
    {"id": 4, "state": "void", "total": 2.5},
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two rows in the base and two in the log."""
    made = lancelsm.create(str(tmp_path / "orders"), pa.Table.from_pylist(ROWS[:2]), primary_key="id")
    made.upsert(ROWS[2:])
    return made


def ids(rows: Any) -> list[int]:
    return list(rows.to_arrow()["id"].to_pylist())


@pytest.mark.rest
def test_a_table_has_the_reads_of_other_tables(table: Table) -> None:
    assert (table.count_rows(), table.count_rows("state = 'new'"), table.count_rows(where="id > 9")) == (4, 2, 0)
    assert [table.head(n).num_rows for n in (0, 3, 9)] == [0, 3, 4]
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == ROWS
    assert sum(batch.num_rows for batch in table.to_batches()) == 4
    assert sorted(table.to_pandas()["id"]) == [1, 2, 3, 4]
    assert sorted(table.to_polars()["id"]) == [1, 2, 3, 4]
    relation = table.to_duckdb()
    table.delete([4])
    assert relation.filter("state <> 'paid'").aggregate("sum(id)").fetchall() == [(4,)]  # as of the query
    assert table.scan(where="id < 3").to_duckdb().aggregate("count(*)").fetchall() == [(2,)]


@pytest.mark.parametrize(
    ("order_by", "expected"),
    [
        ("id", [1, 2, 3, 4]),
        ("id desc", [4, 3, 2, 1]),
        ("total, id DESC", [4, 1, 3, 2]),
        (["total desc", "id asc"], [3, 1, 4, 2]),
        (["state", "id"], [1, 3, 2, 4]),
    ],
)
@pytest.mark.parametrize("limit", [None, 0, 3, 9])
def test_a_scan_sorts_its_rows(table: Table, order_by: Any, expected: list[int], limit: int | None) -> None:
    assert ids(table.scan(order_by=order_by, limit=limit)) == expected[:limit]
    rows = table.scan(order_by=order_by, limit=limit, columns=["id"], where="id <> 3").to_arrow()
    assert rows.column_names == ["id"]
    assert rows["id"].to_pylist() == [one for one in expected if one != 3][:limit]


@pytest.mark.parametrize(
    ("order_by", "message"),
    [("totl", "Did you mean 'total'"), ("", "Columns are"), ([], "Name each column once"), ("id, id desc", "once")],
)
def test_a_wrong_order_is_invalid(table: Table, order_by: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message) as raised:
        table.scan(order_by=order_by)
    assert raised.value.where["table"] == table.uri


def test_a_column_whose_type_has_no_order_is_invalid() -> None:
    schema = pa.schema([("tags", pa.list_(pa.string())), ("a desc", pa.int64())])
    with pytest.raises(Invalid, match="can't be sorted by column 'tags'"):
        parse_order("tags", schema)
    assert parse_order("a desc", schema).keys == (("a desc", "ascending"),)


def test_nan_and_null_come_last_and_dictionaries_are_sorted_by_value() -> None:
    rows = pa.table(
        {
            "f": pa.array([float("nan"), 1.0, None, 2.0]),
            "kind.of": pa.array(["b", "a", None, "c"]).dictionary_encode(),
            "at": [0, 1, 2, 3],
        }
    )

    def order(text: str) -> list[int]:
        return list(
            in_order(rows.to_reader(), parse_order([text], rows.schema), limit=None).read_all()["at"].to_pylist()
        )

    assert (order("f"), order("f desc")) == ([1, 3, 0, 2], [3, 1, 0, 2])
    assert (order("kind.of"), order("kind.of desc")) == ([1, 0, 3, 2], [3, 0, 1, 2])


def test_a_limit_bounds_the_rows_in_memory() -> None:
    schema = pa.schema([("n", pa.int64())])
    alive: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        before = pa.total_allocated_bytes()
        for part in range(12):
            yield pa.record_batch([pa.array(range(part * 50_000, (part + 1) * 50_000), pa.int64())], schema=schema)
            alive.append(pa.total_allocated_bytes() - before)

    stream = pa.RecordBatchReader.from_batches(schema, batches())
    rows = in_order(stream, parse_order("n desc", schema), limit=2).read_all()

    assert rows["n"].to_pylist() == [599_999, 599_998]
    assert max(alive) < 8 * 50_000 * 8  # of 12 batches


@pytest.mark.parametrize(
    ("package", "method"), [("pandas", "to_pandas"), ("polars", "to_polars"), ("duckdb", "to_duckdb")]
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    table: Table, monkeypatch: pytest.MonkeyPatch, package: str, method: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    for owner in (table, table.scan()):
        with pytest.raises(Invalid, match=rf"{package} is not installed.*pip install 'lancelsm\[{package}\]'"):
            getattr(owner, f"to_{package}")()


@pytest.mark.parametrize(("regions", "size"), [(8, 8), (0, 4), (True, 4), (["id"], 4)])
def test_a_number_of_regions_is_answered_with_a_region_spec(tmp_path: Path, regions: Any, size: int) -> None:
    with pytest.raises(Invalid, match=rf'regions="bucket\(id, {size}\)"'):
        lancelsm.create(str(tmp_path / "t"), ROWS, primary_key=["id"], regions=regions)
    assert not (tmp_path / "t").exists()


def test_a_pickled_table_opens_the_same_table(table: Table) -> None:
    table.snapshot("monday")
    table.delete([1])
    opened = lancelsm.open(table.uri, settings={"flush_rows": 7}, owner="loader")

    copy = pickle.loads(pickle.dumps(opened))
    assert (copy.uri, copy.settings, copy.config) == (table.uri, opened.settings, table.config)
    assert ids(copy.scan(order_by="id")) == [2, 3, 4]
    copy.claim(copy.list_regions()[0], owner="other")
    with pytest.raises(lancelsm.Fenced):
        table.upsert(ROWS[0])
    assert ids(pickle.loads(pickle.dumps(table.at("monday"))).scan(order_by="id")) == [1, 2, 3, 4]
    assert pickle.loads(pickle.dumps(table.at(1))).at_version == 1


def test_a_notebook_shows_levels_and_lag(table: Table) -> None:
    table.snapshot("monday")
    shown = table._repr_html_()

    assert "2 rows to flush, 0 generations to merge" in shown
    assert shown.count("<tr>") == 2
    assert table.status()._repr_html_() in shown
    assert "rows to flush" not in table.at("monday")._repr_html_()

    lancelsm.drop(table.uri)
    assert "Invalid: " in table._repr_html_()


def test_a_writer_works_in_async_code(table: Table) -> None:
    async def write() -> int:
        async with table.writer() as writer:
            done = await asyncio.gather(*(writer.submit_async({**ROWS[0], "id": number}) for number in range(10, 20)))
        with pytest.raises(Invalid, match="closed"):
            writer.submit(ROWS[0])
        return sum(one.rows for one in done)

    assert asyncio.run(write()) == 10
    assert table.count_rows() == 14


def test_a_table_works_in_async_code(table: Table) -> None:
    async def use() -> list[Any]:
        async with await lancelsm.open_async(table.uri) as opened:
            await opened.upsert({**ROWS[0], "id": 9})
            await opened.delete([4])
            counts = await asyncio.gather(opened.count_rows("id > 2"), opened.count(where="id = 4"))
            batches = [batch async for batch in await opened.scan(columns=["id"], order_by="id desc", limit=3)]
            (row,) = (await opened.get([9])).to_pylist()
            rows = await (await opened.scan(where="id = 1")).to_arrow()
            return [*counts, [one for batch in batches for one in batch["id"].to_pylist()], row["id"], rows.num_rows]

    assert asyncio.run(use()) == [2, 0, [9, 3, 2], 9, 1]


def test_open_async_has_the_arguments_of_open() -> None:
    assert (
        inspect.signature(lancelsm.open_async).parameters.keys() == inspect.signature(lancelsm.open).parameters.keys()
    )


def test_the_event_loop_goes_on_while_a_call_runs(table: Table) -> None:
    ticks: list[int] = []

    async def tick() -> None:
        while True:
            ticks.append(1)
            await asyncio.sleep(0)

    async def use() -> int:
        ticking = asyncio.create_task(tick())
        counted = await lancelsm.AsyncTable(table).count()
        ticking.cancel()
        return counted

    assert asyncio.run(use()) == 4
    assert len(ticks) > 2  # of a call in the loop itself: 1


def test_a_version_that_is_open_in_async_code_is_released(table: Table) -> None:
    async def use() -> lancelsm.AsyncTable:
        async with await lancelsm.AsyncTable(table).at(1) as opened:
            assert await opened.count_rows() == 2
        return opened

    opened = asyncio.run(use())
    with pytest.raises(Invalid):
        opened.table.count()


def test_an_error_of_a_write_ends_the_async_context(table: Table) -> None:
    async def write() -> None:
        async with table.writer() as writer:
            table.seal(table.list_regions()[0])
            writer.submit({**ROWS[0], "total": 1.0})

    with pytest.raises(Invalid, match="sealed"):
        asyncio.run(write())


def test_a_clone_and_an_optimize_are_methods(table: Table, tmp_path: Path) -> None:
    table.snapshot("monday")
    done = table.clone("monday", tmp_path / "copy")

    assert ids(lancelsm.open(done.uri).scan(order_by="id")) == [1, 2, 3, 4]
    assert table.optimize().left is False


def test_a_table_or_its_location_is_copied_and_dropped(table: Table, tmp_path: Path) -> None:
    table.snapshot("monday")
    table.delete([1])
    for number, given in enumerate((table, table.uri, Path(table.uri))):
        clone = lancelsm.clone(given, "monday", tmp_path / f"clone-{number}")
        copies = (
            lancelsm.copy(given, tmp_path / f"copy-{number}"),
            lancelsm.copy(given, tmp_path / f"{number}", at="monday"),
        )
        assert [one.rows for one in (clone, *copies)] == [4, 3, 4]
        lancelsm.drop((lancelsm.open(clone.uri), clone.uri, Path(clone.uri))[number])
        with pytest.raises(Invalid, match="no table"):
            lancelsm.drop(clone.uri)

    held = table.at("monday")
    assert lancelsm.copy(held, tmp_path / "held").rows == 4
    for wrong in (lambda: lancelsm.copy(held, tmp_path / "both", at=1), lambda: lancelsm.drop(held)):
        with pytest.raises(Invalid, match="open at a snapshot"):
            wrong()
    with pytest.raises(TypeError, match="ports"):
        lancelsm.open(table.uri, ports=testing.Ports())  # type: ignore[call-arg]


def test_a_table_or_its_location_is_checked_and_backed_up(table: Table, tmp_path: Path) -> None:
    assert [one.name for one in lancelsm.doctor(table)] == [one.name for one in lancelsm.doctor(table.uri)]
    assert all(isinstance(one, lancelsm.Check) and one.ok for one in lancelsm.doctor(Path(table.uri)))
    wrong = lancelsm.doctor(tmp_path / "none")
    assert [(one.name, one.ok) for one in wrong] == [("configuration", False)]
    assert "Invalid: " in wrong[0].found

    for number, given in enumerate((table, table.uri, Path(table.uri))):
        assert lancelsm.backup(given, tmp_path / f"backup-{number}").rows == 4


def test_reports_and_snapshots_are_shown_in_a_notebook(table: Table) -> None:
    assert "<td>monday</td>" in table.snapshot("monday", ttl="never")._repr_html_()
    assert table.scrub()._repr_html_().endswith("0 problems, 0 orphans</p>")
    (region,) = table.list_regions()
    for entry in (Path(table.uri) / "_mem_wal" / region.id / "wal").iterdir():
        entry.unlink()
    assert f"<td>_mem_wal/{region.id}/wal/" in table.scrub()._repr_html_()


def test_a_table_that_does_not_open_is_scrubbed_by_its_location(table: Table) -> None:
    table.snapshot("monday")
    reports = [lancelsm.scrub(given) for given in (table, table.uri, table.at("monday"))]
    assert [one.ok for one in reports] == [True] * 3
    assert reports[0].checked == reports[1].checked == table.scrub().checked
    assert reports[2].checked == table.at("monday").scrub().checked

    (Path(table.uri) / CONFIG).write_bytes(b"{")
    with pytest.raises(lancelsm.Corrupt):
        lancelsm.open(table.uri)
    assert [one.path for one in lancelsm.scrub(table.uri).problems] == [CONFIG]


def test_rows_show_their_columns_in_a_notebook_and_stay_unread(table: Table) -> None:
    rows = table.scan(columns=["total", "id"], order_by="id")
    assert rows._repr_html_().index("<td>total</td><td>double</td>") < rows._repr_html_().index("<td>id</td>")
    assert ids(rows) == [1, 2, 3, 4]


def test_names_are_completed(table: Table) -> None:
    namespace = lancelsm.connect(Path(table.uri).parent)
    namespace.create("more", ROWS, primary_key="id")
    assert namespace._ipython_key_completions_() == ["more"]
    plain = {name for name in dir(lancelsm) if not name.startswith("__")}
    assert plain == {*lancelsm.__all__, "client", "errors", "spark", "testing"}
    assert {"upsert", "scan", "status"} <= {name for name in dir(table) if not name.startswith("_")}


def test_an_explanation_is_text_in_a_notebook(table: Table) -> None:
    shown = table.explain(where="id < 3")._repr_html_()
    assert (shown.startswith("<pre>"), shown.endswith("</pre>"), "<" in shown[5:-6]) == (True, True, False)


def test_a_test_opens_tables_on_its_own_ports(tmp_path: Path) -> None:
    clock = FakeClock()
    ports = testing.Ports(clock=clock)
    made = testing.create_on(ports, tmp_path / "t", ROWS, primary_key="id")
    opened = testing.open_on(ports, made.uri, settings={"flush_rows": 7})

    assert (made._handle.context.clock, opened._handle.context.clock) == (clock, clock)
    assert opened.settings.flush_rows == 7
    lancelsm.backup.on(ports)(opened, tmp_path / "backup")
    assert lancelsm.restore.on(ports)(tmp_path / "backup", tmp_path / "again").rows == 4
    assert lancelsm.open(made.uri)._handle.context.clock is not clock


def test_a_warning_names_the_line_that_opens_the_table(table: Table) -> None:
    import lance

    lance.dataset(table.uri).drop_columns(["total"])
    with pytest.warns(lancelsm.LsmWarning) as found:
        lancelsm.open(table.uri)
    assert [one.filename for one in found] == [__file__]


def test_a_wrong_argument_of_a_call_with_ports_names_itself(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="owner is 7"):
        lancelsm.open.on(testing.Ports())(tmp_path / "t", owner=7)
    with pytest.raises(TypeError, match="uri"):
        lancelsm.open()
