"""A table with a real base for collections: its creation, its recovery, and a scenario of an overtaken merge."""

from __future__ import annotations

from pathlib import Path

import lance

from lancelsm.dataset.cleanup import named_files, stored_versions
from lancelsm.gc.collect import Collected
from lancelsm.region.lease import LEASE_SECONDS
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.table_environment import TableEnvironment, lease
from tests.simulation.table_log import keys

LEFT, RIGHT = keys(0)[:8], keys(1)[:8]


def merged_table(path: Path) -> TableEnvironment:
    """Create a table with two regions that were merged twice. Only older versions name some files of the base.

    The base also has an orphan file.
    """
    environment = TableEnvironment(path)
    with environment:
        environment.create("maker", loaded=LEFT[:3])
        for number in range(2):
            environment.write("maker", upsert=[LEFT[number], *LEFT[3:5], RIGHT[number]])
            environment.flush("maker")
            environment.merge("maker")
        environment.write("maker", delete=[LEFT[0]])
        environment.write("maker", upsert=[LEFT[2], RIGHT[5]])
        environment.flush("maker")
        environment.write("maker", upsert=[RIGHT[6]])
    (path / "data" / "0000.lance").write_bytes(b"a merge that crashed")
    return environment


def collect(environment: TableEnvironment, process: str) -> Collected:
    with environment.at(process):
        return environment.table(process).collect(yes=True, interval_seconds=0)


def recover(environment: TableEnvironment, process: str) -> None:
    """Read, flush, merge and collect in a fresh process. Then versions name every file of the base."""
    environment.plan.stop()
    for _ in range(2):
        environment.schedule.clock.advance(LEASE_SECONDS + 1)
        with environment.at(process):
            table = environment.table(process)
            assert environment.read(table) == environment.truth
            environment.flush(process, table)
            environment.merge(process, table)
            assert environment.read(table) == environment.truth
            collect(environment, process)
            assert environment.read(table) == environment.truth
        environment.plan.land()
    uri = str(environment.path)
    named = {name for one in stored_versions(uri=uri) for name in named_files(uri=uri, version=one.version)}
    stored = {str(path.relative_to(environment.path)) for path in environment.path.glob("data/*")}
    assert stored <= named
    for version in stored_versions(uri=uri):
        lance.dataset(uri, version=version.version).to_table()


def overtaken_merge(at: str, path: Path) -> None:
    """Another merge and a collection come before a call of a merge, which then plans again.

    See slatedb 604: the collector deleted objects that a running merge was reading.
    """
    with merged_table(path / "table") as environment, lease(held=False):
        seen = []

        def overtakes(call: Call) -> None:
            if call.process == "slow" and call.method == at and not seen:
                seen.append(call)
                with environment.at("fast"):
                    environment.merge("fast")
                collect(environment, "collector")

        environment.plan = FaultPlan(overtakes)
        with environment.at("slow"):
            environment.merge("slow")
        assert seen
        recover(environment, "next")
