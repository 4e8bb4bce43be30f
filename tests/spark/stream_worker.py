"""Write a stream of JSON files to a table until all files are written, or until the driver kills itself.

Arguments: the location of the table, a directory with files, one for a checkpoint, the batch to die in, and when:
`amid` when the first region has an entry of the batch, `after` when all have and before Spark records it; or `never`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import lancelsm
from lancelsm.compaction.spark import Spark
from lancelsm.region.catalog import regions
from lancelsm.spark import stream_write, write_frame

ROWS_PER_ENTRY = 5


def die() -> None:
    os.killpg(0, signal.SIGKILL)


def watch(handle: Any, producer: str, batch: int) -> None:
    while True:
        if any(one.head().applied(producer) >> 32 > batch for one in regions(handle.context)):
            die()
        time.sleep(0.001)


def main(uri: str, files: str, checkpoint: str, batch: str, when: str) -> None:
    from pyspark.sql import SparkSession

    Spark.local()
    session = SparkSession.getActiveSession()
    assert session is not None
    session.conf.set("spark.sql.shuffle.partitions", "4")
    real = stream_write.write_as

    def write_as(df: Any, handle: Any, **options: Any) -> Any:
        if options["batch"] != int(batch):
            return real(df, handle, **options)
        if when == "amid":
            threading.Thread(target=watch, args=(handle, options["producer"], int(batch)), daemon=True).start()
        written = real(df, handle, **options)
        if when == "after":
            die()
        return written

    stream_write.write_as = write_as  # type: ignore[assignment]
    write_frame.rows_per_entry = lambda schema: ROWS_PER_ENTRY  # type: ignore[attr-defined]
    frame = session.readStream.schema("id long, v string").option("maxFilesPerTrigger", 1).json(files)
    query = lancelsm.spark.write_stream(frame, uri).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()


if __name__ == "__main__":
    os.setpgid(0, 0)
    main(*sys.argv[1:])
