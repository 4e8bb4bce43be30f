"""The documented cost at rest follows from the synthesized stacks: every resource has a pricing rule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from infra.machines import WORKFLOWS
from infra.network import INTERFACES
from lancelsm.stack.cost import at_rest, total
from lancelsm.stack.cost.at_rest import AT_REST, inventory
from lancelsm.stack.cost.per_row import MEMORY_MB, STEPS_OF_A_COLLECTION, STEPS_OF_A_MERGE
from tests.infra.conftest import GOVERNED, ROOT, Stacks


@pytest.fixture(params=["dev", "prod"])
def stage(request: pytest.FixtureRequest, all_stacks: Mapping[str, Stacks]) -> tuple[str, list[dict[str, Any]]]:
    """A stage and the templates of its stacks."""
    stacks = all_stacks[request.param]
    return request.param, [stacks.state, stacks.pipeline]


@pytest.mark.rest
def test_the_cost_of_a_stage_at_rest_follows_from_its_templates(stage: tuple[str, list[dict[str, Any]]]) -> None:
    name, templates = stage

    assert inventory(templates) == AT_REST[name]
    assert total(at_rest.bill_at_rest(AT_REST[name])) < 3


@pytest.mark.rest
def test_what_the_context_adds_has_a_price_that_the_page_names(governed: Stacks) -> None:
    found = inventory([governed.state, governed.pipeline])
    subnets = len(GOVERNED["subnets"].split(","))
    assert found.interfaces == len(INTERFACES) * subnets
    (endpoints,) = (one.usd for one in at_rest.bill_at_rest(found) if one.item == "VPC endpoints")
    page = (ROOT / "docs" / "operations" / "cost.md").read_text()
    bill = at_rest.bill_at_rest(found)
    runs = sum(one.usd for one in bill if one.item.startswith("scrub and backup"))
    (polling,) = (one.usd for one in bill if one.item == "queue polling")
    (counted,) = (one.usd for one in bill if one.item == "S3 request metrics")
    assert f"| `request_metrics` | ${counted:.2f}" in page
    assert (found.rounds, found.mappings) == (30 + 1 + 4, 4)
    assert (
        f"${polling / found.mappings:.2f} for the polling of one queue, ${runs / found.rounds:.4f} for each run" in page
    )
    each = f"${endpoints / found.interfaces:.2f} for each of {len(INTERFACES)} interface endpoints and each subnet"
    assert f"{each}: ${2 * len(INTERFACES) * endpoints / found.interfaces:.2f} with two subnets" in page


def test_durations_are_charged_for_the_deployed_memory(
    stage: tuple[str, list[dict[str, Any]]],
) -> None:
    name, templates = stage
    deployed = {
        resource["Properties"]["FunctionName"].removeprefix(f"lancelsm-{name}-"): resource["Properties"]
        for template in templates
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::Lambda::Function" and "FunctionName" in resource["Properties"]
    }

    assert {function: deployed[function]["MemorySize"] for function in MEMORY_MB} == MEMORY_MB
    assert {tuple(properties["Architectures"]) for properties in deployed.values()} == {("arm64",)}


@pytest.mark.parametrize(
    ("machine", "choices", "charged"),
    [
        (
            "merge",
            {"ChooseEngine": "MergeInLambda", "Optimized": "Record", "ShouldCollect": "Collect"},
            STEPS_OF_A_MERGE,
        ),
        (
            "collect",
            {"HasStartTime": "WaitForStartTime", "AnythingToCollect": "Verify", "AnyFailure": "Collected"},
            STEPS_OF_A_COLLECTION,
        ),
    ],
)
def test_the_charged_transitions_are_those_that_a_machine_makes(
    machine: str, choices: Mapping[str, str], charged: int
) -> None:
    definition = json.loads((WORKFLOWS / f"{machine}.asl.json").read_text())
    at, transitions = definition["StartAt"], 1
    while not (state := definition["States"][at]).get("End"):
        following = [state.get("Next"), state.get("Default"), *(one["Next"] for one in state.get("Choices", ()))]
        at, transitions = choices.get(at, state.get("Next")), transitions + 1
        assert at in following

    assert transitions == charged
