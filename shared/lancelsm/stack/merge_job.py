"""The Spark job of a merge, run by spark-submit for tables that don't fit one process.

The job merges what is pending when it runs, on the session that spark-submit prepared, and writes the document of the
merge to the URI of the result. Executors need this package and Lance: the archive of `layers/spark`.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from lancelsm.compaction.maintenance import merge_table, optimize_table
from lancelsm.errors import Invalid, LsmError
from lancelsm.objects import PreconditionFailed
from lancelsm.objects.open import open_store
from lancelsm.region.handle import TableHandle, canonical, open_table
from lancelsm.stack import documents
from lancelsm.stack.merge_request import ERROR, keep_result, read_request

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArguments:
    """The arguments of a job: URIs, and the step that it runs."""

    table: str
    plan: str
    result: str
    step: str = "merge"


def main(argv: Sequence[str]) -> int:
    """Run the job with the arguments `--table URI --plan URI --result URI`, and perhaps `--step optimize`.

    Return the exit code.

    The attempt that merges writes the result once. An error of `lancelsm.errors` is logged as its document, written
    beside the result as `error.json` (the last attempt's is kept), and determines the exit code by its kind.

    After an attempt is killed, the base has all of the merge or nothing of it. The next attempt finds nothing to do, or
    merges. It gets `Contended` while the killed attempt's lease lasts, at most 60 s.
    """
    from pyspark.sql import SparkSession

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    arguments = _parse_arguments(argv)
    session = SparkSession.builder.appName("lancelsm merge").getOrCreate()
    try:
        if arguments.step == "optimize":
            optimize(arguments.table)
        else:
            merge_and_keep(arguments)
    except LsmError as error:
        document = json.dumps(error.document(), default=str)
        _log.error(document)
        with suppress(LsmError):  # the first error is the one to report
            _keep_error(arguments.result, document.encode())
        return error.exit_code
    finally:
        session.stop()
    return 0


def merge_and_keep(arguments: JobArguments, handle: TableHandle | None = None) -> None:
    """Merge on the Spark session of this process, and write the result.

    Args:
        handle: the table, if it is already open.

    Raises:
        Invalid: the plan does not exist or belongs to another table.
        Contended, Ambiguous, Unavailable, Corrupt: the same errors as `compaction.maintenance.merge_table`.
    """
    planned = read_request(arguments.plan).table
    if planned != canonical(arguments.table):
        raise Invalid(
            f"the plan is for another table, {planned}",
            remedy="Start the merge of this table again",
            table=arguments.table,
            object=arguments.plan,
        )
    merged = merge_table(handle or open_table(arguments.table), engine="spark")
    _log.info(json.dumps(keep_result(merged, arguments.result)))


def optimize(table: str) -> None:
    """Optimize a table to the end, in the driver. What is committed stays if the job is killed.

    Raises: the same errors as `compaction.maintenance.optimize_table`.
    """
    _log.info(json.dumps(documents.optimized(optimize_table(open_table(table)))))


def _keep_error(result: str, document: bytes) -> None:
    """Write the error beside the result, with one attempt: the log has it too."""
    store = open_store(result.rpartition("/")[0])
    if isinstance(store.create(ERROR, document), PreconditionFailed) and (found := store.get(ERROR)) is not None:
        store.replace(ERROR, document, expect=found.etag)


def _parse_arguments(argv: Sequence[str]) -> JobArguments:
    parser = argparse.ArgumentParser(description="Merge the pending generations of a table on Spark.")
    parser.add_argument("--table", required=True, help="URI of the table")
    parser.add_argument("--plan", required=True, help="URI of the plan that the execution wrote")
    parser.add_argument("--result", required=True, help="URI to which the document of the merge is written")
    parser.add_argument("--step", choices=("merge", "optimize"), default="merge")
    return JobArguments(**vars(parser.parse_args(argv)))
