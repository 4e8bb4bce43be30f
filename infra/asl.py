"""Print the state machines of a stage as they are deployed: `python -m infra.asl STAGE`.

Names that only the account knows stand in angle brackets.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import aws_cdk as cdk

from infra.machines import WORKFLOWS
from infra.stacks import deployment
from infra.stage import ROOT

_MACHINE = "AWS::StepFunctions::StateMachine"
_NAMES = ("FunctionName", "RoleName", "Name")  # what a reference to a resource stands for


def resolved(resources: Mapping[str, Any]) -> dict[str, Any]:
    """The definition of each state machine of a synthesized stack, by the name of its file, tokens filled in."""
    machines = [one["Properties"] for one in resources.values() if one["Type"] == _MACHINE]
    named = {one["StateMachineName"].rpartition("-")[2]: one["DefinitionSubstitutions"] for one in machines}
    texts = {name: (WORKFLOWS / f"{name}.asl.json").read_text() for name in named}
    return {name: json.loads(_filled(texts[name], tokens, resources)) for name, tokens in named.items()}


def _filled(text: str, tokens: Mapping[str, Any], resources: Mapping[str, Any]) -> str:
    for token, value in tokens.items():
        text = text.replace(f"${{{token}}}", _written(value, resources))
    return text


def _written(value: Any, resources: Mapping[str, Any]) -> str:
    match value:
        case {"Fn::Join": [between, parts]}:
            return str(between).join(_written(part, resources) for part in parts)
        case {"Ref": name} if name in resources:
            given = resources[name]["Properties"]
            return next((_written(given[key], resources) for key in _NAMES if key in given), f"<{name}>")
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{_written({'Ref': name}, resources)}.{attribute}>"
        case {"Fn::Sub": text}:
            return str(text).replace("${", "<").replace("}", ">")
        case _:
            return str(value)


def main(stage: str) -> None:
    flags = json.loads((ROOT / "cdk.json").read_text())["context"]
    app = cdk.App(context={**flags, "stage": stage})
    *_, pipeline = deployment(app)
    template = app.synth().get_stack_by_name(pipeline.stack_name).template
    print(json.dumps(resolved(template["Resources"]), indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
