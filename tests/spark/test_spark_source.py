"""The data source on real Spark: rows, schema and options, found without registration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.compaction.spark import Spark
from tests.unit.tables import NEWEST, three_levels

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.rest]
SHARED = str(Path(lancelsm.__file__).parents[1])


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """The Spark session of this process, whose workers import the lancelsm of this process."""
    from pyspark.sql import SparkSession

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([SHARED, *filter(None, [before])])
    spark = Spark.local()
    found = SparkSession.getActiveSession()
    assert found is not None
    yield found
    spark._context.stop()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def test_a_query_reads_each_level_once(tmp_path: Path, session: SparkSession) -> None:
    table = three_levels(tmp_path / "table")

    frame = session.read.format("lancelsm").load(table.uri)

    assert {row.id: row.v for row in frame.collect()} == NEWEST
    assert frame.count() == len(NEWEST)
    chosen = session.read.format("lancelsm").options(columns="v", where="id = 0").load(table.uri)
    assert [row.asDict() for row in chosen.collect()] == [{"v": 2}]


def test_values_of_types_that_spark_lacks_arrive(tmp_path: Path, session: SparkSession) -> None:
    kinds = {
        "id": pa.int64(),
        "u": pa.uint32(),
        "vec": pa.list_(pa.float32(), 2),
        "text": pa.large_string(),
        "at": pa.timestamp("ms"),
        "price": pa.decimal128(9, 2),
        "inner": pa.struct([pa.field("x", pa.uint32())]),
    }
    values = {"id": 1, "u": 2**32 - 1, "vec": [0.5, 1.5], "text": "é", "at": None, "price": None, "inner": {"x": 7}}
    fields = [pa.field(name, kind, nullable=name != "id") for name, kind in kinds.items()]
    table = lancelsm.create(tmp_path / "table", pa.schema(fields), primary_key="id")
    table.upsert([values])

    (row,) = session.read.format("lancelsm").load(table.uri).collect()

    assert row.asDict(recursive=True) == values


def test_an_overwrite_is_refused_with_the_recipe(tmp_path: Path, session: SparkSession) -> None:
    table = three_levels(tmp_path / "table")
    frame = session.createDataFrame([(1, 1)], "id long, v long")

    with pytest.raises(Exception, match=r"Delete rows with Table\.delete"):
        frame.write.format("lancelsm").mode("overwrite").save(table.uri)
