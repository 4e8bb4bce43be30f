"""The bill at rest is that of the synthesized stacks: each resource has a rule, and together they are what we say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lancelsm.cost import resting, total
from lancelsm.cost.resting import AT_REST, inventory
from lancelsm.cost.running import MEMORY_MB
from tests.infra.conftest import Stacks


@pytest.fixture(params=["dev", "prod"])
def stage(request: pytest.FixtureRequest, all_stacks: Mapping[str, Stacks]) -> tuple[str, list[dict[str, Any]]]:
    """A stage and the templates of its stacks."""
    stacks = all_stacks[request.param]
    return request.param, [stacks.state, stacks.pipeline]


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
