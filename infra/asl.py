"""Print the definitions of a stage's state machines as deployed: `python -m infra.asl STAGE`.

Names that are known only after the deployment are shown in angle brackets.
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
_NAMES = ("FunctionName", "RoleName", "Name")  # the property that a reference to a resource resolves to


def resolved(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of each state machine of a synthesized stack, by file name, with its tokens replaced."""
    machines = [resource["Properties"] for resource in resources.values() if resource["Type"] == _MACHINE]
    tokens_of = {
        machine["StateMachineName"].rpartition("-")[2]: machine["DefinitionSubstitutions"] for machine in machines
    }
    texts = {name: (WORKFLOWS / f"{name}.asl.json").read_text() for name in tokens_of}
    return {name: json.loads(_fill(texts[name], tokens, resources)) for name, tokens in tokens_of.items()}


def _fill(text: str, tokens: Mapping[str, Any], resources: Mapping[str, Any]) -> str:
    for token, value in tokens.items():
        text = text.replace(f"${{{token}}}", _resolve(value, resources))
    return text


def _resolve(value: Any, resources: Mapping[str, Any]) -> str:
    match value:
        case {"Fn::Join": [separator, parts]}:
            return str(separator).join(_resolve(part, resources) for part in parts)
        case {"Ref": name} if name in resources:
            properties = resources[name]["Properties"]
            return next((_resolve(properties[key], resources) for key in _NAMES if key in properties), f"<{name}>")
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{_resolve({'Ref': name}, resources)}.{attribute}>"
        case {"Fn::Sub": text}:
            return str(text).replace("${", "<").replace("}", ">")
        case _:
            return str(value)


def main(stage: str) -> None:
    flags = json.loads((ROOT / "cdk.json").read_text())["context"]
    app = cdk.App(context={**flags, "stage": stage, "emulator": stage == "local"})
    *_, pipeline = deployment(app)
    template = app.synth().get_stack_by_name(pipeline.stack_name).template
    print(json.dumps(resolved(template["Resources"]), indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
