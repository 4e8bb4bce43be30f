"""The command `sql`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import lancelsm
from lancelsm.cli.sql import distinct
from lancelsm.table import Table
from tests.cli.console import Run, lines


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Two tables: users in `users.lance`, with a log, and orders in `orders`."""
    users = lancelsm.create(str(tmp_path / "users.lance"), [{"id": 1, "name": "ann"}], primary_key="id")
    users.upsert([{"id": 2, "name": "bob"}])
    orders = [{"id": key, "user": 1 + key % 2, "total": key * 1.5} for key in range(6)]
    lancelsm.create(str(tmp_path / "orders"), orders, primary_key="id")
    return tmp_path


JOIN = (
    "SELECT name, count(*) AS orders, sum(total) AS total FROM orders JOIN users ON users.id = orders.user "
    "GROUP BY name ORDER BY name"
)


@pytest.mark.rest
def test_a_query_joins_tables_by_name(lake: Path, run: Run) -> None:
    expected = [{"name": "ann", "orders": 3, "total": 9.0}, {"name": "bob", "orders": 3, "total": 13.5}]

    done = run("sql", JOIN, "--root", lake, "--output", "json")
    assert (done.code, done.err, done.rows) == (0, "", expected)
    assert (
        run("sql", JOIN, "--root", lake, "--output", "csv").out == '"name","orders","total"\n"ann",3,9\n"bob",3,13.5\n'
    )
    elsewhere = run("sql", JOIN, "--table", f"users={lake}/users.lance", "--table", f"orders={lake}/orders").out
    assert elsewhere == "name\torders\ttotal\nann\t3\t9.0\nbob\t3\t13.5\n"
    assert run("sql", "SELECT 1 AS one", "--root", lake, "--output", "json").rows == [{"one": 1}]
    assert run("sql", "SELECT id FROM orders WHERE id > 99", "--root", lake, "--output", "csv").out == '"id"\n'
    for name in ("users.lance", "orders"):
        assert lancelsm.open(lake / name).snapshots() == []


@pytest.mark.rest
def test_all_tables_of_a_query_are_held_before_a_row_is_read(
    lake: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = lancelsm.open(lake / "users.lance")
    scan = Table.scan

    def scan_and_write(self: Table, **arguments: object) -> lancelsm.Rows:
        number = len(reads) + 10
        reads.append(self.at_snapshot)
        writer.upsert([{"id": number, "name": "late"}])
        return scan(self, **arguments)  # type: ignore[arg-type]

    reads: list[str | None] = []
    monkeypatch.setattr(Table, "scan", scan_and_write)
    query = "SELECT (SELECT count(*) FROM users) AS a, (SELECT count(name) FROM users) AS b, count(*) AS c FROM orders"
    done = run("sql", query, "--root", lake, "--output", "json")

    assert done.rows == [{"a": 2, "b": 2, "c": 6}]
    assert len(reads) == 3
    assert None not in reads


def test_the_tables_of_the_root_are_listed(lake: Path, run: Run) -> None:
    query = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY table_name"
    done = run("sql", query, "--root", lake, "--table", f"o={lake}/orders", "--output", "csv")

    assert (done.out, done.err) == ('"table_name"\n"o"\n"users"\n', "")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM",
        "SELECT nothing FROM orders",
        "DROP TABLE orders",
        "INSERT INTO orders VALUES (1, 2, 3)",
        "CREATE TABLE copied AS SELECT * FROM orders",
        "COPY orders TO 'out.csv'",
        "SET datafusion.execution.batch_size = 1",
        "SELECT 1 / (id - id) FROM orders",
        "",
    ],
)
def test_a_wrong_query_is_invalid_and_writes_nothing(lake: Path, run: Run, query: str) -> None:
    done = run("sql", query, "--root", lake, "--output", "json")

    assert (done.code, done.document["error"]["kind"]) == (1, "Invalid")
    assert lancelsm.open(lake / "orders").count() == 6
    assert not Path("out.csv").exists()


def test_columns_of_one_name_are_numbered(lake: Path, run: Run) -> None:
    query = "SELECT users.id, orders.id, name FROM orders JOIN users ON users.id = orders.user ORDER BY 2 LIMIT 1"

    assert run("sql", query, "--root", lake, "--output", "json").rows == [{"id": 1, "id_2": 0, "name": "ann"}]
    assert distinct(["a", "a_2", "a", "a"]) == ["a", "a_2", "a_3", "a_4"]


def test_a_query_stays_below_the_root(lake: Path, run: Run) -> None:
    below = lake / "below"
    below.mkdir()
    done = run("sql", 'SELECT * FROM "../orders"', "--root", below)

    assert (done.code, "'../orders'" in done.err) == (1, True)


@pytest.mark.rest
def test_a_missing_table_is_named_with_the_options_to_find_it(lake: Path, run: Run) -> None:
    done = run("sql", "SELECT * FROM things", "--root", lake)

    assert done.code == 1
    assert "'things'" in done.err
    assert "--table things=URI" in done.err


def test_an_error_of_a_table_keeps_its_kind(lake: Path, run: Run) -> None:
    (region,) = lancelsm.open(lake / "users.lance").list_regions()
    next((lake / "users.lance" / "_mem_wal" / region.id / "wal").iterdir()).unlink()
    done = run("sql", "SELECT name FROM users", "--root", lake, "--output", "json")

    assert (done.code, done.document["error"]["kind"]) == (4, "Corrupt")


def test_the_extra_is_named_if_it_is_missing(lake: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datafusion", None)
    done = run("sql", "SELECT 1")

    assert done.code == 1
    assert "pip install 'lancelsm[sql]'" in done.err


def test_rows_of_a_query_are_rows_that_write_takes(lake: Path, run: Run) -> None:
    rows = run("sql", 'SELECT id + 100 AS id, "user", total FROM orders', "--root", lake, "--output", "json").rows

    assert run("write", lake / "orders", "-", stdin=lines(*rows)).code == 0
    assert lancelsm.open(lake / "orders").count() == 12
