"""Read, write, stream and merge in a warm local session of Spark, beside what needs no data source.

At scale 1 it reads and writes 1,000,000 rows of five columns, and merges 20,000 rows into 1 and 10 million, and 500,000
rows into 10 million. The session and its Python workers have done the same with another table before.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lancelsm
from benchmarks import spark_frames, tables
from benchmarks.figures import Figure, seconds
from lancelsm.compaction.spark import Spark


def run(scale: float) -> Iterator[Figure]:
    from pyspark.sql import SparkSession

    Spark.local()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        yield from spark_frames.run(path, SparkSession.getActiveSession(), scale)
        tables.with_generations(path / "warm", base=2_000, count=200, generations=1).merge(engine="spark")
        for base, few in ((int(1_000_000 * scale), (20_000,)), (int(10_000_000 * scale), (20_000, 500_000))):
            table = tables.with_generations(path / "spark", base=base, count=1, generations=0)
            shutil.copytree(table.uri, path / "here")
            for number, full in enumerate(few):
                yield _merged(path, base, max(100, int(full * scale)), seed=number)
            shutil.rmtree(path / "here")
            shutil.rmtree(path / "spark")


def _merged(path: Path, base: int, count: int, *, seed: int) -> Figure:
    """Merge the same rows into both tables."""
    rows = tables.changes(base, count, seed=seed)
    took = []
    for name, engine in (("spark", "spark"), ("here", "inprocess")):
        table = lancelsm.open(path / name)
        table.upsert(rows)
        table.flush()
        took.append(seconds(lambda table=table, engine=engine: table.merge(engine=engine)))
    return Figure(
        what=f"merge of {count:,} rows into {base:,} on Spark",
        ours=took[0],
        unit="s",
        peer=took[1],
        peer_name="in process",
        limit=True,
        drawn=True,
    )
