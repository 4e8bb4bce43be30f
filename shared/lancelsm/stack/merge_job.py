"""The Spark job of a merge: what spark-submit runs for a table that doesn't fit one process.

It merges what is pending when it runs, on the session that spark-submit prepared, and leaves the document of the merge
where the plan's execution looks for it. Executors need this package and Lance: the archive of `layers/spark`.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from lancelsm.compaction.maintenance import merge_table
from lancelsm.errors import Invalid, LsmError
from lancelsm.objects import PreconditionFailed
from lancelsm.objects.open import open_store
from lancelsm.region.handle import TableHandle, canonical, open_table
from lancelsm.stack.merge_request import keep_result, read_request

ERROR = "error.json"  # beside the result

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The arguments of a job, each a URI."""

    table: str
    plan: str
    result: str


def main(argv: Sequence[str]) -> int:
    """Run the job that `--table URI --plan URI --result URI` ask for; returns the exit code.

    The result is written once, by whichever attempt merged. An error of `lancelsm.errors` is logged as its document,
    written beside the result as `error.json` (the last attempt's stands), and gives its kind's exit code.

    An attempt that is killed leaves the base readable, with all of the merge or nothing of it; the next one finds
    nothing to do, or does it. Until the lease of the killed one has run out, 60 s at most, it is `Contended`.
    """
    from pyspark.sql import SparkSession

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    asked = _asked(argv)
    session = SparkSession.builder.appName("lancelsm merge").getOrCreate()
    try:
        with_session(asked)
    except LsmError as error:
        document = json.dumps(error.document(), default=str)
        _log.error(document)
        with suppress(LsmError):  # what went wrong first is what is to be told
            _keep_error(asked.result, document.encode())
        return error.exit_code
    finally:
        session.stop()
    return 0


def with_session(asked: Asked, handle: TableHandle | None = None) -> None:
    """Merge on the Spark session of this process, and keep the result.

    Args:
        handle: the table, if it is open already.

    Raises:
        Invalid: the plan is not there, or is another table's.
        Contended, Ambiguous, Unavailable, Corrupt: as `compaction.maintenance.merge_table`.
    """
    planned = read_request(asked.plan).table
    if planned != canonical(asked.table):
        raise Invalid(
            f"the plan is for another table, {planned}",
            remedy="Start the merge of this table again",
            table=asked.table,
            object=asked.plan,
        )
    merged = merge_table(handle or open_table(asked.table), engine="spark")
    _log.info(json.dumps(keep_result(merged, asked.result)))


def _keep_error(result: str, document: bytes) -> None:
    """One try: the log has it too."""
    place = open_store(result.rpartition("/")[0])
    if isinstance(place.create(ERROR, document), PreconditionFailed) and (found := place.get(ERROR)) is not None:
        place.replace(ERROR, document, expect=found.etag)


def _asked(argv: Sequence[str]) -> Asked:
    parser = argparse.ArgumentParser(description="Merge the pending generations of a table on Spark.")
    parser.add_argument("--table", required=True, help="its URI")
    parser.add_argument("--plan", required=True, help="URI of the plan that the execution wrote")
    parser.add_argument("--result", required=True, help="URI at which the document of the merge is kept")
    return Asked(**vars(parser.parse_args(argv)))
