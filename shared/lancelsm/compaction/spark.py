"""Run the tasks of a merge on Spark 3.5 or 4, as plain functions over an RDD, without SQL and without shuffles.

The executors need this package and Lance. They open generations and the base by name and version. Processes that are
forked from the driver never open a Lance dataset.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lancelsm.common.extras import needing
from lancelsm.common.zip_importers import forget_zip_importers
from lancelsm.compaction.java import java_home
from lancelsm.compaction.runner import Item, Result
from lancelsm.errors import LsmError, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The session is short: the optimizing compiler and a parallel garbage collector cost more than they save.
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
}


class Spark:
    """The runner for tables that are too large for one machine."""

    def __init__(self, session: SparkSession) -> None:
        self._context = session.sparkContext

    @classmethod
    def local(cls) -> Spark:
        """Use the active session of this process, or start one on this machine with this interpreter.

        Raises:
            Invalid: pyspark or a suitable Java is missing.
        """
        with needing("pyspark", extra="spark"):
            from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is None:
            # Spark's launcher reads these from the environment only. Workers need the same Python to read the pickles.
            os.environ["JAVA_HOME"] = str(java_home())  # noqa: TID251
            os.environ["PYSPARK_PYTHON"] = sys.executable  # noqa: TID251
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # noqa: TID251
            builder = SparkSession.builder.master("local[*]").appName("lancelsm merge")
            for name, value in _LOCAL.items():
                builder = builder.config(name, value)
            with warnings.catch_warnings():
                # pylance warns about every fork; this one executes Java at once.
                warnings.filterwarnings("ignore", message="lance is not fork-safe")
                session = builder.getOrCreate()
        return cls(session)

    @property
    def parallelism(self) -> int:
        return int(self._context.defaultParallelism)

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        if not items:
            return []
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - Spark is an extra

        try:
            outcomes: list[Any] = (
                self._context.parallelize(items, len(items)).map(partial(_attempt, function)).collect()
            )
        except Py4JError as cause:
            raise Unavailable(f"Spark gave up on a task: {_reason(cause)}", remedy="Merge again") from cause
        for outcome in outcomes:
            if isinstance(outcome, LsmError):
                raise outcome
        return outcomes


def _attempt(function: Callable[[Item], Result], item: Item) -> Result | LsmError:
    """Run a task in an executor. Returns errors that a retry can't fix; raises others, so that Spark retries."""
    try:
        return function(item)
    except Unavailable:
        raise
    except LsmError as error:
        return error
    finally:
        forget_zip_importers()  # for the next task of this worker


def _reason(cause: Exception) -> str:
    """Return the error of lancelsm in the traceback of the worker, else the first line."""
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("lancelsm.errors.")]
    return [*errors, *lines, "no reason given"][0]
