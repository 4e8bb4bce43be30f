"""Every function has versions and an alias `live`, and every caller names the alias."""

from __future__ import annotations

import json
from typing import Any

from tests.infra.conftest import Stacks


def _aliases(stacks: Stacks) -> dict[str, Any]:
    return stacks.of("AWS::Lambda::Alias")


def test_the_alias_of_each_function_names_the_deployed_version_and_older_versions_stay(stacks: Stacks) -> None:
    versions = stacks.of("AWS::Lambda::Version")
    functions = stacks.of("AWS::Lambda::Function")

    assert {one["FunctionName"]["Ref"] for one in _aliases(stacks).values()} == set(functions)
    for alias in _aliases(stacks).values():
        version = alias["FunctionVersion"]["Fn::GetAtt"][0]
        assert alias["Name"] == "live"
        assert versions[version]["FunctionName"] == alias["FunctionName"]
        assert stacks.pipeline["Resources"][version]["DeletionPolicy"] == "Retain"


def _names_alias(stacks: Stacks, value: Any) -> bool:
    return any(f'"{alias}"' in json.dumps(value) for alias in _aliases(stacks))


def test_queues_schedules_and_event_settings_name_the_alias(stacks: Stacks) -> None:
    mappings = [one["FunctionName"] for one in stacks.of("AWS::Lambda::EventSourceMapping").values()]
    targets = [one["Target"]["Arn"] for one in stacks.of("AWS::Scheduler::Schedule").values()]
    kept = [one["Qualifier"] for one in stacks.of("AWS::Lambda::EventInvokeConfig").values()]

    assert (len(mappings), len(targets), len(kept)) == (2, 1, 2)
    assert all(_names_alias(stacks, one) for one in (*mappings, *targets, *kept))


def test_the_url_of_a_function_invokes_the_alias(chosen: Stacks) -> None:
    assert chosen.one("AWS::Lambda::Url")["Qualifier"] == "live"


def test_state_machines_dispatch_and_outputs_name_the_alias(stacks: Stacks) -> None:
    functions = {one["FunctionName"] for one in stacks.of("AWS::Lambda::Function").values()}
    tokens = [one["DefinitionSubstitutions"] for one in stacks.of("AWS::StepFunctions::StateMachine").values()]
    invoked = {str(one[name]) for one in tokens for name in ("Merger", "Collector", "Sweeper") if name in one}
    outputs = {name: one["Value"] for name, one in stacks.pipeline["Outputs"].items() if name.endswith("Function")}

    assert invoked >= {f"lancelsm-{stacks.stage}-{name}:live" for name in ("merger", "gc", "gc_sweep")}
    assert len(invoked) == 4, "the collect machine too"
    variables = stacks.functions()["dispatch"]["Environment"]["Variables"]
    assert variables["LANCELSM_COMPACTION"] == f"lancelsm-{stacks.stage}-compaction:live"
    assert set(outputs.values()) == {f"{name}:live" for name in functions}


def test_roles_may_invoke_aliases_only(stacks: Stacks) -> None:
    statements = [
        statement
        for policy in stacks.of("AWS::IAM::Policy").values()
        for statement in policy["PolicyDocument"]["Statement"]
        if "lambda:InvokeFunction" in statement["Action"]
    ]
    resources = [one["Resource"] if isinstance(one["Resource"], list) else [one["Resource"]] for one in statements]

    assert len(resources) == 4
    for resource in (one for each in resources for one in each):
        assert resource.get("Ref") in _aliases(stacks) or json.dumps(resource).endswith(':live"]]}')
