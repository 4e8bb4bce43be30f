"""The two pipelines for a user's own deployments: build, check, deploy and smoke dev, wait, then prod."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.conftest import ROOT
from tests.infra.test_pipeline import FUNCTIONS

SMOKE = "lancelsm doctor --aws --smoke --stage {}"
CONNECTION = "arn:aws:codeconnections:us-east-1:111111111111:connection/1"


@pytest.fixture(scope="module")
def workflow() -> Any:
    return yaml.safe_load((ROOT / ".github" / "workflows" / "deploy.yml").read_text())


def commands(job: Any, name: str) -> list[str]:
    return [step["run"].replace("${{ github.job }}", name) for step in job["steps"] if "run" in step]


def test_the_workflow_builds_and_checks_then_deploys_dev_then_prod_after_approval(workflow: Any) -> None:
    jobs = workflow["jobs"]

    assert commands(jobs["build"], "build")[:3] == ["make build", "make synth STAGE=dev", "make synth STAGE=prod"]
    assert {name: job.get("needs") for name, job in jobs.items()} == {"build": None, "dev": "build", "prod": "dev"}
    for name in ("dev", "prod"):
        assert jobs[name]["environment"] == name, "its reviewers approve"
        assert jobs[name]["permissions"] == {"contents": "read", "id-token": "write"}
        assert commands(jobs[name], name)[-1] == f"make deploy STAGE={name} APPROVAL=never"


def test_each_command_of_the_workflow_is_a_target_and_a_deployment_ends_with_a_smoke_test(workflow: Any) -> None:
    made = [line for name, job in workflow["jobs"].items() for line in commands(job, name) if line.startswith("make ")]
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {line.split()[1] for line in made} <= targets

    for line in (one for one in made if " deploy " in one):
        done = subprocess.run([*line.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
        stage = line.partition("STAGE=")[2].split()[0]
        deploy, *after = done.stdout[done.stdout.index("cdk --no-notices deploy") :].splitlines()
        assert "--require-approval never" in deploy
        assert SMOKE.format(stage) in after[0]


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory, layers: Path) -> Any:
    import aws_cdk as cdk

    from examples.cdk_pipeline import DeployPipeline

    context = {**json.loads((ROOT / "cdk.json").read_text())["context"], "layers": str(layers)}
    given = {"connection": CONNECTION, "repository": "me/tables"}
    app = cdk.App(context={**context, **given}, outdir=str(tmp_path_factory.mktemp("pipeline") / "out"))
    DeployPipeline(app)
    return app.synth()


@pytest.mark.rest
def test_the_cdk_pipeline_deploys_dev_smokes_it_and_waits_for_approval_of_prod(assembly: Any) -> None:
    (pipeline,) = (
        one["Properties"]
        for one in assembly.get_stack_by_name("lancelsm-deploy").template["Resources"].values()
        if one["Type"] == "AWS::CodePipeline::Pipeline"
    )
    stages = {
        stage["Name"]: [one["Name"] for one in sorted(stage["Actions"], key=lambda one: one["RunOrder"])]
        for stage in pipeline["Stages"]
    }

    def deploying(stage: str) -> list[str]:
        stacks = [f"lancelsm-{stage}-{name}" for name in ("state", "pipeline")]
        return [f"{stack}.{step}" for stack in stacks for step in ("Prepare", "Deploy")]

    assert list(stages) == ["Source", "Build", "UpdatePipeline", "Assets", "dev", "prod"]
    assert stages["dev"] == [*deploying("dev"), "Smoke-dev"]
    assert stages["prod"] == ["Approve", *deploying("prod"), "Smoke-prod"]


@pytest.mark.rest
def test_the_cdk_pipeline_builds_what_it_deploys_and_smokes_as_a_deployment_does(assembly: Any) -> None:
    resources = assembly.get_stack_by_name("lancelsm-deploy").template["Resources"].values()
    builds = [one["Properties"]["Source"]["BuildSpec"] for one in resources if one["Type"] == "AWS::CodeBuild::Project"]
    text = "\n".join(json.dumps(one) for one in builds)
    checks = [text.index(f"make synth STAGE={stage}") for stage in ("dev", "prod")]
    assert text.index("make build") < min(checks) <= max(checks) < text.index("cdk synth"), (
        "cdk-nag checks each synthesis"
    )
    assert all(SMOKE.format(stage) in text for stage in ("dev", "prod"))


@pytest.mark.rest
def test_both_stages_of_the_cdk_pipeline_have_the_names_that_the_client_and_the_doctor_use(assembly: Any) -> None:
    for stage in ("dev", "prod"):
        nested = assembly.get_nested_assembly(f"assembly-lancelsm-deploy-{stage}")
        template = nested.get_stack_by_name(f"lancelsm-{stage}-pipeline").template
        functions = [
            one["Properties"] for one in template["Resources"].values() if one["Type"] == "AWS::Lambda::Function"
        ]
        assert {f"lancelsm-{stage}-{name}" for name in FUNCTIONS} <= {one["FunctionName"] for one in functions}
