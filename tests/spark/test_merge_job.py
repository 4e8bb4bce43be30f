"""The merge job under spark-submit: in another process, with the package only on PYTHONPATH, and killed attempts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest

import lancelsm
from lancelsm.common.clock import SystemClock
from lancelsm.compaction.java import java_home
from lancelsm.compaction.spark import Spark
from lancelsm.errors import Invalid
from lancelsm.region.handle import Ports, open_table
from lancelsm.region.lease import LEASE_SECONDS
from lancelsm.stack.merge_job import JobArguments, merge_and_keep
from lancelsm.stack.merge_request import keep_request, plan_request, read_result
from lancelsm.table import Table
from tests.unit.tables import create, row, rows_of

pytestmark = pytest.mark.spark

ENTRY_POINT = Path(__file__).parents[2] / "layers" / "spark" / "merge.py"
PACKAGE = Path(lancelsm.__file__).parent
# The job takes a second, so the UI and the optimizing compiler would only cost time.
QUICK = ["--conf", "spark.ui.enabled=false", "--driver-java-options", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"]


class LaterClock(SystemClock):
    """A clock that is ahead, so that the lease of a killed process has expired."""

    def now(self) -> float:
        return super().now() + LEASE_SECONDS


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    """The Spark session of this process."""
    spark = Spark.local()
    yield
    spark._context.stop()


def planned_job(path: Path, *, table: Table) -> JobArguments:
    """Store a plan for the pending generations, and return the arguments of its job."""
    folder = path / "work" / "merge" / "run-1"
    plan = plan_request(open_table(table.uri), execution="run-1", engine="spark")
    keep_request(plan, str(folder / "plan.json"))
    return JobArguments(table=table.uri, plan=str(folder / "plan.json"), result=str(folder / "result.json"))


def pending(path: Path) -> Table:
    """A table with two generations to merge: key 0 replaced, key 1 deleted, key 9 new."""
    table = create(path, [row(key) for key in range(5)], settings={"optimize_small_fragments": 2})
    table.upsert([row(0, "b"), row(9, "b")])
    table.flush()
    table.delete([{"id": 1}])
    table.flush()
    return table


MERGED = [row(0, "b"), row(2), row(3), row(4), row(9, "b")]


def submit_job(job: JobArguments, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the job from an empty directory, with the package unpacked there as from an archive."""
    directory = tmp_path / "job"
    shutil.copytree(PACKAGE, directory / "deps" / "lancelsm", ignore=shutil.ignore_patterns("__pycache__"))
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    environment = os.environ | {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": "./deps",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    arguments = ["--table", job.table, "--plan", job.plan, "--result", job.result, "--step", job.step]
    return subprocess.run(
        [submit, "--master", "local[2]", *QUICK, ENTRY_POINT, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=directory,
        check=False,
    )


@pytest.mark.rest
def test_a_submitted_job_merges_and_stores_its_result(tmp_path: Path) -> None:
    table = pending(tmp_path)
    job = planned_job(tmp_path, table=table)

    done = submit_job(job, tmp_path)

    assert done.returncode == 0, done.stderr
    result = read_result(job.result)
    assert (result["rows_upserted"], result["rows_deleted"]) == (2, 1)
    assert [one["generation"] for one in result["merged"]] == [2]
    assert rows_of(table) == MERGED

    small = replace(job, step="optimize")
    done = submit_job(small, tmp_path / "optimize")

    assert done.returncode == 0, done.stderr
    assert len(table._handle.read_base().fragments) == 1
    assert rows_of(table) == MERGED


@pytest.mark.rest
def test_a_failed_job_reports_its_error_by_exit_code_log_and_file(tmp_path: Path) -> None:
    job = planned_job(tmp_path, table=pending(tmp_path))
    missing = JobArguments(table=str(tmp_path / "nothing"), plan=job.plan, result=job.result)

    done = submit_job(missing, tmp_path)

    document = json.loads(Path(job.result).with_name("error.json").read_text())
    assert done.returncode == Invalid.exit_code
    assert document["error"]["kind"] == "Invalid"
    assert json.dumps(document) in done.stdout + done.stderr
    assert not Path(job.result).exists()


KILLED = """\
import os, sys
from pathlib import Path
from lancelsm.dataset import base_rows
from lancelsm.stack.merge_job import main
from lancelsm.compaction.spark import Spark

commit = base_rows.commit

def killed(*args, **options):
    if sys.argv[1] == "after":
        commit(*args, **options)
    os._exit(9)

base_rows.commit = killed
Spark.local()
main(sys.argv[2:])
"""


@pytest.mark.rest
@pytest.mark.parametrize("moment", ["before", "after"])
def test_after_an_attempt_killed_at_its_commit_the_next_one_succeeds(
    tmp_path: Path, moment: str, session: None
) -> None:
    table = pending(tmp_path)
    job = planned_job(tmp_path, table=table)
    arguments = ["--table", job.table, "--plan", job.plan, "--result", job.result]

    killed = subprocess.run(
        [sys.executable, "-c", KILLED, moment, *arguments], capture_output=True, text=True, check=False
    )
    read_between = rows_of(table)
    merge_and_keep(job, open_table(job.table, ports=Ports(clock=LaterClock())))
    first = read_result(job.result)
    merge_and_keep(job, open_table(job.table, ports=Ports(clock=LaterClock())))

    assert killed.returncode == 9, killed.stderr
    assert read_between == rows_of(table) == MERGED
    assert read_result(job.result) == first
    assert first["rows_upserted"] == (2 if moment == "before" else 0)
    assert lancelsm.open(job.table).status().regions[0].merged_generation == 2
