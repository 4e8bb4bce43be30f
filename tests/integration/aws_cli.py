"""The calls of the AWS command line that pages show: `python -m tests.integration.aws_cli SERVICE OPERATION --NAME V`.

The real program can't be a dependency: it binds one release of botocore. A parameter that the operation does not have
is an error here too.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
import jmespath
from botocore import xform_name


def main(arguments: Sequence[str]) -> None:
    service, operation, *rest = arguments
    files = [one for at, one in enumerate(rest) if not one.startswith("--") and not rest[at - 1].startswith("--")]
    given = {rest[at][2:]: rest[at + 1] for at in range(len(rest) - 1) if rest[at].startswith("--")}
    form, query = given.pop("output", "json"), given.pop("query", None)
    given.pop("cli-binary-format", None)
    client = boto3.client(service)
    model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation.replace("-", "_")])
    names = {xform_name(name, "-"): name for name in (model.input_shape.members if model.input_shape else ())}
    parameters = {names[name]: value(model.input_shape.members[names[name]], text) for name, text in given.items()}
    answer = getattr(client, operation.replace("-", "_"))(**parameters)
    answer.pop("ResponseMetadata")
    if "FunctionError" in answer:
        sys.exit(f"the function failed: {answer['Payload'].read().decode()}")
    for file in files:
        Path(file).write_bytes(answer.pop("Payload").read())
    found = answer if query is None else jmespath.search(query, answer)
    values = list(found.values()) if isinstance(found, dict) else found if isinstance(found, list) else [found]
    print(json.dumps(found, default=str) if form == "json" else "\t".join(map(str, values)))


def value(shape: Any, text: str) -> Any:
    if shape.type_name == "integer":
        return int(text)
    return base64.b64decode(text) if shape.type_name == "blob" and "raw-in-base64-out" not in sys.argv else text


if __name__ == "__main__":
    main(sys.argv[1:])
