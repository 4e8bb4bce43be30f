"""The smoke test of a deployment, against fake functions that work on a table in a directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lancelsm.common.clock import SeededIds
from lancelsm.common.layout import CONFIG
from lancelsm.demo.smoke import SMOKE, smoke_checks
from lancelsm.errors import Corrupt
from lancelsm.stack.doctor import Check, all_ok
from tests.cli.conftest import run  # noqa: F401 - a fixture
from tests.cli.console import Run
from tests.unit.test_demo_deployed import FakeStack, SkippingClock


def smoke(aws: FakeStack, *, seed: int = 1, at: float = 0.0) -> list[Check]:
    clock = SkippingClock()
    clock.seconds = at
    return list(smoke_checks("dev", resources=aws.place, service=aws.service, clock=clock, ids=SeededIds(seed)))


def tables(root: Path) -> list[Path]:
    return [path for path in (root / SMOKE).iterdir() if (path / CONFIG).exists()]


@pytest.mark.rest
def test_a_row_goes_through_the_deployment_and_the_table_is_dropped(tmp_path: Path) -> None:
    aws = FakeStack(tmp_path, reads=3)

    found = smoke(aws)

    assert [one.name for one in found] == [
        f"smoke: {step}" for step in ("create", "write", "read", "flush", "merge", "read again", "drop")
    ]
    assert all_ok(found), found
    (merge,) = [json.loads(one) for one in aws.requests]
    assert (merge["engine"], merge["collect"]) == ("inprocess", "off"), "a collection would find no table"
    assert tables(tmp_path) == []


@pytest.mark.rest
def test_the_first_step_that_fails_is_the_last_and_the_next_run_begins_with_a_new_table(tmp_path: Path) -> None:
    lost = smoke(FakeStack(tmp_path, losing="upsert"), at=1000)
    assert [one.ok for one in lost] == [True, True, False]
    assert "not visible" in lost[-1].found

    broken = FakeStack(tmp_path)
    broken.faults = [Corrupt("the layer is built for another architecture")]
    failed = smoke(broken, seed=2, at=4600)
    assert [one.name for one in failed if not one.ok] == ["smoke: flush"]
    assert "another architecture" in failed[-1].found
    assert len(tables(tmp_path)) == 1, "to look at"

    assert all_ok(smoke(FakeStack(tmp_path), seed=3, at=8199))
    assert len(tables(tmp_path)) == 1, "another run may use it"
    assert all_ok(smoke(FakeStack(tmp_path), seed=4, at=8200))
    assert tables(tmp_path) == []


def test_a_smoke_test_needs_a_deployment(run: Run) -> None:  # noqa: F811
    done = run("doctor", "table", "--smoke")
    assert done.code == 2
    assert "give --aws too" in done.err
