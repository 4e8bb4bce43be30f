"""cfn-lint finds nothing in the templates, with the settings that `make synth` uses. It sends no request."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.conftest import ROOT, Stacks


@pytest.mark.rest
def test_cfn_lint_finds_only_the_property_that_was_made_wrong(prod: Stacks, governed: Stacks, tmp_path: Path) -> None:
    wrong = json.loads(json.dumps(prod.state))
    table = prod.named("AWS::DynamoDB::Table", TableName="lancelsm-prod-registry")
    wrong["Resources"][table]["Properties"]["TabelName"] = "wrong"
    templates = {
        "prod-state": prod.state,
        "prod-pipeline": prod.pipeline,
        "governed-state": governed.state,
        "governed-pipeline": governed.pipeline,
        "wrong": wrong,
    }
    for name, template in templates.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(template))

    tool = Path(sys.executable).parent / "cfn-lint"
    command = [tool, "--format", "parseable", *sorted(tmp_path.glob("*.json"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    (finding,) = done.stdout.splitlines()
    assert finding.startswith(f"{tmp_path / 'wrong.json'}:")
    assert "TabelName" in finding
    assert done.stderr == ""
