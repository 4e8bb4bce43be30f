"""Commands of the AWS command line and calls of the client that pages show run on the deployed stacks."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.integration.deployment import ROOT, Deployment, until
from tests.snippets import SHELL, blocks, python, shell

HERE = "tests/integration/test_commands_of_pages.py"
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if HERE in page.read_text()]


@pytest.fixture
def tables(deployment: Deployment) -> dict[str, str]:
    """Create the tables that the pages name. Return their names in the registry."""
    orders = deployment.table("orders-of-pages", [{"id": n, "total": 1.0, "state": "paid"} for n in range(4)])
    vectors = pa.FixedSizeListArray.from_arrays(np.zeros(600, np.float32), 2)
    rows = pa.table({"id": range(300), "title": ["a merge tree"] * 300, "vector": vectors})
    docs = deployment.table("docs-of-pages", rows, indexes={"title": "INVERTED"})
    return {"orders": Path(orders.uri).name, "docs": Path(docs.uri).name}


def running(deployment: Deployment) -> set[str]:
    machines = deployment.client("stepfunctions")
    return {
        execution["executionArn"]
        for name in ("MergeMachine", "CollectMachine")
        for execution in machines.list_executions(
            stateMachineArn=deployment.output(name), statusFilter="RUNNING", maxResults=1000
        )["executions"]
    }


@pytest.mark.rest
def test_they_run(deployment: Deployment, tables: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "bin" / "aws"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.integration.aws_cli "$@"\n')
    program.chmod(0o755)
    waiting = running(deployment)  # collections of other tests wait for hours
    run = 0
    for page in PAGES:
        for block in blocks(page.read_text()):
            if not block.code or HERE not in block.reason:
                continue
            source = block.text
            for stage in ("dev", "prod", "STAGE"):
                source = source.replace(f"lancelsm-{stage}-", f"lancelsm-{deployment.stage}-")
                source = source.replace(f'stage="{stage}"', f'stage="{deployment.stage}"')
            source = source.replace(
                "BUCKET/tables/orders", f"{deployment.output('Bucket')}/tables/{tables['orders']}-new"
            )
            source = source.replace("dynamodb:lancelsm-local-registry", deployment.output("RegistryName"))
            for name, unique in tables.items():
                source = source.replace(f'"{name}"', f'"{unique}"')
            at = f"{page.name}:{block.line}"
            if block.language in SHELL:
                paths = f'export PATH="{program.parent}:$PATH" PYTHONPATH="$PYTHONPATH:{ROOT}"\n'
                assert shell(paths + source, at, tmp_path).strip()
            else:
                python(source, at, {})
            run += 1
    assert run

    # Executions that a page starts end before another test needs the machines
    until(lambda: running(deployment) - waiting, lambda started: not started)
