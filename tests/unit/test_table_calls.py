"""Calls of a table beside reads and writes: frames, pickles, notebooks, and whole tables by object or location."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm import testing
from lancelsm.common.layout import CONFIG
from lancelsm.errors import Invalid
from lancelsm.table import Table
from tests.simulation.faults import FakeClock
from tests.unit.tables import ORDERS, ids, orders


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return orders(tmp_path)


@pytest.mark.rest
def test_a_table_has_the_reads_of_other_tables(table: Table) -> None:
    assert (table.count_rows(), table.count_rows("state = 'new'"), table.count_rows(where="id > 9")) == (4, 2, 0)
    assert [table.head(n).num_rows for n in (0, 3, 9)] == [0, 3, 4]
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == ORDERS
    assert sum(batch.num_rows for batch in table.to_batches()) == 4
    assert sorted(table.to_pandas()["id"]) == [1, 2, 3, 4]
    assert sorted(table.to_polars()["id"]) == [1, 2, 3, 4]
    relation = table.to_duckdb()
    table.delete([4])
    assert relation.filter("state <> 'paid'").aggregate("sum(id)").fetchall() == [(4,)]  # as of the query
    assert table.scan(where="id < 3").to_duckdb().aggregate("count(*)").fetchall() == [(2,)]


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
        lancelsm.create(str(tmp_path / "t"), ORDERS, primary_key=["id"], regions=regions)
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
        table.upsert(ORDERS[0])
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
    namespace.create("more", ORDERS, primary_key="id")
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
    made = testing.create_on(ports, tmp_path / "t", ORDERS, primary_key="id")
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
