"""The bill at rest is that of the synthesized stacks: each resource has a rule, and together they are what we say."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
import pytest

from infra.stacks import deployment
from lancelsm.cost import resting, total
from lancelsm.cost.resting import AT_REST, inventory
from lancelsm.cost.running import MEMORY_MB


@pytest.fixture(scope="module", params=["dev", "prod"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """A stage and the templates of its stacks; their layers are empty."""
    directory = tmp_path_factory.mktemp("stage")
    for layer in ("lean", "lance", "spark"):
        (directory / "layers" / "arm64" / layer).mkdir(parents=True)
        (directory / "layers" / "arm64" / layer / "any").write_text("")
    context = {"stage": request.param, "layers": str(directory / "layers")}
    app = cdk.App(outdir=str(directory / "out"), context=context)
    stacks = deployment(app)
    assembly = app.synth()
    return request.param, [assembly.get_stack_by_name(stack.stack_name).template for stack in stacks]


def test_what_a_stage_costs_at_rest_is_derived_from_its_templates(stage: tuple[str, list[dict[str, Any]]]) -> None:
    name, templates = stage

    assert inventory(templates) == AT_REST[name]
    assert total(resting.resting(AT_REST[name])) < 1.25


def test_durations_are_charged_for_the_memory_that_functions_have(stage: tuple[str, list[dict[str, Any]]]) -> None:
    name, templates = stage
    given = {
        resource["Properties"]["FunctionName"].removeprefix(f"lancelsm-{name}-"): resource["Properties"]
        for template in templates
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::Lambda::Function" and "FunctionName" in resource["Properties"]
    }

    assert {function: given[function]["MemorySize"] for function in MEMORY_MB} == MEMORY_MB
    assert {tuple(properties["Architectures"]) for properties in given.values()} == {("arm64",)}
