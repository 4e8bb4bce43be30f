"""Tables by name, beside Lance's directory namespace and LanceDB; what their writes do to a table is reported."""

from __future__ import annotations

import io

import lance_namespace
import lancedb
import pyarrow as pa
import pytest
from lance_namespace.errors import TableNotFoundError

import lancelsm
from lancelsm.errors import Corrupt, Invalid
from lancelsm.read.problems import ProblemKind

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "state": ["new", "new"]})


@pytest.fixture
def root(tmp_path):
    return tmp_path / "lake"


@pytest.fixture
def namespace(root):
    namespace = lancelsm.connect(root)
    namespace.create("orders", ROWS, primary_key="id")
    return namespace


def directory_namespace(root):
    return lance_namespace.connect("dir", {"root": str(root)})


def stream(rows):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def test_a_table_has_one_name_in_lancelsm_lancedb_and_the_namespace_of_lance(namespace, root):
    namespace.create("2024.users-x", ROWS, primary_key="id")

    names = ["2024.users-x", "orders"]
    assert list(namespace) == names
    assert sorted(lancedb.connect(root).list_tables().tables) == names
    assert sorted(directory_namespace(root).list_tables(lance_namespace.ListTablesRequest(id=[])).tables) == names
    namespace["orders"].upsert([{"id": 3, "state": "paid"}])
    assert namespace["orders"].count() == 3
    assert lancelsm.open(root / "orders.lance").count() == 3


def test_only_tables_of_lancelsm_are_listed(namespace, root):
    lancedb.connect(root).create_table("plain", ROWS)
    (root / "empty.lance").mkdir()
    (root / "file.lance").touch()
    (root / "a b.lance").mkdir()
    lancelsm.create(root / "other", ROWS, primary_key="id")
    elsewhere = lancelsm.create(root.parent / "elsewhere", ROWS, primary_key="id")
    (root / "linked.lance").symlink_to(elsewhere.uri)

    assert list(namespace) == ["linked", "orders"]
    assert "orders" in namespace
    assert not {"plain", "empty", "file", "a b", "other", "", "..", 3}.intersection(
        name for name in ("plain", "empty", "file", "a b", "other", "", "..", 3) if name in namespace
    )


def test_a_root_that_does_not_exist_is_empty(tmp_path):
    assert list(lancelsm.connect(tmp_path / "nothing")) == []
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("name", ["", "a/b", "../orders", "a b", "orders\n", 7])
def test_a_wrong_name_is_invalid(namespace, name):
    with pytest.raises(Invalid, match="not the name of a table"):
        namespace[name]


def test_a_name_without_a_table_is_invalid(namespace):
    with pytest.raises(Invalid, match="no table at this location"):
        namespace["missing"]


def test_rows_that_the_namespace_inserts_are_reported(namespace, root):
    request = lance_namespace.InsertIntoTableRequest(id=["orders"], mode="append")
    directory_namespace(root).insert_into_table(request, stream(ROWS.slice(0, 1)))

    with pytest.warns(lancelsm.LsmWarning, match="another tool"):
        table = namespace["orders"]
    kinds = {problem.kind for problem in table.status().problems}
    assert kinds == {ProblemKind.COMMIT, ProblemKind.KEYS}


def test_a_table_that_the_namespace_overwrites_is_corrupt(namespace, root):
    request = lance_namespace.CreateTableRequest(id=["orders"], mode="overwrite")
    directory_namespace(root).create_table(request, stream(ROWS))

    with pytest.raises(Corrupt, match="another tool has overwritten it"):
        namespace["orders"]


def test_the_namespace_drops_no_table_that_it_did_not_create(namespace, root):
    with pytest.raises(TableNotFoundError):
        directory_namespace(root).drop_table(lance_namespace.DropTableRequest(id=["orders"]))

    assert namespace["orders"].count() == 2


def test_a_table_that_lancedb_drops_takes_no_rows(namespace, root):
    table = namespace["orders"]
    lancedb.connect(root).drop_table("orders")

    assert list(namespace) == []
    with pytest.raises(Invalid, match="no table at this location"):
        namespace["orders"]
    with pytest.raises(Invalid, match="the table was dropped"):
        table.upsert([{"id": 9, "state": "late"}])
